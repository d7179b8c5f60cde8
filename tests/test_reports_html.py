"""The HTML report as a browser reads it: well formed, whole by itself, harmless, and with the answer first."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from report_runs import make_config, make_group, make_passport, make_run

from mcit.reports.charts import break_name, draw_curves, draw_matrix, make_curve
from mcit.reports.figures import FigureFile
from mcit.reports.formats import Table
from mcit.reports.html import make_page, read_number, write_html
from mcit.reports.runs import Group, group_runs, read_foreign

ROOT = Path(__file__).parent.parent
VOID = {"meta", "input", "wbr", "br", "link", "img"}
HOSTILE = """</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>&amp;$style"""
ROWS = [[80.0], [60.0, 90.0], [70.0, 80.0, 75.0], [65.0, 70.0, 70.0, 85.0]]
TABLE = Table(
    "comparison",
    "Methods",
    ["method", "score"],
    [["chance", "25.0"], ["ewc", "9.5 ± 1.3 (4.1)"], ["mas", "80.2 ± 1.3 (–)"], ["lwf", ""]],
    ["first note", "second", "third"],
    frozenset({(2, 1)}),
)


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Page(HTMLParser):
    """All elements of a page in order; what is opened must be closed, in order."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {[element.tag for element in self.open]}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>: {names}"
        element = Element(tag, dict(attrs), self.open[-1] if self.open else None)
        if self.open:
            self.open[-1].children.append(element)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> closed by </{tag}>"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.texts.append(data)

    def find(self, tag: str, kind: str | None = None) -> list[Element]:
        """The elements of a tag; only those of a class, if it is given."""
        found = [element for element in self.elements if element.tag == tag]
        return [
            e for e in found if kind is None or kind in (e.attributes.get("class") or "").split()
        ]


def make_figure(folder: Path, title: str = "A figure", name: str = "figure") -> FigureFile:
    paths = [folder / f"{name}.{ending}" for ending in ("svg", "png", "pdf")]
    inside = '<defs><path id="m" d="M 0 0 L 9 9"/></defs><use href="#m"/>'
    paths[0].write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="90pt" height="90pt">{inside}</svg>'
    )
    return FigureFile(name, title, "What it shows.", *paths)


def make_text(groups, tables=(TABLE,), figures=(), warnings=(), command="mcit report runs") -> str:
    return make_page(groups, tables, figures, warnings, command)


@pytest.fixture
def groups() -> list[Group]:
    return [make_group("finetune", [ROWS]), make_group("ewc", [ROWS, ROWS])]


@pytest.fixture
def hostile(tmp_path) -> str:
    """A page in which everything that a run can name is an attack."""
    tasks = [f"{number}{HOSTILE}" for number in range(4)]
    config = {**make_config(HOSTILE, tasks), HOSTILE: HOSTILE}
    passport = make_passport(tasks, command=["mcit", HOSTILE], platform=HOSTILE)
    about = {
        "tasks": tasks,
        "config": config,
        "passport": passport,
        "estimator": HOSTILE,
        "diagnoses": [HOSTILE] * 4,
    }
    table = Table(
        HOSTILE, HOSTILE, [HOSTILE] * 2, [[HOSTILE] * 2], [HOSTILE] * 3, frozenset({(0, 1)})
    )
    figure = make_figure(tmp_path, HOSTILE)
    group = Group(HOSTILE, (make_run(HOSTILE, ROWS, **about),))
    return make_text([group], [table], [figure], [HOSTILE], HOSTILE)


# --- the file


def test_a_page_is_well_formed_and_its_ids_are_unique(groups, tmp_path):
    figures = [make_figure(tmp_path, name=name) for name in ("one", "two")]
    page = Page(make_text(groups, figures=figures, warnings=["seeds differ"]))
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert len(page.find("svg")) >= 2
    assert {"html", "head", "body", "main", "h1"} <= {element.tag for element in page.elements}


def test_a_page_refers_to_nothing_outside_itself(groups, tmp_path):
    text = make_text(groups, figures=[make_figure(tmp_path)])
    for element in Page(text).elements:
        assert element.tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "srcset", "poster"):
            assert (element.attributes.get(name) or "#").startswith("#"), (
                element.tag,
                element.attributes,
            )
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_the_policy_admits_the_one_script_of_the_page_and_no_network(groups):
    page = Page(make_text(groups))
    (script,) = page.find("script")
    (policy,) = [e.attributes["content"] for e in page.find("meta") if "http-equiv" in e.attributes]
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy
    assert "http" not in policy


def test_the_policy_comes_before_what_it_is_to_govern(groups):
    text = make_text(groups)
    assert text.index("Content-Security-Policy") < min(
        text.index("<style>"), text.index("<script>")
    )


def test_names_that_are_scripts_stay_text(hostile):
    page = Page(hostile)
    assert len(page.find("script")) == 1
    assert not page.find("img")
    assert "alert(1)" not in page.find("script")[0].text
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on") or name == "src"]
    assert hostile.count("</script>") == 1
    shown = page.find("main")[0].text
    assert shown.count("<script>alert(1)</script>") > 30  # they are all there, to be read
    assert "$style" in shown


def test_the_file_is_replaced_as_a_whole(groups, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(path, groups, [TABLE], [], [], "mcit report")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_cannot_be_encoded_does_not_stop_the_report(tmp_path):
    group = Group("half \ud800", (make_run("half \ud800", ROWS),))
    write_html(tmp_path / "report.html", [group], [], [], [], "mcit report")
    assert "half &#55296;" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_twenty_runs_over_ten_tasks_stay_far_below_a_megabyte():
    tasks = [f"cifar100[{10 * t}-{10 * t + 9}]" for t in range(10)]
    rows = [[90.0 - t + j for j in range(t + 1)] for t in range(10)]
    groups = [
        make_group(f"method{n}", [rows] * 4, tasks=tasks, chance=[10.0] * 10) for n in range(5)
    ]
    assert len(make_text(groups).encode()) < 500_000


def test_the_files_of_the_page_ship_with_the_package():
    packaged = (
        (ROOT / "pyproject.toml")
        .read_text(encoding="utf-8")
        .partition("package-data]")[2]
        .splitlines()[1]
    )
    patterns = re.findall(r'"([^"]+)"', packaged.partition("=")[2])
    for name in ("page.html", "page.css", "page.js"):
        assert (ROOT / "mcit" / "reports" / name).is_file()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name


# --- what it shows


def test_the_answer_comes_first_and_warnings_beside_it(groups):
    page = Page(
        make_text(groups, warnings=["note: threads differ", "recipe.epochs differs: 3 (a); 1 (b)"])
    )
    (headline,) = page.find("h1")
    assert "cannot be told apart" in headline.text  # the same scores
    order = [
        element
        for element in page.elements
        if element in (headline, *page.find("aside"), *page.find("details"))
    ]
    assert [element.tag for element in order[:2]] == ["h1", "aside"]
    assert [item.text for item in page.find("li")] == [
        "recipe.epochs differs: 3 (a); 1 (b)",
        "note: threads differ",
    ]


def test_without_warnings_there_is_no_box(groups):
    assert not Page(make_text(groups)).find("aside")


def test_only_the_comparison_is_unfolded_and_of_one_run_its_scores_too(groups):
    several = [
        e for e in Page(make_text(groups)).find("details", "section") if "open" in e.attributes
    ]
    assert [element.children[0].children[0].text for element in several] == ["Comparison"]
    alone = [
        e for e in Page(make_text(groups[:1])).find("details", "section") if "open" in e.attributes
    ]
    assert [element.children[0].children[0].text for element in alone] == ["Scores", "Runs"]


def test_a_run_shows_estimator_stiffness_configuration_passport_and_command():
    passport = make_passport(
        command=["mcit", "run", "--set", "a=b c"], config={"only": "nowhere else"}
    )
    shown = (
        Page(make_text([Group("ewc", (make_run("ewc", ROWS, passport=passport),))]))
        .find("main")[0]
        .text
    )
    for words in (
        "ewc, as estimated",
        "Stiffness after vqa",
        "mean stiffness 0.4",
        "mcit run --set 'a=b c'",
    ):
        assert words in shown
    assert "clip_norm: 1.0" in shown
    assert '"torch": "2.13.0"' in shown
    assert "nowhere else" not in shown  # the passport's own copy of the configuration


def test_the_command_of_the_report_is_on_it(groups):
    commands = [
        element.text
        for element in Page(make_text(groups, command="mcit report a b")).find("pre", "command")
    ]
    assert commands[-1] == "mcit report a b"


def test_tables_of_one_method_each_are_kept_apart_where_there_are_several(groups):
    own = Table("matrix-ewc", "ewc, mean over 2 seeds", ["after", "a"], [["a", "1.0"]])
    sections = Page(make_text(groups, [TABLE, own])).find("details", "section")
    titles = [
        element.children[0].children[0].text for element in sections if own.title in element.text
    ]
    assert titles == ["Method by method"]


def test_a_figure_has_its_title_and_caption(groups, tmp_path):
    page = Page(make_text(groups, figures=[make_figure(tmp_path)]))
    (figure,) = page.find("figure", "block")
    assert figure.text.strip() == "A figure. What it shows."


def test_an_unfinished_run_a_single_task_and_a_foreign_matrix_have_pages_too(tmp_path):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    runs = [make_run("ewc", ROWS[:2]), read_foreign(tmp_path / "lwf.csv")]
    runs.append(make_run("mas", [[50.0]], tasks=("a",), chance=(0.0,)))
    page = Page(make_text(group_runs(runs)))
    assert len(page.find("table", "matrix")) == 3
    assert [len(page.find(tag)) for tag in ("h1", "tfoot")] == [
        1,
        2,
    ]  # no chance levels are made up


# --- tables


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("80.2 ± 1.3 (4.1)", 80.2),
        ("31.60 (47.32)", 31.6),
        ("-2.5", -2.5),
        ("−2.5", -2.5),
        ("+1.00", 1.0),
        ("1,234,567", 1234567.0),
        ("2.4e-05", 2.4e-5),
        ("12 %", 12.0),
        ("", None),
        ("–", None),
        ("ewc@300", None),
        ("3rd", None),
        ("10.0.1", None),
    ],
)
def test_a_cell_sorts_by_the_number_it_begins_with(cell, number):
    assert read_number(cell) == number


def test_cells_carry_what_they_sort_by_and_the_best_is_marked(groups):
    (table,) = Page(make_text(groups)).find("table", "sortable")
    bodies = [child for child in table.children if child.tag == "tbody"]
    assert [row.children[0].text for row in bodies[0].children] == [
        "chance"
    ]  # it stays on top, however one sorts
    cells = [row.children[1] for row in bodies[1].children]
    assert [cell.attributes.get("data-value") for cell in cells] == ["9.5", "80.2", None]
    assert [cell.attributes.get("class") for cell in cells] == [None, "best", None]


def test_given_values_are_sorted_by_rather_than_the_text(groups):
    table = Table(
        "t",
        "t",
        ["method", "time"],
        [["a", "2 min"], ["b", "90 s"]],
        values=[[None, 120.0], [None, 90.0]],
    )
    (shown,) = Page(make_text(groups, [table])).find("table", "sortable")
    keys = [row.children[1].attributes["data-value"] for row in shown.children[1].children]
    assert keys == ["120", "90"]


# --- charts


def test_a_matrix_is_coloured_by_score_and_by_what_is_left_above_chance():
    run = make_run(
        "ewc", [[80.0], [60.0, 90.0], [88.0, 60.0, 20.0]], tasks="abc", chance=(0.0, 50.0, 25.0)
    )
    cells = [
        (cell.text, cell.attributes.get("style"), cell.attributes.get("data-lost"))
        for cell in Page(draw_matrix(run)).find("td")
        if cell.attributes.get("style")
    ]
    assert cells == [
        ("80.0", "--score:0.800;--kept:1.000", "0.0"),
        ("60.0", "--score:0.600;--kept:0.750", "25.0"),
        ("90.0", "--score:0.900;--kept:1.000", "0.0"),
        ("88.0", "--score:0.880;--kept:1.000", "-10.0"),  # more than was learned is still all of it
        ("60.0", "--score:0.600;--kept:0.250", "75.0"),
        ("20.0", "--score:0.200", None),  # never above chance: there is nothing to be left
    ]


def test_a_matrix_of_classes_is_coloured_by_what_is_left_of_all():
    tasks = ("x[0-1]", "x[2-3]")
    run = make_run("ewc", [[80.0], [20.0, 0.0]], tasks=tasks, chance=(50.0, 25.0), track="efcil")
    page = Page(draw_matrix(run))
    cells = [
        (cell.text, cell.attributes.get("data-lost"))
        for cell in page.find("td")
        if cell.attributes.get("style")
    ]
    assert cells == [("80.0", "0.0"), ("20.0", "75.0"), ("0.0", None)]
    assert page.find("table")[0].attributes["data-floor"] == "zero"


def test_a_curve_is_the_mean_and_deviation_over_seeds():
    group = make_group(
        "ewc", [[[80.0], [60.0, 90.0]], [[82.0], [70.0, 90.0]]], tasks=("a", "b"), chance=(0.0, 0.0)
    )
    curve = make_curve(group)
    assert curve.means == (81.0, 77.5)
    assert curve.spreads == pytest.approx((2**0.5, 12.5**0.5))
    (tip,) = [
        e.attributes["title"]
        for e in Page(draw_curves([curve], ("a", "b"), "Average")).find("i", "dot")
    ][1:]
    assert tip == "ewc after b: 77.50 ± 3.54 % (2 seeds)"


@pytest.mark.parametrize(
    ("track", "what"), [("mcit", "Average over the tasks seen"), ("efcil", "over all classes seen")]
)
def test_the_curves_say_what_they_average_over(track, what):
    (caption,) = Page(make_text([make_group("ewc", [ROWS], track=track)])).find("figcaption")
    assert what in caption.text


def test_a_name_may_be_broken_between_its_parts_only():
    assert break_name("cifar100[0-9]") == "cifar100<wbr><span>[0-9]</span>"
    assert break_name("a_<b@3") == "a_<wbr>&lt;b<wbr>@3"
    assert break_name("[x]_") == "<span>[x]_</span>"


def test_names_at_the_ends_of_curves_do_not_touch():
    groups = [
        make_group(f"method{number}", [ROWS]) for number in range(18)
    ]  # they all end at the same score
    page = Page(draw_curves([make_curve(group) for group in groups], "abcd", "Average"))
    styles = [element.attributes["style"] for element in page.find("span", "name")]
    heights = sorted(float(re.search(r"bottom:([-\d.]+)px", style)[1]) for style in styles)
    plot = float(
        re.search(r"--height:(\d+)px", page.find("figure", "chart")[0].attributes["style"])[1]
    )
    assert all(upper - lower >= 15.9 for lower, upper in pairwise(heights))
    assert heights[0] >= 0
    assert heights[-1] <= plot


def test_every_point_of_a_curve_lies_inside_the_plot():
    rows = [[100.0], [0.0, 0.0]]
    page = Page(
        draw_curves(
            [make_curve(make_group("ewc", [rows], tasks="ab", chance=(0.0, 0.0)))], "ab", "Average"
        )
    )
    for dot in page.find("i", "dot"):
        assert all(
            0 <= float(value) <= 100 for value in re.findall(r"([-\d.]+)%", dot.attributes["style"])
        )

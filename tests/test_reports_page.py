"""The HTML report as a browser reads it: well formed, complete, harmless, the answer first."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import make_config, make_groups, make_run

from mcit.reports.caveats import Caveat, Severity
from mcit.reports.figures.style import FigureFile
from mcit.reports.formats import Cell, Column, Note, Row, Table, TableKind
from mcit.reports.groups import Group, group_runs
from mcit.reports.page import Report, make_page
from mcit.reports.runs import read_runs

ROOT = Path(__file__).parent.parent
VOID = {"meta", "input", "br", "link", "img"}
HOSTILE = """</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>&amp;$style"""
ROWS = [[80.0], [60.0, 90.0], [70.0, 80.0, 75.0], [65.0, 70.0, 70.0, 85.0]]
TABLE = Table(
    TableKind.COMPARISON,
    "comparison",
    "Methods",
    [Column("method"), Column("score", ".1f")],
    [
        Row("chance", [Cell(25.0)], reference=True),
        Row("ewc", [Cell(9.5, 1.3, 4.1)]),
        Row("mas", [Cell(80.2, 1.3, math.nan, best=True)]),
        Row("lwf", [None]),
        Row("si", [Cell(math.nan)]),
    ],
    [Note("first note"), Note("second"), Note("third")],
)
NOTE = Caveat("threads differ", Severity.NOTE)
WARNING = Caveat("recipe.epochs differs: 3 (a); 1 (b)")


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str | None]
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
        element = Element(tag, dict(attrs))
        if self.open:
            self.open[-1].children.append(element)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> closed by </{tag}>"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.texts.append(data)

    def find(self, tag: str, kind: str | None = None) -> list[Element]:
        """Return the elements of a tag; only those of a class, if it is given."""
        found = [element for element in self.elements if element.tag == tag]
        return [e for e in found if kind is None or e.attributes.get("class") == kind]

    def sections(self) -> dict[str, Element]:
        """Return the parts of the page that fold, by their titles."""
        (main,) = self.find("main")
        found = [element for element in main.children if element.tag == "details"]
        return {element.children[0].text: element for element in found}


def make_figure(folder: Path, title: str = "A figure", opens: str = "") -> FigureFile:
    paths = [folder / f"figure.{ending}" for ending in ("svg", "png", "pdf")]
    paths[0].write_text('<svg xmlns="http://www.w3.org/2000/svg" width="90pt" height="90pt"/>')
    return FigureFile("figure", title, "What it shows.", opens, *paths)


def make_text(groups, tables=(TABLE,), figures=(), caveats=(), command="mcit report runs") -> str:
    return make_page(Report(groups, tables, figures, caveats, command, Path()))


@pytest.fixture
def groups() -> list[Group]:
    return make_groups("finetune", "ewc", matrices=[ROWS, ROWS])


@pytest.fixture
def hostile(tmp_path) -> str:
    """Return a page in which everything that a run can name is an attack."""
    tasks = [f"{number}{HOSTILE}" for number in range(4)]
    run = make_run(
        HOSTILE,
        ROWS,
        config=make_config(HOSTILE, tasks, options={HOSTILE: HOSTILE}),
        provenance={"command": ["mcit", HOSTILE], "platform": HOSTILE},
        tasks=tasks,
        estimator=HOSTILE,
        diagnoses=[HOSTILE] * 4,
    )
    columns = [Column(HOSTILE), Column(HOSTILE, context=HOSTILE)]
    rows = [Row(HOSTILE, [HOSTILE])]
    table = Table(TableKind.MATRIX, HOSTILE, HOSTILE, columns, rows, [Note(HOSTILE)] * 3)
    figure = make_figure(tmp_path, HOSTILE)
    return make_text(group_runs([run]), [table], [figure], [Caveat(HOSTILE)], HOSTILE)


# --- the file


def test_a_page_is_well_formed(groups, tmp_path):
    page = Page(make_text(groups, figures=[make_figure(tmp_path)], caveats=[WARNING]))
    assert {"html", "head", "body", "main", "h1", "img"} <= {each.tag for each in page.elements}


def test_a_page_refers_to_nothing_outside_itself(groups, tmp_path):
    text = make_text(groups, figures=[make_figure(tmp_path)])
    for element in Page(text).elements:
        assert element.tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "srcset", "poster"):
            value = element.attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/svg+xml;base64,")), (element.tag, value)
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_a_figure_is_an_image_which_can_neither_run_nor_fetch_anything(groups, tmp_path):
    page = Page(make_text(groups, figures=[make_figure(tmp_path)]))
    assert not page.find("svg")
    (image,) = page.find("img")
    data = base64.b64decode(image.attributes["src"].partition(",")[2])
    assert data == (tmp_path / "figure.svg").read_bytes()
    assert image.attributes["alt"] == "A figure"


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
    policy = text.index("Content-Security-Policy")
    assert policy < min(text.index("<style>"), text.index("<script>"))


def test_names_that_are_scripts_stay_text(hostile):
    page = Page(hostile)
    assert len(page.find("script")) == 1
    assert len(page.find("img")) == 1
    assert "alert(1)" not in page.find("script")[0].text
    for element in page.elements:
        assert not [name for name in element.attributes if name.startswith("on")]
    assert hostile.count("</script>") == 1
    shown = page.find("main")[0].text
    # they are all there, to be read
    assert shown.count("<script>alert(1)</script>") > 30
    assert "$style" in shown


def test_twenty_runs_over_ten_tasks_stay_far_below_a_megabyte():
    tasks = [f"cifar100[{10 * t}-{10 * t + 9}]" for t in range(10)]
    rows = [[90.0 - t + j for j in range(t + 1)] for t in range(10)]
    names = [f"method{n}" for n in range(5)]
    groups = make_groups(*names, matrices=[rows] * 4, tasks=tasks, chance=[10.0] * 10)
    assert len(make_text(groups).encode()) < 500_000


def test_the_files_of_the_page_ship_with_the_package():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packaged = project.partition("package-data]")[2].splitlines()[1]
    patterns = re.findall(r'"([^"]+)"', packaged.partition("=")[2])
    for name in ("page.html", "page.css", "page.js", "paper_tables.json"):
        assert (ROOT / "mcit" / "reports" / name).is_file()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name


# --- what it shows


def test_the_answer_comes_first_and_caveats_next_to_it(groups):
    page = Page(make_text(groups, caveats=[WARNING, NOTE]))
    (headline,) = page.find("h1")
    # the same scores
    assert "too close to call" in headline.text
    shown = [e for e in page.elements if e.tag in ("h1", "aside", "details")]
    assert [element.tag for element in shown[:2]] == ["h1", "aside"]
    items = [(item.text, item.attributes["class"]) for item in page.find("li")]
    assert items == [(WARNING.text, "warning"), (NOTE.text, "note")]


def test_the_figure_that_opens_a_setting_stands_next_to_its_answer(groups, tmp_path):
    setting = groups[0].setting.name
    figures = [make_figure(tmp_path, "First", setting), make_figure(tmp_path, "Second")]
    page = Page(make_text(groups, figures=figures))
    (answer,) = page.find("section", "answer")
    assert "First" in answer.text
    assert "First" not in page.sections()["Figures"].text
    assert "Second" in page.sections()["Figures"].text


def test_without_caveats_there_is_no_box(groups):
    assert not Page(make_text(groups)).find("aside")


def test_only_the_tables_are_unfolded(groups):
    sections = Page(make_text(groups)).sections()
    assert [name for name, each in sections.items() if "open" in each.attributes] == ["Tables"]


def test_a_run_shows_estimator_stiffness_configuration_provenance_and_command():
    provenance = {
        "command": ["mcit", "run", "--set", "a=b c"],
        "config": {"only": "nowhere else"},
    }
    runs = group_runs([make_run("ewc", ROWS, provenance=provenance)])
    shown = Page(make_text(runs)).sections()["Runs"].text
    for words in (
        "ewc, as estimated",
        "after vqa: mean stiffness 0.4",
        "mcit run --set 'a=b c'",
        "clip_norm: 1.0",
        '"torch": "2.13.0"',
    ):
        assert words in shown
    # the provenance's own copy of the configuration
    assert "nowhere else" not in shown


def test_the_command_of_the_report_is_on_it(groups):
    page = Page(make_text(groups, command="mcit report a b"))
    assert page.sections()["How this report was made"].text.endswith("mcit report a b")


def test_tables_of_one_method_each_are_kept_apart_if_there_are_several(groups):
    columns = [Column("after"), Column("a")]
    own = Table(TableKind.MATRIX, "m", "ewc alone", columns, [Row("a", [Cell(1.0)])])
    sections = Page(make_text(groups, [TABLE, own])).sections()
    assert "ewc alone" in sections["Method by method"].text
    assert "ewc alone" not in sections["Tables"].text
    assert "ewc alone" in Page(make_text(groups[:1], [own])).sections()["Tables"].text


def test_a_figure_has_its_title_and_caption(groups, tmp_path):
    (figure,) = Page(make_text(groups, figures=[make_figure(tmp_path)])).find("figure")
    assert figure.text.strip() == "A figure. What it shows."


def test_an_unfinished_run_a_single_task_and_an_external_matrix_have_pages_too(tmp_path):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    runs = [make_run("ewc", ROWS[:2]), *read_runs([tmp_path / "lwf.csv"])]
    runs.append(make_run("mas", [[50.0]], tasks=("a",), chance=(0.0,)))
    page = Page(make_text(group_runs(runs)))
    headlines = [headline.text for headline in page.find("h1")]
    assert len(headlines) == 3
    assert headlines[0] == "No run is finished yet."


def test_every_run_is_listed_once_however_many_classifiers_scored_it():
    scores = {"matrix": ROWS, "seen": [sum(row) / len(row) for row in ROWS], "metrics": {}}
    groups = group_runs([make_run("ewc", ROWS, classifiers={"lda": scores})])
    runs = Page(make_text(groups)).sections()["Runs"]
    assert [each.children[0].text for each in runs.children[1].children] == ["ewc-seed1"]


# --- tables


def test_cells_carry_what_they_sort_by_and_the_best_is_marked(groups):
    (table,) = Page(make_text(groups)).find("table", "sortable")
    references, results = (child for child in table.children if child.tag == "tbody")
    # it stays on top, however one sorts
    assert [row.children[0].text for row in references.children] == ["chance"]
    cells = [row.children[1] for row in results.children]
    assert [cell.attributes.get("data-value") for cell in cells] == ["9.5", "80.2", None, None]
    assert [cell.attributes.get("class") for cell in cells] == [None, "best", None, None]
    assert [cell.text for cell in cells] == ["9.5 ± 1.3 (4.1)", "80.2 ± 1.3 (–)", "", "–"]


def test_the_title_names_the_methods(groups):
    assert Page(make_text(groups)).find("title")[0].text == "finetune · ewc"

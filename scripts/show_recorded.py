"""Write recorded results into the pages that show them: tables, a run as it is printed, figures.

    python scripts/show_recorded.py

A page says what it shows by a pair of comments, and what stands between them is written anew:

    <!-- recorded: TABLE SETTING -->        the methods side by side, from mcit/reproduce/TABLE.json
    <!-- recorded: TABLE SETTING METHOD SEED -->                    one run, as `mcit run` prints it
    <!-- recorded: TABLE SETTING METHOD SEED short -->              its scores, without the frame
    <!-- end of recorded -->
    <!-- study: PLAN NAME -->               a table of a study: best, best-pairs, levels or leads
    <!-- end of study -->

Scores are recorded by `mcit reproduce TABLE --run --record`, those of a study by `mcit study PLAN
--run`.
"""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import tempfile
from pathlib import Path

import _checkout  # noqa: F401 - finds mcit in this checkout
from rich.console import Console

from mcit.reports.figures import write_figures
from mcit.reports.formats import format_markdown_table, print_tables
from mcit.reports.tables import tabulate_group
from mcit.reproduce.expected import read_expected
from mcit.reproduce.recorded import compare_recorded, read_groups
from mcit.studies.figure import write_figure
from mcit.studies.plan import read_plan
from mcit.studies.records import read_records
from mcit.studies.tables import Study, make_tables

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/first-run.md", "docs/results.md", "docs/results-text.md")
BLOCK = re.compile(r"(<!-- recorded: (.+?) -->\n).*?(<!-- end of recorded -->)", re.DOTALL)
STUDY_BLOCK = re.compile(r"(<!-- study: (.+?) -->\n).*?(<!-- end of study -->)", re.DOTALL)
# how a printed line of scores begins
SCORES = "┃│A"
# which figure of which results, by the name of its file
FIGURES = {"embedded-average": ("embedded", "vision-language", "average")}
# studies whose curves are drawn, by the name of the file
STUDY_FIGURES = {"study-text": "study-text"}


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(page)
    for name, (table, setting, figure) in FIGURES.items():
        path = ROOT / "docs" / "figures" / f"{name}.png"
        draw(table, setting, figure, path)
        print(path.relative_to(ROOT))
    for name, plan in STUDY_FIGURES.items():
        path = ROOT / "docs" / "figures" / f"{name}.png"
        draw_study(plan, path)
        print(path.relative_to(ROOT))


def fill(text: str) -> str:
    """Return a page with what its comments ask for between them."""
    text = BLOCK.sub(lambda found: f"{found[1]}\n{show(*found[2].split())}\n{found[3]}", text)
    return STUDY_BLOCK.sub(
        lambda found: f"{found[1]}\n{show_study(*found[2].split())}\n{found[3]}", text
    )


def show(table: str, setting: str, method: str = "", seed: str = "", form: str = "") -> str:
    """Return a table of methods, or the printed table of one run."""
    if not method:
        compared = compare_recorded(read_expected(table), setting)
        return format_markdown_table(dataclasses.replace(compared, notes=[]))
    groups = read_groups(read_expected(table), setting)
    (group,) = [each for each in groups if each.method == method and not each.remark]
    (run,) = [each for each in group.runs if each.seed == int(seed)]
    printed = tabulate_group(dataclasses.replace(group, runs=(run,)))[0]
    # the averages stand first among the notes
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_tables([dataclasses.replace(printed, notes=printed.notes[:1])], console)
    lines = [line.rstrip() for line in console.file.getvalue().rstrip().splitlines()]
    if form == "short":
        lines = [line for line in lines if line[0] in SCORES and "chance" not in line]
    return "\n".join(["```text", *lines, "```", ""])


def show_study(name: str, wanted: str) -> str:
    """Return a table of a study, with the notes on its columns and not those on every method."""
    tables = {table.name: table for table in make_tables(read_study(name))}
    if wanted not in tables:
        raise ValueError(f"{name} has no table {wanted!r} (tables: {', '.join(tables)})")
    return format_markdown_table(dataclasses.replace(tables[wanted], notes=[]))


def read_study(name: str) -> Study:
    """Return a study that ships, with its recorded scores."""
    plan = read_plan(name)
    return Study.of(plan, read_records(plan.raw, plan))


def draw_study(name: str, path: Path) -> None:
    """Draw the curves of a study."""
    with tempfile.TemporaryDirectory() as folder:
        figure = write_figure(read_study(name), Path(folder))
        if figure is None:
            raise ValueError(f"no method of {name} has been run at all levels of stiffness")
        shutil.copyfile(figure.png, path)


def draw(table: str, setting: str, figure: str, path: Path) -> None:
    """Draw one figure of the recorded results."""
    groups = read_groups(read_expected(table), setting)
    with tempfile.TemporaryDirectory() as folder:
        files = {file.name: file for file in write_figures(groups, None, Path(folder))}
        shutil.copyfile(files[figure].png, path)


if __name__ == "__main__":
    main()

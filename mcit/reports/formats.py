"""A table of numbers, and its text: in Markdown, in CSV and on the terminal.

Cells hold numbers; every form makes its own text of them, LaTeX in `latex.py`, HTML in `page.py`.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Column as GridColumn
from rich.table import Table as Grid
from rich.text import Text

UNDEFINED = "–"
# forms of numbers: of scores, of numbers of any size, and two that no format specification has
SCORE = ".2f"
SIGNIFICANT = ".3g"
COUNT = "count"
P_VALUE = "p"
# columns of CSV that a column of cells becomes
PARTS = {"": "mean", " spread": "spread", " forgetting": "lost"}
# how a cell begins that a spreadsheet would compute
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class TableKind(Enum):
    """What a table is about, in the order in which a report has them."""

    COMPARISON = "comparison"
    FORM = "form and content"
    SPLITS = "splits"
    RANKS = "ranks"
    PAIRS = "pairs"
    MATRIX = "matrix"
    COST = "cost"
    STIFFNESS = "stiffness"
    IMPORTANCE = "importance"
    EXPECTED = "expected results"


@dataclass(frozen=True)
class Cell:
    """A number of a table; NaN stands for one that is undefined, which is shown as a dash."""

    mean: float
    # standard deviation over seeds
    spread: float | None = None
    # forgetting transfer in percent
    lost: float | None = None
    # whether it is the best of its column
    best: bool = False


# what a cell of a table holds; None is an empty one
Content = Cell | str | None


@dataclass(frozen=True)
class Column:
    """The head of a column and the form of its numbers."""

    name: str
    form: str = SCORE
    # what the name is of, in tables that have it several times
    context: str = ""
    # what others call it
    alias: str = ""

    @property
    def head(self) -> str:
        head = f"{self.context} {self.name}".strip()
        return f"{head} ({self.alias})" if self.alias else head


@dataclass(frozen=True)
class Row:
    """A label and the cells after it."""

    label: str
    cells: Sequence[Content]
    # the label as a paper writes it, if that differs
    paper_label: str = ""
    # a level to compare with, such as chance, and not a result
    reference: bool = False
    # whether the row may hold the best of a column
    ranked: bool = False


@dataclass(frozen=True)
class Note:
    """A sentence under a table."""

    text: str
    # the sentence in LaTeX, if it has formulas
    latex: str = ""
    # where a row comes from: LaTeX has it as a comment
    detail: bool = False


@dataclass(frozen=True)
class Table:
    """A table ready to be rendered; its first column holds the labels of the rows."""

    kind: TableKind
    # of its files
    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[Note] = ()
    # the title as a paper writes it, if that differs
    paper_title: str = ""

    def texts(self, row: Row) -> list[str]:
        """Return the text of a row, with its label."""
        pairs = zip(row.cells, self.columns[1:], strict=True)
        return [row.label, *(format_cell(cell, column.form) for cell, column in pairs)]


def format_number(value: float, form: str) -> str:
    """Return a number in the form of its column."""
    if math.isnan(value):
        return UNDEFINED
    if form == COUNT:
        return f"{value:,.0f}"
    if form == P_VALUE:
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    return format(value, form)


def format_cell(cell: Content, form: str) -> str:
    """Return `62.00 ± 2.83 (22.50)`: the mean, the spread over seeds and what was forgotten."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    text = format_number(cell.mean, form)
    if cell.spread is not None:
        text += f" ± {format_number(cell.spread, form)}"
    if cell.lost is not None:
        text += f" ({format_number(cell.lost, form)})"
    return text


def format_seconds(seconds: float) -> str:
    """Return `2.7 s`, `95 s`, `5.2 min` or `3.4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def format_bytes(count: float) -> str:
    """Return `6.9 MiB`."""
    return f"{count / 2**20:.1f} MiB"


def natural_key(name: object) -> str:
    """Return a sort key that puts seed9 before seed10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(9), str(name))


def is_best(cell: Content) -> bool:
    """Whether a cell is to be set in bold."""
    return isinstance(cell, Cell) and cell.best


def format_markdown_table(table: Table) -> str:
    """Return the table in Markdown, with its notes as a list underneath."""
    lines = [[_guard(column.head) for column in table.columns]]
    lines.append([":--", *["--:"] * (len(table.columns) - 1)])
    for row in table.rows:
        texts = [_guard(text) for text in table.texts(row)]
        for place, cell in enumerate(row.cells, start=1):
            if is_best(cell):
                texts[place] = f"**{texts[place]}**"
        lines.append(texts)
    text = [f"| {' | '.join(line)} |" for line in lines]
    if table.notes:
        text += ["", *(f"- {escape_markdown(note.text)}" for note in table.notes)]
    return "\n".join([*text, ""])


def escape_markdown(text: str) -> str:
    """Return text in which Markdown finds neither HTML nor a link: a task may have any name."""
    return html.escape(text, quote=False).replace("](", "]\\(")


def format_csv(table: Table) -> str:
    """Return the table as CSV; spreads and forgetting transfer have columns of their own."""
    labels = [table.columns[0].head, *(row.label for row in table.rows)]
    columns = [[_disarm(label) for label in labels]]
    for number, column in enumerate(table.columns[1:]):
        columns += _split_column(column, [row.cells[number] for row in table.rows])
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(zip(*columns, strict=True))
    return stream.getvalue()


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables with the best in bold; a note that several have is printed once."""
    console = console or Console(highlight=False)
    printed: set[Note] = set()
    for table in tables:
        # as Text: rich would take brackets in a name for a style, and fold a title
        console.print(Text(table.title, style="italic"), soft_wrap=True)
        print_whole(_make_grid(table), console)
        for note in table.notes:
            if note not in printed:
                console.print(Text(note.text), soft_wrap=True)
        printed.update(table.notes)
        console.print()


def print_whole(grid: Grid, console: Console) -> None:
    """Print a rich table with nothing cut off, which rich would do to make it fit.

    On a terminal that is too narrow it is set closer, or its columns are folded into blocks below
    each other; a file takes any width.
    """
    # every column has a border and a space on either side
    widths = [max(len(str(text)) for text in _list_texts(column)) + 3 for column in grid.columns]
    needed = sum(widths) + 1
    if not console.is_terminal or needed <= console.width:
        width = console.width
        console.width = max(width, needed)
        console.print(grid)
        console.width = width
        return
    title = grid.title
    if needed - 2 * len(widths) <= console.width:
        console.print(_take_columns(grid, range(len(widths)), title=title, padding=(0, 0)))
        return
    label = min(widths[0], console.width // 3)
    for block in fold_columns(widths[1:], console.width - label - 1):
        part = _take_columns(grid, [0, *(number + 1 for number in block)], title=title)
        part.columns[0].no_wrap = False
        part.columns[0].max_width = label - 3
        # a column that is too wide by itself goes over several lines
        part.columns[-1].no_wrap = len(block) > 1
        console.print(part)
        title = None


def fold_columns(widths: Sequence[int], limit: int) -> list[list[int]]:
    """Return the numbers of the columns of each block, so that no block is wider than the limit."""
    blocks: list[list[int]] = [[]]
    used = 0
    for number, width in enumerate(widths):
        if blocks[-1] and used + width > limit:
            blocks.append([])
            used = 0
        blocks[-1].append(number)
        used += width
    return blocks


def _make_grid(table: Table) -> Grid:
    grid = Grid()
    for number, column in enumerate(table.columns):
        justify: JustifyMethod = "right" if number else "left"
        grid.add_column(Text(column.head), justify=justify, no_wrap=True)
    for row in table.rows:
        styles = ["", *("bold" if is_best(cell) else "" for cell in row.cells)]
        texts = zip(table.texts(row), styles, strict=True)
        style = "dim" if row.reference else None
        grid.add_row(*(Text(text, style=bold) for text, bold in texts), style=style)
    return grid


def _list_texts(column: GridColumn) -> list[object]:
    return [column.header, *column.cells]


def _take_columns(grid: Grid, numbers: Sequence[int], **options: Any) -> Grid:
    """Return a table of some columns."""
    part = Grid(title_justify=grid.title_justify, **options)
    columns = [grid.columns[number] for number in numbers]
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=True, overflow="fold")
    rows = zip(*(column.cells for column in columns), strict=True)
    for cells, row in zip(rows, grid.rows, strict=True):
        part.add_row(*cells, style=row.style)
    return part


def _split_column(column: Column, cells: Sequence[Content]) -> list[list[str]]:
    """Return a column of CSV, and others for spreads and forgetting if any cell has them."""
    split = []
    for ending, part in PARTS.items():
        texts = [_format_part(cell, part, column.form) for cell in cells]
        if not ending or any(texts):
            split.append([_disarm(column.head + ending), *texts])
    return split


def _format_part(cell: Content, part: str, form: str) -> str:
    """Return one number of a cell without thousands separators; text stands for the mean."""
    if isinstance(cell, str):
        return _disarm(cell) if part == "mean" else ""
    value = getattr(cell, part, None)
    if value is None or math.isnan(value):
        return ""
    return f"{value:.0f}" if form == COUNT else format_number(value, form)


def _disarm(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULAS) else text


def _guard(text: str) -> str:
    """Return text that Markdown takes for the text of one cell."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")
    return " ".join(escape_markdown(escaped).splitlines())

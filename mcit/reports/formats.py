"""One table, four forms: terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

CHANCE = "chance"  # the first cell of a row that is no result
UNDEFINED = "–"
# A figure, perhaps with its spread over seeds, perhaps with its forgetting transfer in brackets.
CELL = re.compile(
    rf"([+-]?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?(?: \(({UNDEFINED}|[+-]?\d+(?:\.\d+)?)\))?"
)
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute
WIDE = 8  # columns from which a table needs both columns of a two-column page


@dataclass(frozen=True)
class Table:
    """A table ready to be shown: cells are text, and `values` are what they sort by."""

    name: str  # of its files
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the cells to set in bold
    values: list[list[float | None]] | None = None


def format_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, its first column left and the others right aligned."""
    rule = [":--", *["--:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]


def format_markdown_table(table: Table) -> str:
    """The table in Markdown, its notes as a list underneath."""
    rows = [
        [
            f"**{_guard(cell)}**" if (r, c) in table.best else _guard(cell)
            for c, cell in enumerate(row)
        ]
        for r, row in enumerate(table.rows)
    ]
    lines = format_markdown([_guard(cell) for cell in table.header], rows)
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes, ""])


def format_latex(table: Table) -> str:
    """The table for LaTeX with booktabs, its notes underneath; one of many columns spans both columns of a page, and
    none is wider than its place."""
    kind = "table*" if len(table.header) >= WIDE else "table"
    lines = ["% needs \\usepackage{booktabs,adjustbox}", f"\\begin{{{kind}}}", "  \\centering"]
    lines += [f"  \\caption{{{escape_latex(table.title)}}}", f"  \\label{{tab:{table.name}}}"]
    lines += ["  \\begin{adjustbox}{max width=\\linewidth}"]
    lines += [f"  \\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", "    \\toprule"]
    lines += [_format_latex_row(table.header), "    \\midrule"]
    for number, row in enumerate(table.rows):
        lines.append(
            _format_latex_row(row, [c for c in range(len(row)) if (number, c) in table.best])
        )
        if row[0] == CHANCE and number + 1 < len(table.rows):
            lines.append("    \\midrule")
    lines += ["    \\bottomrule", "  \\end{tabular}", "  \\end{adjustbox}"]
    lines += ["  \\par\\smallskip\\raggedright\\footnotesize"] if table.notes else []
    lines += [f"  {escape_latex(note)}\\par" for note in table.notes]
    return "\n".join([*lines, f"\\end{{{kind}}}", ""])


def format_csv(table: Table) -> str:
    """The table as comma-separated figures: spreads and bracketed figures have columns of their own."""
    columns: list[list[str]] = []
    for number, name in enumerate(table.header):
        columns += _split_column(name, [row[number] for row in table.rows], split=number > 0)
    stream = io.StringIO()
    rows = ([_disarm(cell) for cell in row] for row in zip(*columns, strict=True))
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """The tables on the terminal, the best in bold, their notes underneath; what several have to say is said once."""
    console, told = console or Console(highlight=False), set()
    for table in tables:
        console.print(
            Text(table.title, style="italic"), soft_wrap=True
        )  # as a title rich would fold it
        grid = Grid()
        for number, name in enumerate(table.header):
            grid.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for r, row in enumerate(table.rows):
            cells = [
                Text(cell, style="bold" if (r, c) in table.best else "")
                for c, cell in enumerate(row)
            ]
            grid.add_row(*cells, style="dim" if row[0] == CHANCE else None)
        print_whole(grid, console)
        for note in table.notes:
            if note not in told:
                console.print(Text(note), soft_wrap=True)
        told.update(table.notes)
        console.print()


def print_whole(table: Grid, console: Console) -> None:
    """Print a table with nothing cut off, which rich would do to make it fit.

    On a terminal that is too narrow it is set closer, or its columns are folded into blocks below each other; a file
    takes any width.
    """
    needed = _measure(table, console)
    if console.is_terminal and needed > console.width:
        close = _take_columns(table, range(len(table.columns)), table.title, padding=0)
        fits = _measure(close, console) <= console.width
        for block in [close] if fits else _fold(table, console):
            console.print(block)
        return
    width = console.width
    console.width = max(width, needed)
    console.print(table)
    console.width = width


def _measure(table: Grid, console: Console) -> int:
    """Return the columns of a terminal that a table needs to be shown as it is."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _fold(table: Grid, console: Console) -> Iterator[Grid]:
    """Return parts of a table that fit the terminal: each repeats the first column, the first has the title."""
    label = console.width // 3
    blocks = [[0]]
    for number in range(1, len(table.columns)):
        wider = _take_columns(table, [*blocks[-1], number], label=label)
        if len(blocks[-1]) > 1 and _measure(wider, console) > console.width:
            blocks.append([0])
        blocks[-1].append(number)
    for block in blocks:
        title = table.title if block is blocks[0] else None
        part = _take_columns(table, block, title, label=label)
        if _measure(part, console) > console.width:
            # one column alone is too wide: its cells go over several lines
            part = _take_columns(table, block, title, label=label, wrap=True)
        yield part


def _take_columns(
    table: Grid,
    numbers: Sequence[int],
    title: Any = None,
    *,
    padding: int = 1,
    label: int | None = None,
    wrap: bool = False,
) -> Grid:
    """Return a table of some columns, the first of which goes over several lines if it is wider than `label`."""
    part = Grid(title=title, title_justify=table.title_justify, padding=(0, padding))
    columns = [table.columns[number] for number in numbers]
    for place, column in enumerate(columns):
        first = place == 0 and label is not None
        part.add_column(
            column.header,
            justify=column.justify,
            no_wrap=not (first or wrap),
            overflow="fold",
            max_width=label if first else None,
        )
    cells = [list(column.cells) for column in columns]
    for number, row in enumerate(table.rows):
        part.add_row(*(column[number] for column in cells), style=row.style)
    return part


def escape_markdown(text: str) -> str:
    """Return text in which Markdown finds neither HTML nor a link: a task may be called anything."""
    return html.escape(text, quote=False).replace("](", "]\\(")


def make_code_span(text: str) -> str:
    """Return text as a span of code in Markdown, whatever backticks it has."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{' '.join(text.splitlines())}{space}{fence}"


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands; names of metrics become formulas, and a minus sign is one."""
    return _TOKEN.sub(_escape, text)


# The name of a metric; a minus sign, which stands before a figure and after nothing it would join; any character.
_TOKEN = re.compile(
    r"\b(?P<letter>[Aa])_(?P<index>last|avg|new|old|t[jt]?|jj)\b|(?P<minus>(?<![\w.])-(?=\d))|.",
    re.DOTALL,
)
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "''",
    "±": "$\\pm$",
    "–": "--",
    "·": "$\\cdot$",
    "²": "\\textsuperscript{2}",
    "χ": "$\\chi$",
    "…": "\\ldots{}",
    "‖": "$\\|$",
    "₂": "$_2$",
    "→": "$\\to$",
    "−": "$-$",
}


def _escape(match: re.Match[str]) -> str:
    if match["letter"]:
        index = f"\\mathrm{{{match['index']}}}" if len(match["index"]) > 2 else match["index"]
        return f"${match['letter']}_{{{index}}}$"
    return "$-$" if match["minus"] else _LATEX.get(match[0], match[0])


def _format_latex_row(row: Sequence[str], bold: Sequence[int] = ()) -> str:
    cells = [
        f"\\textbf{{{escape_latex(cell)}}}" if c in bold else escape_latex(cell)
        for c, cell in enumerate(row)
    ]
    if cells[0].startswith("["):  # after \\ it would be taken for a length
        cells[0] = "{}" + cells[0]
    return f"    {' & '.join(cells)} \\\\"


def _split_column(name: str, cells: Sequence[str], split: bool) -> list[list[str]]:
    parts = [CELL.fullmatch(cell) if split else None for cell in cells]
    if not any(parts):
        return [[name, *("" if cell == UNDEFINED else cell for cell in cells)]]
    columns = [
        [
            name,
            *(
                part[1] if part else cell.strip(UNDEFINED)
                for part, cell in zip(parts, cells, strict=True)
            ),
        ]
    ]
    for place, ending in ((2, "spread"), (3, "forgetting")):
        if any(part and part[place] for part in parts):
            found = [part[place] if part and part[place] else "" for part in parts]
            columns.append([f"{name} {ending}", *(value.strip(UNDEFINED) for value in found)])
    return columns


def _disarm(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula; a number stays one, whatever its sign."""
    if not cell.startswith(FORMULAS) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def _guard(cell: str) -> str:
    """Return a cell that Markdown takes for text, on one line."""
    text = cell.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")
    return " ".join(escape_markdown(text).splitlines())

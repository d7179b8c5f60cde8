"""One table, four forms: terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

CHANCE = "chance"  # the first cell of a row that is no result
UNDEFINED = "–"
# A figure, perhaps with its spread over seeds, perhaps with its forgetting transfer in brackets.
CELL = re.compile(rf"([+-]?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?(?: \(({UNDEFINED}|[+-]?\d+(?:\.\d+)?)\))?")
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
        [f"**{_guard(cell)}**" if (r, c) in table.best else _guard(cell) for c, cell in enumerate(row)]
        for r, row in enumerate(table.rows)
    ]
    lines = format_markdown([_guard(cell) for cell in table.header], rows)
    return "\n".join([*lines, *([""] if table.notes else []), *(f"- {note}" for note in table.notes), ""])


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
        lines.append(_format_latex_row(row, [c for c in range(len(row)) if (number, c) in table.best]))
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
    csv.writer(stream, lineterminator="\n").writerows(zip(*columns, strict=True))
    return stream.getvalue()


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """The tables on the terminal, the best in bold, their notes underneath; what several have to say is said once."""
    console, told = console or Console(highlight=False), set()
    for table in tables:
        console.print(Text(table.title, style="italic"), soft_wrap=True)  # as a title rich would fold it
        grid = Grid()
        for number, name in enumerate(table.header):
            grid.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for r, row in enumerate(table.rows):
            cells = [Text(cell, style="bold" if (r, c) in table.best else "") for c, cell in enumerate(row)]
            grid.add_row(*cells, style="dim" if row[0] == CHANCE else None)
        print_whole(grid, console)
        for note in table.notes:
            if note not in told:
                console.print(Text(note), soft_wrap=True)
        told.update(table.notes)
        console.print()


def print_whole(table: Grid, console: Console) -> None:
    """Print a table as wide as it needs to be: rich would cut the figures to fit a narrow terminal, or a file."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)
    console.width = width


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands; names of metrics become formulas, and a minus sign is one."""
    return _TOKEN.sub(_escape, text)


# The name of a metric; a minus sign, which stands before a figure and after nothing it would join; any character.
_TOKEN = re.compile(
    r"\b(?P<letter>[Aa])_(?P<index>last|avg|new|old|t[jt]?|jj)\b|(?P<minus>(?<![\w.])-(?=\d))|.", re.DOTALL
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
    cells = [f"\\textbf{{{escape_latex(cell)}}}" if c in bold else escape_latex(cell) for c, cell in enumerate(row)]
    if cells[0].startswith("["):  # after \\ it would be taken for a length
        cells[0] = "{}" + cells[0]
    return f"    {' & '.join(cells)} \\\\"


def _split_column(name: str, cells: Sequence[str], split: bool) -> list[list[str]]:
    parts = [CELL.fullmatch(cell) if split else None for cell in cells]
    if not any(parts):
        return [[name, *("" if cell == UNDEFINED else cell for cell in cells)]]
    columns = [[name, *(part[1] if part else cell.strip(UNDEFINED) for part, cell in zip(parts, cells, strict=True))]]
    for place, ending in ((2, "spread"), (3, "forgetting")):
        if any(part and part[place] for part in parts):
            found = [part[place] if part and part[place] else "" for part in parts]
            columns.append([f"{name} {ending}", *(value.strip(UNDEFINED) for value in found)])
    return columns


def _guard(cell: str) -> str:
    """A cell that Markdown takes for text."""
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")

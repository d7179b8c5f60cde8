"""Tables in LaTeX that need `booktabs` alone and align numbers at the decimal point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mcit.reports.formats import SIGNIFICANT, Column, Table, fold_columns, format_number

# letters that fit a line of \footnotesize: in one column of a page, and across both
NARROW = 52
WIDE = 108
SYMBOLS = {
    "A_last": "$A_{\\mathrm{last}}$",
    "A_avg": "$A_{\\mathrm{avg}}$",
    "A_new": "$A_{\\mathrm{new}}$",
    "A_old": "$A_{\\mathrm{old}}$",
    "A_t": "$A_t$",
}
ESCAPES = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "\\textbar{}",
    '"': "''",
    "[": "{[}",
    "]": "{]}",
    "±": "$\\pm$",
    "–": "--",
    "−": "$-$",
    "·": "$\\cdot$",
    "²": "\\textsuperscript{2}",
    "₂": "$_2$",
    "χ": "$\\chi$",
    "λ": "$\\lambda$",
    "‖": "$\\|$",
    "→": "$\\to$",
    "…": "\\ldots{}",
}


def format_latex(table: Table) -> str:
    """Return the table for LaTeX; columns that no page has room for go into blocks underneath."""
    rows = [[column.head for column in table.columns], *map(table.texts, table.rows)]
    columns = zip(*rows, strict=True)
    label, *widths = [max(len(text) for text in texts) + 2 for texts in columns]
    title = escape_latex(table.paper_title or table.title)
    environment = "table" if label + sum(widths) <= NARROW else "table*"
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{{environment}}}",
        "  \\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        f"  \\caption{{{title}}}\\label{{tab:{table.name}}}",
    ]
    for block in fold_columns(widths, WIDE - label):
        lines += _format_block(table, block)
    lines.append("  \\raggedright")
    lines += [
        f"  {note.latex or format_words(note.text)}" for note in table.notes if not note.detail
    ]
    for note in table.notes:
        if note.detail:
            # a comment ends with its line
            lines.append(f"  % {' '.join(note.text.split())}")
    return "\n".join([*lines, f"\\end{{{environment}}}", ""])


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it stands; what its fonts lack becomes a question mark."""
    escaped = "".join(ESCAPES.get(character, character) for character in text)
    return escaped.encode("ascii", "replace").decode()


def format_words(text: str) -> str:
    """Return text that LaTeX prints as it stands, with metrics as symbols."""
    return " ".join(SYMBOLS.get(word) or escape_latex(word) for word in text.split(" "))


def _format_block(table: Table, numbers: Sequence[int]) -> Iterator[str]:
    """Yield a tabular of some columns, each as up to three that are aligned on the right."""
    parts = [_split_column(table, number) for number in numbers]
    layout = "".join("@{\\hspace{8pt}}r" + "@{\\,}r" * (len(part) - 1) for part in parts)
    yield f"  \\begin{{tabular}}{{l{layout}}}"
    yield "    \\toprule"
    heads = [_symbol(table.columns[0])]
    for part, number in zip(parts, numbers, strict=True):
        head = _symbol(table.columns[number + 1])
        # a heading ends where its numbers end, and stands in the middle over several columns
        align = "r" if len(part) == 1 else "c"
        heads.append(f"\\multicolumn{{{len(part)}}}{{{align}}}{{{head}}}")
    yield f"    {' & '.join(heads)} \\\\"
    yield "    \\midrule"
    for place, row in enumerate(table.rows):
        label = escape_latex(row.paper_label or row.label)
        cells = [label, *(column[place] for part in parts for column in part)]
        yield f"    {' & '.join(cells)} \\\\"
        if row.reference and row is not table.rows[-1]:
            yield "    \\midrule"
    yield "    \\bottomrule"
    yield "  \\end{tabular}\\par\\smallskip"


def _split_column(table: Table, number: int) -> list[list[str]]:
    """Return the texts of a column: means, and if there are any, spreads and losses."""
    form = table.columns[number + 1].form
    means = []
    spreads = []
    losses = []
    for row in table.rows:
        cell = row.cells[number]
        mean = spread = lost = ""
        if isinstance(cell, str):
            mean = format_words(cell)
        elif cell is not None:
            mean = _format_number(cell.mean, form)
            if cell.best:
                mean = f"\\textbf{{{mean}}}"
            if cell.spread is not None:
                spread = "$\\pm$\\," + _format_number(cell.spread, form)
            if cell.lost is not None:
                lost = f"({_format_number(cell.lost, form)})"
        means.append(mean)
        spreads.append(spread)
        losses.append(lost)
    return [means, *(texts for texts in (spreads, losses) if any(texts))]


def _format_number(value: float, form: str) -> str:
    """Return a number with a real minus sign; all of one form have as many decimals."""
    if form == SIGNIFICANT and not math.isnan(value):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}$\\cdot10^{{{int(exponent)}}}$"
    text = escape_latex(format_number(value, form))
    return f"$-${text[1:]}" if value < 0 else text


def _symbol(column: Column) -> str:
    words = [column.context, column.name]
    if column.alias:
        words.append(f"({column.alias})")
    return " ".join(format_words(word) for word in words if word)

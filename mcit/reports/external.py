"""Results of other toolkits: a plain matrix of percentages in a CSV or JSON file.

JSON needs `tasks` and `matrix` and may have `method`, `seed`, `chance` and `seen` (A_t). In CSV the
header names the tasks; a first column headed `after` names the checkpoints, a row that it names
`chance` holds the chance levels, and a last column headed `A_t` the averages. Cells above the
diagonal are ignored. Without a method and a seed the name of the file says them: `lwf.csv`,
`lwf-seed2.csv`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcit.errors import DataError

# heads of a column that names the checkpoints, and of one with A_t
CHECKPOINT_HEADS = ("", "after", "checkpoint")
AVERAGE_HEADS = ("a_t", "seen")
HINT = "its first row names the tasks, each further row is a checkpoint, and scores are percentages"


def read_external(path: Path) -> dict[str, Any]:
    """Return `method`, `seed`, `tasks`, `matrix` and what else a file states."""
    data = read_json(path) if path.suffix == ".json" else _read_csv(path)
    tasks = data.get("tasks")
    matrix = data.get("matrix")
    if not isinstance(tasks, list) or not isinstance(matrix, list):
        raise DataError(
            f"{path} needs `tasks`, a list of names, and `matrix`, a list of rows of percentages"
        )
    if not matrix:
        raise DataError(f"{path} has no scores: {HINT}")
    if len(matrix) > len(tasks):
        raise DataError(f"{path} has {len(tasks)} tasks but more rows: one row per checkpoint")
    named = re.fullmatch(r"(.+?)[-_]seed(\d+)", path.stem)
    data.setdefault("method", named[1] if named else path.stem)
    data.setdefault("seed", int(named[2]) if named else None)
    for place, row in enumerate(matrix):
        matrix[place] = _cut_row(row, tasks[: place + 1], path)
    _check_percent(data, path)
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Return the one object that a JSON file holds."""
    try:
        data = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); it was cut off or edited, make it again"
        ) from None
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise DataError(
            f"{path} must hold one JSON object, found a {kind}; give a file of `mcit run`, or a "
            "matrix of scores"
        )
    return data


def read_text(path: Path) -> str:
    """Return the text of a file, without the mark that some spreadsheets put in front."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _read_csv(path: Path) -> dict[str, Any]:
    lines = [line for line in read_text(path).splitlines() if line.strip(" ,;\t")]
    if not lines:
        raise DataError(f"{path} is empty: {HINT}")
    # the header says what separates cells
    delimiter = max(",;\t", key=lines[0].count)
    try:
        header, *rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    except csv.Error as error:
        raise DataError(f"{path} is not valid CSV: {error}") from None
    header = [cell.strip() for cell in header]
    begin = int(header[0].lower() in CHECKPOINT_HEADS)
    end = len(header) - int(header[-1].lower() in AVERAGE_HEADS)
    if any(_read_number(cell) is not None for cell in header):
        raise DataError(f"{path} begins with numbers: {HINT}")
    data: dict[str, Any] = {"tasks": header[begin:end], "matrix": [], "seen": []}
    for row in rows:
        if len(row) > len(header):
            raise DataError(f"{path}: a row has {len(row)} cells, the header {len(header)}: {HINT}")
        cells = [_read_cell(cell) for cell in row]
        if begin and row[0].strip().lower() == "chance":
            data["chance"] = cells[begin:end]
        else:
            data["matrix"].append(cells[begin:end])
            data["seen"] += cells[end:]
    return data


def _read_cell(cell: str) -> float | str | None:
    """Return a number, None for an empty cell, or text, which a score may not be."""
    number = _read_number(cell)
    return number if number is not None else cell.strip() or None


def _cut_row(row: Any, tasks: Sequence[str], path: Path) -> list[Any]:
    """Return the scores on these tasks, or raise a DataError if one is missing."""
    scores = row[: len(tasks)] if isinstance(row, list) else []
    if len(scores) < len(tasks) or None in scores:
        names = ", ".join(map(str, tasks))
        raise DataError(
            f"{path}: a row of the matrix needs a percentage for {names}, found {row!r}"
        )
    return scores


def _check_percent(data: dict[str, Any], path: Path) -> None:
    scores = [value for row in data["matrix"] for value in row if isinstance(value, (int, float))]
    highest = max(scores, default=0)
    if 0 < highest <= 1 and data.get("unit") != "percent":
        raise DataError(
            f"{path}: no score is above {highest:g}, so these look like fractions, but scores are "
            'percentages: multiply them by 100 (if they are percentages, say "unit": "percent" '
            "in a JSON file)"
        )


def _read_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None

"""Results of other toolkits: a plain matrix of percentages in a CSV or a JSON file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcit.errors import DataError

NAMES = ("", "after", "checkpoint")  # heads of a first column that names the checkpoints
AVERAGES = ("a_t", "seen")  # heads of a last column with the average over all that was seen
HINT = "its first row names the tasks, each further row is a checkpoint, and scores are percentages"


def read_plain(path: Path) -> dict[str, Any]:
    """`method`, `seed`, `tasks`, `chance` (None where it is not stated), `matrix` and perhaps `seen` of a file.

    JSON holds them by these names; `tasks` and `matrix` are needed. In CSV the header names the tasks; a first column
    headed `after` names the checkpoints, a row named `chance` holds the chance levels, and a last column headed `A_t`
    the averages over all that was seen. Cells above the diagonal may be empty; if they are not, they are left out.
    The method and the seed of a file that does not tell are those of its name: `lwf.csv`, `lwf-seed2.csv`.
    """
    data = read_json(path) if path.suffix == ".json" else _read_csv(path)
    if not isinstance(data.get("tasks"), list) or not isinstance(data.get("matrix"), list):
        raise DataError(
            f"{path} needs `tasks`, a list of names, and `matrix`, a list of rows of percentages"
        )
    named = re.fullmatch(r"(.+?)[-_]seed(\d+)", path.stem)
    data.setdefault("method", named[1] if named else path.stem)
    data.setdefault("seed", int(named[2]) if named else None)
    data.setdefault("chance", None)
    data["matrix"] = [
        _cut_row(row, number, data["tasks"], path) for number, row in enumerate(data["matrix"])
    ]
    if not data["matrix"]:
        raise DataError(f"{path} has no scores: {HINT}")
    _check_percent(data, path)
    return data


def read_json(path: Path) -> dict[str, Any]:
    """The one object that a JSON file holds."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); it was cut off or edited, make it again"
        ) from None
    if not isinstance(data, dict):
        found = type(data).__name__
        raise DataError(
            f"{path} must hold one JSON object, found a {found}; give a file of `mcit run`, or a matrix"
        )
    return data


def read_text(path: Path) -> str:
    """The text of a file, without the mark that some spreadsheets put in front."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _read_csv(path: Path) -> dict[str, Any]:
    text = read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    numbered = enumerate(csv.reader(text.splitlines(), delimiter=delimiter), start=1)
    lines = [
        (number, [cell.strip() for cell in row])
        for number, row in numbered
        if any(map(str.strip, row))
    ]
    if not lines:
        raise DataError(f"{path} is empty: {HINT}")
    header = lines[0][1]
    if any(_is_number(cell) for cell in header):
        raise DataError(f"{path} begins with figures: {HINT}")
    begin = 1 if header[0].lower() in NAMES else 0
    end = len(header) - 1 if header[-1].lower() in AVERAGES else len(header)
    data: dict[str, Any] = {"tasks": header[begin:end], "matrix": []}
    for number, row in lines[1:]:
        if len(row) > len(header):
            raise DataError(
                f"{path}, line {number} has {len(row)} cells, but the header has {len(header)}: {HINT}"
            )
        cells = [_read_cell(cell, path, number) for cell in row[begin:end]]
        if begin and row[0].lower() == "chance":
            data["chance"] = cells
            continue
        data["matrix"].append(cells)
        if end < len(header):
            data.setdefault("seen", []).append(
                _read_cell(row[end], path, number) if len(row) > end else None
            )
    return data


def _read_cell(cell: str, path: Path, line: int) -> float | None:
    if not cell:
        return None
    if not _is_number(cell):
        raise DataError(f"{path}, line {line}: {cell!r} is no percentage: {HINT}")
    return float(cell)


def _cut_row(row: Any, number: int, tasks: Sequence[str], path: Path) -> list[Any]:
    """The row up to the diagonal, which must be there."""
    if not isinstance(row, list):
        raise DataError(
            f"{path}: row {number + 1} of the matrix must be a list of percentages, found {row!r}"
        )
    if number >= len(tasks):
        raise DataError(
            f"{path} has {len(tasks)} tasks, but more than as many rows: one row per checkpoint"
        )
    kept = row[: number + 1]
    for task, value in zip(tasks, [*kept, *[None] * (number + 1 - len(kept))], strict=False):
        if value is None:
            missing = f"the score on {task!r} after {tasks[number]!r} is missing"
            raise DataError(f"{path}: {missing}; a row needs the scores of all tasks up to its own")
    return kept


def _check_percent(data: dict[str, Any], path: Path) -> None:
    scores = [value for row in data["matrix"] for value in row if isinstance(value, (int, float))]
    if scores and 0 < max(scores) <= 1 and data.get("unit") != "percent":
        raise DataError(
            f"{path}: no score is above {max(scores):g}, so these look like fractions, but scores are percentages: "
            'multiply them by 100 (if they are percentages, say "unit": "percent" in a JSON file)'
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

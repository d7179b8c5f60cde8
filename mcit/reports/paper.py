"""The tables of the EWC-DR paper, as numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METHODS = ("ewc_dr", "online_ewc", "mas", "ewc", "si")
SPLITS = ("big_start", "equal_split")
LENGTHS = ("5", "10", "20")


def read_paper() -> dict[str, Any]:
    """Everything that is kept of the paper; `source` says where it is from."""
    return json.loads(Path(__file__).with_name("paper_tables.json").read_text(encoding="utf-8"))


def list_settings(
    metric: str, methods: Sequence[str] = METHODS
) -> tuple[list[tuple[str, str, str]], list[list[float]]]:
    """The paper's 18 class-incremental settings (data set, split, tasks), and a row of scores by method for each."""
    tables = read_paper()["efcil"]
    settings = [
        (dataset, split, length) for dataset in tables for split in SPLITS for length in LENGTHS
    ]
    return settings, [
        [tables[d][method][s][t][metric] for method in methods] for d, s, t in settings
    ]

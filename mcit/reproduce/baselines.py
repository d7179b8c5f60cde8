"""Recorded runs of finetune and joint, to stand next to a new run of the same benchmark.

They are made by `mcit reproduce baselines --run --record`, and shown only where nothing but the
method and the seed differs: the same version of mcit, tasks, data, model and recipes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mcit.reports.formats import Note, Table
from mcit.reports.groups import Group, group_runs
from mcit.reports.runs import Run
from mcit.reports.tables import compare_groups
from mcit.reproduce.expected import read_expected
from mcit.reproduce.recorded import read_kept

TABLE = "baselines"
COMMAND = f"mcit reproduce {TABLE}"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The recorded runs of a method, and the version of mcit that made them."""

    runs: tuple[Run, ...]
    version: str


def find_baselines(provenance: Mapping[str, Any]) -> list[Baseline]:
    """Return what is recorded of the benchmark that a run's provenance describes, often nothing."""
    table = read_expected(TABLE)
    recorded = table.read_numbers()
    wanted = comparison_key(provenance)
    found = []
    for methods in recorded.get("cells", {}).values():
        for cell in methods.values():
            if cell["key"] == wanted:
                runs = tuple(read_kept(scores, table.path) for scores in cell["runs"])
                found.append(Baseline(runs, recorded["mcit"]))
    return found


def comparison_key(provenance: Mapping[str, Any]) -> str:
    """Return a digest of all that two runs must share to be compared: all but method and seed."""
    experiment = dict(provenance.get("experiment", {}))
    experiment.pop("method", None)
    experiment.pop("seed", None)
    # image files of the embedded benchmark differ in size from one Pillow to the next, while what
    # they show does not
    data = provenance.get("benchmark") or provenance.get("data")
    compared = {"mcit": provenance.get("mcit"), "experiment": experiment, "data": data}
    text = json.dumps(compared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def compare_with_recorded(run: Run) -> Table | None:
    """Return a run above the recorded ones; None if nothing comparable is recorded."""
    baselines = find_baselines(run.provenance)
    if not baselines or not run.complete:
        return None
    own = group_runs([run])[0]
    groups = [own]
    for baseline in baselines:
        groups.append(Group(baseline.runs, own.setting, remark="recorded"))
    table = compare_groups(groups, "recorded")
    title = f"next to recorded runs on {own.setting.name}"
    return dataclasses.replace(table, title=title, notes=[Note(_describe(baselines))])


def _describe(baselines: list[Baseline]) -> str:
    """Return the line under the table: by which version, seed and command rows were recorded."""
    first = baselines[0]
    seeds = ", ".join(str(run.seed) for run in first.runs)
    word = "seed" if len(first.runs) == 1 else "seeds"
    return (
        f"recorded: made by mcit {first.version} with {word} {seeds}, with the same tasks, data, "
        f"model and recipes (see `{COMMAND}`); joint learns all tasks at once, an upper bound"
    )

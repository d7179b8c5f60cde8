"""What to know before comparing runs: everything in which they differ except method and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mcit.reports.experiment import format_value
from mcit.reports.groups import Groups, describe_progress, split_settings
from mcit.reports.runs import Run

# packages that a score may depend on; the others of a provenance move data about
PACKAGES = ("torch", "transformers", "accelerate", "peft", "numpy", "Pillow")
# what changes the time, or the last digits at most
ENVIRONMENT = ("threads", "processes", "python", "platform")
HARMLESS = (*ENVIRONMENT, "training.score_before")
LONGEST_VALUE = 60
MOST_NAMES = 3


class Severity(Enum):
    """How much a caveat matters."""

    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True)
class Caveat:
    """One thing in which runs differ, or that limits what they can be compared with."""

    text: str
    severity: Severity = Severity.WARNING

    def __str__(self) -> str:
        return f"note: {self.text}" if self.severity is Severity.NOTE else self.text


def find_caveats(groups: Groups) -> list[Caveat]:
    """Return what differs between runs except method and seed, and what is unusual; notes last.

    Runs of different settings are in different tables and are not compared here.
    """
    settings = split_settings(groups)
    found = []
    for setting, members in settings.items():
        for caveat in _compare_runs(members):
            if len(settings) > 1:
                caveat = replace(caveat, text=f"{setting.name}: {caveat.text}")
            found.append(caveat)
    for run in _list_runs(groups):
        if not run.complete:
            progress = describe_progress(run)
            found.append(Caveat(f"{run.label} is unfinished ({progress}) and is shown separately"))
        if run.external:
            text = f"{run.label} comes from another source: how it was run is not known"
            if not run.scores.seen:
                text += ", and its A_t is the plain mean over tasks"
            found.append(Caveat(text))
    return sorted(found, key=_is_note)


def _compare_runs(groups: Groups) -> Iterator[Caveat]:
    facts = [(run.label, _list_facts(run)) for run in _list_runs(groups)]
    for key in sorted({key for _, known in facts for key in known}):
        labels: dict[str, list[str]] = {}
        values = set()
        for label, known in facts:
            # what is unset in a run of ours is a difference, and what others do not state is not
            if key in known or len(known) > 1:
                value = known.get(key)
                values.add(repr(value))
                labels.setdefault(format_value(value)[:LONGEST_VALUE], []).append(label)
        if len(values) > 1:
            severity = Severity.NOTE if key in HARMLESS else Severity.WARNING
            yield Caveat(f"{key} differs: {_list_values(labels)}", severity)
    yield from _find_repeats(groups)
    yield from _compare_seeds(groups)
    yield from _find_keepers(groups)


def _list_facts(run: Run) -> dict[str, Any]:
    """Return what a run may differ in from others, except for its method and seed."""
    facts: dict[str, Any] = {}
    if run.scores.chance is not None:
        facts["chance"] = [round(level, 1) for level in run.scores.chance]
    if run.external:
        return facts
    facts["recipe"] = run.recipe
    for key, value in run.experiment.items():
        if key.partition(".")[0] != "method":
            facts[key] = value
    packages = run.provenance.get("packages", {})
    for name in PACKAGES:
        facts[f"version of {name}"] = packages.get(name)
    facts["version of mcit"] = run.provenance.get("mcit")
    for name in ENVIRONMENT:
        facts[name] = run.provenance.get(name)
    return facts


def _find_repeats(groups: Groups) -> Iterator[Caveat]:
    """Yield a caveat for every seed that is there twice: it is not a second sample."""
    for group in groups:
        for seed, count in Counter(group.seeds).items():
            if count > 1 and seed is not None:
                labels = ", ".join(run.label for run in group.runs if run.seed == seed)
                yield Caveat(f"{group.name} with seed {seed} is counted {count} times: {labels}")


def _find_keepers(groups: Groups) -> Iterator[Caveat]:
    """Yield a note on the methods that keep examples, if others do not."""
    keepers = [group.name for group in groups if group.runs[0].provenance.get("keeps_examples")]
    if keepers and len(keepers) < len(groups):
        listed = ", ".join(keepers)
        yield Caveat(
            f"not exemplar-free (examples of earlier tasks are kept): {listed}", Severity.NOTE
        )


def _compare_seeds(groups: Groups) -> Iterator[Caveat]:
    names: dict[str, list[str]] = {}
    for group in groups:
        if group.complete:
            seeds = sorted({"not stated" if seed is None else str(seed) for seed in group.seeds})
            names.setdefault(", ".join(seeds), []).append(group.name)
    if len(names) > 1:
        yield Caveat(f"seeds differ: {_list_values(names)}")


def _is_note(caveat: Caveat) -> bool:
    return caveat.severity is Severity.NOTE


def _list_runs(groups: Groups) -> list[Run]:
    """Return the runs, each once: one that was scored by several classifiers is one run."""
    return [run for group in groups for run in group.runs if run.classifier is None]


def _list_values(names: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for value, found in names.items():
        parts.append(f"{value} ({_list_names(found)})")
    return "; ".join(parts)


def _list_names(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMES
    if rest <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {rest} more"

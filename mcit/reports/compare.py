"""What makes runs incomparable: everything in which they differ but method and seed, and the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcit.reports.identity import format_value, make_identity, make_key
from mcit.reports.runs import Group, Run, group_runs, split_settings

# What a score may depend on; the other packages of a passport move data about.
PACKAGES = ("torch", "transformers", "accelerate", "peft", "numpy", "Pillow")
# What changes the last digits at most, or the time: told as a note.
NOTES = ("threads", "processes", "python", "platform")
HARMLESS = ("training.eval_batch_size", "training.score_before")
LONGEST = 60  # characters of a value
NAMED = 3  # runs that are named for each value


def find_differences(runs: Sequence[Run]) -> list[str]:
    """One line for each thing in which runs of a setting differ, other than method and seed; harmless ones as notes.

    Runs of different settings stand in different tables, so that they are not held against each other here.
    """
    lines: list[str] = []
    settings = split_settings(group_runs(runs))
    kinds = {(run.tasks, run.embedded) for run in runs if run.track != "foreign"}
    if len(kinds) > len({tasks for tasks, _ in kinds}):
        lines.append(
            "some runs are on the embedded benchmark and some on real data: they are tabulated apart"
        )
    for setting, groups in settings.items():
        members = [run for group in groups for run in group.runs]
        found = [
            *_compare_configs(members),
            *_compare_passports(members),
            *_compare_chance(members),
        ]
        found += [*_find_repeats(members), *_compare_seeds(groups)]
        lines += [f"{setting}: {line}" for line in found] if len(settings) > 1 else found
    return [
        *lines,
        *_compare_options(settings),
        *_describe_unfinished(runs),
        *_describe_foreign(runs),
    ]


def _compare_configs(runs: Sequence[Run]) -> Iterator[str]:
    own = [run for run in runs if run.config]
    identities = [make_identity(run.config, run.passport) for run in own]
    keys = sorted(
        {key for identity in identities for key in identity if not key.startswith("method.")}
    )
    for key in keys:
        note = "note: " if key in HARMLESS else ""
        yield from _tell(f"{note}{key}", own, [identity.get(key) for identity in identities])


def _compare_passports(runs: Sequence[Run]) -> Iterator[str]:
    known = [run for run in runs if run.passport]
    yield from _tell("version of mcit", known, [run.passport.get("mcit") for run in known])
    for name in PACKAGES:
        yield from _tell(
            f"version of {name}",
            known,
            [run.passport.get("packages", {}).get(name) for run in known],
        )
    for name in NOTES:
        yield from _tell(f"note: {name}", known, [run.passport.get(name) for run in known])


def _compare_chance(runs: Sequence[Run]) -> Iterator[str]:
    """Forgetting transfer is measured from chance, so that other levels make other figures of the same scores."""
    known = [run for run in runs if run.scores.get("chance") is not None]
    yield from _tell(
        "chance", known, [[round(level, 1) for level in run.matrix.chance] for run in known]
    )


def _find_repeats(runs: Sequence[Run]) -> Iterator[str]:
    """The same seed twice is no second sample."""
    found: dict[Any, list[str]] = {}
    for run in runs:
        key = (run.method, run.seed, run.track, make_key(make_identity(run.config, run.passport)))
        found.setdefault(key, []).append(run.label)
    for (method, seed, *_), labels in found.items():
        if len(labels) > 1 and seed is not None:
            yield f"{method} with seed {seed} is there {len(labels)} times and counted as often: {', '.join(labels)}"


def _compare_seeds(groups: Sequence[Any]) -> Iterator[str]:
    complete = [group for group in groups if group.complete]
    seeds: dict[str, list[str]] = {}
    for group in complete:
        listed = sorted("not stated" if seed is None else str(seed) for seed in group.seeds)
        seeds.setdefault(", ".join(dict.fromkeys(listed)), []).append(group.variant)
    if len(seeds) > 1:
        yield "seeds differ: " + "; ".join(
            f"{listed} ({_list(names)})" for listed, names in seeds.items()
        )


def _compare_options(settings: Mapping[str, Sequence[Group]]) -> Iterator[str]:
    """Options of a method that have one value in one setting and another in the next, where it stands in one row."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for setting, groups in settings.items():
        for group in groups:
            if group.complete and group.runs[0].config:
                options = make_identity(group.runs[0].config, group.runs[0].passport)
                rows.setdefault(group.variant, {})[setting] = options
    for variant, found in rows.items():
        for key in sorted(
            {key for options in found.values() for key in options if key.startswith("method.")}
        ):
            values: dict[str, list[str]] = {}
            for setting, options in found.items():
                values.setdefault(format_value(options.get(key)), []).append(setting)
            if len(values) > 1:
                listed = "; ".join(f"{value} ({_list(names)})" for value, names in values.items())
                yield f"{variant}: {key} differs between settings: {listed}"


def _describe_unfinished(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if not run.complete:
            done = f"{len(run.matrix.rows)} of {len(run.tasks)} tasks"
            yield f"{run.label} is not complete ({done}): it is shown by itself and averaged with nothing"


def _describe_foreign(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if run.track == "foreign":
            yield f"{run.scores['file']} comes from elsewhere: nothing is known of how {run.method} was run there"


def _tell(name: str, runs: Sequence[Run], values: Sequence[Any]) -> Iterator[str]:
    """One line if the values are not all the same."""
    found: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        text = format_value(value)
        found.setdefault(text if len(text) <= LONGEST else f"{text[:LONGEST]}…", []).append(
            run.label
        )
    if len({repr(value) for value in values}) > 1:
        yield f"{name} differs: " + "; ".join(
            f"{value} ({_list(labels)})" for value, labels in found.items()
        )


def _list(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:NAMED])} and {rest} more"

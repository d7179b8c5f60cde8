"""What runs say, in a sentence or two: which method, how much was forgotten, at what cost, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mcit import metrics
from mcit.reports.runs import BOUNDS, Group, Run, split_settings

UNPROTECTED = "finetune"
MOST = 3  # that are all named where they cannot be told apart
LEAST_LOST = 0.05  # percent: less prints as nothing


@dataclass(frozen=True)
class Standing:
    """How the finished runs of a group ended, on average over their seeds."""

    label: str
    method: str
    seeds: int
    final: float  # A_last, percent
    spread: float | None  # its standard deviation over the seeds; None for one
    lost: float | None  # forgetting transfer in percent, over all tasks but the last
    points: float | None  # forgetting in points, known where the transfer is undefined
    new: float | None  # the score on the tasks after the first, each just after it was learned
    seconds: float | None
    importance_seconds: float | None
    held: float | None  # bytes
    class_incremental: bool = (
        False  # what can be lost is the whole score, and not what is above chance
    )

    @property
    def score(self) -> str:
        return (
            f"{self.final:.1f}" if self.spread is None else f"{self.final:.1f} ± {self.spread:.1f}"
        )


@dataclass(frozen=True)
class Answer:
    """What the runs of one setting say: scores on other tasks, or on other data, cannot be compared with them."""

    setting: str
    groups: tuple[Group, ...]
    headline: str
    remarks: tuple[str, ...]
    leaders: tuple[Standing, ...] = ()  # the best, and all that cannot be told apart from it


def answer_groups(groups: Sequence[Group]) -> list[Answer]:
    """One answer for each setting."""
    return [_answer(setting, found) for setting, found in split_settings(groups).items()]


def make_standing(group: Group) -> Standing:
    """Where the complete runs of a group ended."""
    finals = [run.metrics["A_last"] for run in group.runs]
    return Standing(
        group.variant,
        group.method,
        len(finals),
        statistics.fmean(finals),
        statistics.stdev(finals) if len(finals) > 1 else None,
        _average([run.metrics["forgetting_transfer_average"][-1] for run in group.runs]),
        _average([run.metrics["forgetting"] for run in group.runs]),
        _average([value for run in group.runs for value in run.metrics["A_new"][1:]]),
        _average([_total_seconds(run) for run in group.runs]),
        _average([run.cost.get("end_task_seconds") for run in group.runs]),
        _average([run.cost.get("bytes_held") for run in group.runs]),
        class_incremental=group.runs[0].matrix.class_incremental,
    )


def format_seconds(seconds: float) -> str:
    """`95 s`, `5.2 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_bytes(count: float) -> str:
    """`6.9 MiB`; nothing is `0 MiB`."""
    return f"{count / 2**20:.1f} MiB" if count else "0 MiB"


def _answer(setting: str, groups: Sequence[Group]) -> Answer:
    standings = [make_standing(group) for group in groups if group.complete]
    if not standings:
        headline = "No run is finished, so there is no answer yet."
        return Answer(setting, tuple(groups), headline, tuple(map(_tell_unfinished, groups)))
    ranked = (
        sorted((s for s in standings if s.method not in BOUNDS), key=lambda s: -s.final)
        or standings
    )
    leaders = tuple(s for s in ranked if s is ranked[0] or _alike(ranked[0], s))
    others = [s for s in ranked if s not in leaders]
    bounds = [s for s in standings if s not in ranked]
    headline = _tell_best(ranked, leaders, _tell_where(groups[0].runs[0]))
    told = [
        _tell_cost(leaders),
        _tell_new(leaders, others),
        *_tell_others(others, bounds),
        *_tell_seeds(ranked),
    ]
    return Answer(
        setting, tuple(groups), headline, tuple(remark for remark in told if remark), leaders
    )


def _tell_best(ranked: Sequence[Standing], leaders: Sequence[Standing], where: str) -> str:
    best = leaders[0]
    once = (
        ("With one seed each, " if len(ranked) > 1 else "With one seed, ")
        if _are_lone(ranked)
        else ""
    )
    if len(leaders) > 1:
        why = "too close to call" if _are_lone(leaders) else "within the spread of the seeds"
        if len(leaders) > MOST:
            first = f"{once}{best.label} ended highest, at {best.score} % {where}{_forgot(best)}"
            return f"{first}; but {len(leaders) - 1} others cannot be told apart from it, {why}."
        scores = f"{_join([s.score for s in leaders])} % {where}"
        return f"{once}{_join([s.label for s in leaders])} cannot be told apart: they ended at {scores}, {why}."
    if len(ranked) == 1:
        return f"{once}{best.label} ended at {best.score} % {where}{_forgot(best)}."
    kinds = "methods" if len({s.method for s in ranked}) == len(ranked) else "variants"
    return f"{once}{best.label} ended highest of {len(ranked)} {kinds}: {best.score} % {where}{_forgot(best)}."


def _tell_where(run: Run) -> str:
    """What A_last is an average over: with one head for all tasks, over their classes."""
    if len(run.tasks) == 1:
        return f"on {run.tasks[0]}"
    count = f"{len(run.tasks)} tasks"
    return (
        f"over all classes of {count}" if run.track == "efcil" else f"on average over the {count}"
    )


def _tell_cost(leaders: Sequence[Standing]) -> str:
    """What the best cost; of a few, what each forgot and cost, the verbs with the first only."""
    if len(leaders) == 1 or len(leaders) > MOST:
        one = leaders[0]
        told = [f"{verb} {what}" for verb, what in _list_cost(one, _took(one))]
        return (
            f"{'It' if len(leaders) == 1 else one.label} {_join(told)}."
            if told
            else "What it cost is not stated."
        )
    parts = [
        [
            *_list_lost(one),
            *_list_cost(one, "" if one.seconds is None else format_seconds(one.seconds)),
        ]
        for one in leaders
    ]
    verbs = [[verb for verb, _ in told] for told in parts]
    alike = all(found == verbs[0] for found in verbs)
    sentences = []
    for number, (one, told) in enumerate(zip(leaders, parts, strict=True)):
        words = [what if alike and number else f"{verb} {what}" for verb, what in told]
        sentences += [f"{one.label} {_join(words)}"] if words else []
    return f"{'; '.join(sentences)}." if sentences else "What they forgot and cost is not stated."


def _tell_new(leaders: Sequence[Standing], others: Sequence[Standing]) -> str:
    """How well tasks were learned once there was something to keep: who learns nothing has nothing to forget."""
    shown = [
        one for one in (leaders[:1] if len(leaders) > MOST else leaders) if one.new is not None
    ]
    if not shown:
        return ""
    named = len(leaders) > 1
    scores = _join([f"{one.new:.1f} %{f' by {one.label}' if named else ''}" for one in shown])
    free = [
        f"{one.new:.1f} % by {one.label}"
        for one in others
        if one.method == UNPROTECTED and one.new is not None
    ]
    return f"Tasks after the first were learned to {scores}{f' ({_join(free)})' if free else ''}."


def _list_cost(one: Standing, took: str) -> list[tuple[str, str]]:
    listed = [("took", took)] if one.seconds is not None else []
    return [*listed, *([("held", format_bytes(one.held))] if one.held else [])]


def _tell_others(others: Sequence[Standing], bounds: Sequence[Standing]) -> list[str]:
    """The next below the leaders, finetuning, and the bounds."""
    told = []
    if others and others[0].method != UNPROTECTED:
        told.append(f"Next is {others[0].label}, at {others[0].score} %.")
    for one in others:
        if one.method == UNPROTECTED:
            lost = "".join(f" and {verb} {what}" for verb, what in _list_lost(one))
            took = f", in {format_seconds(one.seconds)}" if one.seconds is not None else ""
            told.append(f"{one.label}, which protects nothing, ended at {one.score} %{lost}{took}.")
    if bounds:
        told.append(
            f"As a bound, {_join([f'{one.label} ended at {one.score} %' for one in bounds])}."
        )
    return told


def _tell_seeds(ranked: Sequence[Standing]) -> list[str]:
    if _are_lone(ranked):
        alone = "One seed shows what happened once, not how far another would differ"
        return [
            f"{alone}."
            if len(ranked) == 1
            else f"{alone}: more seeds would tell whether the order holds."
        ]
    counts = sorted({s.seeds for s in ranked})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    told = [
        f"Figures are mean ± standard deviation over {seeds} seeds{'' if len(ranked) == 1 else ' each'}."
    ]
    if len(ranked) > 1:
        told.append("Where these overlap with the best, it is not called better.")
    lone = [s.label for s in ranked if s.seeds == 1]
    if lone:
        told.append(
            f"{_join(lone)} {'has' if len(lone) == 1 else 'have'} one seed only, whose spread is unknown."
        )
    return told


def _are_lone(standings: Sequence[Standing]) -> bool:
    return all(standing.seeds == 1 for standing in standings)


def _tell_unfinished(group: Group) -> str:
    """How far a run is; the variant of one that is unfinished tells the tasks that it has learned."""
    now = metrics.last_average(group.runs[0].matrix)
    return (
        f"{group.variant} has learned nothing yet."
        if now is None
        else f"{group.variant} stands at {now:.1f} %."
    )


def _alike(best: Standing, other: Standing) -> bool:
    """Whether mean ± deviation overlap, or the means are printed alike; a deviation unknown is taken as the other's."""
    known = [standing.spread for standing in (best, other) if standing.spread is not None]
    reach = 2 * statistics.fmean(known) if known else 0.0
    return best.final - other.final <= reach or f"{best.final:.1f}" == f"{other.final:.1f}"


def _forgot(one: Standing) -> str:
    """The end of a sentence about how it ended."""
    if one.lost is None:
        if one.points is None:
            return ""
        return (
            f", having lost {one.points:.1f} points on earlier tasks since they were at their best"
        )
    if one.lost < LEAST_LOST:
        return ", and it forgot nothing"
    if one.lost >= 100 + LEAST_LOST:
        lost = f"{one.lost:.1f} % of what it had learned above chance is lost"
        return f", having fallen below chance on earlier tasks ({lost})"
    learned = "learned" if one.class_incremental else "learned above chance"
    return f", having forgotten {_share(one.lost)} of what it had {learned}"


def _list_lost(one: Standing) -> list[tuple[str, str]]:
    """The same as a verb and its object; nothing where there is nothing to forget."""
    if one.lost is None:
        return [] if one.points is None else [("lost", f"{one.points:.1f} points")]
    if one.lost < LEAST_LOST:
        return [("forgot", "nothing")]
    # more than all that was above chance can be lost: the score is then below it
    if one.lost >= 100 + LEAST_LOST:
        return [("fell", f"below chance ({one.lost:.1f} % lost)")]
    return [("forgot", _share(one.lost))]


def _share(lost: float) -> str:
    """Return how much was lost, in words where it is all."""
    return f"{lost:.1f} %" if lost < 100 - LEAST_LOST else "all"


def _took(one: Standing) -> str:
    if one.seconds is None:
        return ""
    told = format_seconds(one.seconds)
    important = one.importance_seconds or 0.0
    return (
        f"{told} ({format_seconds(important)} of it for importance)" if important >= 0.5 else told
    )


def _total_seconds(run: Run) -> float | None:
    parts = [run.cost.get(name) for name in ("fit_seconds", "end_task_seconds", "score_seconds")]
    return None if None in parts else sum(parts)


def _average(values: Sequence[float | None]) -> float | None:
    return None if not values or None in values else statistics.fmean(values)


def _join(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

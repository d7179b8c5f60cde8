"""What runs say in a few sentences: which method is best, what it forgot, what it cost, how sure.

The sentences are templates in tables: the first one whose condition holds is filled in. A condition
is the name of a fact.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcit.reports.formats import Cell, format_bytes, format_cell, format_seconds
from mcit.reports.groups import Group, Groups, Setting, average, split_settings
from mcit.reports.tables import (
    SECONDS,
    read_form_learned,
    read_form_left,
    read_last,
    summarize,
)

FREE = "finetune"
# groups that are all named if they are too close to call
MOST_NAMES = 3

HEADLINES = (
    ("unfinished", "No run is finished yet."),
    ("alone", "{best.label} reached {best.score} % {scope}{best.forgot}."),
    ("tied_few", "{names} are too close to call: {scores} % {scope}."),
    (
        "tied",
        "{best.label} is highest with {best.score} % {scope}{best.forgot}, "
        "but {rivals} others are too close to call.",
    ),
    ("always", "{best.label} is best of {count} with {best.score} % {scope}{best.forgot}."),
)
# at most one sentence of each table follows the headline
REMARKS = (
    (("unfinished", "{progress}."),),
    (
        ("took_and_kept", "{best.label} took {best.time} and kept {best.kept} between tasks."),
        ("took", "{best.label} took {best.time}."),
    ),
    (
        (
            "learned_less",
            "It learned the tasks after the first to {best.new:.1f} % "
            "({free.label}: {free.new:.1f} %).",
        ),
        ("learned", "{best.label} learned the tasks after the first to {best.new:.1f} %."),
    ),
    (
        (
            "lost_form",
            "{lossy.label} lost {lossy.points:.1f} points on earlier tasks: {lossy.content:.1f} of "
            "content, and {lossy.form:.1f} because right answers had the wrong form; answers in "
            "the asked form fell from {lossy.form_learned:.1f} % to {lossy.form_left:.1f} %.",
        ),
    ),
    (
        (
            "kept_form",
            "{best.label} lost {best.points:.1f} points, {best.content:.1f} of content and "
            "{best.form:.1f} of form ({best.form_learned:.1f} % to {best.form_left:.1f} % in the "
            "asked form).",
        ),
    ),
    (("zero_shot", "The pretrained model scored {zero_shot:.1f} % before it learned any task."),),
    (("second", "Next is {second.label} with {second.score} %."),),
    (("free", "{free.label}, which protects nothing, reached {free.score} %{free.forgot}."),),
    (("bounds", "Upper bound: {bounds}."),),
    (("elsewhere", "From elsewhere: {elsewhere}."),),
    (
        ("one_seed_alone", "One seed shows what happened once, not how far another would differ."),
        ("one_seed", "With one seed each, the order may change with other seeds."),
        ("always", "± is the standard deviation over {seeds} seeds."),
    ),
)
# up to how many percent are lost, and what is said then
FORGETTING = (
    (0.05, "; it forgot nothing"),
    (99.95, "; it forgot {lost:.1f} % of what it had learned"),
    (100.05, "; it forgot all that it had learned"),
    (math.inf, "; it fell below chance on earlier tasks"),
)


@dataclass(frozen=True)
class GroupSummary:
    """How the complete runs of a group ended, on average over their seeds."""

    group: Group
    final: Cell
    lost: float | None
    new: float | None
    seconds: float | None
    bytes_held: float | None
    # of earlier tasks since they were learned: points lost in all, of content and of form alone
    points: float | None = None
    content: float | None = None
    form: float | None = None
    # the share of answers in the asked form, when learned and at the end
    form_learned: float | None = None
    form_left: float | None = None

    @property
    def label(self) -> str:
        return self.group.name

    @property
    def score(self) -> str:
        return format_cell(self.final, ".1f")

    @property
    def forgot(self) -> str:
        """The end of a sentence on what was forgotten; empty if that is not known."""
        for limit, template in FORGETTING:
            if self.lost is not None and self.lost < limit:
                return template.format(lost=self.lost)
        return ""

    @property
    def time(self) -> str:
        return format_seconds(self.seconds or 0.0)

    @property
    def kept(self) -> str:
        return format_bytes(self.bytes_held or 0.0)


@dataclass(frozen=True)
class Summary:
    """What the runs of one setting say."""

    setting: Setting
    headline: str
    remarks: list[str]


def summarize_settings(groups: Groups) -> list[Summary]:
    """Return one summary for each setting: scores of different settings cannot be compared."""
    summaries = []
    for setting, members in split_settings(groups).items():
        facts = collect_facts(setting, members)
        remarks = [_fill(templates, facts) for templates in REMARKS]
        headline = _fill(HEADLINES, facts)
        summaries.append(Summary(setting, headline, [remark for remark in remarks if remark]))
    return summaries


def collect_facts(setting: Setting, groups: Groups) -> dict[str, Any]:
    """Return what is known of the groups of one setting, by the names that templates use."""
    complete = [summarize_group(group) for group in groups if group.complete]
    own = [each for each in complete if each.group.ranked and not each.group.runs[0].external]
    # upper bounds and external results are in the headline only if there is nothing else
    ranked = sorted(own or complete, key=_final_score, reverse=True)
    if not ranked:
        return {"unfinished": True, "progress": "; ".join(group.name for group in groups)}
    best = ranked[0]
    leaders = [each for each in ranked if is_close(best.final, each.final)]
    others = [each for each in ranked if each not in leaders]
    rest = [each for each in complete if each not in ranked]
    free = next((each for each in others if each.group.method == FREE), None)
    seeds = sorted({len(each.group.runs) for each in ranked})
    lossy = free or best
    return {
        "always": True,
        "best": best,
        "count": len(ranked),
        "scope": _describe_scope(setting),
        "alone": len(ranked) == 1,
        "tied": len(leaders) > 1,
        "tied_few": 1 < len(leaders) <= MOST_NAMES,
        "rivals": len(leaders) - 1,
        "names": join_words([each.label for each in leaders]),
        "scores": join_words([each.score for each in leaders]),
        "took": best.seconds is not None,
        "took_and_kept": best.seconds is not None and best.bytes_held,
        "learned": best.new is not None,
        "learned_less": best.new is not None and free,
        "free": free,
        "lossy": lossy,
        "lost_form": lossy.form_left is not None and lossy.points is not None,
        "kept_form": lossy is not best and best.form_left is not None and best.points is not None,
        **_find_zero_shot(ranked),
        "second": others[0] if others and others[0] is not free else None,
        "bounds": _list_scores([each for each in rest if not each.group.ranked]),
        "elsewhere": _list_scores([each for each in rest if each.group.ranked]),
        "one_seed": seeds == [1],
        "one_seed_alone": seeds == [1] and len(ranked) == 1,
        "seeds": _describe_range(seeds),
    }


def summarize_group(group: Group) -> GroupSummary:
    """Return how the complete runs of a group ended."""
    runs = group.runs
    losses = [run.loss for run in runs]
    known = [loss for loss in losses if loss is not None]
    return GroupSummary(
        group,
        final=summarize([read_last(run) for run in runs]),
        lost=average([run.metrics["forgetting_transfer_average"][-1] for run in runs]),
        new=average([score for run in runs for score in run.metrics["A_new"][1:]]),
        seconds=average([_total_seconds(run.cost) for run in runs]),
        bytes_held=average([run.cost.get("bytes_held") for run in runs]),
        points=average([loss.total for loss in known]),
        content=average([loss.content for loss in known]),
        form=average([loss.form for loss in known]),
        form_learned=average([read_form_learned(run) for run in runs]),
        form_left=average([read_form_left(run) for run in runs]),
    )


def _find_zero_shot(summaries: Sequence[GroupSummary]) -> dict[str, float]:
    """Return the average zero-shot score, if all runs began from the same one."""
    found = {run.zero_shot for each in summaries for run in each.group.runs}
    if len(found) != 1:
        return {}
    score = average(found.pop() or ())
    return {} if score is None else {"zero_shot": score}


def is_close(best: Cell, other: Cell) -> bool:
    """Whether two scores overlap or print the same; an unknown spread is taken as the other's."""
    known = [cell.spread for cell in (best, other) if cell.spread is not None]
    reach = 2 * statistics.fmean(known) if known else 0.0
    distance = best.mean - other.mean
    return distance <= reach or round(best.mean, 1) == round(other.mean, 1)


def join_words(words: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _fill(templates: Sequence[tuple[str, str]], facts: Mapping[str, Any]) -> str:
    for condition, template in templates:
        if facts.get(condition):
            return template.format_map(facts)
    return ""


def _describe_scope(setting: Setting) -> str:
    if len(setting.tasks) == 1:
        return f"on {setting.tasks[0]}"
    if setting.classes:
        return f"on all {sum(setting.classes)} classes"
    return f"on average over {len(setting.tasks)} tasks"


def _describe_range(counts: Sequence[int]) -> str:
    """Return `3`, or `1 to 3` for counts that differ."""
    if len(counts) == 1:
        return str(counts[0])
    return f"{counts[0]} to {counts[-1]}"


def _list_scores(summaries: Sequence[GroupSummary]) -> str:
    return join_words([f"{each.label} {each.score} %" for each in summaries])


def _final_score(summary: GroupSummary) -> float:
    return summary.final.mean


def _total_seconds(cost: Mapping[str, float]) -> float | None:
    if any(name not in cost for name in SECONDS):
        return None
    return sum(cost[name] for name in SECONDS)

"""The tables and the figure of a study, from its plan and its raw scores alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mcit.reports.formats import (
    COUNT,
    SIGNIFICANT,
    Cell,
    Column,
    Content,
    Note,
    Row,
    Table,
    TableKind,
)
from mcit.reports.groups import BOUNDS
from mcit.studies.analysis import (
    FINETUNE,
    Choice,
    Interval,
    Records,
    choose_strengths,
    lead,
    list_classifiers,
    pair,
    trace,
)
from mcit.studies.plan import RULE, Point, StudyPlan
from mcit.studies.records import Scores

INTERVAL = Note(
    "First minus second, in points, paired by seed; the interval is Student's, at 95 %.",
    latex="Paired differences in points; intervals of Student's $t$ at 95 \\%.",
)
KEPT = Note(
    "Kept is the score over all tasks but the last, at the end; A_new the mean score on tasks just "
    "after they were learned. ± is the standard deviation over n seeds."
)
FORM_KEPT = Note(
    "Form kept is the share of answers in the form that was asked for, right or wrong, on all "
    "tasks but the last, at the end."
)


@dataclass(frozen=True)
class Study:
    """A plan with the records that it has so far, and what was chosen by them."""

    plan: StudyPlan
    records: Records
    choices: dict[str, Choice]

    @classmethod
    def of(cls, plan: StudyPlan, records: Records) -> Study:
        """Return the study of a plan and its records."""
        return cls(plan, records, choose_strengths(plan, records))

    @property
    def chosen(self) -> dict[str, float]:
        """The chosen strengths by entry."""
        return {name: choice.strength for name, choice in self.choices.items()}

    @property
    def names(self) -> list[tuple[str, str]]:
        """The entries by each classifier that scored them."""
        return [
            (entry, classifier)
            for entry in self.plan.entries
            for classifier in list_classifiers(self.records)
        ]

    def find_best(self, entry: str, classifier: str) -> dict[int, Scores]:
        """Return the scores of an entry as it is reported, by seed."""
        if self.plan.entries[entry].strengths and entry not in self.chosen:
            return {}
        points = [Point(entry, seed, self.chosen.get(entry)) for seed in self.plan.seeds]
        return self._find(points, classifier)

    def find_level(self, entry: str, level: float, classifier: str) -> dict[int, Scores]:
        """Return the scores of an entry with a mean stiffness, by seed."""
        points = [Point(entry, seed, stiffness=level) for seed in self.plan.seeds]
        return self._find(points, classifier)

    def find_leads(self, first: tuple[str, str], second: tuple[str, str]) -> list[float]:
        """Return the leads of the first curve over the second, of seeds that have both."""
        leads = []
        for seed in self.plan.seeds:
            curves = []
            for entry, classifier in (first, second):
                curve = trace(
                    self.plan, self.records, entry=entry, seed=seed, classifier=classifier
                )
                if curve is not None:
                    curves.append(curve)
            if len(curves) == 2:
                found = lead(*curves)
                if found is not None:
                    leads.append(found)
        return leads

    def label(self, name: tuple[str, str]) -> str:
        """Return the name of an entry, with its classifier where there are several."""
        entry, classifier = name
        several = len(list_classifiers(self.records)) > 1
        return f"{entry} + {classifier}" if several else entry

    def _find(self, points: Sequence[Point], classifier: str) -> dict[int, Scores]:
        found = {}
        for point in points:
            record = self.records.get(point)
            if record is not None and classifier in record.scores:
                found[point.seed] = record.scores[classifier]
        return found


def make_tables(study: Study) -> list[Table]:
    """Return all tables that the records suffice for."""
    tables = [
        tabulate_best(study),
        tabulate_best_pairs(study),
        tabulate_levels(study),
        tabulate_leads(study),
    ]
    return [table for table in tables if table.rows]


def tabulate_best(study: Study) -> Table:
    """Return each entry at its own best strength, the highest A_last first."""
    rows = []
    worded = False
    for name in study.names:
        scores = list(study.find_best(*name).values())
        if scores:
            strength = study.chosen.get(name[0])
            shown = None if strength is None else Cell(strength)
            cells: list[Content] = [shown, Cell(len(scores)), *_summarize(scores)]
            form = [each.form_kept for each in scores if each.form_kept is not None]
            if form:
                worded = True
                cells.append(_mean(form))
            rows.append((statistics.fmean(each.last for each in scores), study.label(name), cells))
    rows.sort(key=lambda row: -row[0])
    columns = [Column("method"), Column("strength", SIGNIFICANT), Column("n", COUNT)]
    columns += [Column(measure) for measure in ("A_last", "A_new", "kept")]
    notes = [KEPT]
    if worded:
        columns.append(Column("form kept"))
        notes.append(FORM_KEPT)
    notes.append(Note(f"Strength: {RULE}."))
    notes += [Note(f"{entry}: {_describe(choice)}.") for entry, choice in study.choices.items()]
    return Table(
        kind=TableKind.COMPARISON,
        name="best",
        title="Each method at its own best strength",
        columns=columns,
        rows=[Row(label, cells) for _, label, cells in rows],
        notes=notes,
    )


def tabulate_best_pairs(study: Study) -> Table:
    """Return the differences in A_last of the best and every other, at their own strengths.

    Upper bounds are compared with, and never the best.
    """
    scores = {name: study.find_best(*name) for name in study.names}
    means = {
        name: statistics.fmean(each.last for each in found.values())
        for name, found in scores.items()
        if found
    }
    ranked = sorted(means, key=lambda name: -means[name])
    free = [name for name in ranked if study.plan.method_of(name[0]) not in BOUNDS]
    best = next(iter(free or ranked), None)
    rows = []
    for other in ranked:
        if best is None or other == best:
            continue
        first, second = scores[best], scores[other]
        both = [seed for seed in first if seed in second]
        interval = pair([first[seed].last - second[seed].last for seed in both])
        if interval is not None:
            label = f"{study.label(best)} vs {study.label(other)}"
            rows.append(_make_pair(label, interval))
    return Table(
        kind=TableKind.PAIRS,
        name="best-pairs",
        title="A_last at their own best strengths, paired",
        columns=_pair_columns("difference"),
        rows=rows,
        notes=[INTERVAL],
    )


def tabulate_levels(study: Study) -> Table:
    """Return A_last of every entry at every level of stiffness."""
    rows = []
    for name in study.names:
        cells: list[Content] = []
        for level in study.plan.levels:
            scores = list(study.find_level(name[0], level, name[1]).values())
            cells.append(_summarize(scores)[0] if scores else None)
        if any(cell is not None for cell in cells):
            rows.append(Row(study.label(name), cells))
    columns = [Column("A_last at stiffness"), *(Column(f"{x:g}") for x in study.plan.levels)]
    return Table(
        kind=TableKind.STIFFNESS,
        name="levels",
        title="At equal mean stiffness after the first task",
        columns=columns,
        rows=rows,
        notes=[KEPT],
    )


def tabulate_leads(study: Study) -> Table:
    """Return how far apart the curves of every two entries are, per seed and on average."""
    plan = study.plan
    traced = [name for name in study.names if name[0] in plan.list_leveled()]
    rows = []
    for place, first in enumerate(traced):
        for second in traced[place + 1 :]:
            interval = pair(study.find_leads(first, second))
            if interval is not None:
                label = f"{study.label(first)} vs {study.label(second)}"
                rows.append(_make_pair(label, interval))
    free = any(plan.method_of(name) == FINETUNE for name in plan.entries)
    begin = " Every curve begins at finetuning, which is stiffness 0." if free else ""
    note = (
        "Lead: how much more of the earlier tasks the first keeps at the end than the second, at "
        "equal A_new: the area between their curves over the levels of stiffness, divided by its "
        f"width.{begin} n counts the seeds in which both curves share some A_new."
    )
    return Table(
        kind=TableKind.PAIRS,
        name="leads",
        title="Between the curves of kept over learned",
        columns=_pair_columns("lead"),
        rows=rows,
        notes=[Note(note), INTERVAL],
    )


def _pair_columns(measure: str) -> list[Column]:
    ends = [Column("95 % low", "+.2f"), Column("95 % high", "+.2f")]
    return [Column("pair"), Column("n", COUNT), Column(measure, "+.2f"), *ends]


def _make_pair(label: str, interval: Interval) -> Row:
    numbers = (interval.count, interval.mean, interval.low, interval.high)
    return Row(label, [Cell(float(number)) for number in numbers])


def _summarize(scores: Sequence[Scores]) -> list[Cell]:
    """Return A_last, A_new and what is kept, over seeds."""
    return [
        _mean([each.last for each in scores]),
        _mean([each.learned for each in scores]),
        _mean([each.kept for each in scores]),
    ]


def _mean(values: Sequence[float]) -> Cell:
    """Return the mean and the standard deviation over seeds."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), spread)


def _describe(choice: Choice) -> str:
    tried = [f"{strength:g}: {mean:.2f}" for strength, mean in sorted(choice.means.items())]
    edge = " (at the edge of the grid: try further)" if choice.at_edge else ""
    return f"{choice.strength:g}{edge}, from {', '.join(tried)}"

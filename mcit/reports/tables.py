"""The tables of runs: methods side by side, splits side by side, every method by itself, cost."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from rich.console import Console

from mcit import metrics
from mcit.reports.formats import (
    COUNT,
    SCORE,
    SIGNIFICANT,
    Cell,
    Column,
    Content,
    Note,
    Row,
    Table,
    TableKind,
    format_number,
    print_tables,
)
from mcit.reports.groups import (
    Group,
    Groups,
    Setting,
    average,
    describe_progress,
    group_runs,
    list_recipes,
    split_settings,
)
from mcit.reports.runs import SCORES, Run, Scores, check_scores, make_run

TRANSFER = Note(
    "Scores in percent. In brackets the forgetting transfer 100 (a_jj - a_tj) / (a_jj - chance_j), "
    "where a_tj is the score on task j after task t: the share of what was learned above chance "
    "that is lost.",
    latex="Scores in percent; in brackets the forgetting transfer "
    "$100\\,(a_{jj}-a_{tj})/(a_{jj}-c_j)$ with $c_j$ the chance level.",
)
TRANSFER_OF_CLASSES = Note(
    "Accuracy in percent. In brackets the forgetting transfer 100 (a_jj - a_tj) / a_jj, where a_tj "
    "is the accuracy on the classes of task j after task t: the share of it that is lost.",
    latex="Accuracy in percent; in brackets the forgetting transfer "
    "$100\\,(a_{jj}-a_{tj})/a_{jj}$.",
)
AVERAGE_OF_TASKS = Note(
    "A_t is the average over the tasks seen after task t.",
    latex="$A_t$: average over the tasks seen.",
)
AVERAGE_OF_CLASSES = Note(
    "A_t is the accuracy over all classes seen after task t, each image once.",
    latex="$A_t$: accuracy over all classes seen, in percent.",
)
AVERAGES = Note(
    "A_last is A_t after the last task, A_avg the mean of all A_t, and A_new the mean of the "
    "scores on each task just after it was learned.",
    latex="$A_{\\mathrm{last}}$: $A_t$ after the last task; $A_{\\mathrm{avg}}$: mean of all "
    "$A_t$; $A_{\\mathrm{new}}$: mean score on tasks just learned.",
)
OLD = Note(
    "A_old is the score over all earlier tasks together, after a task; for a whole run, the mean "
    "over tasks.",
    latex="$A_{\\mathrm{old}}$: score over all earlier tasks together.",
)
STIFFNESS = Note(
    "Stiffness is strength times importance, here its mean over the protected weights: after the "
    "first task, where all methods have the same weights, and after the last. Capped is the share "
    "of weights whose importance is at the cap then.",
    latex="Stiffness: mean of strength times importance.",
)
CHOSEN = Note(
    "Strength is what strength auto chose after the first task, the mean over seeds.",
    latex="Strength: chosen after the first task, mean over seeds.",
)
SPREAD = Note("± is the standard deviation over n seeds.", latex="$\\pm$: standard deviation.")
BEST = Note(
    "Bold is the highest mean of a column, which is not a test; upper bounds (joint, single) and "
    "unfinished runs are left out.",
    latex="Bold: highest mean, without upper bounds.",
)
CLOCK = Note("Wall-clock seconds, means over seeds: compare them on one equally busy machine only.")
PUBLISHED = Note(
    "MFN, MAA and MFT are what papers on instruction tuning call A_last, A_avg and A_new; BWT is "
    "how much earlier tasks changed since they were learned, in points.",
    latex="BWT: change of earlier tasks since they were learned, in points.",
)
CONTENT_AND_FORM = Note(
    "Content: the score without case, articles, punctuation and wording such as `The answer is`. "
    "Form: the share of answers in the form that was asked for, right or wrong.",
)
LOSS = Note(
    "Points that the earlier tasks lost on average since they were learned, and how they divide: "
    "content that is gone, and answers whose content is still right but whose form no longer "
    "scores. Form kept is the share of answers in the asked form on earlier tasks, just after they "
    "were learned and at the end.",
    latex="Points lost on earlier tasks since they were learned: content that is gone, and answers "
    "whose form no longer scores.",
)
ZERO_SHOT = "zero-shot"
UNTOUCHED = Note("Zero-shot is the pretrained model before it has learned any of the tasks.")
# the names that reports give to the views of scores.json
VIEWS = {metrics.CONTENT: "content", metrics.FORM: "form"}
# the head and the form of a column, the checkpoint and the statistic it shows
STIFFNESS_COLUMNS = (
    ("stiffness, first", SIGNIFICANT, 0, "mean"),
    ("stiffness, last", SIGNIFICANT, -1, "mean"),
    ("capped %", ".1f", -1, "capped"),
)
SECONDS = ("fit_seconds", "end_task_seconds", "score_seconds")
COSTS = {**dict.fromkeys(SECONDS, 1), "bytes_held": 2**20}

Read = Callable[[Run], float | None]


@dataclass(frozen=True)
class Measure:
    """A column of a comparison: a number of every run, the score on a task, or how many runs."""

    column: Column
    read: Read | None = None
    task: int | None = None
    # what guessing would score
    chance: float | None = None
    # what the pretrained model scores
    untouched: Read | None = None

    def make_cell(self, group: Group) -> Cell | None:
        """Return the cell of a group."""
        if self.read is not None:
            cell = measure(self.read, group)
            return cell if self.column.form == SCORE else Cell(cell.mean)
        if self.task is None:
            return Cell(len(group.runs))
        if self.task >= group.learned:
            return None
        return _score_cell(group.runs, group.learned - 1, self.task)


def make_tables(groups: Groups) -> list[Table]:
    """Return comparisons of the groups of each setting, every group by itself, and the cost."""
    settings = split_settings(groups)
    tables = []
    for setting, members in settings.items():
        ending = f"-{make_slug(setting.name)}" if len(settings) > 1 else ""
        if len(members) > 1:
            tables.append(compare_groups(members, f"comparison{ending}"))
        tables += split_losses(members, f"form{ending}")
    split = [setting for setting in settings if setting.classes]
    for dataset in dict.fromkeys(setting.dataset for setting in split):
        splits = {each: settings[each] for each in split if each.dataset == dataset}
        if len(splits) > 1:
            tables.append(compare_splits(dataset, splits))
    for group in groups:
        tables += tabulate_group(group, alone=len(groups) == 1)
    tables += tabulate_cost(groups)
    return name_apart(tables)


def compare_groups(groups: Groups, name: str) -> Table:
    """Return methods side by side: the tasks at the end unless they are classes, then averages."""
    setting = groups[0].setting
    chance = find_chance(groups)
    measures = [Measure(Column("n", COUNT))]
    notes = [AVERAGE_OF_CLASSES, AVERAGES, OLD]
    if setting.classes is None:
        notes = [TRANSFER, AVERAGE_OF_TASKS, AVERAGES]
        levels: Sequence[float | None] = chance or [None] * len(setting.tasks)
        for number, task in enumerate(setting.tasks):
            untouched = partial(_read_untouched, number)
            measure_task = Measure(Column(task), task=number, chance=levels[number])
            measures.append(replace(measure_task, untouched=untouched))
    measures += _average_measures(setting, chance)
    measures.append(Measure(Column("A_new", alias="MFT" if setting.text else ""), read_new))
    if setting.classes:
        measures.append(Measure(Column("A_old"), read_old))
    if setting.text:
        notes.append(PUBLISHED)
        measures.append(Measure(Column("BWT"), _read_transfer))
    views = groups[0].runs[0].views
    if views:
        notes.append(CONTENT_AND_FORM)
    for view in views:
        column = Column("A_last", context=VIEWS.get(view, view))
        untouched = partial(_average_untouched, view)
        measures.append(Measure(column, partial(_read_view, view), untouched=untouched))
    if setting.classes and any(group.runs[0].scores.stiffness for group in groups):
        notes.append(STIFFNESS)
        for head, form, place, key in STIFFNESS_COLUMNS:
            measures.append(Measure(Column(head, form), partial(_read_stiffness, place, key)))
    if any(group.runs[0].chosen_strength is not None for group in groups):
        notes.append(CHOSEN)
        measures.append(Measure(Column("strength", SIGNIFICANT), _read_strength))
    title = f"Methods on {setting.name}"
    if setting.embedded:
        title += ", the embedded benchmark"
    notes += _explain_numbers(groups)
    notes += _name_recipes(groups)
    notes += [_describe_method(group) for group in groups]
    columns = [Column("method"), *(each.column for each in measures)]
    rows = _compare({setting: groups}, {setting: measures})
    zero_shot = _untouched_rows(groups, measures)
    if zero_shot:
        notes.append(UNTOUCHED)
        first = sum(row.reference for row in rows)
        rows[first:first] = zero_shot
    return Table(TableKind.COMPARISON, name, title, columns, rows, notes)


def split_losses(groups: Groups, name: str) -> list[Table]:
    """Return what each method lost in content and in form, in one table; none if no run says."""
    rows = []
    known = [group for group in groups if group.complete and group.runs[0].loss is not None]
    for group in known:
        losses = [run.loss for run in group.runs if run.loss is not None]
        lost = [
            summarize([loss.total for loss in losses]),
            summarize([loss.content for loss in losses]),
            summarize([loss.form for loss in losses]),
        ]
        kept = [measure(read_form_learned, group), measure(read_form_left, group)]
        cells = [Cell(len(group.runs)), *lost, *kept]
        rows.append(Row(group.name, cells, group.paper_name, ranked=group.ranked))
    if not rows:
        return []
    columns = [Column("method"), Column("n", COUNT), Column("lost")]
    columns += [Column("content lost"), Column("form lost")]
    columns += [Column("learned", context="form"), Column("kept", context="form")]
    rows = mark_best(mark_best(rows, (1, 2, 3), best=min), (5,))
    title = f"Forgetting of form and of content on {known[0].setting.name}"
    notes = [LOSS, *_explain_spread(known)]
    return [Table(TableKind.FORM, name, title, columns, rows, notes)]


def compare_splits(dataset: str, splits: Mapping[Setting, Groups]) -> Table:
    """Return methods by the ways in which a data set was split into classes."""
    measures = {}
    complete = {}
    columns = [Column("method")]
    for setting, groups in splits.items():
        complete[setting] = [group for group in groups if group.complete]
        measures[setting] = _average_measures(setting, find_chance(groups))
        context = setting.name.partition(":")[2] or setting.name
        columns += [replace(each.column, context=context) for each in measures[setting]]
    title = f"Methods on the splits of {dataset}"
    name = f"splits-{make_slug(dataset)}"
    rows = _compare(complete, measures)
    every = [group for groups in complete.values() for group in groups]
    notes = [AVERAGE_OF_CLASSES, AVERAGES, *_explain_numbers(every), *_name_recipes(every)]
    return Table(TableKind.SPLITS, name, title, columns, rows, notes)


def _explain_numbers(groups: Groups) -> list[Note]:
    """Return what ± and bold numbers mean, as far as the table has them."""
    return [*_explain_spread(groups), BEST]


def _explain_spread(groups: Groups) -> list[Note]:
    return [SPREAD] if any(len(group.runs) > 1 for group in groups) else []


def _name_recipes(groups: Groups) -> list[Note]:
    """Return the recipe that all rows share, or a warning if they do not."""
    recipes = list_recipes(groups)
    if not recipes:
        return []
    if len(recipes) == 1:
        return [Note(f"Recipe: {recipes[0]}.")]
    listed = ", ".join(recipes)
    return [Note(f"Rows have different recipes ({listed}), which score differently by themselves.")]


def tabulate_group(group: Group, alone: bool = False) -> list[Table]:
    """Return checkpoints by tasks as means over seeds, and the same for each view of the scores."""
    first = group.runs[0]
    name = "matrix" if alone else f"matrix-{make_slug(group.label)}"
    which = ""
    notes = []
    if not group.complete:
        notes.append(Note(f"Unfinished: averages are over {describe_progress(first)}."))
    if len(group.runs) > 1:
        which = f", mean over {len(group.runs)} seeds"
        notes += [SPREAD, _describe_method(group)]
    else:
        if group.complete and first.seed is not None:
            which = f", seed {first.seed}"
        notes += describe_run(first)
    if first.matrix.class_incremental:
        notes += [TRANSFER_OF_CLASSES, AVERAGE_OF_CLASSES, OLD]
    else:
        notes += [TRANSFER, AVERAGE_OF_TASKS]
    if first.zero_shot is not None:
        notes.append(UNTOUCHED)
    columns, rows = tabulate_runs(group.runs)
    title = group.label + which
    paper = group.paper_name + which
    tables = [Table(TableKind.MATRIX, name, title, columns, rows, notes, paper)]
    for view in first.views:
        runs = [show_view(run, view) for run in group.runs if view in run.views]
        columns, rows = tabulate_runs(runs)
        shown = VIEWS.get(view, view)
        file = f"{name}-{make_slug(shown)}"
        heading = f"{title}: {shown}"
        tables.append(Table(TableKind.MATRIX, file, heading, columns, rows, [CONTENT_AND_FORM]))
    return tables


def show_view(run: Run, view: str) -> Run:
    """Return a run whose scores are those by content alone, or the shares of the asked form."""
    zero_shot = {"score": run.scores.zero_shot[view]} if view in run.scores.zero_shot else {}
    return replace(
        run, matrix=run.views[view], scores=replace(run.scores, zero_shot=zero_shot), views={}
    )


def tabulate_runs(runs: Sequence[Run]) -> tuple[list[Column], list[Row]]:
    """Return a row per checkpoint and a column per task, as means over runs of several seeds."""
    first = runs[0]
    pooled = first.matrix.class_incremental
    names = ["after", *first.tasks, "A_t"]
    if pooled:
        names += ["A_new", "A_old"]
    rows = []
    if first.scores.chance is not None:
        rows.append(_reference_row(first.matrix.chance, len(names) - 1))
    if first.zero_shot is not None:
        levels = [*first.zero_shot, average(first.zero_shot)]
        rows.append(_reference_row(levels, len(names) - 1, ZERO_SHOT))
    for number, task in enumerate(first.tasks[: first.learned]):
        cells: list[Cell | None] = [None] * len(first.tasks)
        for seen in range(number + 1):
            cells[seen] = _score_cell(runs, number, seen)
        cells.append(summarize([metrics.average_seen(run.matrix)[number] for run in runs]))
        if pooled:
            cells.append(summarize([run.matrix.rows[number][-1] for run in runs]))
            old = [metrics.average_old(run.matrix)[number] for run in runs]
            cells.append(summarize(old) if number else None)
        rows.append(Row(task, cells))
    return [Column(name) for name in names], rows


def tabulate_cost(groups: Groups) -> list[Table]:
    """Return what each method took and kept, in one table; none if no run says."""
    rows = []
    for group in groups:
        costs = [run.cost for run in group.runs]
        if group.classifier is not None or not all(costs):
            continue
        cells = [Cell(len(costs))]
        for key, unit in COSTS.items():
            mean = statistics.fmean(cost.get(key, 0) for cost in costs)
            cells.append(Cell(mean / unit))
        rows.append(Row(group.label, cells, group.paper_name))
    if not rows:
        return []
    names = ("fitting s", "importance s", "scoring s", "kept MiB")
    columns = [Column("method"), Column("n", COUNT)]
    columns += [Column(name, ".1f") for name in names]
    return [Table(TableKind.COST, "cost", "Cost", columns, rows, [CLOCK])]


def print_table(scores: Scores | Mapping[str, Any], console: Console | None = None) -> None:
    """Print the table of a run with its averages, estimator and cost; and its other classifiers."""
    if not isinstance(scores, Scores):
        scores = check_scores(scores, Path(SCORES))
    groups = group_runs([make_run(scores.method, scores)])
    tables = tabulate_group(groups[0])[:1]
    if len(groups) > 1:
        tables.append(compare_groups(groups, "comparison"))
    print_tables(tables, console)


def describe_run(run: Run) -> list[Note]:
    """Return a run in a few lines: averages, method and estimator, stiffness, cost."""
    lines = [describe_averages(run)]
    if run.loss is not None:
        lines.append(describe_loss(run, run.loss))
    transfer = run.metrics.get("knowledge_transfer")
    if transfer is not None:
        parts = []
        for task, value in zip(run.tasks, transfer, strict=False):
            text = format_number(_or_nan(value), "+.2f")
            parts.append(f"{task} {text}")
        lines.append("knowledge transfer: " + ", ".join(parts))
    lines.append(f"{run.method}: {run.scores.estimator}")
    if run.recipe is not None:
        lines.append(f"recipe: {run.recipe}")
    if run.chosen_strength is not None:
        lines.append(f"strength auto chose {run.chosen_strength:.4g}")
    lines += run.scores.diagnoses[-1:]
    if run.cost.keys() >= COSTS.keys():
        fit, importance, scoring, kept = (run.cost[key] / unit for key, unit in COSTS.items())
        lines.append(
            f"{fit:.0f} s fitting, {importance:.0f} s importance, {scoring:.0f} s scoring; "
            f"{kept:.1f} MiB kept between tasks"
        )
    return [Note(line, detail=True) for line in lines]


def describe_averages(run: Run) -> str:
    """Return `A_last 81.00, A_avg 78.67, A_new 85.00, BWT -6.00`."""
    named = {"A_last": read_last(run), "A_avg": read_average(run), "A_new": read_new(run)}
    if run.text:
        named = {
            "A_last (MFN)": read_last(run),
            "A_avg (MAA)": read_average(run),
            "A_new (MFT)": read_new(run),
        }
    if run.matrix.class_incremental:
        named["A_old"] = read_old(run)
    named["BWT"] = run.metrics["BWT"]
    parts = []
    for name, value in named.items():
        if value is not None:
            parts.append(f"{name} {value:.2f}")
    return ", ".join(parts)


def describe_loss(run: Run, loss: metrics.SplitLoss) -> str:
    """Return `earlier tasks lost 40.00 points: 12.00 of content, 28.00 of form alone; ...`.

    An answer that has lost its form has mostly lost what content was read from, so that the shares
    of answers in the asked form follow.
    """
    lost = (
        f"earlier tasks lost {loss.total:.2f} points: {loss.content:.2f} of content, "
        f"{loss.form:.2f} of form alone"
    )
    learned = read_form_learned(run)
    left = read_form_left(run)
    if learned is None or left is None:
        return lost
    return f"{lost}; answers in the asked form: {learned:.2f} % when learned, {left:.2f} % now"


def read_form_learned(run: Run) -> float | None:
    """Return the share of answers in the asked form on earlier tasks when they were learned."""
    form = run.views.get(metrics.FORM)
    return None if form is None else average(metrics.score_when_learned(form)[:-1])


def read_form_left(run: Run) -> float | None:
    """Return the share of answers in the asked form on earlier tasks at the end."""
    form = run.views.get(metrics.FORM)
    return None if form is None else metrics.average_old(form)[-1]


def read_last(run: Run) -> float | None:
    """Return A_last."""
    return metrics.last_average(run.matrix)


def read_average(run: Run) -> float | None:
    """Return A_avg."""
    return metrics.mean_average(run.matrix)


def read_new(run: Run) -> float | None:
    """Return the mean of A_new: how well tasks were learned when it was their turn."""
    return average(metrics.score_when_learned(run.matrix))


def read_old(run: Run) -> float | None:
    """Return the mean of A_old over the tasks after the first."""
    return average(metrics.average_old(run.matrix)[1:])


def measure(read: Read, group: Group) -> Cell:
    """Return a measure of a group; it is undefined before the last task was learned."""
    if not group.complete:
        return Cell(math.nan)
    return summarize([read(run) for run in group.runs])


def summarize(values: Sequence[float | None], lost: Sequence[float | None] | None = None) -> Cell:
    """Return the mean and the standard deviation of one value per seed, with what was lost."""
    mean = average(values)
    if mean is None:
        return Cell(math.nan)
    known = [value for value in values if value is not None]
    spread = statistics.stdev(known) if len(known) > 1 else None
    share = None if lost is None else _or_nan(average(lost))
    return Cell(mean, spread, share)


def mark_best(
    rows: Sequence[Row], numbers: Sequence[int], best: Callable[..., float] = max
) -> list[Row]:
    """Return rows in which the best of each of these columns is marked.

    Numbers that print the same are the same, and one row alone is not the best of anything.
    """
    marked = [list(row.cells) for row in rows]
    for number in numbers:
        known: dict[int, Cell] = {}
        for place, row in enumerate(rows):
            cell = row.cells[number]
            if row.ranked and _is_known(cell):
                known[place] = cell
        means = {place: round(cell.mean, 2) for place, cell in known.items()}
        for place, cell in known.items():
            if len(known) > 1 and means[place] == best(means.values()):
                marked[place][number] = replace(cell, best=True)
    return [replace(row, cells=cells) for row, cells in zip(rows, marked, strict=True)]


def find_chance(groups: Groups) -> Sequence[float] | None:
    """Return the chance levels of the tasks; None if no run states them."""
    for group in groups:
        if group.runs[0].scores.chance is not None:
            return group.runs[0].matrix.chance
    return None


def make_slug(text: str) -> str:
    """Return text as part of the name of a file, which systems limit in length."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:60].strip("-")


def name_apart(made: Sequence[Any]) -> list[Any]:
    """Return tables or figures, none with the name of another."""
    seen: Counter[str] = Counter()
    named = []
    for each in made:
        seen[each.name] += 1
        if seen[each.name] > 1:
            each = replace(each, name=f"{each.name}-{seen[each.name]}")
        named.append(each)
    return named


def _compare(
    settings: Mapping[Setting, Groups], measures: Mapping[Setting, Sequence[Measure]]
) -> list[Row]:
    """Return a row for each name, with the measures of each setting, below that of chance."""
    rows = []
    ordered = [each for setting in settings for each in measures[setting]]
    levels = [each.chance for each in ordered]
    if any(level is not None for level in levels):
        rows.append(_reference_row(levels, len(levels)))
    every = {group.name: group for groups in settings.values() for group in groups}
    for name, group in every.items():
        cells = []
        for setting, groups in settings.items():
            same = [other for other in groups if other.name == name]
            for each in measures[setting]:
                cells.append(each.make_cell(same[0]) if same else None)
        rows.append(Row(name, cells, group.paper_name, ranked=group.ranked))
    scored = [place for place, each in enumerate(ordered) if each.column.form == SCORE]
    return mark_best(rows, scored)


def _average_measures(setting: Setting, chance: Sequence[float] | None) -> list[Measure]:
    """Return A_last and A_avg: guessing is among all classes seen, or on each task by itself."""
    last = mean = None
    names = ("MFN", "MAA") if setting.text else ("", "")
    if chance is not None:
        seen = list(chance)
        if setting.classes is None:
            seen = [statistics.fmean(chance[:count]) for count in range(1, len(chance) + 1)]
        last = seen[-1]
        mean = statistics.fmean(seen)
    of_all = partial(_average_untouched, "score")
    return [
        Measure(Column("A_last", alias=names[0]), read_last, chance=last, untouched=of_all),
        Measure(Column("A_avg", alias=names[1]), read_average, chance=mean),
    ]


def _untouched_rows(groups: Groups, measures: Sequence[Measure]) -> list[Row]:
    """Return the zero-shot scores; a row for each where runs began from different models."""
    found: dict[tuple[float, ...], Group] = {}
    for group in groups:
        for run in group.runs:
            if run.zero_shot is not None:
                found.setdefault(run.zero_shot, group)
    rows = []
    for group in found.values():
        run = next(run for run in group.runs if run.zero_shot is not None)
        levels = [None if each.untouched is None else each.untouched(run) for each in measures]
        label = ZERO_SHOT if len(found) == 1 else f"{ZERO_SHOT} of {group.name}"
        rows.append(_reference_row(levels, len(levels), label))
    return rows


def _score_cell(runs: Sequence[Run], number: int, task: int) -> Cell:
    """Return the score on a task after checkpoint `number`, with its forgetting transfer."""
    lost = None
    if task < number:
        lost = [run.metrics["forgetting_transfer"][number][task] for run in runs]
    return summarize([run.matrix.rows[number][task] for run in runs], lost)


def _read_view(view: str, run: Run) -> float | None:
    matrix = run.views.get(view)
    return None if matrix is None else metrics.last_average(matrix)


def _read_transfer(run: Run) -> float | None:
    return metrics.backward_transfer(run.matrix)


def _read_untouched(task: int, run: Run) -> float | None:
    return None if run.zero_shot is None else run.zero_shot[task]


def _average_untouched(name: str, run: Run) -> float | None:
    return average(run.scores.zero_shot.get(name, ()))


def _read_stiffness(place: int, key: str, run: Run) -> float | None:
    return run.scores.stiffness[place].get(key) if run.scores.stiffness else None


def _read_strength(run: Run) -> float | None:
    return run.chosen_strength


def _reference_row(levels: Sequence[float | None], width: int, label: str = "chance") -> Row:
    cells: list[Cell | None] = [None] * width
    for place, level in enumerate(levels):
        if level is not None:
            cells[place] = Cell(level)
    return Row(label, cells, reference=True)


def _describe_method(group: Group) -> Note:
    """Return the estimator of a group, its seeds and its stiffness at the end."""
    run = group.runs[0]
    text = f"{group.name}: {run.scores.estimator}"
    if run.seed is not None:
        seeds = ", ".join(str(seed) for seed in group.seeds)
        text += f"; seeds {seeds}"
    if run.scores.diagnoses:
        text += f"; at the end of seed {run.seed} {run.scores.diagnoses[-1]}"
    return Note(f"{text}.", detail=True)


def _is_known(cell: Content) -> TypeGuard[Cell]:
    return isinstance(cell, Cell) and not math.isnan(cell.mean)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

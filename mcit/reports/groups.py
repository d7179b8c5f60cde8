"""Runs that differ only in their seed, as groups; the settings they were run in; their names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mcit.reports.experiment import find_distinctions, format_value, freeze
from mcit.reports.runs import Run

# upper bounds see what a continual learner may not: they are shown, but never the best
BOUNDS = ("joint", "single")
STRENGTH = "method.strength"
PRESET = "preset"
RECIPE = "recipe"
# the classifier that needs no name
HEAD = "head"
# methods and classifiers as papers write them
PAPER_NAMES = {
    "adam_nscl": "Adam-NSCL",
    "adapters": "Adapters",
    "dgg": "DGG",
    "der": "DER++",
    "ewc": "EWC",
    "ewc_dr": "EWC-DR",
    "ewc_lo": "EWC-LO",
    "ewc_delta": "EWC-LoRA",
    "finetune": "Finetuning",
    "freeze_bottom": "Frozen bottom",
    "freeze_encoder": "Frozen encoder",
    "gaussian": "Gaussian",
    "gpm": "GPM",
    "icarl": "iCaRL",
    "joint": "Joint",
    "keeplora": "KeepLoRA",
    "l2_anchor": "L2 anchor",
    "lda": "LDA",
    "lwf": "LwF",
    "lwf_mc": "LwF-MC",
    "mas": "MAS",
    "muc": "MUC",
    "moelora": "MoELoRA",
    "ncm": "NCM",
    "nearest_mean": "NCM",
    "olora": "O-LoRA",
    "online_ewc": "Online EWC",
    "pass": "PASS",
    "qda": "QDA",
    "reglora": "RegLoRA",
    "replay": "Replay",
    "ridge": "Ridge",
    "si": "SI",
    "single": "Single task",
    "ssre": "SSRE",
    "svm": "SVM",
}


@dataclass(frozen=True)
class Setting:
    """What was learned: groups of one setting can stand in one table."""

    # the order as it was given
    name: str
    tasks: tuple[str, ...]
    embedded: bool = False
    dataset: str = ""
    # how many classes each task brings, in class-incremental settings
    classes: tuple[int, ...] | None = None
    # whether tasks are answered in words
    text: bool = False


@dataclass(frozen=True)
class Group:
    """Complete runs of one method that differ in their seed only, or one run that is unfinished."""

    runs: tuple[Run, ...]
    setting: Setting
    # the settings that tell it from other groups of its method, by their dotted keys
    distinctions: Mapping[str, Any] = field(default_factory=dict)
    # what else tells it from others: how far an unfinished run is, or where a run is kept
    remark: str = ""
    # whether the report has several settings, so that a label must name this one
    names_setting: bool = False

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def classifier(self) -> str | None:
        return self.runs[0].classifier

    @property
    def answered_by(self) -> str | None:
        """The classifier as names show it: None for the head."""
        answered = self.classifier or self.runs[0].scores.classifier
        own = self.classifier is None and answered == HEAD
        return None if own else answered

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.setting.tasks

    @property
    def learned(self) -> int:
        return self.runs[0].learned

    @property
    def complete(self) -> bool:
        return self.runs[0].complete

    @property
    def ranked(self) -> bool:
        """Whether the group may be called best: it is complete and not an upper bound."""
        return self.complete and self.method not in BOUNDS

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    @property
    def strength(self) -> float | None:
        """The strength in the configuration; None if the method has none."""
        strength = self.runs[0].experiment.get(STRENGTH)
        return float(strength) if isinstance(strength, (int, float)) else None

    @property
    def family(self) -> Group:
        """The group without its strength: groups that differ in nothing else have equal names."""
        kept = {key: value for key, value in self.distinctions.items() if key != STRENGTH}
        return replace(self, distinctions=kept)

    @cached_property
    def name(self) -> str:
        """`ewc`, or with what tells it from others `ewc@300 + lda (merge=sum)`."""
        text = self.method
        if STRENGTH in self.distinctions:
            text += f"@{format_value(self.distinctions[STRENGTH])}"
        return _join_name([text, self.answered_by], self._list_details())

    @cached_property
    def paper_name(self) -> str:
        """The name as a paper writes it: `EWC-DR + LDA (λ = 300)`."""
        details = self._list_details()
        if STRENGTH in self.distinctions:
            details.insert(0, f"λ = {format_value(self.distinctions[STRENGTH])}")
        names = [*self.method.split("+"), self.answered_by]
        spelled = [PAPER_NAMES.get(name, name.replace("_", "-")) for name in names if name]
        return _join_name(spelled, details)

    @property
    def label(self) -> str:
        """The name, with the setting if the report has several."""
        return f"{self.name} on {self.setting.name}" if self.names_setting else self.name

    def _list_details(self) -> list[str]:
        details = []
        for key, value in self.distinctions.items():
            if key == PRESET:
                details.append(format_value(value))
            elif key != STRENGTH:
                leaf = key.rpartition(".")[2]
                details.append(f"{leaf}={format_value(value)}")
        if self.remark:
            details.append(self.remark)
        return details


Groups = Sequence[Group]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the runs by setting, method and configuration, in order of first appearance.

    A run with several classifiers is in one group for each of them.
    """
    scored = [each for run in runs for each in (run, *run.others)]
    settings = _make_settings(scored)
    members: dict[Any, list[Run]] = {}
    for number, run in enumerate(scored):
        experiment = freeze(run.experiment)
        key = (_setting_key(run, scored), run.method, run.classifier, run.track, experiment)
        alone = None if run.complete else number
        members.setdefault((*key, alone), []).append(run)
    groups = [Group(tuple(found), settings[key[0]]) for key, found in members.items()]
    several = len(set(settings.values())) > 1
    return [replace(group, names_setting=several) for group in _tell_apart(groups)]


def split_settings(groups: Groups) -> dict[Setting, list[Group]]:
    """Return the groups of each setting, in order of first appearance."""
    settings: dict[Setting, list[Group]] = {}
    for group in groups:
        settings.setdefault(group.setting, []).append(group)
    return settings


def list_recipes(groups: Groups) -> list[str]:
    """Return the recipes of groups, in order of first appearance."""
    named = [group.runs[0].recipe for group in groups]
    return list(dict.fromkeys(name for name in named if name is not None))


def average(values: Sequence[float | None]) -> float | None:
    """Return the mean; None for no values, and if one of them is undefined."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.fsum(known) / len(known)


def describe_progress(run: Run) -> str:
    """Return how much of an unfinished run is done."""
    return f"{run.learned} of {len(run.tasks)} tasks"


def _setting_key(run: Run, runs: Sequence[Run]) -> tuple[tuple[str, ...], bool]:
    """Return the tasks and whether they are embedded; external results join what is there."""
    if not run.external:
        return run.tasks, bool(run.scores.embedded)
    same = [other for other in runs if other.tasks == run.tasks and not other.external]
    return run.tasks, bool(same) and all(other.scores.embedded for other in same)


def _make_settings(runs: Sequence[Run]) -> dict[Any, Setting]:
    """Return the settings by their keys, each with a name of its own."""
    first: dict[Any, Run] = {}
    for run in runs:
        key = _setting_key(run, runs)
        # our own runs know the order as it was given
        if key not in first or (first[key].external and not run.external):
            first[key] = run
    kinds = Counter(tasks for tasks, _ in first)
    settings = {}
    for (tasks, embedded), run in first.items():
        order = run.config.get("order") or tasks
        name = ",".join(order)
        if kinds[tasks] > 1:
            name += ", embedded" if embedded else ", real"
        dataset = order[0].partition(":")[0] if run.classes else name
        settings[tasks, embedded] = Setting(
            name, tasks, embedded, dataset, classes=run.classes, text=run.text
        )
    return settings


def _tell_apart(groups: Groups) -> list[Group]:
    """Return the groups with what tells them from others of the same method and setting."""
    named: list[Group] = []
    taken: set[tuple[Setting, str]] = set()
    for group in groups:
        rivals = [other for other in groups if _has_same_method(group, other)]
        own = [_list_settings(other) for other in rivals if other.runs[0].experiment]
        run = group.runs[0]
        distinctions = {}
        if run.experiment:
            settings = _list_settings(group)
            keys = find_distinctions(own)
            if len(list_recipes(_of_setting(groups, group.setting))) > 1 and RECIPE not in keys:
                # a table that mixes recipes names that of every row
                keys = [RECIPE, *keys]
            distinctions = {key: settings.get(key) for key in keys}
        new = replace(group, distinctions=distinctions, remark=_describe_state(run))
        # results from elsewhere do not take the plain name of our own
        if (new.setting, new.name) in taken or (own and not run.experiment):
            remarks = [remark for remark in (new.remark, run.label) if remark]
            new = replace(new, remark=", ".join(remarks))
        taken.add((new.setting, new.name))
        named.append(new)
    return named


def _has_same_method(group: Group, other: Group) -> bool:
    same = group.method == other.method and group.classifier == other.classifier
    return same and group.setting == other.setting


def _of_setting(groups: Groups, setting: Setting) -> list[Group]:
    return [group for group in groups if group.setting == setting]


def _list_settings(group: Group) -> dict[str, Any]:
    """Return the experiment of a group, with the preset and the recipe that it began from."""
    run = group.runs[0]
    # they decide nothing that is not in the experiment, and name it best
    return {**run.experiment, PRESET: run.scores.preset, RECIPE: run.recipe}


def _describe_state(run: Run) -> str:
    if run.complete:
        return ""
    if run.seed is None:
        return describe_progress(run)
    return f"seed {run.seed}, {describe_progress(run)}"


def _join_name(parts: Sequence[str | None], details: Sequence[str]) -> str:
    name = " + ".join(part for part in parts if part)
    return f"{name} ({', '.join(details)})" if details else name

"""Several methods as one: `--method lwf+ewc_lo`.

The hooks of all run in the order of the names, their extra losses add up, and each keeps a state of
its own. What only one can decide (the loss itself, the batch, what is learned, what answers, the
importance that a run reports) may be had by one of them; a second is refused by name, before
anything is built. Options go by the names of the parts: `--set methods.lwf.strength=3`, or
`--set method.lwf.strength=3`, which comes on top.

In every respect it is one method, called by all names. Their order is part of it: penalties see the
gradients of those before them, and sums are rounded in that order.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

from torch import Tensor

from mcit.class_statistics import ClassStatistics, Needs
from mcit.classifier import Scorer
from mcit.config.options import read_hints
from mcit.config.schema import ModelConfig
from mcit.errors import ConfigError
from mcit.method import Method, Outcome, Stage, Step
from mcit.task import Batch, Head, Output, Recipe, Task

# hooks that return the one thing that is done, and what that is
EXCLUSIVE_HOOKS = {
    "tasks_to_fit": "which tasks are learned at a stage",
    "prepare_batch": "the batch that is learned",
    "extra_head": "which outputs stand beside the head's",
    "loss": "the loss itself",
    "extra_batch": "the batch of another task that is learned in between",
    "classifier": "what answers when tasks are scored",
}
# class attributes of the same kind
EXCLUSIVE_ATTRIBUTES = {
    "answers": "which classifier answers",
    "carries": "how class statistics are carried over",
    "measures_importance": "the importance that the run reports",
}


@dataclass
class Composite(Method):
    """Methods that hold one network together; `compose` makes the class of a combination."""

    def parts(self) -> list[Method]:
        return [getattr(self, part.name) for part in fields(self)]

    @classmethod
    def sections(cls) -> dict[str, type[Method]]:
        """Return the methods by the names of their options, in order."""
        hints = read_hints(cls)
        return {part.name: hints[part.name] for part in fields(cls)}

    def find_problems(self, tasks: Sequence[Task], model: ModelConfig) -> list[str]:
        found = []
        for part in self.parts():
            found += part.find_problems(tasks, model)
        return list(dict.fromkeys(found))

    def begins_pair(self, stage: Stage) -> bool:
        return any(part.begins_pair(stage) for part in self.parts())

    def begin_task(self, stage: Stage) -> Sequence[str]:
        warnings: list[str] = []
        for part in self.parts():
            warnings += part.begin_task(stage)
        return warnings

    def tasks_to_fit(self, stage: Stage) -> Sequence[Task]:
        return self._owner("tasks_to_fit").tasks_to_fit(stage)

    def begin_fit(self, stage: Stage) -> None:
        for part in self.parts():
            part.begin_fit(stage)

    def prepare_batch(self, stage: Stage, task: Task, batch: Batch) -> Batch:
        return self._owner("prepare_batch").prepare_batch(stage, task, batch)

    def extra_head(self, stage: Stage, task: Task) -> Head | None:
        return self._owner("extra_head").extra_head(stage, task)

    def loss(self, stage: Stage, task: Task, batch: Batch, output: Output) -> Tensor:
        return self._owner("loss").loss(stage, task, batch, output)

    def extra_loss(self, stage: Stage, batch: Batch, output: Output) -> Tensor | None:
        total = None
        for part in self.parts():
            term = part.extra_loss(stage, batch, output)
            if term is not None:
                total = term if total is None else total + term
        return total

    def extra_batch(self, stage: Stage, step: Step) -> tuple[Task, Batch] | None:
        return self._owner("extra_batch").extra_batch(stage, step)

    def on_gradients_ready(self, stage: Stage, step: Step) -> None:
        for part in self.parts():
            part.on_gradients_ready(stage, step)

    def after_step(self, stage: Stage, step: Step) -> None:
        for part in self.parts():
            part.after_step(stage, step)

    def end_task(self, stage: Stage) -> Outcome:
        outcomes = [part.end_task(stage) for part in self.parts()]
        # at most one of them measures importance
        importances = [outcome.importance for outcome in outcomes if outcome.importance is not None]
        diagnoses = [outcome.diagnosis for outcome in outcomes if outcome.diagnosis is not None]
        return Outcome(
            importance=importances[0] if importances else None,
            diagnosis=diagnoses[0] if diagnoses else None,
            notes=[note for outcome in outcomes for note in outcome.notes],
            warnings=[warning for outcome in outcomes for warning in outcome.warnings],
        )

    def needs(self) -> Needs:
        wanted = Needs()
        for part in self.parts():
            wanted |= part.needs()
        return wanted

    def see_statistics(self, stage: Stage, statistics: ClassStatistics) -> None:
        for part in self.parts():
            part.see_statistics(stage, statistics)

    def classifier(self, stage: Stage) -> Scorer | None:
        return self._owner("classifier").classifier(stage)

    def before_scoring(self, stage: Stage, task: Task) -> None:
        for part in self.parts():
            part.before_scoring(stage, task)

    def after_scoring(self, stage: Stage) -> None:
        for part in self.parts():
            part.after_scoring(stage)

    def state_dict(self) -> Mapping[str, Any]:
        return {part.name: part.state_dict() for part in self.parts()}

    def restore(self, stage: Stage, state: Mapping[str, Any]) -> None:
        for part in self.parts():
            part.restore(stage, state[part.name])

    def explain_divergence(self, recipe: Recipe) -> list[str]:
        return [line for part in self.parts() for line in part.explain_divergence(recipe)]

    def examples_read(self, stage: Stage) -> int:
        return sum(part.examples_read(stage) for part in self.parts())

    def describe(self) -> str:
        return "; ".join(f"{part.name}: {part.describe()}" for part in self.parts())

    def bytes_held(self) -> int:
        return sum(part.bytes_held() for part in self.parts())

    def _owner(self, hook: str) -> Method:
        """Return the part that has the hook; if none has, all do what the contract says."""
        parts = self.parts()
        for part in parts:
            if _overrides(type(part), hook):
                return part
        return parts[0]


def compose(methods: Sequence[type[Method]]) -> type[Composite]:
    """Return the class of a combination, with a field for each method; raise if two of them clash.

    A method is a section of options, under its name.
    """
    problems = find_clashes(methods)
    if problems:
        raise ConfigError(problems)
    attributes: dict[str, Any] = {
        "__doc__": " and ".join(method.name for method in methods),
        "__module__": __name__,
        "name": "+".join(method.name for method in methods),
        "first_task_is_finetuning": all(method.first_task_is_finetuning for method in methods),
        "keeps_examples": any(method.keeps_examples for method in methods),
        "trains_head": all(method.trains_head for method in methods),
        "works_sharded": all(method.works_sharded for method in methods),
        "uses_every_head": any(method.uses_every_head for method in methods),
    }
    for attribute in EXCLUSIVE_ATTRIBUTES:
        owners = _find_owners(methods, attribute)
        if owners:
            attributes[attribute] = getattr(owners[0], attribute)
    sections = [(section_of(method), method) for method in methods]
    return make_dataclass("Composite", sections, bases=(Composite,), namespace=attributes)


def section_of(method: type[Method]) -> str:
    """Return the name of a part's options: as its file is called, without hyphens.

    A field cannot be called like a keyword of Python: `pass` has its options under `pass_`.
    """
    name = method.name.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def find_clashes(methods: Sequence[type[Method]]) -> list[str]:
    """Return why methods cannot hold a network together."""
    joined = "+".join(method.name for method in methods)
    problems = []
    for name, what in {**EXCLUSIVE_HOOKS, **EXCLUSIVE_ATTRIBUTES}.items():
        owners = _find_owners(methods, name)
        if len(owners) > 1:
            listed = " and ".join(repr(method.name) for method in owners)
            problems.append(
                f"methods {listed} cannot be combined in {joined!r}: each decides {what}, and only "
                "one can"
            )
    for method in methods:
        if hasattr(Composite, section_of(method)):
            problems.append(
                f"method {method.name!r} is called like a member that every method has, so a "
                f"combination cannot keep options under that name: rename its file"
            )
        if method.stands_alone:
            problems.append(
                f"method {method.name!r} is a bound on what others can reach, and cannot be "
                f"combined with them: leave it out of {joined!r}"
            )
    for method in methods[:-1]:
        if method.comes_last:
            others = [each.name for each in methods if each is not method]
            problems.append(
                f"method {method.name!r} changes the steps that the others take, and must come "
                f"last: write {'+'.join([*others, method.name])!r} instead of {joined!r}"
            )
    return problems


def _find_owners(methods: Sequence[type[Method]], name: str) -> list[type[Method]]:
    if name in EXCLUSIVE_HOOKS:
        return [method for method in methods if _overrides(method, name)]
    default = getattr(Method, name)
    return [method for method in methods if getattr(method, name) != default]


def _overrides(method: type[Method], hook: str) -> bool:
    return getattr(method, hook) is not getattr(Method, hook)

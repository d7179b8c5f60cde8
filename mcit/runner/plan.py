"""A configuration with everything it names found: tasks, method, track, network."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mcit import models
from mcit.answering import HEAD, Answering
from mcit.classifier import Classifier
from mcit.composite import Composite
from mcit.config.files import NO_TASKS, read_recipe, split_names
from mcit.config.identity import keep_kinds
from mcit.config.options import Kind
from mcit.config.parse import Selection, layer, parse, to_dict
from mcit.config.schema import RECIPE, RunConfig
from mcit.consolidation import AUTO
from mcit.embedded.benchmark import read_settings
from mcit.errors import ConfigError, DataError
from mcit.estimator import FREE, SAME, PeerSetting, peer
from mcit.method import Method
from mcit.models.learner import Learner
from mcit.registry import (
    NameClash,
    UnknownName,
    find_classifier,
    find_method,
    find_task,
    find_transport,
)
from mcit.task import Task, Track, combine_parts

DEFAULT_VILT = "dandelin/vilt-b32-mlm"
# the smallest that answers in words and was made for instructions
DEFAULT_GENERATIVE = "HuggingFaceTB/SmolVLM-256M-Instruct"


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs to begin."""

    config: RunConfig
    tasks: Sequence[Task]
    method: Method
    track: Track
    # on the benchmark that ships with mcit, all tasks or some
    embedded: bool
    answering: Answering = field(default_factory=lambda: answer_by_head())

    def build_learner(self) -> Learner:
        """Return the network, without heads."""
        return models.build(self.config.model, self.tasks)

    def check_data(self) -> None:
        """Touch the data of every task before any long work; all that is missing is one error."""
        problems: dict[str, str] = {}
        for task in self.tasks:
            try:
                task.check()
            except DataError as error:
                # parts of one data set may all say the same
                problems.setdefault(str(error), task.name)
        if problems:
            lines = [f"{name}: {problem}" for problem, name in problems.items()]
            raise DataError("\n".join(lines))

    def experiment(self) -> dict[str, Any]:
        """Return every setting that decides the results, as plain nested dictionaries.

        Two runs are the same experiment if this is the same, however it was written. It is what a
        run and its continuation must have in common.
        """
        chosen = keep_kinds(self.config, Kind.RESULT)
        # they have become the tasks and the method below
        for name in (
            "tasks",
            "methods",
            "method",
            "preset",
            "recipe",
            "stiffness",
            "classifier",
            "classifiers",
            "transport",
        ):
            chosen.pop(name, None)
        method = keep_kinds(self.method, Kind.RESULT)
        chosen["training"] = {**chosen["training"], **self._find_decisive()}
        return {
            **chosen,
            **describe_answering(self.answering),
            "method": {"name": self.config.method.name, **method},
            "tasks": {task.name: keep_kinds(task, Kind.RESULT) for task in self.tasks},
        }

    def _find_decisive(self) -> dict[str, Any]:
        """Return the settings that decide the results of these tasks, though not of all tasks."""
        training = self.config.training
        decisive: dict[str, Any] = {}
        if self.track is Track.CLASSES:
            # BatchNorm sees the examples that go through the network together
            decisive["accumulate"] = training.accumulate
        if any(task.draws for task in self.tasks):
            # workers have random states of their own
            decisive["workers"] = training.workers
        return decisive

    def describe(self) -> dict[str, Any]:
        """Return what the provenance of a run says of its plan."""
        data = {}
        records = {}
        for task in self.tasks:
            # without times: runs on two copies of the same data are the same experiment
            data[task.name] = combine_parts(task.data_parts(), times=False)
            records[task.name] = task.describe_data()
        return {
            "config": to_dict(self.config),
            "experiment": self.experiment(),
            "track": self.track.value,
            "embedded": self.embedded,
            "benchmark": self._describe_benchmark(),
            "estimator": self.describe_method(),
            "keeps_examples": self.method.keeps_examples,
            "data": data,
            "records": records,
        }

    def describe_method(self) -> str:
        """Return one line on what holds the network, and on what answers if it is not the head."""
        parts = [self.method.describe(), self.answering.describe()]
        return "; ".join(part for part in parts if part)

    def bytes_held(self) -> int:
        """Return the memory that method and classifiers add between tasks."""
        return self.method.bytes_held() + self.answering.bytes_held()

    def _describe_benchmark(self) -> dict[str, Any] | None:
        """Return the settings of the embedded benchmark; None unless all tasks are from it."""
        roots = {task.root for task in self.tasks}
        root = roots.pop()
        if not self.embedded or roots or root is None:
            return None
        return read_settings(root)

    def describe_data(self) -> dict[str, Any]:
        """Return the data by task and part; a run resumes only if all are what they were."""
        described = {}
        for task in self.tasks:
            parts = task.data_parts()
            described[task.name] = {
                part.name: {"content": part.content, "times": part.times} for part in parts
            }
        return described


def resolve(config: RunConfig, embedded_root: Path | None = None) -> Plan:
    """Return the plan of a configuration; all that is wrong with names and options is one error."""
    problems: list[str] = []
    tasks = _find_tasks(config, embedded_root, problems)
    if not config.order:
        problems.append(NO_TASKS)
    config = _choose_model(config, tasks)
    method, missing = _make_method(config, problems)
    problems += _check_order(tasks)
    problems += models.find_model_problems(config.model, tasks)
    # a method that cannot learn these tasks needs no strength either
    refused: list[str] = []
    answering = None
    if method is not None and not problems:
        answering = _make_answering(config, method, problems)
    if method is not None and answering is not None and not problems:
        refused = method.find_problems(tasks, config.model)
        if config.exemplar_free and method.keeps_examples:
            refused.append(
                f"method {method.name!r} keeps examples of earlier tasks, which exemplar_free "
                "forbids; choose another method, or --set exemplar_free=false"
            )
        refused += answering.find_problems(tasks, config.model)
    problems += refused or missing
    if problems or method is None or answering is None:
        raise ConfigError(problems)
    config = _use_own_names(config, method)
    embedded = config.data_root is None and bool(find_embedded(tasks, embedded_root))
    return Plan(config, tasks, method, tasks[0].track, embedded, answering)


def _use_own_names(config: RunConfig, method: Method) -> RunConfig:
    """Return the configuration with names as tables spell them: `snli_ve` is `snli-ve`."""
    order = []
    for item in config.order:
        name, colon, split = item.partition(":")
        task = find_task(name)
        order.append(f"{task.dataset or task.name}{colon}{split}")
    chosen = replace(config.method, name=method.name)
    return replace(config, order=tuple(order), method=chosen)


def find_embedded(tasks: Sequence[Task], embedded_root: Path | None = None) -> list[Task]:
    """Return the tasks whose data are the embedded benchmark's."""
    return [task for task in tasks if task.embedded and task.root in (None, embedded_root)]


def _find_tasks(config: RunConfig, embedded_root: Path | None, problems: list[str]) -> list[Task]:
    """Return the tasks of an order; what is wrong with them is added to `problems`."""
    options_of = _group_by_class(config.tasks, find_task, problems)
    recipe = {} if config.recipe is None else read_recipe(config.recipe)
    tasks: list[Task] = []
    for item in config.order:
        name, _, split = item.partition(":")
        try:
            task = find_task(name)
            # a task of the user's own has no data in the embedded benchmark
            root = config.data_root or (embedded_root if task.embedded else None)
            options: dict[str, Any] = {"root": root}
            if config.on_bad_record != "fail":
                options["on_bad_record"] = config.on_bad_record
            # nobody chose the usual recipe; an order that mixes tracks is refused later
            unasked = config.recipe == RECIPE and task.track is not Track.CLASSES
            shared = {} if unasked else recipe
            options.update(layer(shared, options_of.get(task, {})))
            tasks += task.sequence(split or None, options, config.seed)
        except UnknownName as error:
            problems.append(str(error))
        except ConfigError as error:
            problems += error.problems
    return tasks


def _make_method(config: RunConfig, problems: list[str]) -> tuple[Method | None, list[str]]:
    """Return the method, and what its options lack; other problems go to `problems`."""
    options_of = _group_by_class(config.methods, find_method, problems)
    missing: list[str] = []
    try:
        chosen = find_method(config.method.name)
        if issubclass(chosen, Composite):
            options = _join_options(config, chosen, options_of, missing)
        else:
            options = layer(options_of.get(chosen, {}), config.method.options)
            if _lacks_strength(chosen, options) and not _gives_lambda(options):
                key = "method.strength"
                missing.append(_explain_missing_strength(config, chosen, options_of, key))
                # nothing is made of it: what else is wrong with the options is found too
                options["strength"] = 0.0
            options = _adopt_peer(options, config.method.options, config)
            _aim(chosen, options, config.stiffness)
        return parse(chosen, options, where="method"), missing
    except UnknownName as error:
        problems.append(str(error))
    except ConfigError as error:
        problems += error.problems
    return None, missing


def _join_options(
    config: RunConfig,
    chosen: type[Composite],
    options_of: Mapping[type, Mapping[str, Any]],
    missing: list[str],
) -> dict[str, Any]:
    """Return the options of a combination, a section for each part; what is lacking is added."""
    given = {key.replace("-", "_"): value for key, value in config.method.options.items()}
    joined: dict[str, Any] = {}
    for name, part in chosen.sections().items():
        own = given.pop(name, {})
        options = layer(options_of.get(part, {}), own)
        if _lacks_strength(part, options) and not _gives_lambda(options):
            key = f"methods.{name}.strength"
            missing.append(_explain_missing_strength(config, part, options_of, key))
            options["strength"] = 0.0
        options = _adopt_peer(options, own, config)
        _aim(part, options, config.stiffness)
        joined[name] = options
    # what is left belongs to no part, and is refused with the rest
    return {**joined, **given}


def _make_answering(config: RunConfig, method: Method, problems: list[str]) -> Answering | None:
    """Return what answers: what the run names, else what the method does."""
    options_of = _group_by_class(config.classifiers, find_classifier, problems)
    selected = config.classifier or method.answers
    carried = config.transport or method.carries
    if config.transport is None and selected.name == HEAD:
        # the head has nothing to carry over, whatever the method was published with
        carried = Selection("none")
    classifiers: dict[str, Classifier] = {}
    try:
        for name in split_names(selected):
            chosen = find_classifier(name)
            given: Mapping[str, Any] = options_of.get(chosen, {})
            if name == method.answers.name:
                given = layer(method.answers.options, given)
            options = layer(given, selected.options)
            classifiers[chosen.name] = parse(chosen, options, where="classifier")
        found = find_transport(carried.name)
        own = carried.options
        if carried.name == method.carries.name:
            own = layer(method.carries.options, own)
        transport = parse(found, own, where="transport")
    except UnknownName as error:
        problems.append(str(error))
        return None
    except ConfigError as error:
        problems += error.problems
        return None
    if HEAD in classifiers and not method.trains_head:
        problems.append(
            f"method {method.name!r} trains no head after the first task, so the classifier "
            f"'head' cannot answer; leave --classifier out for {method.answers.name!r}, or name "
            "another"
        )
    return Answering(classifiers, transport, method.needs())


def answer_by_head() -> Answering:
    """Return what answers if nothing is said: the head."""
    return Answering({HEAD: find_classifier(HEAD)()}, find_transport("none")())


def describe_answering(answering: Answering) -> dict[str, Any]:
    """Return what decides the answers besides the network; nothing for the head alone."""
    if not answering.needs:
        return {}
    classifiers = {
        name: {"rank": rank, **keep_kinds(classifier, Kind.RESULT)}
        for rank, (name, classifier) in enumerate(answering.classifiers.items())
    }
    transport = answering.transport
    return {
        "classifier": classifiers,
        "transport": {"name": transport.name, **keep_kinds(transport, Kind.RESULT)},
    }


def _group_by_class(
    section: Mapping[str, Mapping[str, Any]], find: Callable[[str], type], problems: list[str]
) -> dict[type, Mapping[str, Any]]:
    """Return options by the class they are for, however its name is spelled."""
    found: dict[type, Mapping[str, Any]] = {}
    for name, options in section.items():
        try:
            found[find(name)] = options
        except UnknownName as error:
            problems.append(str(error))
        except NameClash:
            # reported if the name is used; a preset has options for methods this run does not use
            continue
    return found


def _lacks_strength(method: type[Method], options: Mapping[str, Any]) -> bool:
    """Whether the method has a strength, without a default, and the options give none."""
    required = {f.name for f in fields(method) if f.init and f.default is MISSING}
    return "strength" in required and "strength" not in options


def _aim(method: type[Method], options: dict[str, Any], stiffness: float | None) -> None:
    """Give strength auto the configuration's stiffness; raise if the method cannot have it."""
    names = {f.name for f in fields(method) if f.init}
    if options.get("strength") != AUTO or "strength" not in names:
        return
    if "stiffness" not in names:
        raise ConfigError(
            [
                f"method {method.name!r} has no strength auto, which is for methods that hold "
                "weights by their importance: give it a number"
            ]
        )
    options.setdefault("stiffness", stiffness)


def _gives_lambda(options: Mapping[str, Any]) -> bool:
    """Whether the strength is given in the unit of another code base."""
    section = options.get("estimator")
    return isinstance(section, Mapping) and "lambda" in section


def _adopt_peer(
    options: dict[str, Any], given: Mapping[str, Any], config: RunConfig
) -> dict[str, Any]:
    """Return options with the settings of a code base in place of `estimator.like`.

    `estimator.lambda` becomes the strength. given: what comes on top of configuration files, and
    so of the code base's settings too.
    """
    section = options.get("estimator")
    if not isinstance(section, Mapping) or not {"like", "lambda"} & section.keys():
        return options
    if "like" not in section:
        raise ConfigError(
            [
                "method.estimator.lambda is a strength in the unit of another code base: name it, "
                "such as --set method.estimator.like=avalanche"
            ]
        )
    setting = peer(str(section["like"]))
    if setting.estimator.update_buffers and not config.training.refresh_batchnorm:
        raise ConfigError(
            [
                f"method.estimator.like {section['like']!r} moves BatchNorm's statistics, which a "
                "run does for every method or for none: set training.refresh_batchnorm=true"
            ]
        )
    kept = {name: value for name, value in section.items() if name in FREE}
    own = given.get("estimator", {})
    on_top = {name: value for name, value in own.items() if name not in ("like", "lambda")}
    adopted = {**options, "estimator": {**setting.options(), **kept, **on_top}}
    if "lambda" in section:
        if "strength" in given:
            raise ConfigError(["method.strength and method.estimator.lambda: give one of them"])
        adopted["strength"] = _convert_lambda(section["like"], setting, section["lambda"])
    return adopted


def _convert_lambda(name: str, setting: PeerSetting, lamda: Any) -> float:
    """Return the strength that a lambda of another code base is."""
    if type(lamda) not in (int, float) or not 0 <= lamda < math.inf:
        raise ConfigError([f"method.estimator.lambda must be a number from 0, found {lamda!r}"])
    if setting.ratio is not SAME:
        raise ConfigError(
            [
                f"a lambda of {name!r} depends on the data: importance there is "
                f"{setting.ratio.formula} of ours, with N examples in batches of B; set "
                f"method.strength to mcit.peer({name!r}).strength({lamda:g}, N, B)"
            ]
        )
    return lamda * setting.strength_per_lambda


def _explain_missing_strength(
    config: RunConfig, method: type[Method], options_of: Mapping[type, Mapping[str, Any]], key: str
) -> str:
    """Return where the strength of a method was looked for, and what would do."""
    name = method.name
    if config.preset is not None:
        found = f"configs/presets/{config.preset}.yaml gives none for {name!r}."
    elif options_of:
        found = f"the configuration gives none for {name!r}."
    else:
        found = (
            f"no configuration gives one for {name!r} (--config climb has strengths for CLiMB's "
            "four tasks)."
        )
    sentences = [f"{key} is not set: {found}"]
    heritage = [parent for parent in method.__mro__[1:] if issubclass(parent, Method)]
    parents = [parent for parent in heritage if parent in options_of]
    if parents:
        given = json.dumps(to_dict(options_of[parents[0]]))
        sentences.append(
            f"It inherits from {parents[0].name!r}, whose options there are {given}, but options "
            "go by a method's own name and do not reach it."
        )
    if key == "method.strength":
        remedy = f"Pass --set {key}=..., or let `mcit sweep --strengths ... --select` choose one."
    else:
        remedy = f"Pass --set {key}=..."
    sentences.append(remedy)
    return " ".join(sentences)


def _check_order(tasks: Sequence[Task]) -> list[str]:
    problems = []
    counts = Counter(task.name for task in tasks)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        problems.append(f"tasks given twice in the order: {', '.join(twice)}")
    if len({task.track for task in tasks}) > 1:
        problems.append("tasks of different tracks cannot be mixed in one order")
    if len({task.dataset for task in tasks if task.track is Track.CLASSES}) > 1:
        problems.append("an order can hold one class-incremental data set")
    return problems


def _choose_model(config: RunConfig, tasks: Sequence[Task]) -> RunConfig:
    """Return the configuration with the network that suits its tasks, if it names none."""
    if not tasks:
        return config
    model = config.model
    if model.name == "auto":
        if tasks[0].reads == models.IMAGES:
            name = "resnet18"
        elif tasks[0].track is Track.TEXT:
            ships = config.data_root is None and any(task.embedded for task in tasks)
            name = "embedded" if ships else DEFAULT_GENERATIVE
        elif config.data_root is None:
            name = "embedded"
        else:
            name = DEFAULT_VILT
        model = replace(model, name=name)
    if model.from_scratch and model.width is None:
        model = replace(model, width=tasks[0].network_defaults().get("width", 64))
    return replace(config, model=model)

"""Frozen, typed configuration: YAML, dotted overrides, and one message that lists everything that is wrong."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")
_MISSING = object()


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: Iterable[str]):
        self.problems = list(problems)
        lead = "the configuration has a problem:" if len(self.problems) == 1 else "the configuration has problems:"
        super().__init__("\n  - ".join([lead, *self.problems]))


def _check_ranges(config: Any, **ranges: tuple[int, int | None]) -> None:
    """Raise a ConfigError that lists the fields outside of (least, most)."""
    problems = []
    for name, (least, most) in ranges.items():
        value, limit = getattr(config, name), math.inf if most is None else most
        if not least <= value <= limit:
            problems.append(f"'{name}' must be from {least}{'' if most is None else f' to {most}'}, found {value}")
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class Selection:
    """A name and its options; the registry knows the class whose fields the options are."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on the backbone (peft); rank 0 means none."""

    rank: int = 0
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("query", "value")

    def __post_init__(self) -> None:
        _check_ranges(self, rank=(0, None), dropout=(0, 1))


@dataclass(frozen=True)
class ModelConfig:
    """The backbone: a hub name or a local folder, and how it is run."""

    name: str = "auto"  # the embedded ViLT, ViLT-B/32 for real data, or resnet18 for class-incremental tasks
    lora: LoraConfig = LoraConfig()
    gradient_checkpointing: bool = False
    width: int | None = None  # base channels of resnet18; None: what suits the data set, 64 for photographs
    channels_last: bool = True  # the layout in memory of resnet18's images and weights; faster on CPUs

    def __post_init__(self) -> None:
        if self.width is not None:
            _check_ranges(self, width=(1, None))


@dataclass(frozen=True)
class TrainingConfig:
    """How steps are taken; what is learned in how many of them belongs to the task's recipe."""

    mixed_precision: Literal["no", "bf16", "fp16"] | None = None  # None: what `accelerate launch` says
    accumulate: int = 1  # parts in which a batch goes through the network
    clip_norm: float | None = None
    workers: int = 0
    eval_batch_size: int = 128
    log_every: int = 20
    split: Literal["eval", "test"] = "eval"  # what is scored; few tasks have a labelled test split
    score_before: bool = False  # score each task before it is learned too, for forward transfer

    def __post_init__(self) -> None:
        _check_ranges(self, accumulate=(1, None), workers=(0, None), eval_batch_size=(1, None), log_every=(1, None))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError([f"'clip_norm' must be above 0, found {self.clip_norm}; leave it out for no clipping"])


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved within a task; it is saved after each task's steps and scores in any case."""

    every_steps: int | None = None
    every_minutes: float | None = 10.0
    keep: int = 2  # the newest ones, of which the last is damaged at worst
    importance: bool = True  # whether each task's importance is kept as a file, for `mcit explore`

    def __post_init__(self) -> None:
        _check_ranges(self, keep=(1, None))
        for name in ("every_steps", "every_minutes"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError([f"'{name}' must be above 0, found {getattr(self, name)}; leave it out for never"])


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    `tasks` holds options by task name and `methods` by method name; `method`'s own options come on top of the latter.
    """

    order: tuple[str, ...] = ()
    method: Selection = Selection("finetune")
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    flavour: Literal["release", "exact"] | None = None  # a file in configs/flavours/, under what is given here
    data_root: str | None = None
    on_bad_record: Literal["fail", "skip"] = "fail"  # skip: wrong records are left out, counted and reported
    seed: int = 1
    single: str | None = None  # a run of method `single`, for knowledge transfer
    tracker: str | None = None  # one that accelerate knows: tensorboard, wandb, ...
    output: str | None = None

    def __post_init__(self) -> None:
        _check_ranges(self, seed=(0, 2**32 - 1))


def parse(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """`data` as an instance of the dataclass `cls`, or a ConfigError that lists every problem found."""
    problems: list[str] = []
    value = _parse_dataclass(cls, data, where, problems)
    if problems:
        raise ConfigError(problems)
    return value


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; a file that is missing, malformed or no mapping is named."""
    path = Path(path)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        near = suggest(path.name, [p.name for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else ""
        raise ConfigError([f"no configuration file {str(path)!r}{near}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid YAML: {' '.join(str(error).split())}"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read as a configuration file: {error.strerror}"]) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([f"{path} holds a {_kind(data)} where a mapping of names to values is needed"])
    return data


def own_folders(kind: str) -> list[str]:
    """The user's own folders of `tasks` or `methods`, in those that the environment's MCIT_PATH lists."""
    listed = [Path(folder).expanduser() for folder in os.environ.get("MCIT_PATH", "").split(os.pathsep) if folder]
    empty = [str(path) for path in listed if not any((path / name).is_dir() for name in ("tasks", "methods"))]
    if empty:
        raise ConfigError([f"MCIT_PATH lists {path!r}, which has no folder tasks or methods" for path in empty])
    return [str((folder / kind).resolve()) for folder in listed if (folder / kind).is_dir()]


def layer(defaults: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over `defaults`, section by section: what `data` says stands."""
    result = _copy(defaults)
    for key, value in _copy(data).items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = layer(result[key], value) if both else value
    return result


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """`data` with dotted assignments such as `method.strength=1e4` applied; nothing given is changed in place."""
    result = _copy(data)
    problems = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            problems.append(f"override {assignment!r} is not of the form name=value or section.name=value")
            continue
        target = result
        for depth, name in enumerate(names[:-1]):
            if target.get(name) is None:
                target[name] = {}
            elif isinstance(target[name], str) and depth == 0:
                target[name] = {"name": target[name]}  # `method: ewc` and `method.strength=1` go together
            target = target[name]
            if not isinstance(target, dict):
                problems.append(f"override {assignment!r}: {'.'.join(names[: depth + 1])} is no section")
                break
        else:
            target[names[-1]] = _read_value(text)
    if problems:
        raise ConfigError(problems)
    return result


def to_dict(config: Any) -> Any:
    """Plain dictionaries and lists; `parse(type(config), to_dict(config))` gives `config` back."""
    if isinstance(config, Selection):
        return {"name": config.name, **to_dict(config.options)}
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, (tuple, list)):
        return [to_dict(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def to_yaml(config: Any) -> str:
    """`config` as YAML in the order of its fields."""
    return yaml.dump(to_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known word is near, else nothing."""
    known, word = sorted(known), word.lower()
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    # a word that merely starts or ends like `word` counts too: nlvr -> nlvr2
    close = close or [name for name in known if word and (name.startswith(word) or word.startswith(name))][:1]
    return f"; did you mean {close[0]!r}?" if close else ""


def _parse_dataclass(cls: type, data: Any, where: str, problems: list[str], base: Any = None) -> Any:
    """`base` is a default whose values stand where `data` says nothing."""
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        problems.append(f"{where or 'configuration'}: expected a section of {_names(cls)}, found {_show(data)}")
        return None
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    prefix = f"{where}." if where else ""
    for name in data:
        if name not in fields:
            problems.append(f"unknown key '{prefix}{name}'{suggest(str(name), fields)} (keys: {', '.join(fields)})")
    before = len(problems)
    values = {}
    for name, spec in fields.items():
        if name in data:
            default = getattr(base, name) if base is not None else _default(spec)
            values[name] = _convert(hints[name], data[name], f"{prefix}{name}", problems, default)
        elif base is not None:
            values[name] = getattr(base, name)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            problems.append(f"'{prefix}{name}' is missing")
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:  # a dataclass may check itself in __post_init__
        problems.extend(f"{where}: {problem}" if where else problem for problem in error.problems)
        return None


def _convert(hint: Any, value: Any, where: str, problems: list[str], default: Any = None) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint is Selection:
        return _convert_selection(value, where, problems)
    if dataclasses.is_dataclass(hint):
        return _parse_dataclass(hint, value, where, problems, default if isinstance(default, hint) else None)
    if origin is Literal:
        return _convert_choice(arguments, value, where, problems)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where, problems, default)
    if origin in (tuple, list):
        return _convert_sequence(origin, arguments, value, where, problems)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            problems.append(f"'{where}' must be a section of names and values, found {_show(value)}")
            return None
        return {str(key): _convert(arguments[1], item, f"{where}.{key}", problems) for key, item in value.items()}
    converted = _convert_scalar(hint, value)
    if converted is _MISSING:
        problems.append(f"'{where}' must be {_NAMES.get(hint, hint.__name__)}, found {_show(value)}")
        return None
    return converted


def _convert_selection(value: Any, where: str, problems: list[str]) -> Selection | None:
    if isinstance(value, (str, Selection)):
        return Selection(value) if isinstance(value, str) else value
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return Selection(value["name"], {key: item for key, item in value.items() if key != "name"})
    problems.append(f"'{where}' must be a name, or a section with a 'name' and options, found {_show(value)}")
    return None


def _convert_choice(choices: tuple, value: Any, where: str, problems: list[str]) -> Any:
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        listed = ", ".join(map(str, choices))
        problems.append(f"'{where}' is {_show(value)}{suggest(str(value), map(str, choices))} (choices: {listed})")
        return None
    return value


def _convert_union(choices: tuple, value: Any, where: str, problems: list[str], default: Any) -> Any:
    if value is None and type(None) in choices:
        return None
    kinds = [kind for kind in choices if kind is not type(None)]
    if len(kinds) == 1:
        return _convert(kinds[0], value, where, problems, default)
    # the order of the hint decides, but a value that already has one of the types keeps it
    for kind in sorted(kinds, key=lambda kind: not (isinstance(kind, type) and type(value) is kind)):
        attempt: list[str] = []
        converted = _convert(kind, value, where, attempt, default)
        if not attempt:
            return converted
    listed = " or ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    problems.append(f"'{where}' must be {listed}, found {_show(value)}")
    return None


def _convert_sequence(origin: type, arguments: tuple, value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if not isinstance(value, (list, tuple)):
        problems.append(f"'{where}' must be a list, found {_show(value)}")
        return None
    if origin is tuple and arguments and Ellipsis not in arguments:
        if len(value) != len(arguments):
            problems.append(f"'{where}' must have {len(arguments)} values, found {_show(value)}")
            return None
        hints = arguments
    else:
        hints = (arguments[0] if arguments else Any,) * len(value)
    items = zip(hints, value, strict=True)
    return origin(_convert(hint, item, f"{where}[{i}]", problems) for i, (hint, item) in enumerate(items))


def _convert_scalar(hint: type, value: Any) -> Any:
    if hint is bool:
        return value if isinstance(value, bool) else _MISSING
    if hint in (int, float) and isinstance(value, str):
        value = _number(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a folder called 2014 is a name; 1.10 would lose its last digit
    if hint is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    return _MISSING


def _read_value(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text


def _number(text: str) -> Any:
    """The number that a word spells, as in `betas=0.9,0.98`; any other word stays what it is."""
    value = _read_value(text)
    return value if type(value) in (int, float) else text


class _Loader(yaml.SafeLoader):
    """Plain values as in YAML 1.2: `1e4` is a number, and `no`, `007`, `1:30` and `2024-01-01` are words.

    A key that is given twice is an error.
    """

    yaml_implicit_resolvers: ClassVar[dict] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if key.value in (earlier.value for earlier in keys[:number]):
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that this or another reader would take for something else."""


_FLOAT = r"-?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?|-?\d+[eE][-+]?\d+|-?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(0|[1-9]\d*)", list("-0123456789")),
    ("float", _FLOAT, list("-.0123456789")),
    ("merge", "<<", ["<"]),
):
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}


def _default(spec: dataclasses.Field) -> Any:
    return spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()


def _names(cls: type) -> str:
    return ", ".join(f.name for f in dataclasses.fields(cls) if f.init)


def _kind(value: Any) -> str:
    return {list: "list", str: "text", bool: "true/false value", dict: "section"}.get(type(value), type(value).__name__)


def _show(value: Any) -> str:
    return "nothing" if value is None else f"{value!r} ({_kind(value)})"


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}

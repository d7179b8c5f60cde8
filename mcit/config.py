"""The configuration of a run: frozen, typed sections; YAML files and dotted overrides under them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from mcit.parsing import ConfigError, Selection, kind_of, parse, suggest, to_dict
from mcit.yaml_text import dump_yaml, load_yaml, read_value

__all__ = [
    "NO_TASKS",
    "CheckpointConfig",
    "ConfigError",
    "LoraConfig",
    "ModelConfig",
    "RunConfig",
    "Selection",
    "TrainingConfig",
    "cache_root",
    "find_path_problems",
    "layer",
    "override",
    "own_folders",
    "parse",
    "read_yaml",
    "suggest",
    "to_dict",
    "to_yaml",
]


NO_TASKS = "no tasks are given: use --order vqa,nlvr2,snli-ve,vcr or --order shapes:5x4"


def _check_ranges(config: Any, **ranges: tuple[int, int | None]) -> None:
    """Raise a ConfigError that lists the fields outside of (least, most)."""
    problems = []
    for name, (least, most) in ranges.items():
        value, limit = getattr(config, name), math.inf if most is None else most
        if not least <= value <= limit:
            problems.append(
                f"'{name}' must be from {least}{'' if most is None else f' to {most}'}, found {value}"
            )
    if problems:
        raise ConfigError(problems)


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
    width: int | None = (
        None  # base channels of resnet18; None: what suits the data set, 64 for photographs
    )
    channels_last: bool = (
        True  # the layout in memory of resnet18's images and weights; faster on CPUs
    )

    def __post_init__(self) -> None:
        if self.width is not None:
            _check_ranges(self, width=(1, None))


@dataclass(frozen=True)
class TrainingConfig:
    """How steps are taken; what is learned in how many of them belongs to the task's recipe."""

    mixed_precision: Literal["no", "bf16", "fp16"] | None = (
        None  # None: what `accelerate launch` says
    )
    accumulate: int = 1  # parts in which a batch goes through the network
    clip_norm: float | None = None
    workers: int = 0
    eval_batch_size: int | None = None  # None: what suits the task's network
    log_every: int = 20
    split: Literal["eval", "test"] = "eval"  # what is scored; few tasks have a labelled test split
    score_before: bool = False  # score each task before it is learned too, for forward transfer
    # After a task's steps, one pass over its training data in train mode updates BatchNorm's running statistics, before
    # anything is measured or scored, for every method; a network without BatchNorm has nothing to refresh.
    refresh_batchnorm: bool = False

    def __post_init__(self) -> None:
        _check_ranges(self, accumulate=(1, None), workers=(0, None), log_every=(1, None))
        if self.eval_batch_size is not None:
            _check_ranges(self, eval_batch_size=(1, None))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(
                [
                    f"'clip_norm' must be above 0, found {self.clip_norm}; leave it out for no clipping"
                ]
            )


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
                raise ConfigError(
                    [
                        f"'{name}' must be above 0, found {getattr(self, name)}; leave it out for never"
                    ]
                )


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
    flavour: Literal["release", "exact"] | None = (
        None  # a file in configs/flavours/, under what is given here
    )
    data_root: str | None = None
    on_bad_record: Literal["fail", "skip"] = (
        "fail"  # skip: wrong records are left out, counted and reported
    )
    seed: int = 1
    single: str | None = None  # a run of method `single`, for knowledge transfer
    tracker: str | None = None  # one that accelerate knows: tensorboard, wandb, ...
    output: str | None = None

    def __post_init__(self) -> None:
        _check_ranges(self, seed=(0, 2**32 - 1))
        names = ("output", "data_root", "single")
        problems = [
            problem for name in names for problem in find_path_problems(name, getattr(self, name))
        ]
        if problems:
            raise ConfigError(problems)


def find_path_problems(option: str, name: str | None) -> list[str]:
    """Return why a folder cannot have this name; None, for no folder, has no problem.

    A run writes the names of its folders into text files.
    """
    if name is None:
        return []
    if not name:
        return [f"'{option}' is empty; give the name of a folder, or leave it out"]
    if "\0" in name:
        return [f"'{option}' is {name!r}, and no folder's name can hold a zero byte"]
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return [
            f"'{option}' is {name!r}, which is not valid UTF-8; rename the folder or choose another"
        ]
    return []


def cache_root() -> Path:
    """Return the folder of what is kept between runs: `$MCIT_CACHE`, or `~/.cache/mcit`.

    Raise a ConfigError if there is neither.
    """
    named = os.environ.get("MCIT_CACHE")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "mcit"
    except RuntimeError as error:
        where = f"MCIT_CACHE is {named!r}" if named else "HOME is not set"
        raise ConfigError(
            [
                f"there is no folder for caches ({where}: {error}); set MCIT_CACHE to a folder that may be written to"
            ]
        ) from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file; a file that is missing, malformed or no mapping is named."""
    path = Path(path)
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = (
            suggest(path.name, [p.name for p in path.parent.glob("*.yaml")])
            if path.parent.is_dir()
            else ""
        )
        raise ConfigError([f"no configuration file {str(path)!r}{near}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not valid YAML: {' '.join(str(error).split())}"]) from None
    except OSError as error:
        raise ConfigError(
            [f"{path} cannot be read as a configuration file: {error.strerror}"]
        ) from None
    if data is None:
        example = "write what differs from the defaults, such as `order: [vqa, nlvr2]`"
        raise ConfigError([f"{path} is empty, or holds nothing but comments; {example}"])
    if not isinstance(data, dict):
        raise ConfigError(
            [
                f"{path} holds a {kind_of(data)} where names with values are expected, such as `seed: 1`"
            ]
        )
    return data


def own_folders(kind: str) -> list[str]:
    """The user's own folders of `tasks` or `methods`, in those that the environment's MCIT_PATH lists."""
    listed = [
        Path(folder).expanduser()
        for folder in os.environ.get("MCIT_PATH", "").split(os.pathsep)
        if folder
    ]
    empty = [
        str(path)
        for path in listed
        if not any((path / name).is_dir() for name in ("tasks", "methods"))
    ]
    if empty:
        raise ConfigError(
            [f"MCIT_PATH lists {path!r}, which has no folder tasks or methods" for path in empty]
        )
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
            problems.append(
                f"override {assignment!r} is not of the form name=value, such as method.strength=1e4"
            )
            continue
        target = result
        for depth, name in enumerate(names[:-1]):
            if target.get(name) is None:
                target[name] = {}
            elif isinstance(target[name], str) and depth == 0:
                target[name] = {
                    "name": target[name]
                }  # `method: ewc` and `method.strength=1` go together
            target = target[name]
            if not isinstance(target, dict):
                problems.append(
                    f"override {assignment!r}: {'.'.join(names[: depth + 1])} is no section"
                )
                break
        else:
            target[names[-1]] = read_value(text)
    if problems:
        raise ConfigError(problems)
    return result


def to_yaml(config: Any) -> str:
    """`config` as YAML in the order of its fields."""
    return dump_yaml(to_dict(config))


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copy(value) if isinstance(value, Mapping) else value for key, value in data.items()
    }

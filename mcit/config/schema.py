"""The configuration of a run: frozen, typed sections whose fields say what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mcit.config.options import Kind, option
from mcit.config.parse import Selection
from mcit.errors import ConfigError
from mcit.files import find_path_problems

PRESETS = ("release", "exact")
# the recipe of class-incremental runs that name none
RECIPE = "release"


def _check_ranges(config: Any, **ranges: tuple[int, int | None]) -> None:
    """Raise a ConfigError that lists the fields outside of (least, most)."""
    problems = []
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            problems.append(f"'{name}' must be {limits}, found {value}")
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on the backbone, by peft."""

    rank: int = option(0, help="rank of the adapters; 0 for none")
    alpha: float = option(16.0, help="scale of the adapters is alpha / rank")
    dropout: float = option(0.0, help="dropout on the adapters' inputs")
    targets: tuple[str, ...] = option(
        (), help="names of the linear layers that get adapters; none: what the backbone suggests"
    )
    projector: bool = option(
        False,
        help="put adapters on a generative model's projector too, not only on its language model",
    )

    experts: int = option(
        0,
        help=(
            "experts among which the rank is divided, mixed by a router for every token "
            "(MoELoRA); 0 for none"
        ),
    )

    def __post_init__(self) -> None:
        _check_ranges(self, rank=(0, None), dropout=(0, 1), experts=(0, None))
        if self.experts and (not self.rank or self.rank % self.experts):
            raise ConfigError(
                [
                    f"'rank' is divided evenly among 'experts', found rank {self.rank} and "
                    f"{self.experts} experts"
                ]
            )


@dataclass(frozen=True)
class ModelConfig:
    """The backbone and how it is run."""

    name: str = option(
        "auto",
        help="resnet18, embedded, a hub name or a folder; auto: what suits the tasks",
    )
    lora: LoraConfig = LoraConfig()
    gradient_checkpointing: bool = option(
        False, help="compute activations again in the backward pass", kind=Kind.ROUNDING
    )
    width: int | None = option(
        None, help="base channels of resnet18; none: what suits the data set, 64 for photographs"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", help="precision of a generative model's frozen weights; adapters have float32"
    )
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = option(
        None,
        help=(
            "how a generative model computes attention; none: as transformers chooses; eager "
            "takes less time on CPUs in 16 bits"
        ),
        kind=Kind.ROUNDING,
    )
    trained: tuple[Literal["vision", "projector", "language"], ...] = option(
        (),
        help=(
            "parts of a generative model whose own weights train; none: without adapters, "
            "language model and projector; with adapters, no part"
        ),
    )
    images: Mapping[str, Any] = option(
        factory=dict,
        help="changes of a generative model's image processor, such as {do_pad: true}",
    )
    bottleneck: int | None = option(
        None,
        help="reduce resnet18's features to this many, by a linear layer on top; none: do not",
    )
    channels_last: bool = option(
        True, help="memory layout of resnet18; faster on CPUs", kind=Kind.ROUNDING
    )

    def __post_init__(self) -> None:
        for name in ("width", "bottleneck"):
            if getattr(self, name) is not None:
                _check_ranges(self, **{name: (1, None)})

    @property
    def signed_features(self) -> bool:
        """Whether features may be negative; those of resnet18 are means after a ReLU."""
        return not self.from_scratch or self.bottleneck is not None

    @property
    def from_scratch(self) -> bool:
        """Whether the network starts from random weights."""
        return self.name == "resnet18"


@dataclass(frozen=True)
class TrainingConfig:
    """How steps are taken; how many, and on what, belongs to the task's recipe."""

    mixed_precision: Literal["no", "bf16", "fp16", "auto"] | None = option(
        None,
        help=(
            "precision of the forward pass; auto: bf16 where the device supports it in hardware; "
            "none: what `accelerate launch` says"
        ),
    )
    accumulate: int = option(1, help="micro-batches per optimizer step", kind=Kind.ROUNDING)
    clip_norm: float | None = option(None, help="largest norm of the gradient; none: no clipping")
    workers: int = option(0, help="loader processes", kind=Kind.SPEED)
    eval_batch_size: int | None = option(
        None, help="examples scored at a time; none: what suits the task", kind=Kind.ROUNDING
    )
    log_every: int = option(20, help="steps between two log entries", kind=Kind.PLACE)
    split: Literal["eval", "test"] = option(
        "eval", help="the split that is scored; few tasks have a labeled test split"
    )
    score_before: bool = option(
        False, help="score each task also before it is learned, for forward transfer"
    )
    refresh_batchnorm: bool = option(
        False,
        help="after a task's steps, update BatchNorm's statistics by one pass in train mode, "
        "for every method and before anything is measured or scored",
    )

    def __post_init__(self) -> None:
        _check_ranges(self, accumulate=(1, None), workers=(0, None), log_every=(1, None))
        if self.eval_batch_size is not None:
            _check_ranges(self, eval_batch_size=(1, None))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(
                [f"'clip_norm' must be above 0, found {self.clip_norm}; leave it out for none"]
            )


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved inside a task; after a task's steps and scores it always is."""

    every_steps: int | None = option(
        None, help="save after this many steps of a task", kind=Kind.PLACE
    )
    every_minutes: float | None = option(
        10.0, help="save when this many minutes have passed", kind=Kind.PLACE
    )
    keep: int = option(
        2,
        help="checkpoints kept; the older one is the fallback if the newest is damaged",
        kind=Kind.PLACE,
    )
    background: bool = option(
        True,
        help="write inside a task while training goes on, from a copy of what changed; false: "
        "training waits, and nothing is copied",
        kind=Kind.PLACE,
    )
    importance: bool = option(
        True, help="keep each task's importance as a file, for `mcit explore`", kind=Kind.PLACE
    )

    def __post_init__(self) -> None:
        _check_ranges(self, keep=(1, None))
        for name in ("every_steps", "every_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(
                    [f"'{name}' must be above 0, found {value}; leave it out for never"]
                )


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run.

    `tasks` holds options by task name and `methods` by method name; the options of `method` itself
    come on top of the latter. `classifiers` holds options by classifier name; those of a single
    `classifier` come on top too.
    """

    order: tuple[str, ...] = option((), help="the tasks to learn, in order")
    method: Selection = option(Selection("finetune"), help="how earlier tasks are protected")
    classifier: Selection | None = option(
        None,
        help=(
            "what answers from features, several separated by commas; none: that of the method, "
            "mostly its head"
        ),
    )
    transport: Selection | None = option(
        None, help="how class statistics follow the network; none: that of the method"
    )
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tasks: Mapping[str, Mapping[str, Any]] = option(factory=dict, help="options by task name")
    methods: Mapping[str, Mapping[str, Any]] = option(factory=dict, help="options by method name")
    classifiers: Mapping[str, Mapping[str, Any]] = option(
        factory=dict, help="options by classifier name"
    )
    preset: Literal["release", "exact"] | None = option(
        None, help="a file in configs/presets/; what is given here has precedence over it"
    )
    stiffness: float | None = option(
        None,
        help="mean stiffness that strength auto gives to methods that name none of their own",
    )
    recipe: str | None = option(
        None,
        help="how class-incremental tasks are learned, whatever the method: a name in "
        "configs/recipes/ or a YAML file of task options; none: release",
    )
    data_root: str | None = option(None, help="folder of the official data", kind=Kind.PLACE)
    on_bad_record: Literal["fail", "skip"] = option(
        "fail", help="stop at a bad record, or leave bad records out and count them"
    )
    exemplar_free: bool = option(
        False,
        help="refuse methods that keep examples of earlier tasks",
        kind=Kind.PLACE,
    )
    seed: int = option(1, help="seed of all random numbers")
    single: str | None = option(
        None, help="folder of a run of method `single`, for knowledge transfer", kind=Kind.PLACE
    )
    tracker: str | None = option(None, help="also log to tensorboard, wandb, ...", kind=Kind.PLACE)
    tracker_group: str | None = option(
        None, help="group of the run in wandb and mlflow; a sweep gives its own", kind=Kind.PLACE
    )
    output: str | None = option(None, help="folder of the run", kind=Kind.PLACE)

    def __post_init__(self) -> None:
        _check_ranges(self, seed=(0, 2**32 - 1))
        problems = []
        if self.stiffness is not None and not self.stiffness > 0:
            problems.append(f"'stiffness' must be above 0, found {self.stiffness:g}")
        for name in ("output", "data_root", "single"):
            problems += find_path_problems(name, getattr(self, name))
        if problems:
            raise ConfigError(problems)

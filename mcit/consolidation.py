"""How weights are held: one importance and one anchor per weight, however many tasks there were."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from mcit.importance import Importance, check_same_parameters, read_tensors

FORMAT = "mcit consolidation 1"
Merge = Literal["sum", "online", "share", "latest"]
MERGES: tuple[Merge, ...] = ("sum", "online", "share", "latest")
# Elements handled at once on a CPU: the scratch stays in the cache, so that memory is read and written only once.
CHUNK = 1 << 18
# A weight counts as free when its stiffness is below this share of the mean.
NEAR_ZERO = 1e-3

NamedParameters = Iterable[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Diagnosis:
    """Scale and stability of a penalty. Stiffness is strength times importance, the unit in which methods compare."""

    weights: int
    mean_stiffness: float
    max_stiffness: float
    share_capped: float
    share_near_zero: float
    capped_by_tensor: Mapping[str, float]
    limit: float | None = None  # stiffness beyond which explicit steps diverge, if the step is known
    share_unstable: float = 0.0

    def warning(self) -> str | None:
        """What to do where gradient steps would diverge; None where they would not."""
        if self.limit is None or self.max_stiffness <= self.limit:
            return None
        return (
            f"stiffness reaches {self.max_stiffness:.3g} and steps are stable only below {self.limit:.3g} "
            f"({self.share_unstable:.2%} of the weights are beyond): lower the strength, cap the importance, "
            "or use the proximal penalty"
        )

    def describe(self) -> str:
        """One line for logs and reports."""
        return (
            f"mean stiffness {self.mean_stiffness:.3g}, max {self.max_stiffness:.3g}, "
            f"capped {self.share_capped:.2%}, near zero {self.share_near_zero:.2%} of {self.weights:,} weights"
        )


class ConsolidationManager:
    """Holds weights by strength/2 * sum importance * (weight - anchor)^2, and carries both over the tasks.

        manager = ConsolidationManager(model.named_parameters(), strength=1e4)
        loss.backward(); manager.add_gradient_(); optimizer.step()
        manager.consolidate(measure_importance(model, loader))

    merge: `sum` keeps the exact sum of all tasks' penalties; `online` decays the old importance by `decay` and anchors
    at the latest weights; `share` blends old and new by `old_share`, fresh rows unblended; `latest` forgets the old.
    Only trainable parameters are kept. Rows that a tensor gained since it was consolidated are free.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        strength: float = 1.0,
        *,
        merge: Merge = "sum",
        decay: float = 1.0,
        path: PathIntegral | None = None,
    ):
        _check_settings(strength, merge, decay)
        self.strength, self.merge, self.decay, self.path = strength, merge, decay, path
        self.importance: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self.capped: dict[str, float] = {}
        self.history: list[str] = []  # one line per consolidation
        self.parameters: dict[str, nn.Parameter] = {}
        self.present: dict[str, nn.Parameter] = {}  # all of the model's, also those that are frozen
        self.track(named_parameters)

    def track(self, named_parameters: NamedParameters, forget: Iterable[str] = ()) -> None:
        """Follow these parameters from now on: call it after a head was added or widened.

        A protected parameter that is gone is an error, unless it is named in `forget`.
        """
        found = dict(named_parameters)
        held = [name for name in self.importance if name not in set(forget)]
        gone = [name for name in held if name not in found]
        if gone:
            raise ValueError(
                f"{len(gone)} protected parameters are no longer in the model, first {gone[0]!r}; "
                "name them in track(..., forget=[...]) if that is intended"
            )
        for name in held:
            _check_grown(name, self.importance[name], found[name])
        for name in self.importance.keys() - set(held):
            del self.importance[name], self.anchor[name]
            self.capped.pop(name, None)
        self.present = found
        self.parameters = {name: p for name, p in found.items() if p.requires_grad or name in self.importance}

    @torch.no_grad()
    def consolidate(self, importance: Importance | Mapping[str, Tensor], old_share: float | None = None) -> None:
        """Take in the importance of the task just learned, and the present weights as its anchor.

        Parameters that the importance does not name keep what they have. Nothing changes if anything is wrong.
        """
        values = importance.values if isinstance(importance, Importance) else importance
        self._check_values(values)
        if (self.merge == "share") != (old_share is not None) and self.importance:
            raise ValueError(
                "merge 'share' needs old_share, the share of old classes in all seen; no other rule takes it"
            )
        if old_share is not None and not 0 <= old_share <= 1:
            raise ValueError(f"old_share must lie between 0 and 1, found {old_share}")
        merged = {name: self._merge(name, value.to(self.parameters[name]), old_share) for name, value in values.items()}
        for name, (held, anchor) in merged.items():
            self.importance[name], self.anchor[name] = held, anchor
        self._note(importance, values)

    @torch.no_grad()
    def add_gradient_(self, measure: bool = False) -> float | None:
        """Add strength * importance * (weight - anchor) to the gradients, as autograd would for the penalty.

        Call it when the gradients are complete: after backward, on the last step of an accumulation, after unscaling
        and before clipping. With `measure` the ratio of the penalty's gradient to the task's is given back.
        """
        if self.path is not None:
            self.path.see_gradient()
        if not self.strength or not self.importance:
            return 0.0 if measure else None
        before = [p.grad for p in self.parameters.values() if p.grad is not None] if measure else []
        task = float(get_total_norm(before)) if before else 0.0
        pulled = 0.0
        for weight, parameter, held, anchor in self._held():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad[: len(held)] if held.ndim else parameter.grad
            if measure:
                pulled += float(((weight - anchor) * held).square().sum(dtype=torch.float64))
            _add_pull(gradient, weight, anchor, held, self.strength)
        return (self.strength * math.sqrt(pulled) / task if task else math.inf) if measure else None

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """The penalty's value, strength/2 * sum importance * (weight - anchor)^2, for logging."""
        total = torch.zeros((), dtype=torch.float64)
        for weight, _, held, anchor in self._held():
            total += ((weight - anchor).square_().mul_(held)).sum(dtype=torch.float64).cpu()
        return total * (self.strength / 2)

    @torch.no_grad()
    def proximal_(self, learning_rate: float) -> None:
        """The implicit step on the penalty, stable for any stiffness; call it after the optimizer's step, instead of
        `add_gradient_`."""
        if not self.strength:
            return
        for weight, _, held, anchor in self._held():
            pull = held * (learning_rate * self.strength)
            weight.lerp_(anchor, 1 - 1 / (1 + pull))  # of this form because the pull may overflow to infinity

    @torch.no_grad()
    def diagnose(self, learning_rate: float | None = None, momentum: float = 0.0) -> Diagnosis:
        """How stiff the penalty is, and whether SGD with this step would be stable."""
        weights = sum(held.numel() for held in self.importance.values())
        if not weights:
            return Diagnosis(0, 0.0, 0.0, 0.0, 0.0, {})
        total = sum(float(held.sum(dtype=torch.float64)) for held in self.importance.values())
        mean, top = total / weights, max(float(held.max()) for held in self.importance.values() if held.numel())
        low = sum(int((held <= NEAR_ZERO * mean).sum()) for held in self.importance.values())
        capped = sum(self.capped.get(name, 0.0) * held.numel() for name, held in self.importance.items())
        limit, beyond = None, 0
        if learning_rate:
            limit = 2 * (1 + momentum) / learning_rate
            beyond = sum(int((held * self.strength > limit).sum()) for held in self.importance.values())
        return Diagnosis(
            weights,
            self.strength * mean,
            self.strength * top,
            capped / weights,
            low / weights,
            dict(self.capped),
            limit,
            beyond / weights,
        )

    def describe(self) -> str:
        """One line: how weights are held, and the estimator of the latest consolidation."""
        rule = f"online, decay {self.decay:g}" if self.merge == "online" else self.merge
        latest = self.history[-1] if self.history else "nothing consolidated yet"
        return f"strength {self.strength:g}, merge {rule}; {latest}"

    def bytes_held(self) -> int:
        """Memory of importance and anchor: two numbers per protected weight, whatever the number of tasks."""
        return sum(t.numel() * t.element_size() for t in (*self.importance.values(), *self.anchor.values()))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the parameters themselves."""
        about = {
            "strength": self.strength,
            "merge": self.merge,
            "decay": self.decay,
            "capped": dict(self.capped),
            "history": list(self.history),
        }
        return {"importance": dict(self.importance), "anchor": dict(self.anchor), "about": about}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state in whole; one that does not fit the tracked parameters is refused and changes nothing."""
        importance, anchor, about = state["importance"], state["anchor"], state["about"]
        check_same_parameters("the state's anchor", anchor, importance)
        missing = [name for name in importance if name not in self.present]
        if missing:
            raise ValueError(f"the state protects {missing[0]!r} (of {len(missing)}), which the model does not have")
        for name, held in importance.items():
            _check_grown(name, held, self.present[name])
            _check_value(name, held)
            if not bool(anchor[name].isfinite().all()):
                raise ValueError(f"the state's anchor of {name!r} has non-finite values; nothing was changed")
        _check_settings(about["strength"], about["merge"], about["decay"])
        # a head that is frozen by now may still be protected
        self.parameters = {n: p for n, p in self.present.items() if p.requires_grad or n in importance}
        self.importance = {name: held.to(self.parameters[name]).clone() for name, held in importance.items()}
        self.anchor = {name: held.to(self.parameters[name]).clone() for name, held in anchor.items()}
        self.strength, self.merge, self.decay = about["strength"], about["merge"], about["decay"]
        self.capped, self.history = dict(about["capped"]), list(about["history"])

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file."""
        state = self.state_dict()
        tensors = {f"{part}/{n}": t.contiguous() for part in ("importance", "anchor") for n, t in state[part].items()}
        save_file(tensors, path, {"format": FORMAT, "about": json.dumps(state["about"])})

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote."""
        tensors, about = read_tensors(path, FORMAT)
        parts: dict[str, dict[str, Tensor]] = {"importance": {}, "anchor": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self.load_state_dict({**parts, "about": json.loads(about["about"])})

    def _held(self) -> Iterator[tuple[Tensor, nn.Parameter, Tensor, Tensor]]:
        """The rows that are held of each trainable parameter, the parameter, its importance and its anchor."""
        for name, held in self.importance.items():
            parameter = self.parameters[name]
            if parameter.requires_grad:
                rows = parameter.detach()[: len(held)] if held.ndim else parameter.detach()
                yield rows, parameter, held, self.anchor[name]

    def _merge(self, name: str, fresh: Tensor, old_share: float | None) -> tuple[Tensor, Tensor]:
        weight = self.parameters[name].detach().clone(memory_format=torch.contiguous_format)
        held = fresh.detach().clone(memory_format=torch.contiguous_format)
        if name not in self.importance or self.merge == "latest":
            return held, weight
        old, rows = self.importance[name], (slice(len(self.importance[name])) if self.importance[name].ndim else ...)
        if self.merge == "online":
            held[rows] += self.decay * old
        elif self.merge == "share":
            held[rows] = old_share * old + (1 - old_share) * held[rows]
        else:
            held[rows] += old
            # the anchor of a sum of quadratics: old + (fresh / sum)(weight - old); where nothing is held, the weight
            pull = torch.where(held[rows] > 0, fresh[rows] / held[rows], 1.0)
            weight[rows] = torch.lerp(self.anchor[name], weight[rows], pull)
        return held, weight

    def _check_values(self, values: Mapping[str, Tensor]) -> None:
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            raise ValueError(
                f"importance names {unknown[0]!r} ({len(unknown)} such), which is not tracked; after a model has "
                "changed, call track(model.named_parameters())"
            )
        check_same_parameters("the importance", values, {name: self.parameters[name] for name in values})
        for name, value in values.items():
            _check_value(name, value)

    def _note(self, importance: Importance | Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        known = isinstance(importance, Importance)
        self.history.append(importance.describe() if known else "importance given as tensors")
        cap = importance.estimator.cap if known and importance.estimator else None
        for name, value in values.items():  # of the latest importance: what is merged has no cap of its own
            self.capped.pop(name, None)
            if cap is not None and value.numel():
                self.capped[name] = float((value >= cap).double().mean())


class PathIntegral:
    """Synaptic intelligence: how much each weight's own motion lowered the task's loss, by its unmixed gradient.

    Give it to a manager, whose `add_gradient_` shows it the gradient before the penalty is mixed in, and attach it to
    the optimizer. `importance()` is max(0, -sum gradient * step) / (motion over the task squared + damping).
    """

    def __init__(self, named_parameters: NamedParameters, damping: float = 0.1, clip: bool = True):
        if not damping > 0:
            raise ValueError(f"damping must be above 0, found {damping}")
        self.damping, self.clip = damping, clip
        self.begin(named_parameters)

    @torch.no_grad()
    def begin(self, named_parameters: NamedParameters) -> None:
        """Start a new path from the present weights: once per task."""
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.path = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.pending: dict[str, tuple[Tensor, Tensor]] = {}

    def attach(self, optimizer: Any) -> Any:
        """Follow the optimizer's steps; gives a handle whose `remove()` ends that."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        return optimizer.register_step_post_hook(lambda *_: self.see_step())

    @torch.no_grad()
    def see_gradient(self) -> None:
        """Remember the task's gradient and the weights it belongs to."""
        self.pending = {
            name: (p.grad.clone(), p.detach().clone()) for name, p in self.parameters.items() if p.grad is not None
        }

    @torch.no_grad()
    def see_step(self) -> None:
        """Add what the step just taken contributed."""
        for name, (gradient, before) in self.pending.items():
            self.path[name].addcmul_(gradient, before.sub_(self.parameters[name]))
        self.pending = {}

    @torch.no_grad()
    def importance(self) -> Importance:
        """The importance of the path so far."""
        values = {}
        for name, path in self.path.items():
            motion = (self.parameters[name] - self.start[name]).square_()
            values[name] = (path.clamp_min(0) if self.clip else path.abs()) / motion.add_(self.damping)
        sign = "negative parts clipped" if self.clip else "absolute values"
        return Importance(values, note=f"path integral of the task gradient (SI): damping {self.damping:g}; {sign}")


def _add_pull(gradient: Tensor, weight: Tensor, anchor: Tensor, held: Tensor, strength: float) -> None:
    tensors = (gradient, weight, anchor, held)
    flat = all(t.is_contiguous() for t in tensors) and weight.device.type == "cpu"
    if not flat or weight.numel() <= CHUNK:
        gradient.addcmul_(held, weight - anchor, value=strength)
        return
    scratch = torch.empty(CHUNK, dtype=weight.dtype)
    pieces = zip(*(t.view(-1).split(CHUNK) for t in tensors), strict=True)
    for piece, now, then, importance in pieces:
        away = torch.sub(now, then, out=scratch[: len(now)])
        piece.addcmul_(importance, away, value=strength)


def _check_settings(strength: float, merge: str, decay: float) -> None:
    if merge not in MERGES:
        raise ValueError(f"unknown merge rule {merge!r} (rules: {', '.join(MERGES)})")
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength must be a number from 0, found {strength}")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay must lie between 0 and 1, found {decay}")


def _check_value(name: str, value: Tensor) -> None:
    if not bool(value.isfinite().all()) or bool((value < 0).any()):
        raise ValueError(f"the importance of {name!r} has negative or non-finite values; nothing was changed")


def _check_grown(name: str, held: Tensor, parameter: Tensor) -> None:
    same = held.shape[1:] == parameter.shape[1:] and held.ndim == parameter.ndim
    if not same or (held.ndim and len(held) > len(parameter)):
        raise ValueError(
            f"{name!r} was consolidated as {list(held.shape)} and is now {list(parameter.shape)}: "
            "a tensor may only gain rows"
        )

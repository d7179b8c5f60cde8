"""How weights are held: one importance and one anchor per weight, however many tasks there were."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mcit.consolidation_checks import MERGES, Merge, check_grown, check_numbers, check_settings
from mcit.diagnosis import Diagnosis, diagnose
from mcit.importance import Importance
from mcit.named_tensors import check_same_parameters, read_tensors, write_tensors
from mcit.parallel.sharded import combine, cut, local, wrap
from mcit.path_integral import PathIntegral

__all__ = ["MERGES", "ConsolidationManager", "Diagnosis", "Merge", "PathIntegral"]

FORMAT = "mcit consolidation 1"
# Elements handled at once on a CPU: the scratch stays in the cache, so that memory is read and written only once.
CHUNK = 1 << 18

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class ConsolidationManager:
    """Holds weights by strength/2 * sum importance * (weight - anchor)^2, and carries both over the tasks.

        manager = ConsolidationManager(model.named_parameters(), strength=1e4)
        loss.backward(); manager.add_gradient_(); optimizer.step()
        manager.consolidate(measure_importance(model, loader))

    merge: `sum` keeps the exact sum of all tasks' penalties; `online` decays the old importance by `decay` and anchors
    at the latest weights; `share` blends old and new by `old_share`, fresh rows unblended; `latest` forgets the old.
    Only trainable parameters are kept. Rows that a tensor gained since it was consolidated are free.

    Of parameters that FSDP2 (`fully_shard`) has sharded, each process holds importance and anchor of its own part. What
    gives a number or a file is then about the whole model and must be called by all processes; such parameters cannot
    gain rows.
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
        check_settings(strength, merge, decay)
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
            check_grown(name, self.importance[name], found[name])
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
        merged = {name: self._merge(name, value, old_share) for name, value in values.items()}
        for name, (held, anchor) in merged.items():
            parameter = self.parameters[name].detach()
            self.importance[name], self.anchor[name] = wrap(held, parameter), wrap(anchor, parameter)
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
        ratio = self._compare_gradients() if measure else None
        for weight, parameter, held, anchor in self._held():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local(parameter.grad)
            _add_pull(gradient[: len(held)] if held.ndim else gradient, weight, anchor, held, self.strength)
        return ratio

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """The penalty's value, strength/2 * sum importance * (weight - anchor)^2, for logging."""
        pulls = ((p, (w - a).square_().mul_(held).sum(dtype=torch.float64)) for w, p, held, a in self._held())
        return combine(pulls) * (self.strength / 2)

    @torch.no_grad()
    def proximal_(self, learning_rate: float) -> None:
        """The implicit step on the penalty, stable for any stiffness; call it after the optimizer's step, instead of
        `add_gradient_`."""
        if not self.strength:
            return
        for weight, _, held, anchor in self._held():
            pull = held * (learning_rate * self.strength)
            weight.lerp_(anchor, 1 - 1 / (1 + pull))  # of this form because the pull may overflow to infinity

    def diagnose(self, learning_rate: float | None = None, momentum: float = 0.0) -> Diagnosis:
        """How stiff the penalty is, and whether SGD with this step would be stable."""
        return diagnose(self.importance, self.strength, self.capped, learning_rate, momentum)

    def describe(self) -> str:
        """One line: how weights are held, and the estimator of the latest consolidation."""
        rule = f"online, decay {self.decay:g}" if self.merge == "online" else self.merge
        latest = self.history[-1] if self.history else "nothing consolidated yet"
        return f"strength {self.strength:g}, merge {rule}; {latest}"

    def bytes_held(self) -> int:
        """Memory of this process: importance and anchor, two numbers per protected weight, however many tasks; and
        the path integral's, where there is one."""
        held = [local(tensor) for tensor in (*self.importance.values(), *self.anchor.values())]
        path = self.path.bytes_held() if self.path is not None else 0
        return sum(tensor.numel() * tensor.element_size() for tensor in held) + path

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
            check_grown(name, held, self.present[name])
        check_numbers("importance", importance, least=0)
        check_numbers("anchor", anchor)
        check_settings(about["strength"], about["merge"], about["decay"])
        # a head that is frozen by now may still be protected
        self.parameters = {n: p for n, p in self.present.items() if p.requires_grad or n in importance}
        self.importance = {name: _adopt(held, self.parameters[name]) for name, held in importance.items()}
        self.anchor = {name: _adopt(held, self.parameters[name]) for name, held in anchor.items()}
        self.strength, self.merge, self.decay = about["strength"], about["merge"], about["decay"]
        self.capped, self.history = dict(about["capped"]), list(about["history"])

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file of whole tensors, which fits however the model is sharded."""
        state = self.state_dict()
        tensors = {f"{part}/{name}": t for part in ("importance", "anchor") for name, t in state[part].items()}
        write_tensors(tensors, path, {"format": FORMAT, "about": json.dumps(state["about"])})

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote."""
        tensors, about = read_tensors(path, FORMAT)
        parts: dict[str, dict[str, Tensor]] = {"importance": {}, "anchor": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self.load_state_dict({**parts, "about": json.loads(about["about"])})

    def _held(self) -> Iterator[tuple[Tensor, nn.Parameter, Tensor, Tensor]]:
        """The rows that are held of each trainable parameter, the parameter, its importance and its anchor.

        Rows, importance and anchor are this process's part of them.
        """
        for name, held in self.importance.items():
            parameter = self.parameters[name]
            if parameter.requires_grad:
                held, weight = local(held), local(parameter.detach())
                yield weight[: len(held)] if held.ndim else weight, parameter, held, local(self.anchor[name])

    def _compare_gradients(self) -> float:
        """The length of the penalty's gradient over that of the task's."""
        tasks = ((p, _square_length(local(p.grad))) for p in self.parameters.values() if p.grad is not None)
        task = float(combine(tasks))
        pull = float(combine((p, _square_length((w - a) * held)) for w, p, held, a in self._held()))
        return self.strength * math.sqrt(pull / task) if task else math.inf

    def _merge(self, name: str, value: Tensor, old_share: float | None) -> tuple[Tensor, Tensor]:
        parameter = self.parameters[name].detach()
        fresh = cut(value.detach(), parameter).to(local(parameter))
        weight = local(parameter).clone(memory_format=torch.contiguous_format)
        held = fresh.clone(memory_format=torch.contiguous_format)
        if name not in self.importance or self.merge == "latest":
            return held, weight
        old = local(self.importance[name])
        rows = slice(len(old)) if old.ndim else ...
        if self.merge == "online":
            held[rows] += self.decay * old
        elif self.merge == "share":
            held[rows] = old_share * old + (1 - old_share) * held[rows]
        else:
            held[rows] += old
            # the anchor of a sum of quadratics: old + (fresh / sum)(weight - old); where nothing is held, the weight
            pull = torch.where(held[rows] > 0, fresh[rows] / held[rows], 1.0)
            weight[rows] = torch.lerp(local(self.anchor[name]), weight[rows], pull)
        return held, weight

    def _check_values(self, values: Mapping[str, Tensor]) -> None:
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            raise ValueError(
                f"importance names {unknown[0]!r} ({len(unknown)} such), which is not tracked; after a model has "
                "changed, call track(model.named_parameters())"
            )
        check_same_parameters("the importance", values, {name: self.parameters[name] for name in values})
        check_numbers("importance", values, least=0)

    def _note(self, importance: Importance | Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        known = isinstance(importance, Importance)
        self.history.append(importance.describe() if known else "importance given as tensors")
        cap = importance.estimator.cap if known and importance.estimator else None
        for name, value in values.items():  # of the latest importance: what is merged has no cap of its own
            self.capped.pop(name, None)
            if cap is not None and value.numel():
                self.capped[name] = float(combine([(value, (local(value) >= cap).sum())])) / value.numel()


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


def _square_length(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()


def _adopt(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A copy of a state's tensor where the parameter is, cut as it is."""
    parameter = parameter.detach()
    return wrap(cut(value, parameter).to(local(parameter)).clone(), parameter)

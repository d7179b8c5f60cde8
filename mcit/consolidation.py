"""How weights are held: one importance and one anchor per weight, however many tasks there were."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mcit.diagnosis import Diagnosis, diagnose
from mcit.importance import Importance
from mcit.named_tensors import bare_name, check_same_parameters, read_tensors, write_tensors
from mcit.parallel.sharded import combine, cut, is_sharded, local, wrap
from mcit.path_integral import PathIntegral

__all__ = ["MERGES", "ConsolidationManager", "Diagnosis", "Merge", "PathIntegral"]

Merge = Literal["sum", "online", "share", "latest"]
MERGES: tuple[Merge, ...] = get_args(Merge)
FORMAT = "mcit consolidation 1"
# Elements handled at once on a CPU: the scratch stays in the cache, so that memory is read and written only once.
CHUNK = 1 << 18

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class ConsolidationManager:
    """Holds weights by strength/2 * sum importance * (weight - anchor)^2, and carries both over the tasks.

        manager = ConsolidationManager(model, strength=100)
        loss.backward(); manager.add_gradient_(); optimizer.step()
        manager.consolidate(measure_importance(model, loader))

    Give it the model, or named parameters. Of a model it notices when a held parameter has been replaced
    (`load_state_dict(assign=True)`, a new layer in the old one's place, `resize_token_embeddings`); of named
    parameters it can only warn when a held one has no gradient. Names are those of the bare model, also of one that
    torch.compile has wrapped. Importance and anchor follow the weights to another device, and are kept in 32 bits
    where the weights have 16. Of an SGD optimizer, if given, it knows the step: `consolidate` then warns when the
    penalty has become too stiff for it.

    merge: `sum` keeps the exact sum of all tasks' penalties; `online` decays the old importance by `decay` and anchors
    at the latest weights; `share` blends old and new by `old_share`, fresh rows unblended; `latest` forgets the old.
    Only trainable parameters are kept. Rows that a tensor gained since it was consolidated are free.

    Of parameters that FSDP2 (`fully_shard`) has sharded, each process holds importance and anchor of its own part. What
    gives a number or a file is then about the whole model and must be called by all processes; such parameters cannot
    gain rows.
    """

    def __init__(
        self,
        model: nn.Module | NamedParameters,
        strength: float = 1.0,
        *,
        merge: Merge = "sum",
        decay: float = 1.0,
        path: PathIntegral | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ):
        _check_settings(strength, merge, decay)
        self.strength = strength
        self.merge = merge
        self.decay = decay
        self.path = path
        self.optimizer = optimizer
        self.importance: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self.capped: dict[str, float] = {}
        # one line per consolidation
        self.history: list[str] = []
        self.parameters: dict[str, nn.Parameter] = {}
        # all parameters of the model, also those that are frozen
        self.present: dict[str, nn.Parameter] = {}
        self._model: nn.Module | None = None
        self._places: list[_Place] = []
        # held parameters that a warning has named already
        self._idle: set[str] = set()
        self.track(model)

    def __repr__(self) -> str:
        weights = sum(tensor.numel() for tensor in self.importance.values())
        return f"ConsolidationManager({weights:,} weights of {len(self.importance)} tensors; {self.describe()})"

    def track(self, model: nn.Module | NamedParameters, forget: Iterable[str] = ()) -> None:
        """Follow this model, or these parameters, from now on: call it after a head was added, widened or replaced.

        A protected parameter that is gone is an error, unless it is named in `forget`.
        """
        found = _name_parameters(model)
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
        self.parameters = {
            name: p for name, p in found.items() if p.requires_grad or name in self.importance
        }
        self._model = model if isinstance(model, nn.Module) else None
        self._places = _list_places(self._model)
        self._idle.clear()

    @torch.no_grad()
    def consolidate(
        self, importance: Importance | Mapping[str, Tensor], old_share: float | None = None
    ) -> None:
        """Take in the importance of the task just learned, and the present weights as its anchor.

        Parameters that the importance does not name keep what they have. Nothing changes if anything is wrong. A path
        integral begins a new path here: what the next task adds to it is its own.
        """
        self._check_present()
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
            self.importance[name] = wrap(held, parameter)
            self.anchor[name] = wrap(anchor, parameter)
        self._note(importance, values)
        if self.path is not None:
            self.path.begin(self.path.parameters.items())
        if self.optimizer is not None:
            self._warn_of_stiffness(self.optimizer)

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
        self._check_present()
        self._warn_of_idle()
        ratio = self._compare_gradients() if measure else None
        for weight, parameter, held, anchor in self._held():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = local(parameter.grad)
            _add_pull(
                gradient[: len(held)] if held.ndim else gradient,
                weight,
                anchor,
                held,
                self.strength,
            )
        return ratio

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """The penalty's value, strength/2 * sum importance * (weight - anchor)^2, for logging."""
        pulls = (
            (p, (w - a).square_().mul_(held).sum(dtype=torch.float64))
            for w, p, held, a in self._held()
        )
        return combine(pulls) * (self.strength / 2)

    @torch.no_grad()
    def proximal_(self, learning_rate: float) -> None:
        """The implicit step on the penalty, stable for any stiffness; call it after the optimizer's step, instead of
        `add_gradient_`."""
        if not self.strength:
            return
        self._check_present()
        for weight, _, held, anchor in self._held():
            # of this form because the pull may overflow to infinity
            share = 1 - 1 / (1 + held * (learning_rate * self.strength))
            weight.copy_(torch.lerp(weight.to(anchor.dtype), anchor, share))

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
            raise ValueError(
                f"the state protects {missing[0]!r} (of {len(missing)}), which the model does not have"
            )
        for name, held in importance.items():
            _check_grown(name, held, self.present[name])
        _check_numbers("importance", importance, least=0)
        _check_numbers("anchor", anchor)
        _check_settings(about["strength"], about["merge"], about["decay"])
        # a head that is frozen by now may still be protected
        self.parameters = {
            n: p for n, p in self.present.items() if p.requires_grad or n in importance
        }
        self.importance = {
            name: _adopt(held, self.parameters[name]) for name, held in importance.items()
        }
        self.anchor = {name: _adopt(held, self.parameters[name]) for name, held in anchor.items()}
        self.strength, self.merge, self.decay = about["strength"], about["merge"], about["decay"]
        self.capped, self.history = dict(about["capped"]), list(about["history"])

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file of whole tensors, which fits however the model is sharded."""
        state = self.state_dict()
        tensors = {
            f"{part}/{name}": t
            for part in ("importance", "anchor")
            for name, t in state[part].items()
        }
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
        for name, parameter in self._list_held():
            weight = local(parameter.detach())
            held = local(self.importance[name])
            anchor = local(self.anchor[name])
            if held.device != weight.device or held.dtype != _held_dtype(weight):
                self._follow(name, weight)
                held = self.importance[name]
                anchor = self.anchor[name]
            if held.shape != weight.shape:
                _check_grown(name, self.importance[name], parameter)
                weight = weight[: len(held)]
            yield weight, parameter, held, anchor

    def _list_held(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trainable parameters of which something is held."""
        found = [(name, self.parameters[name]) for name in self.importance]
        return [(name, parameter) for name, parameter in found if parameter.requires_grad]

    def _follow(self, name: str, weight: Tensor) -> None:
        """Move importance and anchor to where the weight is now."""
        for tensors in (self.importance, self.anchor):
            tensor = tensors[name]
            if is_sharded(tensor):
                raise ValueError(
                    f"{name!r} was moved or converted after it was sharded and consolidated; make a new manager and "
                    "load the saved state into it"
                )
            tensors[name] = tensor.to(weight.device, _held_dtype(weight))

    def _check_present(self) -> None:
        """Raise if a held parameter is no longer the model's: it would be held in vain."""
        if all(place.get(name) is found for place, name, found in self._places):
            return
        present = _name_parameters(self._model)
        replaced = [
            name for name in self.importance if present.get(name) is not self.parameters[name]
        ]
        if replaced:
            raise ValueError(
                f"{len(replaced)} held parameters are no longer the model's, first {replaced[0]!r}: they were replaced "
                "(load_state_dict(assign=True), a new layer, resize_token_embeddings, a move to another kind of "
                "device). Call track(model) to hold their successors, or track(model, forget=[...]) to let them go"
            )
        # something else has changed, such as a head that nothing is held of
        self._places = _list_places(self._model)

    def _warn_of_stiffness(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn if steps of plain SGD against the penalty would diverge; of other optimizers nothing is known."""
        # accelerate wraps the optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(optimizer, torch.optim.SGD):
            return
        for group in optimizer.param_groups:
            # a schedule has lowered the rate by the end of a task, and will raise it for the next
            rate = max(float(group["lr"]), float(group.get("initial_lr", 0.0)))
            warning = self.diagnose(rate, group["momentum"]).warning()
            if warning is not None:
                warnings.warn(warning, stacklevel=4)
                return

    def _warn_of_idle(self) -> None:
        """Warn, once for each, of held parameters that train and have no gradient."""
        idle = [
            name
            for name, parameter in self._list_held()
            if parameter.grad is None and name not in self._idle
        ]
        if not idle:
            return
        self._idle.update(idle)
        listed = ", ".join(idle[:3]) + (", ..." if len(idle) > 3 else "")
        warnings.warn(
            f"{len(idle)} held parameters train but have no gradient ({listed}): either this loss does not depend on "
            "them, or the model was given other parameters since; then call track(model)",
            stacklevel=4,
        )

    def _compare_gradients(self) -> float:
        """The length of the penalty's gradient over that of the task's."""
        tasks = (
            (p, _square_length(local(p.grad)))
            for p in self.parameters.values()
            if p.grad is not None
        )
        task = float(combine(tasks))
        pull = float(combine((p, _square_length((w - a) * held)) for w, p, held, a in self._held()))
        return self.strength * math.sqrt(pull / task) if task else math.inf

    def _merge(self, name: str, value: Tensor, old_share: float | None) -> tuple[Tensor, Tensor]:
        parameter = self.parameters[name].detach()
        dtype = _held_dtype(parameter)
        fresh = cut(value.detach(), parameter).to(local(parameter).device, dtype)
        weight = local(parameter).to(dtype, copy=True, memory_format=torch.contiguous_format)
        held = fresh.clone(memory_format=torch.contiguous_format)
        if name not in self.importance or self.merge == "latest":
            return held, weight
        if not is_sharded(parameter):
            self._follow(name, parameter)
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
                f"importance names {unknown[0]!r} ({len(unknown)} such), which is not tracked (tracked: "
                f"{next(iter(self.parameters), 'nothing')!r}, ...); make the manager of the same bare model, and after "
                "a model has changed, call track(model)"
            )
        check_same_parameters(
            "the importance", values, {name: self.parameters[name] for name in values}
        )
        _check_numbers("importance", values, least=0)

    def _note(
        self, importance: Importance | Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> None:
        known = isinstance(importance, Importance)
        self.history.append(importance.describe() if known else "importance given as tensors")
        cap = importance.estimator.cap if known and importance.estimator else None
        for (
            name,
            value,
        ) in values.items():  # of the latest importance: what is merged has no cap of its own
            self.capped.pop(name, None)
            if cap is not None and value.numel():
                self.capped[name] = (
                    float(combine([(value, (local(value) >= cap).sum())])) / value.numel()
                )


# The dictionary in which a module or parameter is registered, its name there, and what was found.
_Place = tuple[dict[str, Any], str, Any]


def _name_parameters(model: nn.Module | NamedParameters | None) -> dict[str, nn.Parameter]:
    """Return all parameters by their names in the bare model."""
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    found = {}
    for item in named or ():
        if isinstance(item, Tensor) or not isinstance(item, tuple) or len(item) != 2:
            raise TypeError(
                f"found a {type(item).__name__} where a name and a parameter are needed: give the model, or "
                "model.named_parameters()"
            )
        name, parameter = item
        found[bare_name(name)] = parameter
    if not found:
        raise ValueError(
            "no parameters were given: pass the model (a generator that was read before gives nothing)"
        )
    return found


def _list_places(model: nn.Module | None) -> list[_Place]:
    """Return where every module and parameter of the model is registered."""
    places: list[_Place] = []
    for module in model.modules() if model is not None else ():
        for registered in (module._modules, module._parameters):
            places += [(registered, name, found) for name, found in registered.items()]
    return places


def _held_dtype(parameter: Tensor) -> torch.dtype:
    """Return the precision that importance and anchor have: at least 32 bits, or small values and sums are lost."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _add_pull(
    gradient: Tensor, weight: Tensor, anchor: Tensor, held: Tensor, strength: float
) -> None:
    if gradient.dtype != held.dtype:
        pull = (weight - anchor).mul_(held).mul_(strength)
        gradient.add_(pull.to(gradient.dtype))
        return
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
    part = cut(value, parameter).to(local(parameter).device, _held_dtype(parameter), copy=True)
    return wrap(part, parameter)


def _check_settings(strength: float, merge: str, decay: float) -> None:
    """Raise unless the rule is known and the numbers are within their bounds."""
    if merge not in MERGES:
        raise ValueError(f"unknown merge rule {merge!r} (rules: {', '.join(MERGES)})")
    if not isinstance(strength, Real) or not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength must be a number from 0, found {strength!r}")
    if not isinstance(decay, Real) or not 0 <= decay <= 1:
        raise ValueError(f"decay must lie between 0 and 1, found {decay!r}")


def _check_numbers(what: str, values: Mapping[str, Tensor], least: float = -math.inf) -> None:
    """Raise unless all are finite and none is below `least`.

    What one process finds in its part of a sharded tensor, all refuse.
    """
    wrong = {name: _count_wrong(local(value), least) for name, value in values.items()}
    if float(combine((values[name], count) for name, count in wrong.items())):
        first = next(
            (repr(name) for name, count in wrong.items() if count),
            "a tensor of which others hold a part",
        )
        kind = "non-finite" if least == -math.inf else "negative or non-finite"
        raise ValueError(f"the {what} of {first} has {kind} values; nothing was changed")


def _count_wrong(part: Tensor, least: float) -> Tensor:
    return torch.logical_not(part.isfinite() & (part >= least)).sum()


def _check_grown(name: str, held: Tensor, parameter: Tensor) -> None:
    """Raise unless the parameter is as it was when `held` was measured, or has more rows."""
    same = held.shape[1:] == parameter.shape[1:] and held.ndim == parameter.ndim
    change = f"{name!r} was consolidated as {list(held.shape)} and is now {list(parameter.shape)}"
    if not same or (held.ndim and len(held) > len(parameter)):
        raise ValueError(f"{change}: a tensor may only gain rows")
    if held.shape != parameter.shape and is_sharded(parameter):
        raise ValueError(
            f"{change}, and it is sharded: its old rows now lie in other processes; leave a head that grows out of the "
            "sharding (ignored_params of fully_shard), or give it all its rows before it is sharded"
        )

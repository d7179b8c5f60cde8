"""Consolidation: a quadratic penalty holds weights at old values, however many tasks there were.

In later tasks    loss += strength / 2 * sum importance * (weight - anchor)^2
which is          gradient += strength * importance * (weight - anchor)
strength auto     stiffness / mean importance, after the first task that has any

EWC         Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017,
            https://arxiv.org/abs/1612.00796
online EWC  Schwarz et al., Progress & Compress, ICML 2018, https://arxiv.org/abs/1805.06370
EWC-DR      Liu and Chang, Elastic weight consolidation done right for continual learning,
            CVPR 2026, https://arxiv.org/abs/2603.18596

After a task with importance F and weights w, old importance O and anchor a become

    sum      O + F, anchored at (O a + F w) / (O + F): exactly the sum of all tasks' penalties (EWC)
    online   decay O + F, anchored at w (online EWC; SI with decay 1)
    share    old_share O + (1 - old_share) F, anchored at w (the EWC-DR release, FACIL)
    latest   F, anchored at w

Differs from common code: the gradient is added directly, without autograd; memory does not grow
with the number of tasks; rows that a tensor has gained since are free to move.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn

from mcit.diagnosis import Diagnosis, diagnose, find_strength
from mcit.gradients.pull import Held, Pulls
from mcit.importance import Importance
from mcit.named_tensors import (
    bare_name,
    check_same_parameters,
    list_first,
    read_tensors,
    write_tensors,
)
from mcit.parallel.sharded import from_local, is_sharded, reduce_parts, shard_like, to_local
from mcit.path_integral import PathIntegral

Merge = Literal["sum", "online", "share", "latest"]
# the type that importance is kept in; float32 stands for float64 too where weights have that
ImportanceType = Literal["float32", "bfloat16"]
FORMAT = "mcit consolidation 1"
AUTO: Final = "auto"

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class ConsolidationManager:
    """Holds the weights of a model, and carries importance and anchor from task to task.

        manager = ConsolidationManager(model, strength=100)
        loss.backward(); manager.add_gradient_(); optimizer.step()
        manager.consolidate(measure_importance(model, loader))

    model: The model, or named parameters. Of a model, a held parameter that has been replaced
        (`load_state_dict(assign=True)`, a new layer, `resize_token_embeddings`) is an error; of
        named parameters, one without a gradient is a warning. Names are those of the bare model,
        also if torch.compile has wrapped it.
    strength: Factor of the penalty; "auto" for the one that gives a stated stiffness.
    stiffness: For strength "auto": the mean of strength * importance over all held weights after
        the first task. The strength is chosen then and stays, as one that was given would.
    merge: How a task's importance joins that of those before: sum, online, share or latest.
    decay: Factor of the old importance in merge online.
    path: A path integral (SI) to follow.
    optimizer: If it is SGD, `consolidate` warns when the penalty is too stiff for its step.
    importance_dtype: `bfloat16` keeps importance in half the memory, to three digits.

    Importance and anchor follow the weights to other devices and memory layouts, and have 32 bits
    where weights have 16. Only trainable parameters are held.

    Of parameters sharded by FSDP2 (`fully_shard`), each process holds its own part. All processes
    must then call whatever returns a number or writes a file, and tensors cannot gain rows.
    """

    def __init__(
        self,
        model: nn.Module | NamedParameters,
        strength: float | Literal["auto"] = 1.0,
        *,
        stiffness: float | None = None,
        merge: Merge = "sum",
        decay: float = 1.0,
        path: PathIntegral | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        importance_dtype: ImportanceType = "float32",
    ):
        _check_aim(strength, stiffness)
        chosen_later = strength == AUTO
        _check_settings(0.0 if chosen_later else strength, merge, decay)
        _check_choice("importance type", importance_dtype, ImportanceType)
        self.importance_dtype: ImportanceType = importance_dtype
        # with strength auto, 0 until the first importance decides
        self.strength = 0.0 if chosen_later else float(strength)
        # the mean that strength auto aims at, else None
        self.stiffness = stiffness
        self.merge = merge
        self.decay = decay
        self.path = path
        self.optimizer = optimizer
        self.importance: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        # the fraction at the cap, in the latest importance of each tensor
        self.capped: dict[str, float] = {}
        # one line per consolidation
        self.history: list[str] = []
        self.parameters: dict[str, nn.Parameter] = {}
        # all parameters of the model, also frozen ones
        self.present: dict[str, nn.Parameter] = {}
        self._model: nn.Module | None = None
        self._registrations: list[_Registration] = []
        # held parameters without a gradient that a warning has named already
        self._idle: set[str] = set()
        # what the latest step has found to be held
        self._found: Pulls | None = None
        self.track(model)

    def __repr__(self) -> str:
        weights = sum(tensor.numel() for tensor in self.importance.values())
        held = f"{weights:,} weights of {len(self.importance)} tensors"
        return f"ConsolidationManager({held}; {self.describe()})"

    def track(self, model: nn.Module | NamedParameters, forget: Iterable[str] = ()) -> None:
        """Follow this model, or these parameters, from now on.

        Call it after a head was added, widened or replaced. Raise a ValueError if a held parameter
        is gone and is not named in `forget`.
        """
        present = _name_parameters(model)
        forgotten = self.importance.keys() & set(forget)
        held = [name for name in self.importance if name not in forgotten]
        gone = [name for name in held if name not in present]
        if gone:
            raise ValueError(
                f"{len(gone)} protected parameters are no longer in the model, first {gone[0]!r}; "
                "name them in track(..., forget=[...]) if that is intended"
            )
        for name in held:
            _check_grown(name, self.importance[name], present[name])
        for name in forgotten:
            del self.importance[name]
            del self.anchor[name]
            self.capped.pop(name, None)
        self.present = present
        self.parameters = _choose_parameters(present, self.importance)
        self._model = model if isinstance(model, nn.Module) else None
        self._registrations = _list_registrations(self._model)
        self._idle.clear()

    @torch.no_grad()
    def consolidate(
        self, importance: Importance | Mapping[str, Tensor], old_share: float | None = None
    ) -> None:
        """Take in the importance of the task just learned, with the present weights as its anchor.

        Parameters that the importance does not name keep what they have. If anything is wrong, an
        error is raised and nothing changes. A path integral begins a new path here.
        """
        self._check_present()
        if not isinstance(importance, Importance):
            importance = Importance(importance, note="importance given as tensors")
        self._check_values(importance.values)
        if (self.merge == "share") != (old_share is not None) and self.importance:
            raise ValueError(
                "merge 'share' needs old_share, the share of old classes among all seen; no "
                "other rule takes it"
            )
        if old_share is not None and not 0 <= old_share <= 1:
            raise ValueError(f"old_share must lie between 0 and 1, found {old_share}")
        merged = {}
        anchors = {}
        for name, value in importance.values.items():
            held, anchor = self._merge(name, value, old_share or 0.0)
            parameter = self.parameters[name].detach()
            merged[name] = from_local(held, parameter)
            anchors[name] = from_local(anchor, parameter)
        if self.stiffness is not None and not self.strength:
            self.strength = find_strength({**self.importance, **merged}, self.stiffness)
        self.importance.update(merged)
        self.anchor.update(anchors)
        self._record(importance)
        if self.path is not None:
            self.path.begin(self.path.parameters.items())
        self._warn_of_stiffness()

    @torch.no_grad()
    def add_gradient_(self, measure: bool = False) -> float | None:
        """Add strength * importance * (weight - anchor) to the gradients, as autograd would.

        Call it when gradients are complete: after backward, on the last step of an accumulation,
        after unscaling and before clipping. With `measure`, return the norm of the penalty's
        gradient over that of the task's.
        """
        if self.path is not None:
            self.path.see_gradient()
        if not self.strength or not self.importance:
            return 0.0 if measure else None
        self._check_present()
        pulls = self._find_pulls()
        for held in pulls.helds:
            if held.parameter.grad is None:
                self._warn_of_idle()
                break
        ratio = self._compare_gradients() if measure else None
        pulls.add(self.strength)
        return ratio

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """Return strength / 2 * sum importance * (weight - anchor)^2, for logging."""
        parts = []
        for held in self._held():
            part = (held.weight - held.anchor).square_().mul_(held.importance)
            parts.append((held.parameter, part.sum(dtype=torch.float64)))
        return reduce_parts(parts) * (self.strength / 2)

    @torch.no_grad()
    def proximal_(self, learning_rate: float) -> None:
        """Take the implicit step on the penalty, which is stable for any stiffness.

        Call it after the optimizer's step, instead of `add_gradient_`.
        """
        if not self.strength:
            return
        if self._may_be_negative():
            raise ValueError(
                "a proximal step needs importance that is not negative, and the path integral has "
                "clip 'none': use 'relu' or 'abs'"
            )
        self._check_present()
        for held in self._held():
            anchor = held.anchor
            stiffness = held.importance.to(anchor.dtype) * (learning_rate * self.strength)
            # in this form because the pull may overflow to infinity
            fraction = 1 - 1 / (1 + stiffness)
            held.weight.copy_(torch.lerp(held.weight.to(anchor.dtype), anchor, fraction))

    def diagnose(self, learning_rate: float | None = None, momentum: float = 0.0) -> Diagnosis:
        """Return how stiff the penalty is, and whether SGD with this step would be stable."""
        return diagnose(self.importance, self.strength, self.capped, learning_rate, momentum)

    def describe(self) -> str:
        """Return one line: how weights are held, and what measured the latest importance."""
        rule = f"online, decay {self.decay:g}" if self.merge == "online" else self.merge
        latest = self.history[-1] if self.history else "nothing consolidated yet"
        strength = f"strength {self.strength:g}"
        if self.stiffness is not None:
            chosen = f"{self.strength:g}" if self.strength else "not chosen yet"
            strength = f"strength auto (mean stiffness {self.stiffness:g}): {chosen}"
        return f"{strength}, merge {rule}; {latest}"

    def bytes_held(self) -> int:
        """Return this process's memory: two numbers per held weight, and the path integral's."""
        size = 0
        for tensor in (*self.importance.values(), *self.anchor.values()):
            part = to_local(tensor)
            size += part.numel() * part.element_size()
        if self.path is not None:
            size += self.path.bytes_held()
        return size

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the parameters themselves."""
        about = {
            "strength": self.strength,
            "stiffness": self.stiffness,
            "merge": self.merge,
            "decay": self.decay,
            "importance_dtype": self.importance_dtype,
            "capped": dict(self.capped),
            "history": list(self.history),
        }
        return {"importance": dict(self.importance), "anchor": dict(self.anchor), "about": about}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take in a state; raise a ValueError and change nothing if it does not fit."""
        importance = state["importance"]
        anchor = state["anchor"]
        about = state["about"]
        check_same_parameters("the state's anchor", anchor, importance)
        missing = [name for name in importance if name not in self.present]
        if missing:
            raise ValueError(
                f"the state protects {missing[0]!r} (of {len(missing)}), which the model does not "
                "have"
            )
        for name, held in importance.items():
            _check_grown(name, held, self.present[name])
        self._check_importance(importance)
        _check_numbers("anchor", anchor)
        _check_settings(about["strength"], about["merge"], about["decay"])
        # states of mcit 0.1 do not say
        importance_dtype = about.get("importance_dtype", "float32")
        stiffness = about.get("stiffness")
        if stiffness is not None:
            _check_aim(AUTO, stiffness)
        _check_choice("importance type", importance_dtype, ImportanceType)
        self.importance_dtype = importance_dtype
        # a head that is frozen by now may still be held
        self.parameters = _choose_parameters(self.present, importance)
        self.importance = {}
        self.anchor = {}
        for name in importance:
            parameter = self.parameters[name].detach()
            dtype = self._choose_dtype(parameter)
            self.importance[name] = _adopt(importance[name], parameter, dtype)
            self.anchor[name] = _adopt(anchor[name], parameter, _wide_dtype(parameter))
        self.strength = about["strength"]
        self.stiffness = stiffness
        self.merge = about["merge"]
        self.decay = about["decay"]
        self.capped = dict(about["capped"])
        self.history = list(about["history"])

    def save(self, path: str | Path) -> None:
        """Write the state as one safetensors file of full tensors, for a model sharded or not."""
        state = self.state_dict()
        tensors = {}
        for part in ("importance", "anchor"):
            for name, tensor in state[part].items():
                tensors[f"{part}/{name}"] = tensor
        write_tensors(tensors, path, {"format": FORMAT, "about": json.dumps(state["about"])})

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote."""
        tensors, about = read_tensors(path, FORMAT)
        parts: dict[str, dict[str, Tensor]] = {"importance": {}, "anchor": {}}
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self.load_state_dict({**parts, "about": json.loads(about["about"])})

    # --- what is held

    def _held(self) -> Sequence[Held]:
        """Return what is held of each trainable parameter, this process's part of it."""
        return self._find_pulls().helds

    def _find_pulls(self) -> Pulls:
        """Return all that is held, prepared for a step."""
        if self._found is not None and self._is_unchanged(self._found):
            return self._found
        held = [self._find_held(name, parameter) for name, parameter in self._list_held()]
        pulls = Pulls(held)
        # a sharded parameter may have other memory in every step
        sharded = any(is_sharded(one.parameter) for one in held)
        self._found = None if sharded else pulls
        return pulls

    def _is_unchanged(self, found: Pulls) -> bool:
        """Whether the same tensors are held as before, of weights that lie where they did."""
        count = 0
        held = found.helds
        for name, importance in self.importance.items():
            parameter = self.parameters[name]
            if not parameter.requires_grad:
                continue
            if count == len(held):
                return False
            one = held[count]
            if one.parameter is not parameter or parameter.data_ptr() != found.addresses[count]:
                return False
            if one.importance is not importance or one.anchor is not self.anchor[name]:
                return False
            count += 1
        return count == len(held)

    def _find_held(self, name: str, parameter: nn.Parameter) -> Held:
        weight = to_local(parameter.detach())
        importance = to_local(self.importance[name])
        if importance.shape != weight.shape:
            _check_grown(name, self.importance[name], parameter)
            weight = weight[: len(importance)]
        same_place = importance.device == weight.device
        same_type = importance.dtype == self._choose_dtype(weight)
        if not (same_place and same_type and importance.stride() == weight.stride()):
            self._follow(name, weight)
            importance = self.importance[name]
        return Held(weight, parameter, importance, to_local(self.anchor[name]))

    def _list_held(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trainable parameters of which something is held."""
        held = [(name, self.parameters[name]) for name in self.importance]
        return [(name, parameter) for name, parameter in held if parameter.requires_grad]

    def _choose_dtype(self, weight: Tensor) -> torch.dtype:
        """Return the type that the importance of a weight is kept in."""
        if self.importance_dtype == "bfloat16":
            return torch.bfloat16
        return _wide_dtype(weight)

    def _follow(self, name: str, weight: Tensor) -> None:
        """Move importance and anchor to the device, type and memory layout of the weight."""
        for tensors, dtype in (
            (self.importance, self._choose_dtype(weight)),
            (self.anchor, _wide_dtype(weight)),
        ):
            tensor = tensors[name]
            if is_sharded(tensor):
                raise ValueError(
                    f"{name!r} was moved or converted after it was sharded and consolidated; make "
                    "a new manager and load the saved state into it"
                )
            # the weight may have gained rows
            like = weight[: len(tensor)] if weight.ndim else weight
            tensors[name] = _lay_out(tensor, like, dtype)

    def _merge(self, name: str, value: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Return this process's part of importance and anchor after the task."""
        parameter = self.parameters[name].detach()
        weight = to_local(parameter)
        dtype = _wide_dtype(parameter)
        fresh = _lay_out(shard_like(value.detach(), parameter), weight, dtype)
        anchor = _lay_out(weight, weight, dtype)
        if name not in self.importance or self.merge == "latest":
            return fresh.to(self._choose_dtype(weight)), anchor
        if not is_sharded(parameter):
            self._follow(name, parameter)
        held = fresh.clone()
        old = to_local(self.importance[name]).to(dtype)
        rows = slice(len(old)) if old.ndim else ...
        if self.merge == "online":
            held[rows] += self.decay * old
        elif self.merge == "share":
            held[rows] = share * old + (1 - share) * held[rows]
        else:
            held[rows] += old
            # (O a + F w) / (O + F) = a + F / (O + F) (w - a); where nothing is held, the weight
            fraction = torch.where(held[rows] != 0, fresh[rows] / held[rows], 1.0)
            anchor[rows] = torch.lerp(to_local(self.anchor[name]), anchor[rows], fraction)
        return held.to(self._choose_dtype(weight)), anchor

    def _record(self, importance: Importance) -> None:
        """Note what was consolidated, and how much of it is at the cap."""
        self.history.append(importance.describe())
        cap = importance.estimator.cap if importance.estimator else None
        for name, value in importance.values.items():
            self.capped.pop(name, None)
            if cap is not None and value.numel():
                count = reduce_parts([(value, (to_local(value) >= cap).sum())])
                self.capped[name] = float(count) / value.numel()

    def _compare_gradients(self) -> float:
        """Return the norm of the penalty's gradient over that of the task's."""
        tasks = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                tasks.append((parameter, _square_norm(to_local(parameter.grad))))
        pulls = []
        for held in self._held():
            away = (held.weight - held.anchor) * held.importance
            pulls.append((held.parameter, _square_norm(away)))
        task = float(reduce_parts(tasks))
        pull = float(reduce_parts(pulls))
        if not task:
            return math.inf
        return self.strength * math.sqrt(pull / task)

    # --- checks

    def _check_present(self) -> None:
        """Raise a ValueError if a held parameter is no longer the model's."""
        for place, name, found in self._registrations:
            if place.get(name) is not found:
                break
        else:
            return
        present = _name_parameters(self._model)
        replaced = [
            name for name in self.importance if present.get(name) is not self.parameters[name]
        ]
        if replaced:
            raise ValueError(
                f"{len(replaced)} held parameters are no longer the model's, first "
                f"{replaced[0]!r}: they were replaced (load_state_dict(assign=True), a new layer, "
                "resize_token_embeddings, a move to another kind of device). Call track(model) to "
                "hold their successors, or track(model, forget=[...]) to let them go"
            )
        # something else has changed, such as a head of which nothing is held
        self._registrations = _list_registrations(self._model)

    def _check_values(self, values: Mapping[str, Tensor]) -> None:
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            tracked = next(iter(self.parameters), "nothing")
            raise ValueError(
                f"importance names {unknown[0]!r} ({len(unknown)} such), which is not tracked "
                f"(tracked: {tracked!r}, ...); make the manager from the same bare model, and "
                f"call track(model) after the model has changed"
            )
        expected = {name: self.parameters[name] for name in values}
        check_same_parameters("the importance", values, expected)
        self._check_importance(values)

    def _check_importance(self, values: Mapping[str, Tensor]) -> None:
        _check_numbers("importance", values, -math.inf if self._may_be_negative() else 0)

    def _may_be_negative(self) -> bool:
        """Whether importance comes from a path integral that keeps negative values."""
        return self.path is not None and self.path.clip == "none"

    def _warn_of_stiffness(self) -> None:
        """Warn if steps of SGD against the penalty would diverge."""
        # accelerate wraps the optimizer
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        if not isinstance(optimizer, torch.optim.SGD):
            return
        for group in optimizer.param_groups:
            # a schedule has lowered the rate by the end of a task and raises it for the next
            rate = max(float(group["lr"]), float(group.get("initial_lr", 0.0)))
            warning = self.diagnose(rate, group["momentum"]).warning()
            if warning is not None:
                warnings.warn(warning, stacklevel=4)
                return

    def _warn_of_idle(self) -> None:
        """Warn, once for each, of held parameters that train and have no gradient."""
        idle = []
        for name, parameter in self._list_held():
            if parameter.grad is None and name not in self._idle:
                idle.append(name)
        if not idle:
            return
        self._idle.update(idle)
        warnings.warn(
            f"{len(idle)} held parameters train but have no gradient ({list_first(idle)}): either "
            "this loss does not depend on them, or the model was given other parameters since; "
            "then call track(model)",
            stacklevel=4,
        )


# the dictionary in which a module or parameter is registered, its name there, and what it was
_Registration = tuple[dict[str, Any], str, Any]


def _name_parameters(model: nn.Module | NamedParameters | None) -> dict[str, nn.Parameter]:
    """Return all parameters by their names in the bare model."""
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    parameters = {}
    for item in named or ():
        if not isinstance(item, tuple) or len(item) != 2:
            raise TypeError(
                f"found a {type(item).__name__} where a name and a parameter are needed: give the "
                "model, or model.named_parameters()"
            )
        name, parameter = item
        parameters[bare_name(name)] = parameter
    if not parameters:
        raise ValueError(
            "no parameters were given: pass the model (a generator can be read only once)"
        )
    return parameters


def _choose_parameters(
    present: Mapping[str, nn.Parameter], held: Mapping[str, Tensor]
) -> dict[str, nn.Parameter]:
    """Return the parameters that train or are held."""
    return {name: p for name, p in present.items() if p.requires_grad or name in held}


def _list_registrations(model: nn.Module | None) -> list[_Registration]:
    """Return where every module and parameter of the model is registered."""
    found: list[_Registration] = []
    if model is None:
        return found
    for module in model.modules():
        for registered in (module._modules, module._parameters):
            found += [(registered, name, value) for name, value in registered.items()]
    return found


def _wide_dtype(parameter: Tensor) -> torch.dtype:
    """Return the type of importance and anchor: with less than 32 bits small values are lost."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _adopt(value: Tensor, parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of a state's tensor on the parameter's device, sharded and laid out as it is.

    The parameter may have gained rows.
    """
    part = shard_like(value, parameter)
    like = to_local(parameter)
    if part.ndim:
        like = like[: len(part)]
    return from_local(_lay_out(part, like, dtype), parameter)


def _lay_out(tensor: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy in the memory layout of a tensor, on its device."""
    return torch.empty_like(like, dtype=dtype).copy_(tensor)


def _square_norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()


def _check_aim(strength: object, stiffness: object) -> None:
    """Raise a ValueError unless a stiffness is given where strength is auto, and only there."""
    if strength != AUTO and stiffness is None:
        return
    if strength != AUTO:
        raise ValueError(
            f"stiffness is the target of strength 'auto', found strength {strength!r}: leave one "
            f"of them out"
        )
    if stiffness is None:
        raise ValueError(
            "strength 'auto' needs stiffness, the mean of strength * importance after the first "
            "task, such as stiffness=0.3"
        )
    if not isinstance(stiffness, Real) or not 0 < float(stiffness) < math.inf:
        raise ValueError(f"stiffness must be a number above 0, found {stiffness!r}")


def _check_settings(strength: object, merge: str, decay: float) -> None:
    """Raise a ValueError unless the rule is known and the numbers are within their bounds."""
    _check_choice("merge rule", merge, Merge)
    if not isinstance(strength, Real) or not 0 <= float(strength) < math.inf:
        raise ValueError(f"strength must be a number of at least 0, found {strength!r}")
    if not isinstance(decay, Real) or not 0 <= float(decay) <= 1:
        raise ValueError(f"decay must lie between 0 and 1, found {decay!r}")


def _check_choice(what: str, value: object, choices: Any) -> None:
    """Raise a ValueError unless the value is one of a Literal's."""
    known = get_args(choices)
    if value not in known:
        raise ValueError(f"unknown {what} {value!r} (choices: {', '.join(known)})")


def _check_numbers(what: str, values: Mapping[str, Tensor], least: float = -math.inf) -> None:
    """Raise a ValueError unless all are finite and none is below `least`.

    If one process finds something in its part of a sharded tensor, all raise.
    """
    counts = []
    for value in values.values():
        part = to_local(value)
        right = part.isfinite() & (part >= least)
        counts.append((value, torch.logical_not(right).sum()))
    if not float(reduce_parts(counts)):
        return
    first = "a tensor that other processes hold parts of"
    for name, (_, count) in zip(values, counts, strict=True):
        if count:
            first = repr(name)
            break
    kind = "non-finite" if least == -math.inf else "negative or non-finite"
    raise ValueError(f"the {what} of {first} has {kind} values; nothing was changed")


def _check_grown(name: str, held: Tensor, parameter: Tensor) -> None:
    """Raise a ValueError unless the parameter has the shape of `held`, or more rows."""
    if held.shape == parameter.shape:
        return
    change = f"{name!r} was consolidated as {list(held.shape)} and is now {list(parameter.shape)}"
    same = held.ndim == parameter.ndim and held.shape[1:] == parameter.shape[1:]
    if not same or len(held) > len(parameter):
        raise ValueError(f"{change}: a tensor may only gain rows")
    if is_sharded(parameter):
        raise ValueError(
            f"{change}, and it is sharded: its old rows now lie in other processes; leave a head "
            "that grows out of the sharding (ignored_params of fully_shard), or give it all its "
            "rows before it is sharded"
        )

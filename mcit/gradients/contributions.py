"""Per-example gradients of one layer, in the cheapest form that is still exact.

For a layer with input x and gradient g at its output, the gradient of example i is

    Linear, Conv2d            sum over positions t of g_it x_it^T, patches x_it in a convolution
    biases, norms             sum over positions of g_it, or of g_it times the normalized input
    Embedding                 g_it added to the row of its id

Squares, or absolute values, are summed over examples without keeping the gradients of all. The
formulas are those of BackPACK (Dangel et al., ICLR 2020, https://arxiv.org/abs/1912.10985), here
also for layers that are called repeatedly, share a weight or have several rows per example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mcit.gradients.capture import Calls, LayerCall, Unit
from mcit.parallel.global_batch import BatchNorm2d

# order of rows: those of an example together, or all examples repeatedly
Layout = Literal["consecutive", "blocks"]
# inputs [examples, k, ...] and gradients [examples, k, ...] of the calls of a layer
Parts = list[tuple[Tensor, Tensor]]
# of inputs and gradients [rows, ...]: left [rows, groups, out, positions] and right, whose products
# summed over positions are the gradient of a weight
Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Contributions = dict[str, "Contribution"]
# elements of per-example gradients that are held at once: enough for a fast matrix product, few
# enough for the cache
CHUNK = 1 << 20
# elements of inputs that are held at once: patches that a convolution reads are copies
INPUTS = 1 << 20
# for weights from this size on, one example at a time through one buffer is faster: it is read back
# while still in the cache
LARGE = 1 << 15
# dimensions of a convolution's weight, so that those of a patch lie together
CHANNELS_LAST = (0, 2, 3, 1)
# what model families call the epsilon of a norm
_EPSILONS = ("variance_epsilon", "eps", "epsilon")


class Weighed(NamedTuple):
    """A weighted sum, and how much was added up to get it: the scale of its rounding errors.

    mass: The sum of the absolute values of all that was added, or a bound of its largest element.
    """

    total: Tensor
    mass: Tensor


class Contribution(Protocol):
    """Per-example gradients of one parameter."""

    def weigh(self, weights: Tensor) -> Weighed:
        """Return their sum, with a weight per example."""

    def add_to(self, total: Tensor, absolute: bool) -> None:
        """Add their squares, or absolute values, to `total`."""


def magnitude(gradient: Tensor, absolute: bool, out: Tensor | None = None) -> Tensor:
    """Return absolute values, or squares."""
    if absolute:
        return torch.abs(gradient, out=out)
    return torch.square(gradient, out=out)


def group_rows(rows: Tensor, examples: int, layout: Layout) -> Tensor:
    """Return rows [examples * k, ...] as [examples, k, ...]."""
    if layout == "consecutive":
        return rows.unflatten(0, (examples, -1))
    return rows.unflatten(0, (-1, examples)).transpose(0, 1)


def contribute(unit: Unit, calls: Calls, examples: int, layout: Layout) -> Contributions:
    """Return what the layers of a unit contribute, by the last part of each parameter's name."""
    found = []
    for module, of_module in calls.items():
        rule = rule_for(module)
        if rule is None:
            raise RuntimeError(
                f"a {type(module).__name__} had other options in the first batch, and has no exact "
                "rule with those it has now; leave its options as they are"
            )
        found.append(rule(module, _group_parts(module, of_module, examples, layout)))
    if len(unit) == 1:
        return found[0]
    return {"weight": Tied([contributions["weight"] for contributions in found])}


def _group_parts(module: nn.Module, calls: list[LayerCall], examples: int, layout: Layout) -> Parts:
    layer = f"a {type(module).__name__}"
    # under autocast, inputs and gradients may be narrower than the weights
    dtype = torch.promote_types(next(module.parameters(recurse=False)).dtype, torch.float32)
    parts = []
    for call in calls:
        gradient = call.gradients[0]
        if call.inputs is None or gradient is None:
            raise RuntimeError(
                f"{layer} was called without a positional input, though in the first batch it had "
                "one; give all batches the same form"
            )
        check_rows(layer, [gradient], examples)
        inputs = group_rows(call.inputs, examples, layout)
        # an embedding reads ids
        if inputs.is_floating_point():
            inputs = inputs.to(dtype)
        gradient = group_rows(gradient, examples, layout).to(dtype)
        parts.append((inputs, gradient))
    return parts


def check_rows(what: str, gradients: list[Tensor], examples: int) -> None:
    """Raise a RuntimeError unless every gradient has a multiple of `examples` rows."""
    for gradient in gradients:
        if len(gradient) % examples:
            raise RuntimeError(
                f"{what} returned {len(gradient)} rows for {examples} examples, though in the "
                "first batch the rows were a multiple of the examples; give all batches the same "
                "form"
            )


# --- forms


class Direct:
    """Gradients small enough to be held: of biases and norms.

    parts: What is added up, [examples, k, ...].
    reduce: Sums a part over positions, to [examples, k, *shape].
    """

    def __init__(self, parts: list[Tensor], reduce: Callable[[Tensor], Tensor]):
        self.parts = parts
        self.reduce = reduce
        self.gradient = _add_up(reduce(part).sum(dim=1) for part in parts)

    def weigh(self, weights: Tensor) -> Weighed:
        mass = _add_up(self.reduce(part.abs()).sum(dim=1) for part in self.parts)
        return Weighed(
            torch.tensordot(weights, self.gradient, dims=1),
            torch.tensordot(weights.abs(), mass, dims=1),
        )

    def add_to(self, total: Tensor, absolute: bool) -> None:
        total += magnitude(self.gradient, absolute).sum(dim=0)


class Outer:
    """Sums of outer products over positions, of Linear and Conv2d, formed for few examples at once.

    factors: Turns inputs and gradients into the two sides of the products.
    parts: Inputs and gradients.
    shape: The shape of the weight.
    order: The dimensions of the weight in the order that the products have; by default its own.
    """

    def __init__(
        self,
        factors: Factors,
        parts: Parts,
        shape: torch.Size,
        order: tuple[int, ...] | None = None,
    ):
        self.factors = factors
        self.parts = parts
        self.shape = shape
        self.order = order or tuple(range(len(shape)))
        self.product_shape = torch.Size(shape[dimension] for dimension in self.order)
        self.examples = len(parts[0][0])

    def weigh(self, weights: Tensor) -> Weighed:
        total = weights.new_zeros(())
        mass = weights.new_zeros(())
        for start, left, right in self._chunks():
            scaled = left * weights[start : start + len(left), None, None, None]
            total = total + torch.einsum("bgot,bgit->goi", scaled, right)
            # sum_t |l_t r_t| <= |l| |r|: a bound without a second product
            mass = mass + (_largest_norm(scaled) * _largest_norm(right)).sum()
        result = total.new_empty(self.shape)
        result.permute(self.order).copy_(total.reshape(self.product_shape))
        return Weighed(result, mass)

    def add_to(self, total: Tensor, absolute: bool) -> None:
        total = total.permute(self.order)
        for _, left, right in self._chunks():
            if left.shape[-1] == 1:
                # one position: the square of a product is the product of squares
                left = magnitude(left.squeeze(-1), absolute)
                right = magnitude(right.squeeze(-1), absolute)
                total += torch.einsum("bgo,bgi->goi", left, right).reshape(self.product_shape)
            elif left.shape[1] == 1 and self.shape.numel() >= LARGE:
                self._add_singly(total, left.squeeze(1), right.squeeze(1), absolute)
            else:
                gradient = torch.matmul(left, right.transpose(-1, -2))
                gradient = gradient.reshape(len(gradient), *self.product_shape)
                total += magnitude(gradient, absolute, out=gradient).sum(dim=0)

    def add_example(self, total: Tensor, example: int) -> None:
        """Add the gradient of one example to `total`."""
        one = slice(example, example + 1)
        for inputs, gradient in self.parts:
            left, right = self._factor(inputs[one], gradient[one])
            product = torch.matmul(left, right.transpose(-1, -2))
            total.permute(self.order).add_(product.reshape(self.product_shape))

    @staticmethod
    def _add_singly(total: Tensor, left: Tensor, right: Tensor, absolute: bool) -> None:
        added = total
        if not total.is_contiguous():
            added = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
        flat = added.view(len(added), -1)
        buffer = torch.empty_like(flat)
        # [out, positions] and [in, positions] of each example
        for one, other in zip(left, right, strict=True):
            torch.mm(one, other.t(), out=buffer)
            _add_buffer(flat, buffer, absolute)
        if added is not total:
            total += added

    def _chunks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the number of the first example, and both sides, of a few examples at a time."""
        positions = sum(gradient[0].numel() for _, gradient in self.parts)
        inputs_of_one = positions // self.shape[0] * self.shape[1:].numel()
        step = max(4, min(CHUNK // self.shape.numel(), INPUTS // max(1, inputs_of_one)))
        if positions == self.shape[0]:
            # one position: no gradient is formed
            step = self.examples
        for start in range(0, self.examples, step):
            chunk = slice(start, start + step)
            lefts = []
            rights = []
            for inputs, gradient in self.parts:
                left, right = self._factor(inputs[chunk], gradient[chunk])
                lefts.append(left)
                rights.append(right)
            yield start, _join_calls(lefts), _join_calls(rights)

    def _factor(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return left [chunk, groups, out, k * positions] and right [chunk, groups, in, ...]."""
        chunk, k = gradient.shape[:2]
        left, right = self.factors(inputs.flatten(0, 1), gradient.flatten(0, 1))
        if k == 1:
            return left, right
        return _join_rows(left, chunk, k), _join_rows(right, chunk, k)


def _largest_norm(side: Tensor) -> Tensor:
    """Return the largest norm over positions [examples] of [examples, groups, n, positions]."""
    return torch.linalg.vector_norm(side, dim=-1).amax(dim=(1, 2))


def _add_up(tensors: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, tensors)


def _join_calls(sides: list[Tensor]) -> Tensor:
    """Return the positions of all calls of a layer side by side."""
    if len(sides) == 1:
        return sides[0]
    return torch.cat(sides, dim=-1)


def _join_rows(side: Tensor, chunk: int, k: int) -> Tensor:
    """Return [chunk * k, groups, n, positions] as [chunk, groups, n, k * positions]."""
    return side.unflatten(0, (chunk, k)).permute(0, 2, 3, 1, 4).flatten(3)


def _add_buffer(total: Tensor, buffer: Tensor, absolute: bool) -> None:
    """Add squares, or absolute values, of a buffer that may be overwritten."""
    if absolute:
        total += buffer.abs_()
    else:
        total.addcmul_(buffer, buffer)


class Rows:
    """Gradients that touch a few rows of a table, of Embedding.

    A row that an example meets twice is added up before it is squared.
    """

    def __init__(self, parts: Parts, rows: int):
        self.examples = len(parts[0][0])
        self.rows = rows
        # [examples, positions] and [examples, positions, width]
        ids = torch.cat([part.flatten(1) for part, _ in parts], dim=1)
        gradient = torch.cat([part.flatten(1, -2) for _, part in parts], dim=1)
        example = torch.arange(self.examples, device=ids.device)[:, None]
        # sorted, so that the rows of an example lie together
        keys, place = (example * rows + ids).flatten().unique(return_inverse=True)
        # [pairs of example and row, width]
        summed = gradient.new_zeros(len(keys), gradient.shape[-1])
        self.gradient = summed.index_add_(0, place, gradient.flatten(0, 1))
        self.example = keys // rows
        self.row = keys % rows

    def weigh(self, weights: Tensor) -> Weighed:
        scaled = self.gradient * weights[self.example, None]
        zeros = scaled.new_zeros(self.rows, scaled.shape[-1])
        total = zeros.index_add(0, self.row, scaled)
        mass = zeros.index_add(0, self.row, scaled.abs())
        return Weighed(total, mass)

    def add_example(self, total: Tensor, example: int) -> None:
        """Add the gradient of one example to `total`."""
        chosen = self.example == example
        total.index_add_(0, self.row[chosen], self.gradient[chosen])

    def add_to(self, total: Tensor, absolute: bool) -> None:
        total.index_add_(0, self.row, magnitude(self.gradient, absolute))


class Tied:
    """Gradients of a weight that several layers share: a word table that is also the output."""

    def __init__(self, parts: Sequence[Contribution]):
        # in a fixed order, so that rounding does not depend on the order of the layers
        products = [part for part in parts if isinstance(part, Outer)]
        tables = [part for part in parts if isinstance(part, Rows)]
        self.parts: list[Outer | Rows] = [*products, *tables]

    def weigh(self, weights: Tensor) -> Weighed:
        weighed = [part.weigh(weights) for part in self.parts]
        return Weighed(_add_up(one.total for one in weighed), _add_up(one.mass for one in weighed))

    def add_to(self, total: Tensor, absolute: bool) -> None:
        # the parts of one example meet in a buffer before they are squared
        buffer = torch.empty_like(total)
        for example in range(self.parts[0].examples):
            buffer.zero_()
            for part in self.parts:
                part.add_example(buffer, example)
            _add_buffer(total, buffer, absolute)


# --- rules


def rule_for(module: nn.Module) -> Callable[[nn.Module, Parts], Contributions] | None:
    """Return the exact rule for a layer, or None if it has none."""
    for kind, rule in RULES.items():
        # a subclass with a forward of its own computes something else
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule if _is_common(module) else None
    # every model family has classes of its own for these; the audit decides whether a layer is
    # what it seems
    if _seems_rms_norm(module):
        return contribute_rms_norm
    if _seems_transposed_linear(module):
        return contribute_transposed_linear
    return None


def _is_common(module: nn.Module) -> bool:
    """Whether the layer's options are those that its rule covers."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros"
    if isinstance(module, nn.Embedding):
        return not (module.scale_grad_by_freq or module.sparse or module.max_norm is not None)
    if isinstance(module, _BatchNorm):
        return not module.training and module.running_mean is not None
    return True


def reads_rows(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the layer was given a batch: a Linear may get one vector, a Conv2d one image."""
    if isinstance(module, nn.Conv2d):
        return inputs.ndim == 4
    if isinstance(module, nn.LayerNorm):
        return inputs.ndim > len(module.normalized_shape)
    if isinstance(module, nn.Embedding):
        return inputs.ndim >= 1
    return inputs.ndim >= 2


def can_tie(modules: Sequence[nn.Module]) -> bool:
    """Whether layers that share a weight have a rule: word tables and linear layers."""
    return all(rule_for(module) in (contribute_linear, contribute_embedding) for module in modules)


def contribute_linear(module: nn.Module, parts: Parts) -> Contributions:
    """Inputs [examples, k, ..., in], gradients [examples, k, ..., out]."""
    result: Contributions = {"weight": _multiply(parts)}
    if module.bias is not None:
        result["bias"] = Direct([gradient for _, gradient in parts], _sum_positions)
    return result


def contribute_transposed_linear(module: nn.Module, parts: Parts) -> Contributions:
    """GPT-2's Conv1D: a linear layer whose weight is [in, out]."""
    result = contribute_linear(module, parts)
    swapped = [(gradient, inputs) for inputs, gradient in parts]
    result["weight"] = _multiply(swapped)
    return result


def _multiply(parts: Parts) -> Outer:
    """Return the products of gradients [..., out] and inputs [..., in], of shape [out, in]."""
    inputs, gradient = parts[0]
    shape = torch.Size([gradient.shape[-1], inputs.shape[-1]])
    return Outer(_linear_factors, parts, shape)


def contribute_conv2d(module: nn.Conv2d, parts: Parts) -> Contributions:
    """Inputs [examples, k, in, height, width], gradients [examples, k, out, height, width]."""
    factors = partial(_conv2d_factors, module)
    order = None if module.groups > 1 else CHANNELS_LAST
    result: Contributions = {"weight": Outer(factors, parts, module.weight.shape, order)}
    if module.bias is not None:
        result["bias"] = Direct([gradient for _, gradient in parts], _sum_space)
    return result


def contribute_embedding(module: nn.Embedding, parts: Parts) -> Contributions:
    """Ids [examples, k, ...], gradients [examples, k, ..., width]."""
    counted = []
    for ids, gradient in parts:
        if module.padding_idx is not None:
            padding = ids == module.padding_idx
            gradient = gradient.masked_fill(padding[..., None], 0)
        counted.append((ids, gradient))
    return {"weight": Rows(counted, module.num_embeddings)}


def contribute_layer_norm(module: nn.LayerNorm, parts: Parts) -> Contributions:
    def normalize(x: Tensor) -> Tensor:
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)

    reduce = partial(_sum_positions, last=len(module.normalized_shape))
    return _contribute_norm(module, parts, normalize, reduce)


def contribute_rms_norm(module: nn.Module, parts: Parts) -> Contributions:
    def normalize(x: Tensor) -> Tensor:
        mean_square = x.square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + _read_eps(module))

    return _contribute_norm(module, parts, normalize, _sum_positions)


def contribute_group_norm(module: nn.GroupNorm, parts: Parts) -> Contributions:
    def normalize(x: Tensor) -> Tensor:
        return F.group_norm(x.flatten(0, 1), module.num_groups, eps=module.eps).view_as(x)

    return _contribute_norm(module, parts, normalize, _sum_space)


def contribute_batch_norm(module: _BatchNorm, parts: Parts) -> Contributions:
    def normalize(x: Tensor) -> Tensor:
        # statistics of a 16-bit model are read in the precision of the rule
        mean = module.get_buffer("running_mean").to(x.dtype)
        variance = module.get_buffer("running_var").to(x.dtype)
        return F.batch_norm(x.flatten(0, 1), mean, variance, eps=module.eps).view_as(x)

    return _contribute_norm(module, parts, normalize, _sum_space)


def _contribute_norm(
    module: nn.Module,
    parts: Parts,
    normalize: Callable[[Tensor], Tensor],
    reduce: Callable[[Tensor], Tensor],
) -> Contributions:
    """Return the contributions of a norm's scale and shift."""
    result: Contributions = {}
    if module.weight is not None:
        result["weight"] = Direct([normalize(x).mul_(gradient) for x, gradient in parts], reduce)
    if getattr(module, "bias", None) is not None:
        result["bias"] = Direct([gradient for _, gradient in parts], reduce)
    return result


def _sum_positions(x: Tensor, last: int = 1) -> Tensor:
    """Return [examples, k, ..., *last] summed to [examples, k, *last]."""
    middle = tuple(range(2, x.ndim - last))
    if not middle:
        return x
    return x.sum(dim=middle)


def _sum_space(x: Tensor) -> Tensor:
    """Return [examples, k, channels, ...] summed to [examples, k, channels]."""
    if x.ndim == 3:
        return x
    return x.flatten(3).sum(dim=3)


def _linear_factors(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return [rows, 1, out, positions] and [rows, 1, in, positions]."""
    return _positions_last(gradient), _positions_last(inputs)


def _positions_last(x: Tensor) -> Tensor:
    """Return [rows, ..., n] as [rows, 1, n, positions]."""
    flat = x.reshape(len(x), -1, x.shape[-1])
    return flat.transpose(1, 2).unsqueeze(1)


def _conv2d_factors(module: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return [rows, groups, out, positions] and [rows, groups, in * kernel, positions].

    Without groups, the channels of a place lie together in a patch.
    """
    left = gradient.flatten(2).unflatten(1, (module.groups, -1))
    # both sides of height and width, which 'same' may pad differently
    padding = module._reversed_padding_repeated_twice
    across = padding[:2]
    down = padding[2:]
    if module.groups > 1:
        padded = F.pad(inputs, (*across, *down))
        patches = F.unfold(padded, module.kernel_size, module.dilation, 0, module.stride)
        return left, patches.unflatten(1, (module.groups, -1))
    channels_last = F.pad(inputs.permute(0, 2, 3, 1), (0, 0, *across, *down)).contiguous()
    return left, _read_patches(module, channels_last, gradient.shape[2:]).mT.unsqueeze(1)


def _read_patches(module: nn.Conv2d, inputs: Tensor, size: torch.Size) -> Tensor:
    """Return the patches that a convolution reads, [rows, positions, kernel * in].

    inputs: [rows, height, width, in], padded. size: Height and width of the output. Runs of memory
    are copied as a whole, which is several times faster than `unfold`.
    """
    row, line, pixel, channel = inputs.stride()
    down, across = module.stride
    below, beside = module.dilation
    shape = (len(inputs), *size, *module.kernel_size, inputs.shape[3])
    steps = (row, line * down, pixel * across, line * below, pixel * beside, channel)
    return inputs.as_strided(shape, steps).reshape(len(inputs), size.numel(), -1)


def _seems_rms_norm(module: nn.Module) -> bool:
    """Whether a module has one vector `weight`, an epsilon and nothing else."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    if names != ["weight"] or module.weight.ndim != 1 or list(module.children()):
        return False
    other = nn.Linear | nn.LayerNorm | nn.GroupNorm | nn.modules.batchnorm._NormBase
    has_eps = any(hasattr(module, name) for name in _EPSILONS)
    return not isinstance(module, other) and has_eps


def _read_eps(module: nn.Module) -> float:
    name = next(name for name in _EPSILONS if hasattr(module, name))
    value = getattr(module, name)
    if value is None:
        return torch.finfo(module.get_parameter("weight").dtype).eps
    return float(value)


def _seems_transposed_linear(module: nn.Module) -> bool:
    if type(module).__name__ != "Conv1D" or not hasattr(module, "nf"):
        return False
    return bool(module.weight.ndim == 2)


RULES: dict[type[nn.Module], Callable[..., Contributions]] = {
    nn.Linear: contribute_linear,
    nn.Conv2d: contribute_conv2d,
    nn.Embedding: contribute_embedding,
    nn.LayerNorm: contribute_layer_norm,
    nn.GroupNorm: contribute_group_norm,
    nn.BatchNorm1d: contribute_batch_norm,
    nn.BatchNorm2d: contribute_batch_norm,
    BatchNorm2d: contribute_batch_norm,
}

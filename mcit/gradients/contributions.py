"""What one layer adds to the gradient of each example, kept in the cheapest form that is still exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mcit.parallel.global_batch import BatchNorm2d

Layout = Literal["consecutive", "blocks"]
Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Per-example gradients held at once, in elements: enough to keep the matrix product busy, small enough for the cache.
CHUNK = 1 << 20
# From this size on, one example at a time through one buffer is faster: it is read back while still in the cache.
LARGE = 1 << 15


class Contribution(Protocol):
    """Per-example gradients of one parameter, of `examples` examples."""

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Their sum with a weight per example, and the sum of the absolute values of all that was added to get it."""

    def add_to(self, total: Tensor, absolute: bool) -> None:
        """Add their squares, or absolute values, to `total`."""


def group_rows(rows: Tensor, examples: int, layout: Layout) -> Tensor:
    """Rows [examples * k, ...] as [examples, k, ...]; `blocks` has the rows of all examples k times in a row."""
    if layout == "consecutive":
        return rows.unflatten(0, (examples, -1))
    return rows.unflatten(0, (-1, examples)).transpose(0, 1)


class Direct:
    """Gradients that are small enough to be held: biases, the affine part of norms."""

    def __init__(
        self, parts: list[Tensor], reduce: Callable[[Tensor], Tensor]
    ):  # each [examples, k, ...]
        self.parts, self.reduce = (
            parts,
            reduce,
        )  # reduce: [examples, k, ...] -> [examples, k, *shape]
        self.gradient = sum(reduce(part).sum(dim=1) for part in parts)  # [examples, *shape]

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        mass = sum(self.reduce(part.abs()).sum(dim=1) for part in self.parts)
        return torch.tensordot(weights, self.gradient, dims=1), torch.tensordot(
            weights.abs(), mass, dims=1
        )

    def add_to(self, total: Tensor, absolute: bool) -> None:
        total += (self.gradient.abs() if absolute else self.gradient.square()).sum(dim=0)


class Outer:
    """Sums of outer products over positions, as in Linear and Conv2d; formed for a few examples at a time."""

    def __init__(self, factors: Factors, parts: list[tuple[Tensor, Tensor]], shape: torch.Size):
        self.factors, self.parts, self.shape = (
            factors,
            parts,
            shape,
        )  # parts: input and gradient, [examples, k, ...]

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        total = mass = 0
        for start, left, right in self._chunks():
            scaled = left * weights[start : start + len(left), None, None, None]
            total = total + torch.einsum("bgot,bgit->goi", scaled, right)
            mass = mass + torch.einsum("bgot,bgit->goi", scaled.abs(), right.abs())
        return total.reshape(self.shape), mass.reshape(self.shape)

    def add_to(self, total: Tensor, absolute: bool) -> None:
        for _, left, right in self._chunks():
            if (
                left.shape[-1] == 1
            ):  # one position: the square of a product is the product of squares
                left, right = (
                    x.squeeze(-1).abs() if absolute else x.squeeze(-1).square()
                    for x in (left, right)
                )
                total += torch.einsum("bgo,bgi->goi", left, right).reshape(self.shape)
                continue
            if left.shape[1] == 1 and self.shape.numel() >= LARGE:
                self._add_singly(
                    total.view(len(total), -1), left.squeeze(1), right.squeeze(1), absolute
                )
                continue
            gradient = torch.matmul(left, right.transpose(-1, -2))  # [chunk, groups, out, in]
            gradient = gradient.reshape(len(gradient), *self.shape)
            total += (gradient.abs_() if absolute else gradient.square_()).sum(dim=0)

    @staticmethod
    def _add_singly(total: Tensor, left: Tensor, right: Tensor, absolute: bool) -> None:
        buffer = torch.empty_like(total)  # [out, in]
        for one, other in zip(left, right, strict=True):  # [out, positions], [in, positions]
            torch.mm(one, other.t(), out=buffer)
            if absolute:
                total += buffer.abs_()
            else:
                total.addcmul_(buffer, buffer)

    def add_example(self, total: Tensor, example: int) -> None:
        """Add the gradient of one example to `total`."""
        for inputs, gradient in self.parts:
            left, right = self._factor(
                inputs[example : example + 1], gradient[example : example + 1]
            )
            product = torch.matmul(left, right.transpose(-1, -2))
            total += product.reshape(self.shape)

    def _chunks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        examples = len(self.parts[0][0])
        positions = sum(gradient[0].numel() for _, gradient in self.parts)
        step = examples if positions == self.shape[0] else max(4, CHUNK // self.shape.numel())
        for start in range(0, examples, step):
            pairs = [
                self._factor(x[start : start + step], g[start : start + step])
                for x, g in self.parts
            ]
            left, right = (
                pair[0] if len(pair) == 1 else torch.cat(pair, dim=-1)
                for pair in zip(*pairs, strict=True)
            )
            yield start, left, right

    def _factor(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """[chunk, k, ...] -> left [chunk, groups, out, k * positions], right [chunk, groups, in, k * positions]."""
        chunk, k = gradient.shape[:2]
        sides = self.factors(inputs.flatten(0, 1), gradient.flatten(0, 1))
        if k == 1:
            return sides
        left, right = (x.unflatten(0, (chunk, k)).permute(0, 2, 3, 1, 4).flatten(3) for x in sides)
        return left, right


class Rows:
    """Gradients that touch a few rows of a table, as in Embedding; a row met twice by one example is added up first."""

    def __init__(
        self, parts: list[tuple[Tensor, Tensor]], rows: int
    ):  # ids [examples, k, ...], gradients [..., width]
        examples = len(parts[0][0])
        self.examples = examples
        self.rows = rows
        ids = torch.cat([part.flatten(1) for part, _ in parts], dim=1)  # [examples, positions]
        gradient = torch.cat([part.flatten(1, -2) for _, part in parts], dim=1)
        example = torch.arange(examples, device=ids.device)[:, None]
        # sorted, so that the rows of an example lie together
        keys, place = (example * rows + ids).flatten().unique(return_inverse=True)
        summed = gradient.new_zeros(len(keys), gradient.shape[-1])
        self.gradient = summed.index_add_(
            0, place, gradient.flatten(0, 1)
        )  # [pairs of example and row, width]
        self.example, self.row = keys // rows, keys % rows

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        scaled = self.gradient * weights[self.example, None]
        total = scaled.new_zeros(self.rows, scaled.shape[-1])
        return total.index_add(0, self.row, scaled), total.index_add(0, self.row, scaled.abs())

    def add_example(self, total: Tensor, example: int) -> None:
        """Add the gradient of one example to `total`."""
        chosen = self.example == example
        total.index_add_(0, self.row[chosen], self.gradient[chosen])

    def add_to(self, total: Tensor, absolute: bool) -> None:
        total.index_add_(0, self.row, self.gradient.abs() if absolute else self.gradient.square())


class Tied:
    """Gradients of a word table that is also the output layer: rows of the one, outer products of the other."""

    def __init__(self, rows: list[Rows], products: list[Outer]):
        self.rows = rows
        self.products = products

    def weigh(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        parts = [part.weigh(weights) for part in (*self.rows, *self.products)]
        return sum(total for total, _ in parts), sum(mass for _, mass in parts)

    def add_to(self, total: Tensor, absolute: bool) -> None:
        # the square of a sum: the parts of one example meet in a buffer before they are squared
        buffer = torch.empty_like(total)
        examples = {len(product.parts[0][0]) for product in self.products} | {
            rows.examples for rows in self.rows
        }
        (count,) = examples
        for example in range(count):
            buffer.zero_()
            for product in self.products:
                product.add_example(buffer, example)
            for rows in self.rows:
                rows.add_example(buffer, example)
            if absolute:
                total += buffer.abs_()
            else:
                total.addcmul_(buffer, buffer)


def reads_rows(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the layer was given a batch: a Linear may be given one vector, a Conv2d one image."""
    if isinstance(module, nn.Conv2d):
        return inputs.ndim == 4
    if isinstance(module, nn.LayerNorm):
        return inputs.ndim > len(module.normalized_shape)
    return inputs.ndim >= (1 if isinstance(module, nn.Embedding) else 2)


def rule_for(module: nn.Module) -> Callable[..., dict[str, Contribution]] | None:
    """Return the exact rule for a layer, or None: then the generic path takes over."""
    for kind, (applies, rule) in _RULES.items():
        # a subclass with a forward of its own computes something else
        if isinstance(module, kind) and type(module).forward is kind.forward and applies(module):
            return rule
    # every model family has classes of its own for these; whether one is what it seems, the audit decides
    if _seems_rms_norm(module):
        return contribute_rms_norm
    if _seems_transposed_linear(module):
        return contribute_transposed_linear
    return None


def can_tie(modules: Sequence[nn.Module]) -> bool:
    """Whether these layers may share a weight and still have a rule: word tables and linear layers."""
    return all(rule_for(module) in (contribute_linear, contribute_embedding) for module in modules)


def tie(contributions: Sequence[Contribution]) -> Tied:
    """Return the contribution of a weight that several layers share."""
    rows = [part for part in contributions if isinstance(part, Rows)]
    products = [part for part in contributions if isinstance(part, Outer)]
    return Tied(rows, products)


def contribute_linear(
    module: nn.Linear, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    """Inputs [examples, k, ..., in], gradients [examples, k, ..., out]."""
    result: dict[str, Contribution] = {"weight": Outer(_linear_factors, parts, module.weight.shape)}
    if module.bias is not None:
        result["bias"] = Direct([g for _, g in parts], _sum_positions)
    return result


def contribute_conv2d(
    module: nn.Conv2d, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    """Inputs [examples, k, in, height, width], gradients [examples, k, out, height, width]."""

    def factor(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        patches = _unfold(module, inputs)  # [rows, in * kernel, positions]
        return gradient.flatten(2).unflatten(1, (module.groups, -1)), patches.unflatten(
            1, (module.groups, -1)
        )

    result: dict[str, Contribution] = {"weight": Outer(factor, parts, module.weight.shape)}
    if module.bias is not None:
        result["bias"] = Direct([g for _, g in parts], _sum_space)
    return result


def contribute_embedding(
    module: nn.Embedding, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    """Ids [examples, k, ...], gradients [examples, k, ..., width]."""
    if module.padding_idx is not None:
        parts = [
            (ids, g.masked_fill((ids == module.padding_idx)[..., None], 0)) for ids, g in parts
        ]
    return {"weight": Rows(parts, module.num_embeddings)}


def contribute_layer_norm(
    module: nn.LayerNorm, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    def normalise(x: Tensor) -> Tensor:
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)

    last = len(module.normalized_shape)
    return _contribute_affine(
        module, [(normalise(x) * g, g) for x, g in parts], lambda x: _sum_positions(x, last)
    )


def contribute_rms_norm(
    module: nn.Module, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    def normalise(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + _read_eps(module))

    return _contribute_affine(module, [(normalise(x) * g, g) for x, g in parts], _sum_positions)


def contribute_transposed_linear(
    module: nn.Module, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    """GPT-2's Conv1D: a linear layer whose weight is [in, out]."""
    turned = [(gradient, inputs) for inputs, gradient in parts]
    result: dict[str, Contribution] = {
        "weight": Outer(_linear_factors, turned, module.weight.shape)
    }
    if module.bias is not None:
        result["bias"] = Direct([g for _, g in parts], _sum_positions)
    return result


def contribute_group_norm(
    module: nn.GroupNorm, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    def normalise(x: Tensor) -> Tensor:
        return F.group_norm(x.flatten(0, 1), module.num_groups, eps=module.eps).view_as(x)

    return _contribute_affine(module, [(normalise(x) * g, g) for x, g in parts], _sum_space)


def contribute_batch_norm(
    module: nn.Module, parts: list[tuple[Tensor, Tensor]]
) -> dict[str, Contribution]:
    def normalise(x: Tensor) -> Tensor:
        # statistics of a 16-bit model are read in the precision of the rule
        mean = module.running_mean.to(x.dtype)
        variance = module.running_var.to(x.dtype)
        return F.batch_norm(x.flatten(0, 1), mean, variance, eps=module.eps).view_as(x)

    return _contribute_affine(module, [(normalise(x) * g, g) for x, g in parts], _sum_space)


def _contribute_affine(
    module: nn.Module, parts: list[tuple[Tensor, Tensor]], reduce: Callable[[Tensor], Tensor]
):
    result: dict[str, Contribution] = {}
    if module.weight is not None:
        result["weight"] = Direct([scaled for scaled, _ in parts], reduce)
    if getattr(module, "bias", None) is not None:
        result["bias"] = Direct([g for _, g in parts], reduce)
    return result


def _sum_positions(x: Tensor, last: int = 1) -> Tensor:
    """[examples, k, ..., *last] -> [examples, k, *last]."""
    middle = tuple(range(2, x.ndim - last))
    return x.sum(dim=middle) if middle else x


def _sum_space(x: Tensor) -> Tensor:
    """[examples, k, channels, ...] -> [examples, k, channels]."""
    return x.flatten(3).sum(dim=3) if x.ndim > 3 else x


def _linear_factors(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, ..., in] and [rows, ..., out] -> [rows, 1, out, positions], [rows, 1, in, positions]."""
    right, left = (
        x.reshape(len(x), -1, x.shape[-1]).transpose(1, 2).unsqueeze(1) for x in (inputs, gradient)
    )
    return left, right


def _unfold(module: nn.Conv2d, inputs: Tensor) -> Tensor:
    height, width = module.kernel_size
    if (height, width) == (1, 1) and module.padding in ((0, 0), "valid", "same"):
        down, across = module.stride
        return inputs[:, :, ::down, ::across].flatten(2)
    if isinstance(module.padding, str):  # "same" may pad one side more than the other
        before_after = module._reversed_padding_repeated_twice
        inputs, padding = (
            F.pad(inputs, before_after) if module.padding == "same" else inputs,
            (0, 0),
        )
    else:
        padding = module.padding
    return F.unfold(inputs, module.kernel_size, module.dilation, padding, module.stride)


def _seems_rms_norm(module: nn.Module) -> bool:
    """Whether a module has one vector `weight`, a small number to add to the mean square, and nothing else."""
    parameters = dict(module.named_parameters(recurse=False))
    if list(parameters) != ["weight"] or parameters["weight"].ndim != 1 or list(module.children()):
        return False
    if isinstance(module, nn.Linear | nn.LayerNorm | nn.GroupNorm | nn.modules.batchnorm._NormBase):
        return False
    return _find_eps(module) is not None


def _find_eps(module: nn.Module) -> str | None:
    return next(
        (name for name in ("variance_epsilon", "eps", "epsilon") if hasattr(module, name)), None
    )


def _read_eps(module: nn.Module) -> float:
    name = _find_eps(module)
    value = getattr(module, name) if name is not None else None
    if value is None:
        return torch.finfo(module.weight.dtype).eps
    return float(value)


def _seems_transposed_linear(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and module.weight.ndim == 2


def _plain_embedding(module: nn.Embedding) -> bool:
    return not (module.scale_grad_by_freq or module.sparse or module.max_norm is not None)


_RULES: dict[type, tuple[Callable[[nn.Module], bool], Callable[..., dict[str, Contribution]]]] = {
    nn.Linear: (lambda m: True, contribute_linear),
    nn.Conv2d: (lambda m: m.padding_mode == "zeros", contribute_conv2d),
    nn.Embedding: (_plain_embedding, contribute_embedding),
    nn.LayerNorm: (lambda m: True, contribute_layer_norm),
    nn.GroupNorm: (lambda m: True, contribute_group_norm),
    nn.BatchNorm1d: (
        lambda m: not m.training and m.running_mean is not None,
        contribute_batch_norm,
    ),
    nn.BatchNorm2d: (
        lambda m: not m.training and m.running_mean is not None,
        contribute_batch_norm,
    ),
    BatchNorm2d: (lambda m: not m.training and m.running_mean is not None, contribute_batch_norm),
}

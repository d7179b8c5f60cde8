"""One pass over data: the model is restored, data are read as promised, files say how made."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import peft
import pytest
import torch
from accelerate import Accelerator
from importance_models import ConvNet, Late, Reader, Thrice, pictures, sentences, vectors
from importance_oracle import assert_same_importance, one_at_a_time
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from mcit.errors import ConfigError
from mcit.estimator import Estimator
from mcit.importance import Importance, measure_importance
from mcit.named_tensors import fingerprint


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def data(count: int = 14, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 6, generator=generator), torch.randint(4, (count,), generator=generator)
    )


def truth(model: nn.Module, dataset: TensorDataset, rows=None, **options) -> dict[str, Tensor]:
    rows = range(len(dataset)) if rows is None else rows
    x, y = dataset.tensors
    return one_at_a_time(model, [(x[i : i + 1], y[i : i + 1]) for i in rows], **options)


class Everything:
    """All that a pass could leave changed, to be compared before and after."""

    def __init__(self, model: nn.Module):
        self.modes = {name: module.training for name, module in model.named_modules()}
        self.asks = {name: p.requires_grad for name, p in model.named_parameters()}
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.gradients = {
            n: None if p.grad is None else (p.grad, p.grad.clone())
            for n, p in model.named_parameters()
        }
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self.hooks = {name: self._count_hooks(module) for name, module in model.named_modules()}
        self.torch = torch.get_rng_state()
        self.numpy = np.random.get_state()
        self.python = random.getstate()

    @staticmethod
    def _count_hooks(module: nn.Module) -> tuple[int, ...]:
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return tuple(len(getattr(module, kind)) for kind in kinds)

    def assert_kept(self, model: nn.Module) -> None:
        now = Everything(model)
        assert now.modes == self.modes
        assert now.asks == self.asks
        assert now.hooks == self.hooks
        for kept, found in ((self.weights, now.weights), (self.buffers, now.buffers)):
            assert kept.keys() == found.keys()
            assert all(torch.equal(kept[name], found[name]) for name in kept)
        for name, before in self.gradients.items():
            after = now.gradients[name]
            assert (before is None) == (after is None), name
            if before is not None:
                assert before[0] is after[0], f"{name}.grad is another tensor"
                assert torch.equal(before[1], after[1]), name
        assert torch.equal(now.torch, self.torch)
        assert now.python == self.python
        assert all(np.array_equal(a, b) for a, b in zip(now.numpy, self.numpy, strict=True))


class Noisy(nn.Module):
    """Draws from every random generator, counts its calls, and breaks when told to."""

    def __init__(self, breaks_at: int | None = None, broken: str = "nan"):
        super().__init__()
        self.body = ConvNet()
        self.dropout = nn.Dropout(0.5)
        self.breaks_at = breaks_at
        self.broken = broken
        self.frozen = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        random.random()
        np.random.rand()
        torch.rand(1)
        logits = self.frozen(self.dropout(self.body(x)))
        self.average.lerp_(logits.detach().mean(dim=0), 0.1)
        if self.calls == self.breaks_at:
            if self.broken == "raise":
                raise KeyError("a forward that fails")
            logits = logits * torch.nan
        return logits


def unsettled(breaks_at: int | None = None, broken: str = "nan") -> Noisy:
    """A model with mixed modes, frozen parts, and gradients on some parameters only."""
    torch.manual_seed(0)
    model = Noisy(breaks_at, broken)
    model.train()
    model.body.norm1.eval()
    model.dropout.eval()
    model.frozen.requires_grad_(False)
    model.body.conv1.weight.grad = torch.randn_like(model.body.conv1.weight)
    model.frozen.weight.grad = torch.randn_like(model.frozen.weight)
    model.body.fc.register_forward_hook(lambda *_: None)
    return model


MODES = [{}, {"labels": "all"}, {"unit": "batch"}, {"unit": "batch", "mode": "train"}]


@pytest.mark.parametrize("options", MODES)
def test_the_model_and_all_random_states_come_back_as_they_were(options):
    model = unsettled()
    loader = DataLoader(
        TensorDataset(pictures(7), torch.randint(4, (7,))), batch_size=3, shuffle=True
    )
    kept = Everything(model)
    measure_importance(model, loader, samples=5, **options)
    kept.assert_kept(model)


@pytest.mark.parametrize("broken", ["nan", "raise"])
@pytest.mark.parametrize("breaks_at", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("options", MODES[:3])
def test_the_model_comes_back_as_it_was_when_a_pass_breaks(options, breaks_at, broken):
    model = unsettled(breaks_at, broken)
    batches = [(pictures(3), torch.randint(4, (3,))) for _ in range(5)]
    kept = Everything(model)
    with pytest.raises(KeyError if broken == "raise" else FloatingPointError):
        measure_importance(model, batches, **options)
    kept.assert_kept(model)


def test_a_buffer_that_the_forward_replaces_comes_back_too():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + len(x)
            return self.fc(x)

    model = Counting()
    measure_importance(model, DataLoader(data(), 5))
    assert float(model.seen) == 0


def test_a_generic_path_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = Reader().train()
    model.norm.requires_grad_(False)
    batches = [(sentences(4), torch.randint(4, (4,)))] * 2
    kept = Everything(model)
    measure_importance(model, batches)
    kept.assert_kept(model)


def test_updated_buffers_are_kept_only_on_request_and_the_rest_comes_back():
    model = unsettled()
    before = model.body.norm0.running_mean.clone()
    batches = [(pictures(3), torch.randint(4, (3,))) for _ in range(2)]
    kept = Everything(model)
    measure_importance(model, batches, unit="batch", mode="train", update_buffers=True)
    assert not torch.equal(before, model.body.norm0.running_mean)
    for name, buffer in model.named_buffers():
        buffer.copy_(kept.buffers[name])
    kept.assert_kept(model)


def test_measuring_works_where_gradients_are_switched_off():
    model = net()
    dataset = data()
    with torch.no_grad():
        found = measure_importance(model, DataLoader(dataset, 5))
        assert not torch.is_grad_enabled()
    assert_same_importance(found.values, truth(model, dataset))
    assert not any(value.requires_grad for value in found.values.values())


@pytest.mark.parametrize("size", [1, 3, 7, 14])
@pytest.mark.parametrize("labels", ["true", "predicted", "all", "sampled"])
def test_unit_example_does_not_depend_on_batch_size_or_shuffling(size, labels):
    model = net()
    dataset = data()
    expected = measure_importance(model, DataLoader(dataset, 14), labels=labels).values
    for loader in (
        DataLoader(dataset, size),
        DataLoader(dataset, size, shuffle=True),
        DataLoader(dataset, size, drop_last=True),
    ):
        found = measure_importance(model, loader, labels=labels)
        assert found.examples == 14
        assert_same_importance(found.values, expected, 2e-6)
    if labels != "sampled":
        assert_same_importance(expected, truth(model, dataset, labels=labels))


def test_unit_batch_does_depend_on_batch_size():
    model = net()
    dataset = data()
    small, large = (
        measure_importance(model, DataLoader(dataset, n), unit="batch").values for n in (1, 7)
    )
    assert_same_importance(small, truth(model, dataset))
    assert float(large["0.weight"].mean()) < 0.8 * float(small["0.weight"].mean())


@pytest.mark.parametrize(
    ("samples", "count"), [(5, 5), (1, 1), (0.5, 7), (0.01, 1), (1.0, 14), (99, 14), (14, 14)]
)
def test_a_budget_reads_exactly_so_many_examples_drawn_by_the_seed(samples, count):
    model = net()
    dataset = data()
    read: list[Tensor] = []

    def forward(model, batch):
        read.append(batch[0])
        return model(batch[0]), batch[1]

    found = measure_importance(
        model, DataLoader(dataset, 4), samples=samples, seed=3, forward=forward
    )
    assert found.examples == count
    # the audit reads some of them before
    rows = {int((dataset.tensors[0] == row).all(dim=1).nonzero()) for row in torch.cat(read)}
    assert len(rows) == count
    assert_same_importance(found.values, truth(model, dataset, sorted(rows)))
    again = measure_importance(model, DataLoader(dataset, 3, shuffle=True), samples=samples, seed=3)
    assert_same_importance(again.values, found.values, 2e-6)
    other = measure_importance(model, DataLoader(dataset, 4), samples=samples, seed=4)
    assert (count == 14) == bool(
        torch.allclose(other.values["0.weight"], found.values["0.weight"], rtol=1e-5)
    )


def test_a_budget_on_unit_batch_takes_whole_batches():
    model = net()
    dataset = data()
    found = measure_importance(model, DataLoader(dataset, 4), samples=6, unit="batch")
    assert found.examples == 8


class Evens(Sampler):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(range(0, len(self.dataset), 2))

    def __len__(self):
        return len(self.dataset) // 2


def test_a_sampler_that_chooses_is_respected():
    model = net()
    dataset = data()
    found = measure_importance(model, DataLoader(dataset, 4, sampler=Evens(dataset)))
    assert found.examples == 7
    assert_same_importance(found.values, truth(model, dataset, range(0, 14, 2)))


def test_any_iterable_of_batches_will_do():
    model = net()
    dataset = data()
    x, y = dataset.tensors

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(x, y, strict=True))

    expected = truth(model, dataset)
    for loader in (
        [(x[:5], y[:5]), (x[5:], y[5:])],
        ([a, b] for a, b in zip(x.split(3), y.split(3), strict=True)),
        DataLoader(Stream(), 4),
        DataLoader([(a, b) for a, b in zip(x.split(5), y.split(5), strict=True)], batch_size=None),
    ):
        found = measure_importance(model, loader)
        assert found.examples == 14
        assert_same_importance(found.values, expected)


def test_a_dictionary_with_labels_is_a_batch():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 4)

        def forward(self, features: Tensor):
            return type("Output", (), {"logits": self.fc(features)})()

    torch.manual_seed(0)
    model = Named()
    (x, y) = data().tensors
    found = measure_importance(model, [{"features": x, "labels": y}]).values
    plain = measure_importance(nn.Sequential(model.fc), [(x, y)]).values
    assert_close(found["fc.weight"], plain["0.weight"])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_prepared_by_accelerate_is_read_like_the_bare_one(shuffle):
    model = net()
    dataset = data()
    accelerator = Accelerator(cpu=True)
    wrapped, loader = accelerator.prepare(model, DataLoader(dataset, 4, shuffle=shuffle))
    found = measure_importance(wrapped, loader, samples=9, seed=2)
    bare = measure_importance(net(), DataLoader(dataset, 14), samples=9, seed=2)
    assert found.examples == 9
    assert_same_importance(found.values, bare.values, 2e-6)


@pytest.mark.parametrize("unit", ["example", "batch"])
def test_autocast_inside_the_model_gives_a_like_result(unit):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.body(x).float()

    model = Cast()
    dataset = data()
    found = measure_importance(model, DataLoader(dataset, 7), unit=unit)
    exact = measure_importance(net(), DataLoader(dataset, 7), unit=unit)
    values = {name.removeprefix("body."): value for name, value in found.values.items()}
    assert_same_importance(values, exact.values, 0.05)


def test_a_wrapped_model_is_measured_unwrapped():
    model = net()
    dataset = data()
    found = measure_importance(nn.DataParallel(model), DataLoader(dataset, 7))
    assert found.values.keys() == dict(model.named_parameters()).keys()


def test_a_cap_is_an_upper_limit_and_nothing_else():
    model = net()
    dataset = data()
    free = measure_importance(model, DataLoader(dataset, 7)).values
    cap = float(free["0.weight"].median())
    capped = measure_importance(model, DataLoader(dataset, 7), cap=cap).values
    for name, value in free.items():
        assert_close(capped[name], value.clamp(max=cap))
    assert (
        0 < int((capped["0.weight"] == capped["0.weight"].max()).sum()) < capped["0.weight"].numel()
    )


def test_shuffled_importance_has_the_same_values_in_other_places_of_the_same_tensor():
    model = net()
    dataset = data()
    plain = measure_importance(model, DataLoader(dataset, 7)).values
    mixed = measure_importance(model, DataLoader(dataset, 7), shuffle=True, seed=1).values
    again = measure_importance(model, DataLoader(dataset, 7), shuffle=True, seed=1).values
    for name, value in plain.items():
        assert torch.equal(value.flatten().sort().values, mixed[name].flatten().sort().values)
        assert torch.equal(mixed[name], again[name])
        assert mixed[name].shape == value.shape
    assert not torch.equal(plain["0.weight"], mixed["0.weight"])


def test_channels_last_weights_are_measured_alike():
    torch.manual_seed(0)
    # without a narrow 1x1 convolution of stride 2, whose backward breaks in some builds of torch
    maps = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Conv2d(4, 6, 3)
    )
    model = nn.Sequential(maps, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 4)).eval()
    x = pictures(5)
    y = torch.randint(4, (5,))
    expected = measure_importance(model, [(x, y)]).values
    found = measure_importance(model.to(memory_format=torch.channels_last), [(x, y)]).values
    assert_same_importance(found, expected, 1e-5)


def test_double_and_half_models_are_measured_in_their_own_precision():
    model = net().double()
    dataset = data()
    x, y = dataset.tensors
    found = measure_importance(model, [(x.double(), y)])
    assert {value.dtype for value in found.values.values()} == {torch.float64}
    for name, value in truth(model, dataset).items():
        assert_close(found.values[name], value)


@pytest.mark.parametrize("unit", ["example", "batch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_the_mean_over_many_equal_batches_is_that_of_one(dtype, tolerance, unit):
    # A running sum in half precision stops growing after a few hundred batches.
    torch.manual_seed(0)
    model = nn.Linear(6, 4).to(dtype)
    x = vectors(2).to(dtype)
    y = torch.randint(4, (2,))
    once = measure_importance(model, [(x, y)], unit=unit).values
    often = measure_importance(model, [(x, y)] * 600, unit=unit).values
    assert_same_importance(often, once, tolerance)


def test_a_train_mode_without_randomness_is_measured_per_example():
    model = net()
    dataset = data()
    found = measure_importance(model.eval(), DataLoader(dataset, 5), mode="train")
    assert_same_importance(found.values, truth(model, dataset))
    assert not model.training


def test_batch_norm_in_train_mode_is_refused_by_name():
    model = ConvNet()
    batch = [(pictures(4), torch.randint(4, (4,)))]
    with pytest.raises(ValueError, match=r"BatchNorm.*norm0, norm1.*unit 'batch'"):
        measure_importance(model, batch, mode="train")
    model.norm1 = nn.BatchNorm2d(6, track_running_stats=False)
    with pytest.raises(ValueError, match=r"BatchNorm.*\(norm1\)"):
        measure_importance(model, batch)
    assert model.training


@pytest.mark.parametrize("options", [{}, {"unit": "batch"}])
def test_a_loss_that_is_not_finite_is_named_and_gives_no_importance(options):
    x, y = data().tensors
    with pytest.raises(FloatingPointError, match="plain score of batch 1 is not finite"):
        measure_importance(net(), [(x, y), (x * torch.inf, y)], **options)


def test_squares_that_overflow_are_refused_by_name():
    model = nn.Linear(6, 4)
    (x, y) = data().tensors
    with pytest.raises(FloatingPointError, match="weight"):
        measure_importance(
            model, [(x * 1e30, y)], score="output_norm", norm="squared_l2", unit="batch"
        )


@pytest.mark.parametrize("options", [{}, {"unit": "batch"}])
def test_no_data_is_an_error(options):
    for loader in ([], DataLoader(data(0), 4), iter(())):
        with pytest.raises(ValueError, match="no example"):
            measure_importance(net(), loader, **options)


def test_a_batch_without_examples_is_an_error():
    with pytest.raises(ValueError, match="one number per example"):
        measure_importance(net(), [(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))])


def test_a_budget_of_zero_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="samples"):
        measure_importance(net(), DataLoader(data(), 4), samples=0)


def test_a_budget_on_data_without_a_length_is_refused():
    with pytest.raises(ValueError, match="budget"):
        measure_importance(net(), [(vectors(3), torch.zeros(3, dtype=torch.long))], samples=2)


def test_an_unknown_score_is_refused_with_the_choices():
    with pytest.raises(
        ConfigError, match=r"'fisher' \(choices: plain, reversed, log_odds, output_norm, custom\)"
    ):
        measure_importance(net(), [], score="fisher")


def test_a_model_that_trains_nothing_is_refused():
    with pytest.raises(ValueError, match="no trainable parameter"):
        measure_importance(net().requires_grad_(False), DataLoader(data(), 4))


@pytest.mark.parametrize("batch", [torch.zeros(3, 6), {"x": torch.zeros(3, 6)}, (1, 2, 3), "text"])
def test_a_batch_of_unknown_form_is_refused_with_a_remedy(batch):
    with pytest.raises(TypeError, match="forward="):
        measure_importance(net(), [batch])


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(2, dtype=torch.long),
        torch.full((3,), 4),
        torch.zeros(3),
        torch.zeros(3, 5),
        torch.tensor(1),
    ],
    ids=["too few", "out of range", "floats", "too wide", "a scalar"],
)
@pytest.mark.parametrize("unit", ["example", "batch"])
def test_a_target_that_does_not_fit_is_refused(target, unit):
    with pytest.raises(ValueError, match="class ids"):
        measure_importance(net(), [(torch.zeros(3, 6), target)], unit=unit)


def test_exact_labels_of_a_large_head_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"3129.*'sampled'"):
        measure_importance(
            nn.Linear(6, 3129), [(torch.zeros(2, 6), torch.zeros(2, 3129))], labels="all"
        )


def test_a_layer_with_only_some_trainable_parameters_is_exact():
    torch.manual_seed(0)
    model = net()
    dataset = data()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    found = measure_importance(model, DataLoader(dataset, 5))
    assert found.values.keys() == {"0.bias", "2.weight"}
    assert_same_importance(found.values, truth(model, dataset))


def test_a_layer_that_is_reached_late_counts_from_then_on():
    torch.manual_seed(0)
    model = Late()
    x = vectors(6)
    x[4:, 0] = 6
    dataset = TensorDataset(x, torch.randint(4, (6,)))
    found = measure_importance(model, DataLoader(dataset, 2))
    assert_same_importance(found.values, truth(model, dataset))


def test_the_description_names_the_estimator_and_the_examples():
    found = measure_importance(net(), DataLoader(data(), 5), score="reversed", cap=1e-4, samples=6)
    assert found.describe().startswith(found.estimator.describe())
    assert "6 examples" in found.describe()
    assert "\n" not in found.describe()
    assert found.estimator == Estimator(score="reversed", cap=1e-4, samples=6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"samples": 1.0},
        {"samples": 3},
        {"samples": 0.5},
        {"score": "reversed", "cap": 1e-4, "shuffle": True, "seed": 7},
    ],
)
def test_a_file_gives_back_every_bit(tmp_path, options):
    model = net()
    found = measure_importance(model, DataLoader(data(), 5), **options)
    found.save(tmp_path / "importance.safetensors", task="vqa")
    back = Importance.load(tmp_path / "importance.safetensors", model.named_parameters())
    assert back.values.keys() == found.values.keys()
    assert all(torch.equal(back.values[name], value) for name, value in found.values.items())
    assert back.estimator == found.estimator
    assert type(back.estimator.samples) is type(found.estimator.samples)
    assert back.describe() == found.describe()


def test_importance_of_other_origin_keeps_its_note(tmp_path):
    made = Importance({"w": torch.rand(3)}, note="all ones")
    made.save(tmp_path / "made.safetensors")
    back = Importance.load(tmp_path / "made.safetensors")
    assert (back.describe(), back.estimator) == ("all ones", None)


def test_importance_of_an_adapter_loads_beside_its_frozen_base(tmp_path):
    model = peft.get_peft_model(Thrice(), peft.LoraConfig(r=2, target_modules=["layer"]))
    found = measure_importance(model, [(vectors(4), torch.randint(4, (4,)))])
    found.save(tmp_path / "lora.safetensors")
    back = Importance.load(tmp_path / "lora.safetensors", model.named_parameters())
    assert back.values.keys() == found.values.keys()


def test_a_file_for_another_model_is_refused_with_the_first_differences(tmp_path):
    path = tmp_path / "importance.safetensors"
    measure_importance(net(), DataLoader(data(), 5)).save(path)
    other = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7, bias=False), nn.Linear(7, 1))
    with pytest.raises(ValueError) as caught:
        Importance.load(path, other.named_parameters())
    text = str(caught.value)
    for part in (
        str(path),
        "3.weight is missing",
        "2.bias is not in the model",
        "2.weight is [4, 5], the model has [7, 5]",
    ):
        assert part in text
    wide = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    with pytest.raises(ValueError, match="more"):
        Importance.load(path, wide.named_parameters())


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nowhere/importance\.safetensors could not be written"):
        Importance({"weight": torch.ones(2)}).save(tmp_path / "nowhere" / "importance.safetensors")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        Importance.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "importance.safetensors"
    measure_importance(net(), DataLoader(data(), 5)).save(path)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "emptied": b"", "overwritten": b"\xff" * len(whole)}[
            damage
        ]
    )
    with pytest.raises(ValueError, match=r"importance\.safetensors"):
        Importance.load(path)


def test_a_file_whose_tensors_were_exchanged_is_refused(tmp_path):
    path = tmp_path / "importance.safetensors"
    Importance({"w": torch.ones(3)}).save(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file({"w": torch.ones(2)}, path, about)
    with pytest.raises(ValueError, match="damaged"):
        Importance.load(path)


def test_every_flipped_bit_of_a_file_is_noticed(tmp_path):
    path = tmp_path / "importance.safetensors"
    measure_importance(net(), DataLoader(data(), 5)).save(path)
    whole = path.read_bytes()
    places = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1))[:40].tolist()
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"importance\.safetensors"):
            Importance.load(path)


def test_a_file_without_a_digest_is_refused(tmp_path):
    path = tmp_path / "importance.safetensors"
    save_file({"w": torch.ones(2)}, path, {"format": "mcit importance 1"})
    with pytest.raises(ValueError, match="no digest"):
        Importance.load(path)


def test_another_kind_of_file_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="mcit importance 1"):
        Importance.load(path)


def test_a_fingerprint_depends_on_names_and_shapes_and_on_no_order():
    a = torch.zeros(2, 3)
    b = torch.zeros(3)
    assert fingerprint({"a": a, "b": b}) == fingerprint({"b": b + 1, "a": a})
    assert fingerprint({"a": a, "b": b}) != fingerprint({"a": a.T, "b": b})
    assert fingerprint({"a": a, "b": b}) != fingerprint({"a": a, "c": b})


def test_the_file_tells_by_itself_how_it_was_made(tmp_path):
    found = measure_importance(net(), DataLoader(data(), 5), score="log_odds")
    found.save(tmp_path / "importance.safetensors", task="nlvr2")
    with safe_open(tmp_path / "importance.safetensors", "pt") as file:
        about = file.metadata()
    assert about["description"] == found.describe()
    assert about["task"] == "nlvr2"
    assert json.loads(about["estimator"]) == dataclasses.asdict(found.estimator)


# --- calls that cannot be answered


def test_a_misspelt_option_is_named_with_the_one_that_was_meant():
    with pytest.raises(TypeError, match=r"'smaples'; did you mean 'samples'\?"):
        measure_importance(net(), [], smaples=3)


@pytest.mark.parametrize("output", [tuple, dict])
def test_a_model_that_returns_no_logits_is_refused_with_the_remedy(output):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return (self.layer(x), x) if output is tuple else {"out": self.layer(x)}

    with pytest.raises(
        TypeError, match=f"returned a {output.__name__} without logits; give forward="
    ):
        measure_importance(Odd(), [(torch.rand(4, 3), torch.zeros(4, dtype=torch.long))])


def test_a_model_without_values_is_refused():
    with pytest.raises(ValueError, match="'weight' is on the meta device"):
        measure_importance(nn.Linear(3, 2, device="meta"), [])


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        measure_importance(nn.Linear(3, 2), [])


def test_forward_must_return_two_tensors():
    with pytest.raises(TypeError, match="logits and target; found a Tensor and a NoneType"):
        measure_importance(
            nn.Linear(3, 2), [torch.rand(4, 3)], forward=lambda model, x: (model(x), None)
        )


# --- a score of one's own


def test_a_function_as_score_is_squared_per_example_and_named():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.rand(8, 3)
    y = 5 * torch.randn(8, 1)

    def gaussian_error(model, batch):
        return (model(batch[0]) - batch[1]).square().sum(dim=1) / 2

    found = measure_importance(model, [(x[:5], y[:5]), (x[5:], y[5:])], score=gaussian_error)
    error = (model(x) - y).detach()
    torch.testing.assert_close(
        found.values["weight"], (error * x).square().mean(dim=0, keepdim=True)
    )
    torch.testing.assert_close(found.values["bias"], error.square().mean(dim=0))
    assert (
        "custom (test_a_function_as_score_is_squared_per_example_and_named.<locals>.gaussian_error)"
        in found.describe()
    )
    assert found.examples == 8


@pytest.mark.parametrize(
    "wrong", [lambda model, x: model(x), lambda model, x: model(x).sum(), lambda model, x: None]
)
def test_a_function_that_gives_no_number_per_example_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must return one number per example, \[batch\]"):
        measure_importance(nn.Linear(3, 2), [torch.rand(4, 3)], score=wrong)


def test_a_custom_score_without_its_function_is_refused():
    with pytest.raises(ValueError, match="needs a function"):
        measure_importance(
            nn.Linear(3, 2), [(torch.rand(4, 3), torch.zeros(4, dtype=torch.long))], score="custom"
        )


def test_an_unseen_layer_that_autograd_reaches_is_an_error():
    class Bypassed(nn.Module):
        """Calls its first layer's forward directly from the second batch on, past all hooks."""

        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.second = nn.Linear(4, 2)
            self.direct = False

        def forward(self, x):
            hidden = self.first.forward(x) if self.direct else self.first(x)
            return self.second(hidden.relu())

    model = Bypassed()
    batch = (torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))

    def batches():
        yield batch
        model.direct = True
        yield batch

    with pytest.raises(RuntimeError, match=r"'first\.weight' .* was not seen"):
        measure_importance(model, batches())

"""The race is fair: both sides learn the same from the same; no test asserts a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mcit.bench import efcil
from mcit.bench.efcil import PARTS, OurPipeline, Size
from mcit.bench.plain import PlainImages, PlainPipeline, _Batches
from mcit.cli import main

SIZE = Size(batch=4, steps=2, rounds=2)


def make_pipelines(precision: str) -> tuple[OurPipeline, PlainPipeline]:
    torch.manual_seed(0)
    ours = OurPipeline(4, SIZE, precision)
    learner = efcil._copy_plainly(ours.stage.learner, 4)
    return ours, PlainPipeline(
        learner, ours.stage.task, ours.method.manager, SIZE.batch, SIZE.steps
    )


@pytest.fixture
def pipelines():
    return make_pipelines("no")


@pytest.fixture(scope="module")
def result() -> dict:
    with pytest.MonkeyPatch.context() as patch:
        # emulated where the processor has no such instructions
        patch.setattr(efcil, "choose_precision", lambda asked: "bf16")
        return efcil.measure(quick=True, sizes={4: SIZE})


def list_precisions(learner: nn.Module, call: Callable[[], object]) -> set[torch.dtype]:
    """Return the precisions in which convolutions answer during a call."""
    found = set()
    handles = []
    for module in learner.modules():
        if isinstance(module, nn.Conv2d):
            handles.append(
                module.register_forward_hook(lambda _, inputs, output: found.add(output.dtype))
            )
    call()
    for handle in handles:
        handle.remove()
    return found


def read_batch(ours: OurPipeline, split: str = "train") -> dict:
    return next(iter(ours.stage.load(ours.stage.task, split))).batch


@pytest.mark.parametrize("suffix", ["", "_bf16"])
def test_every_figure_is_there_by_width_positive_and_finite(result, suffix):
    for key in ("train_speedup", "eval_speedup"):
        speedups = result[key + suffix]
        assert speedups.keys() == {"4"}
        assert math.isfinite(speedups["4"])
        assert speedups["4"] > 0
    for key in ("train_images_per_second", "eval_images_per_second"):
        rates = result[key + suffix]["4"]
        assert all(rates[side] > 0 for side in ("ours", "reference"))
    for side in ("ours", "reference"):
        parts = result["milliseconds_per_step" + suffix]["4"][side]
        assert tuple(parts) == PARTS
        assert all(
            parts[part] > 0 for part in ("data", "forward", "backward", "penalty", "optimizer")
        )
    assert (result["quick"], result["threads"]) == (True, torch.get_num_threads())


def test_without_bf16_in_hardware_only_single_precision_is_measured(monkeypatch):
    measured = []

    def race_width(width, size, precision):
        measured.append((width, precision))
        return {"train_speedup": 2.5}

    monkeypatch.setattr(efcil, "race_width", race_width)
    monkeypatch.setattr(efcil, "choose_precision", lambda asked: "no")
    result = efcil.measure(quick=True)
    assert measured == [(16, "no"), (64, "no")]
    assert result["train_speedup"] == {"16": 2.5, "64": 2.5}
    assert [key for key in result if key.endswith("_bf16")] == [
        f"{name}_bf16" for name in efcil.MEASURED
    ]
    assert all(result[f"{name}_bf16"] == {} for name in efcil.MEASURED)


@pytest.mark.parametrize(("precision", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16)])
def test_ours_has_the_precision_that_is_measured_and_the_reference_is_single(precision, dtype):
    ours, reference = make_pipelines(precision)
    for call in (ours.train, ours.score):
        assert list_precisions(ours.stage.learner, call) == {dtype}
    with reference:
        for call in (reference.train, reference.score):
            assert list_precisions(reference.learner, call) == {torch.float32}


def test_single_precision_is_measured_whatever_the_launcher_says(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert OurPipeline(4, SIZE).trainer.precision == "no"


def test_the_widths_of_the_goals_are_measured_fully_and_in_a_first_look():
    widths = [int(width) for width in efcil.GOALS]
    assert list(efcil.FULL) == list(efcil.QUICK) == widths == [16, 64]
    assert all(size.batch == 128 for size in efcil.FULL.values())  # the recipe's


def test_the_json_form_is_json_and_nothing_else(result, capsys, monkeypatch):
    monkeypatch.setattr(efcil, "measure", lambda quick: {**result, "quick": quick})
    assert main(["bench", "efcil", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == result


def test_the_table_tells_goals_met_from_goals_missed(result, capsys):
    good = dict(result)
    for key, value in result.items():
        if isinstance(value, dict):
            good[key] = {"16": value["4"], "64": value["4"]}
        if "speedup" in key:
            good[key] = {"16": 2.0, "64": 2.1}
    efcil.print_result(good)
    printed = capsys.readouterr().out
    assert "Goals missed" not in printed
    # training and scoring, of two widths, in two precisions
    assert printed.count("yes") == 2 * 2 * 2
    efcil.print_result({**good, "train_speedup_bf16": {"16": 1.9, "64": 2.1}})
    printed = capsys.readouterr().out
    assert "Goals missed on this run: training, ResNet-18 of width 16, bf16." in printed
    assert printed.count("NO") == 1


def test_speedups_are_listed_with_their_rates_and_goals(result):
    compared = list(efcil.list_compared({**result, "train_speedup_bf16": {"4": 3.0}}))
    assert [each.label for each in compared] == [
        "training, ResNet-18 of width 4",
        "training, ResNet-18 of width 4, bf16",
        "scoring, ResNet-18 of width 4",
        "scoring, ResNet-18 of width 4, bf16",
    ]
    rates = result["train_images_per_second_bf16"]["4"]
    assert (compared[1].ours, compared[1].reference) == (rates["ours"], rates["reference"])
    assert compared[1].speedup == 3.0
    # only the widths that are measured fully have one
    assert compared[1].goal is None
    assert efcil.GOALS == {"16": ("at least", 2.0), "64": ("at least", 2.0)}


def test_both_sides_begin_with_the_same_network(pipelines):
    ours, reference = pipelines
    batch, head = read_batch(ours, "eval"), ours.stage.task.head
    logits = [
        learner.eval()(batch, head).logits for learner in (ours.stage.learner, reference.learner)
    ]
    assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-4)


def test_both_sides_are_held_alike(pipelines):
    ours, reference = pipelines
    manager = ours.method.manager
    # the same step away from the anchors on both sides
    for learner in (ours.stage.learner, reference.learner):
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        learner.zero_grad()
    value = reference.penalty()
    assert_close(value.detach().double(), manager.penalty(), rtol=1e-4, atol=0)
    value.backward()
    manager.add_gradient_()
    found = {name: p.grad for name, p in ours.stage.learner.named_parameters()}
    for name, parameter in reference.learner.named_parameters():
        assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-4)
        found[name].zero_()
    reference.learner.zero_grad()


def test_both_sides_score_the_same_pixels(pipelines):
    ours, reference = pipelines
    images = reference.loaders["eval"].dataset
    batch = read_batch(ours, "eval")
    for number in range(SIZE.batch):
        pixels, label = images[number]
        assert_close(pixels, batch["pixel_values"][number], atol=1e-6, rtol=1e-5)
        assert label == int(batch["labels"][number])


def test_both_sides_train_on_crops_of_the_padded_image(pipelines):
    ours, _ = pipelines
    task = ours.stage.task
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    images = PlainImages(white, torch.tensor([0]), task, training=True)
    black = ((0 - torch.tensor(task.mean)) / torch.tensor(task.std)).view(3, 1, 1)
    for pixels in (images[0][0], task.augment(white)[0] / 255):
        assert pixels.shape == (3, 32, 32)
    borders = {
        int((images[0][0] - black).abs().lt(1e-5).all(dim=0).all(dim=1).sum()) for _ in range(40)
    }
    assert borders <= {0, 1, 2, 3, 4}  # rows that are padding
    assert len(borders) > 2


def test_timing_leaves_nothing_behind(pipelines):
    ours, _ = pipelines
    before = [
        set(vars(owner)) for owner in (ours.method, ours.stage.task, ours.trainer.accelerator)
    ]
    seconds, laps = ours.train()
    after = [set(vars(owner)) for owner in (ours.method, ours.stage.task, ours.trainer.accelerator)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [set(), set(), set()]
    assert not ours.stage.learner._forward_hooks
    assert sum(laps.values()) == pytest.approx(seconds)


def test_a_round_of_the_reference_reaches_beyond_the_steps_that_are_timed():
    batches = list(_Batches(images=5, batch=3, count=7))
    assert [len(batch) for batch in batches] == [3] * 7
    assert {index for batch in batches for index in batch} == set(range(5))

"""The race is fair: both sides learn the same from the same; no test asserts a time."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.testing import assert_close

from mcit.bench import efcil
from mcit.bench.efcil import PARTS, OurPipeline, Size
from mcit.bench.plain import PlainImages, PlainPipeline, _Batches
from mcit.cli import main

SIZE = Size(batch=4, steps=2, rounds=2)


@pytest.fixture(scope="module")
def pipelines():
    torch.manual_seed(0)
    ours = OurPipeline(4, SIZE)
    learner = efcil._copy_plainly(ours.stage.learner, 4)
    return ours, PlainPipeline(
        learner, ours.stage.task, ours.method.manager, SIZE.batch, SIZE.steps
    )


@pytest.fixture(scope="module")
def result() -> dict:
    return efcil.measure(quick=True, sizes={4: SIZE})


def read_batch(ours: OurPipeline, split: str = "train") -> dict:
    return next(iter(ours.stage.load(ours.stage.task, split))).batch


def test_every_figure_is_there_by_width_positive_and_finite(result):
    for key in ("train_speedup", "eval_speedup"):
        assert result[key].keys() == {"4"}
        assert math.isfinite(result[key]["4"])
        assert result[key]["4"] > 0
    for key in ("train_images_per_second", "eval_images_per_second"):
        assert all(result[key]["4"][side] > 0 for side in ("ours", "reference"))
    for side in ("ours", "reference"):
        parts = result["milliseconds_per_step"]["4"][side]
        assert tuple(parts) == PARTS
        assert all(
            parts[part] > 0 for part in ("data", "forward", "backward", "penalty", "optimizer")
        )
    assert (result["quick"], result["threads"]) == (True, torch.get_num_threads())


def test_the_widths_of_the_goals_are_measured_fully_and_in_a_first_look():
    widths = [int(width) for width in efcil.GOALS]
    assert list(efcil.FULL) == list(efcil.QUICK) == widths == [16, 64]
    assert all(size.batch == 128 for size in efcil.FULL.values())  # the recipe's


def test_the_json_form_is_json_and_nothing_else(result, capsys, monkeypatch):
    monkeypatch.setattr(efcil, "measure", lambda quick: {**result, "quick": quick})
    assert main(["bench", "efcil", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out) == result


def test_the_table_tells_goals_met_from_goals_missed(result, capsys):
    by_width = {
        key: {"16": value["4"], "64": value["4"]}
        for key, value in result.items()
        if isinstance(value, dict)
    }
    good = {
        **result,
        **by_width,
        "train_speedup": {"16": 1.6, "64": 1.2},
        "eval_speedup": {"16": 1.5, "64": 1.15},
    }
    efcil.print_result(good)
    printed = capsys.readouterr().out
    assert "Goals missed" not in printed
    assert printed.count("yes") == 4
    efcil.print_result({**good, "train_speedup": {"16": 1.4, "64": 1.2}})
    printed = capsys.readouterr().out
    assert "Goals missed on this run: training at width 16." in printed
    assert printed.count("NO") == 1


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

"""MUC: the losses of the public code, side classifiers that disagree elsewhere, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from tiny_run import begin_points, configure, learn, make_points, resolve
from torch.testing import assert_close

from mcit.class_statistics import Features
from mcit.errors import ConfigError
from mcit.method import Stage
from mcit.methods.muc import Muc, answer_side, compare_side
from mcit.task import Output

ZOO = Path(__file__).parent / "fixtures" / "zoo"


def test_the_loss_of_a_task_is_that_of_the_public_code():
    """Features stand for the side classifiers' logits, which the identity reads off them."""
    truth = load_file(ZOO / "muc.safetensors")
    tasks = make_points([2, 2, 2])
    method = Muc(outside="shapes")
    stage, _ = begin_points(tasks, method)
    stage = Stage(stage.learner, tasks, 2, 1, stage.load)
    method.side = torch.eye(6).view(3, 2, 6), torch.zeros(3, 2)
    # outputs are ordered by task, classifier, class, and those of the task before count
    old = truth["old_side_logits"][:, 6:12]
    method.old = lambda batch, head: Output(old, truth["old_logits"])
    logits = truth["logits"].clone().requires_grad_()
    side = truth["side_logits"].clone().requires_grad_()
    batch = {"labels": truth["labels"]}
    loss = method.loss(stage, tasks[2], batch, Output(side[:, 6:12], logits))
    loss.backward()
    assert_close(loss.detach().view(1), truth["stage1_loss"], rtol=1e-4, atol=0)
    assert_close(logits.grad, truth["stage1_grad"], rtol=0, atol=1e-4)
    assert_close(side.grad, truth["stage1_side_grad"], rtol=0, atol=1e-4)


def test_the_loss_of_side_classifiers_is_that_of_the_public_code():
    truth = load_file(ZOO / "muc.safetensors")
    known = truth["stage3_side_logits"].clone().requires_grad_()
    unknown = truth["stage3_side_logits_elsewhere"].clone().requires_grad_()
    labels = truth["labels"] - 4
    loss = compare_side(known[:, 12:].view(5, 3, 2), labels, unknown[:, 12:].view(5, 3, 2))
    loss.backward()
    assert_close(loss.detach().view(1), truth["stage3_loss"], rtol=1e-4, atol=0)
    assert_close(known.grad, truth["stage3_grad"], rtol=0, atol=1e-4)
    assert_close(unknown.grad, truth["stage3_grad_elsewhere"], rtol=0, atol=1e-4)


def test_side_classifiers_are_right_about_the_task_and_disagree_elsewhere():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    inside = 3 * F.one_hot(labels, 8).float() + 0.3 * torch.randn(60, 8, generator=generator)
    outside = 3 * torch.randn(60, 8, generator=generator)
    side = Muc(epochs=40).fit_side(Features(inside, labels), outside, generator)
    answers = answer_side(side, inside).argmax(dim=2)  # [examples, classifiers]
    assert bool((answers == labels[:, None]).float().mean() > 0.95)

    def disagree(features):
        first, second, _ = answer_side(side, features).softmax(dim=2).unbind(dim=1)
        return float((first - second).abs().mean())

    assert disagree(outside) > 10 * disagree(inside)


def test_it_learns_with_a_folder_of_images(tmp_path):
    for number in range(3):
        Image.new("L", (20, 30), 80 * number).save(tmp_path / f"{number}.png")
    options = {"method__outside": str(tmp_path), "method__epochs": 2, "tasks__shapes__classes": 4}
    run = learn(configure("shapes:2x2", "muc", **options), tmp_path / "run")
    weight, bias = run.method.side
    assert weight.shape == (3, 2, run.learner.encoder.width)
    assert bias.shape == (3, 2)


@pytest.mark.parametrize(
    ("outside", "message"),
    [
        (None, "needs images from elsewhere: set method.outside to a folder"),
        ("shapes", "the data set that is being learned"),
        ("no/such/folder", "'no/such/folder' is not a folder with images"),
    ],
)
def test_it_is_refused_without_images_from_elsewhere(outside, message):
    with pytest.raises(ConfigError, match=message):
        resolve(configure("shapes:2x2", "muc", method__outside=outside, tasks__shapes__classes=4))

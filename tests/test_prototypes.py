"""PASS and SSRE: the authors' numbers, closed forms, and what moves in a task."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_run import (
    assert_identical,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    moved,
    resolve,
)
from torch import nn
from torch.testing import assert_close

import mcit.prototypes
from mcit.class_statistics import Features, draw_prototypes
from mcit.errors import ConfigError
from mcit.method import Stage
from mcit.methods.finetune import Finetune
from mcit.methods.ssre import Ssre
from mcit.models.backbone import Backbone
from mcit.models.learner import Learner
from mcit.models.taps import add_taps, find_convolutions, fold_taps
from mcit.prototypes import measure_prototypes
from mcit.registry import find_method

# the name of its module is a keyword
Pass = find_method("pass")
FIXTURE = load_file(Path(__file__).parent / "fixtures" / "zoo" / "pass.safetensors")


class FirstNumbers(Backbone):
    """The first 512 numbers of an image, times a scale."""

    reads = frozenset({"images"})
    width = 512

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return self.scale * batch["pixel_values"].flatten(1)[:, None, :512]

    def layers(self):
        return []


def test_prototypes_and_radius_are_the_authors():
    # the last, incomplete batch does not count in their code
    kept = slice(0, 16)
    features = Features(FIXTURE["features_first"][kept], FIXTURE["labels_first"][kept])
    means, radius = measure_prototypes(features)
    assert_close(means, FIXTURE["prototypes"], rtol=1e-4, atol=1e-5)
    assert radius == pytest.approx(float(FIXTURE["radius"]), rel=1e-4)


def test_the_loss_of_pass_and_its_gradient_are_the_authors(monkeypatch):
    method = Pass()
    tasks = resolve(configure("shapes:3x1", "pass", tasks__shapes__classes=3)).tasks
    learner = Learner(FirstNumbers())
    stage = Stage(learner, tasks, 2, 1, load=None)
    task = stage.task
    learner.grow(task.head)
    method.begin_task(stage)
    # their head has four rows for each class, and ours the first of them and a head of the others
    order = [0, 4, 8], [4 * c + turns for c in range(3) for turns in (1, 2, 3)]
    for name, rows in zip(("classes", "rotations"), order, strict=True):
        linear = learner.heads[name].layers[0]
        linear.weight.data = FIXTURE["fc_weight"][rows].clone()
        linear.bias.data = FIXTURE["fc_bias"][rows].clone()
    method.old.encoder.scale.data.fill_(0.9)
    method.means = FIXTURE["prototypes"]
    method.radius = float(FIXTURE["radius"])

    def draw(means, count, radius):
        chosen = FIXTURE["drawn_prototypes"]
        assert count == len(chosen)
        return (means[chosen] + radius * FIXTURE["drawn_noise"]).float(), chosen

    monkeypatch.setattr(mcit.prototypes, "draw_prototypes", draw)
    batch = {"pixel_values": FIXTURE["images"], "labels": FIXTURE["labels"]}
    batch = method.prepare_batch(stage, task, batch)
    assert_close(batch["pixel_values"], FIXTURE["rotated"])
    output = learner(batch, task.head, method.extra_head(stage, task))
    loss = method.loss(stage, task, batch, output)
    assert_close(loss, FIXTURE["loss_classification"].squeeze(), rtol=1e-4, atol=0)
    total = loss + method.extra_loss(stage, batch, output)
    assert_close(total, FIXTURE["loss"].squeeze(), rtol=1e-4, atol=0)
    total.backward()
    expected = FIXTURE["grad_fc_weight"]
    tolerance = 1e-4 * float(expected.abs().max())
    for name, rows in zip(("classes", "rotations"), order, strict=True):
        found = learner.heads[name].layers[0].weight.grad
        assert_close(found, expected[rows], rtol=0, atol=tolerance)


def test_pass_without_weights_rotations_and_temperature_is_finetuning_bit_for_bit():
    states = []
    nothing = {"distillation": 0.0, "prototypes": 0.0, "temperature": 1.0, "rotations": False}
    for method in (Pass(**nothing), Finetune()):
        stage, trainer = begin_points(make_points([2, 3], epochs=2), method)
        trainer.fit(stage, method)
        method.end_task(stage)
        stage = go_on(stage, method, trainer)
        trainer.fit(stage, method)
        states.append(copy_state(stage.learner))
    assert_identical(*states)


def test_features_that_have_not_moved_have_no_gradient():
    features = torch.ones(3, 4, requires_grad=True)
    importlib.import_module(Pass.__module__).find_distance(features, torch.ones(3, 4)).backward()
    assert torch.equal(features.grad, torch.zeros(3, 4))


def test_prototypes_are_drawn_around_the_means_of_all_old_classes():
    torch.manual_seed(0)
    means = torch.tensor([[0.0, 5.0], [9.0, -9.0]])
    features, labels = draw_prototypes(means, 4000, radius=0.5)
    assert labels.float().mean() == pytest.approx(0.5, abs=0.05)
    noise = features - means[labels]
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    exact, labels = draw_prototypes(means, 7)
    assert torch.equal(exact, means[labels])


# SSRE


def test_a_tap_is_a_convolution_of_one_pixel_beside_one_of_nine_and_folding_changes_nothing():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 2, 1))
    weights = list(network.parameters())
    images = torch.randn(2, 3, 8, 8)
    before = network(images)
    add_taps(network)
    assert torch.equal(network(images), before)
    (convolution,) = find_convolutions(network)
    added = convolution.parametrizations.weight[0].added
    added.data.normal_()
    plain = F.conv2d(images, weights[0], weights[1], stride=2, padding=1)
    beside = F.conv2d(images, added[:, :, None, None], stride=2)
    tapped = network(images)
    assert_close(tapped, network[1](plain + beside))
    fold_taps(network)
    assert torch.equal(network(images), tapped)
    # the same objects, in the same order
    assert all(a is b for a, b in zip(weights, network.parameters(), strict=True))


def test_the_loss_of_ssre_is_its_formula_row_by_row():
    method = Ssre(distillation=1.5, prototypes=4.0, temperature=0.5)
    stage, _ = begin_points(make_points([2, 3]), method)
    stage = Stage(stage.learner, stage.tasks, 1, 1, stage.load)
    stage.learner.grow(stage.task.head)
    method.old = stage.learner.frozen_copy()
    torch.manual_seed(0)
    method.means = torch.rand(2, 5)
    x, y = stage.task.x[18:26], stage.task.y[18:26]
    batch = {"x": x, "labels": y}
    for parameter in stage.learner.encoder.parameters():
        parameter.data += 0.1
    output = stage.learner(batch, stage.task.head)
    torch.manual_seed(1)
    found = method.loss(stage, stage.task, batch, output)
    found = found + method.extra_loss(stage, batch, output)
    before = method.old(batch, stage.task.head).features
    expected = 0.0
    for f, f_old, z, label in zip(output.features, before, output.logits, y, strict=True):
        likeness = max(float(F.cosine_similarity(f.detach(), mean, dim=0)) for mean in method.means)
        own = -(z / 0.5).log_softmax(dim=0)[label]
        expected = expected + (1 - likeness) * own / len(y)
        expected = expected + 1.5 * likeness * (f - f_old).norm()
    torch.manual_seed(1)
    features, labels = draw_prototypes(method.means, len(y))
    logits = stage.learner.answer(features, stage.task.head)
    expected = expected + 4.0 * F.cross_entropy(logits / 0.5, labels)
    assert_close(found, expected)


def test_ssre_moves_the_middle_of_kernels_and_the_head_in_later_tasks(tmp_path):
    options = {
        "tasks__shapes__classes": 4,
        "tasks__shapes__recipe__learning_rate": 1e-3,
        "training__refresh_batchnorm": True,
    }
    first, second = learn(configure("shapes:2x2", "ssre", **options), tmp_path).states
    changed = moved(first, second)
    assert changed
    for name in changed:
        if name.startswith("heads."):
            continue
        difference = (second[name] - first[name]).abs()
        assert difference[:, :, 1, 1].any()
        difference[:, :, 1, 1] = 0
        assert not difference.any(), name


@pytest.mark.parametrize(
    ("method", "order", "options", "problem"),
    [
        ("pass", "shapes:2x3", {"recipe": "rotations"}, "rotates images itself"),
        ("pass", "nlvr2,snli-ve", {}, "heads of their own"),
        ("ssre", "shapes:2x3", {"model__name": "some/vit", "model__width": None}, "from scratch"),
        ("pass", "shapes:2x3", {"method__temperature": 0}, "temperature must be above 0"),
        ("ssre", "shapes:2x3", {"method__prototypes": -1}, "prototypes must be at least 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_built(method, order, options, problem):
    world = {} if order.startswith("nlvr2") else None
    with pytest.raises(ConfigError, match=problem):
        resolve(configure(order, method, world, **options))

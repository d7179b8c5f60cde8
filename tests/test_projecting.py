"""Projected steps: earlier inputs keep their outputs, in closed form and as the public code does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import (
    Points,
    assert_identical,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    moved,
)
from torch import nn
from torch.testing import assert_close
from torch.utils.data import TensorDataset

from mcit.config.schema import LoraConfig
from mcit.method import Stage
from mcit.methods.adam_nscl import AdamNscl
from mcit.methods.gpm import Gpm, extend_basis
from mcit.models.backbone import Backbone, Layer
from mcit.models.learner import Learner
from mcit.projecting import Projection, Projector, list_patches
from mcit.training.trainer import Reader

ZOO = Path(__file__).parent / "fixtures" / "zoo"
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.05},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5, "learning_rate": 0.01},
}


def make_few(**recipe):
    """Two tasks with fewer points than a layer has inputs, so that some directions are free."""
    return make_points([2, 3], each=2, epochs=5, batch_size=2, **recipe)


def read_logits(learner, task, count):
    """Logits of the first `count` classes for all examples of a task."""
    batch = task.collate([task.examples("plain")[i] for i in range(4)], None)
    learner.eval()
    head = replace(task.head, outputs=learner.outputs(task.head))
    return learner(batch, head).logits[:, :count].detach()


@pytest.mark.parametrize("lora", [False, True], ids=["weights", "lora"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "method", [Gpm(threshold=1.0), AdamNscl(average=False, shrink=False)], ids=["gpm", "adam_nscl"]
)
def test_the_first_task_s_answers_do_not_change(method, optimizer, lora):
    method = replace(method)
    tasks = make_few(**OPTIMIZERS[optimizer])
    stage, trainer = begin_points(tasks, method, log_every=1000)
    if lora:
        stage.learner.encoder.requires_grad_(False)
        stage.learner.add_adapter("default", LoraConfig(rank=5, targets=("l1", "l2")))
    trainer.fit(stage, method)
    method.end_task(stage)
    before = read_logits(stage.learner, tasks[0], 2)
    old = copy_state(stage.learner.encoder)
    stage = go_on(stage, method, trainer)
    trainer.fit(stage, method)
    changed = moved(old, stage.learner.encoder.state_dict())
    assert len(changed) >= 2
    assert_close(read_logits(stage.learner, tasks[0], 2), before, rtol=0, atol=1e-5)


def test_the_step_of_a_convolution_leaves_the_outputs_of_seen_images():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=1, bias=False)
    seen, new = torch.randn(2, 1, 3, 5, 5)
    before = conv(seen), conv(new)
    basis = extend_basis(None, list_patches(conv, seen), 1.0)
    assert basis.shape == (27, 9)
    with torch.no_grad():
        step = Projector.avoid(basis)(torch.randn(4, 27))
        conv.weight += step.view_as(conv.weight)
    assert_close(conv(seen), before[0], rtol=0, atol=1e-5)
    assert float((conv(new) - before[1]).detach().abs().max()) > 0.1


def test_patches_are_what_a_convolution_multiplies_its_weights_with():
    torch.manual_seed(1)
    conv = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False)
    images = torch.randn(2, 3, 7, 6)
    patches = list_patches(conv, images)
    found = patches @ conv.weight.flatten(1).T  # [patches, outputs]
    assert_close(found, conv(images).permute(0, 2, 3, 1).reshape(-1, 4))


@pytest.mark.parametrize("taken", [3, 8])
def test_few_free_directions_and_few_taken_ones_give_the_same_projection(taken):
    basis = torch.linalg.qr(torch.randn(10, taken, generator=torch.Generator().manual_seed(2))).Q
    projector = Projector.avoid(basis)
    assert projector.directions.shape[1] <= 5
    step = torch.randn(4, 10)
    assert_close(projector(step), step - step @ basis @ basis.T)


def test_a_basis_grows_as_the_singular_values_say():
    """The public code's rule, by a singular value decomposition of all that was seen."""
    generator = torch.Generator().manual_seed(3)
    scales = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5, 0.2])
    first = torch.randn(30, 6, generator=generator) * scales
    second = torch.randn(4, 6, generator=generator) * scales.flip(0)
    basis = extend_basis(None, first, 0.9)
    _, values, right = torch.linalg.svd(first.double(), full_matrices=False)
    shares = (values.square() / values.square().sum()).cumsum(0)
    count = int((shares < 0.9).sum())
    expected = right[:count].T
    assert_close(basis @ basis.T, (expected @ expected.T).float(), rtol=0, atol=1e-5)

    wider = extend_basis(basis, second, 0.95)
    inside = second.double() @ expected
    rest = second.double() - inside @ expected.T
    _, values, right = torch.linalg.svd(rest, full_matrices=False)
    share = float(inside.square().sum() / second.double().square().sum())
    added = 0
    while share < 0.95:
        share += float(values[added] ** 2 / second.double().square().sum())
        added += 1
    assert added >= 1
    together = torch.cat([expected, right[:added].T], dim=1)
    assert wider.shape[1] == count + added
    assert_close(wider @ wider.T, (together @ together.T).float(), rtol=0, atol=1e-5)


class Pair(Backbone):
    """A convolution and a linear layer that see inputs of their own."""

    reads = frozenset({"images"})
    width = 1

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
        self.linear = nn.Linear(5, 4)

    def forward(self, batch):
        whole = self.conv(batch["conv"]).flatten(1).sum(1) + self.linear(batch["linear"]).sum(1)
        return whole.view(-1, 1, 1)

    def layers(self):
        return [Layer("all", ("conv.", "linear."), "all")]


@dataclass(frozen=True, eq=False)
class PairTask(Points):
    """Examples for `Pair`."""

    def examples(self, split):
        return TensorDataset(self.x, self.y)

    def collate(self, examples, processor):
        conv, linear = (torch.stack(column) for column in zip(*examples, strict=True))
        return {"conv": conv, "linear": linear}


def test_the_null_space_and_the_steps_are_those_of_the_public_code():
    truth = load_file(ZOO / "adam_nscl.safetensors")
    conv = torch.cat([truth[f"batch{number}/conv_input"] for number in range(9)])
    linear = torch.cat([truth[f"batch{number}/linear_input"] for number in range(9)])
    # placed such that the batches that are drawn are those of the fixture
    order = torch.randperm(36, generator=torch.Generator().manual_seed(1))
    place = order.argsort()
    recipe = make_points([1, 1], batch_size=4)[0].recipe
    task = PairTask(conv[place], linear[place], 0, 1, recipe)
    stage, trainer = begin_points([task, task], AdamNscl(), log_every=1)
    learner = Learner(Pair())
    learner.grow(task.head)
    stage = Stage(learner, [task, task], 0, 1, Reader(trainer, learner, 0))
    encoder = learner.encoder
    with torch.no_grad():
        encoder.conv.weight.copy_(truth["conv/weight"])
        encoder.linear.weight.copy_(truth["linear/weight"])
        encoder.linear.bias.copy_(truth["bias/start"])
    method = AdamNscl(ratio=10.0)
    method.end_task(stage)
    close = {"rtol": 0, "atol": 1e-4}
    for name in ("conv", "linear"):
        covariance = truth[f"{name}/cov"]
        scale = float(covariance.max())
        assert_close(method.covariances[name] / scale, covariance / scale, **close)
        transform = method.make_projectors()[name](torch.eye(len(covariance)))
        assert_close(transform, truth[f"{name}/transform"], **close)
    projection = Projection(learner, method.make_projectors())
    weights = [encoder.conv.weight, encoder.linear.weight]
    groups = [{"params": weights, "lr": 5e-3}, {"params": [encoder.linear.bias], "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups, weight_decay=0.05)
    for number in range(3):
        encoder.conv.weight.grad = truth[f"step{number}/grad/conv"]
        encoder.linear.weight.grad = truth[f"step{number}/grad/linear"]
        encoder.linear.bias.grad = truth[f"step{number}/grad/bias"]
        projection.remember()
        optimizer.step()
        projection.project()
        assert_close(encoder.conv.weight.data, truth[f"step{number}/after/conv"], **close)
        assert_close(encoder.linear.weight.data, truth[f"step{number}/after/linear"], **close)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    config = configure("shapes:2x2", "finetune", tasks__shapes__classes=4)
    return learn(config, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    ("method", "off"), [("gpm", {"method__threshold": 0.0}), ("adam_nscl", {"method__ratio": None})]
)
def test_without_a_projector_it_is_finetuning_bit_for_bit(plain, tmp_path, method, off):
    run = learn(configure("shapes:2x2", method, tasks__shapes__classes=4, **off), tmp_path)
    assert_identical(run.state, plain.state)


@pytest.mark.parametrize("method", ["gpm", "adam_nscl"])
def test_what_cannot_be_projected_stays_and_the_rest_learns(plain, tmp_path, method):
    run = learn(configure("shapes:2x2", method, tasks__shapes__classes=4), tmp_path)
    first, second = run.states
    assert_identical(first, plain.states[0])
    # without the rows that the head has got since
    rows = {name: value[: len(first[name])] for name, value in second.items() if value.ndim}
    changed = moved(first, {**second, **rows})
    assert changed
    parameters = dict(run.learner.named_parameters())
    for name in changed:
        # a matrix of the backbone: no norm, statistic, bias or row of an earlier class
        assert parameters[name].ndim > 1, name
        assert run.learner.head_of(name) is None, name
    assert run.method.bytes_held() > 0

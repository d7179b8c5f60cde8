"""Learning without forgetting: the loss in closed form, a teacher that stays as it was, and a run
that goes on."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_run import (
    assert_identical,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    resolve,
    write_world,
)
from torch import nn
from torch.testing import assert_close

from mcit.config.schema import LoraConfig
from mcit.errors import ConfigError
from mcit.methods.finetune import Finetune
from mcit.methods.lwf import Lwf, distill, distill_answers, distill_words
from mcit.models.backbone import Backbone, Layer
from mcit.models.learner import Learner
from mcit.task import Head, Output


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def reach_second_task(method, **recipe):
    """Two tasks of two and three classes over points; the first is learned, the second has
    begun."""
    tasks = make_points([2, 3], **recipe)
    stage, trainer = begin_points(tasks, method, log_every=1000)
    trainer.fit(stage, method)
    method.end_task(stage)
    return go_on(stage, method, trainer), trainer


def read_batch(stage):
    return next(iter(stage.load(stage.task, "train"))).batch


def test_the_distance_is_the_softened_cross_entropy_without_a_temperature_factor():
    new, old = np.random.default_rng(0).normal(size=(2, 5, 3))
    expected = -(softmax(old / 2) * np.log(softmax(new / 2))).sum(axis=1).mean()
    found = distill(torch.tensor(new), torch.tensor(old), temperature=2.0)
    assert_close(float(found), float(expected), rtol=1e-6, atol=0)


def test_two_even_classes_cost_the_entropy_of_a_coin():
    assert_close(
        distill(torch.zeros(4, 2), torch.zeros(4, 2), 2.0),
        torch.tensor(np.log(2), dtype=torch.float32),
    )


def test_the_added_gradient_is_that_of_the_closed_form_and_spares_the_new_classes():
    method = Lwf(strength=3.0, temperature=2.0)
    stage, _ = reach_second_task(method)
    batch = read_batch(stage)
    learner = copy.deepcopy(stage.learner).eval()
    teacher = learner(batch, stage.task.head).logits[:, :2].detach().double().numpy()
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(teacher), 5, generator=generator, requires_grad=True)
    method.extra_loss(stage, batch, Output(torch.zeros(len(teacher), 5), logits)).backward()
    old = logits.detach().numpy()[:, :2].astype(np.float64)
    expected = np.zeros(logits.shape)
    expected[:, :2] = 3 / 2 / len(logits) * (softmax(old / 2) - softmax(teacher / 2))
    assert_close(logits.grad, torch.tensor(expected, dtype=torch.float32))


def test_the_first_task_has_no_teacher():
    method = Lwf(strength=3.0)
    stage, _ = begin_points(make_points([2, 3]), method)
    output = Output(torch.zeros(8, 5), torch.zeros(8, 2))
    assert method.extra_loss(stage, read_batch(stage), output) is None
    assert method.state_dict() == {}
    assert method.bytes_held() == 0


def test_a_step_is_one_on_the_sum_of_both_losses():
    method = Lwf(strength=3.0)
    stage, trainer = reach_second_task(method, batch_size=1000)
    batch = read_batch(stage)
    reference = copy.deepcopy(stage.learner)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, 0.9)
    logits = reference(batch, stage.task.head).logits
    taught = torch.softmax(logits.detach()[:, :2] / 2, dim=1)
    own = F.cross_entropy(logits[:, 2:], batch["labels"] - 2)
    distillation = -(taught * torch.log_softmax(logits[:, :2] / 2, dim=1)).sum(dim=1).mean()
    (own + 3 * distillation).backward()
    optimizer.step()
    trainer.fit(stage, method)
    assert_close(copy_state(stage.learner), copy_state(reference))


def test_strength_zero_is_finetuning_bit_for_bit():
    states = []
    for method in (Lwf(strength=0.0), Finetune()):
        stage, trainer = reach_second_task(method, epochs=2)
        trainer.fit(stage, method)
        states.append(copy_state(stage.learner))
    assert_identical(*states)


def test_the_answers_about_old_classes_move_less_than_under_finetuning():
    def drift(method) -> float:
        stage, trainer = reach_second_task(method, epochs=6, learning_rate=0.3)
        batch = read_batch(stage)
        before = ask_old_classes(stage, batch)
        trainer.fit(stage, method)
        return float((ask_old_classes(stage, batch) - before).norm())

    assert drift(Lwf(strength=3.0)) < drift(Finetune()) / 2


def ask_old_classes(stage, batch):
    logits = stage.learner(batch, stage.task.head).logits.detach()
    return logits[:, :2].softmax(dim=1)


class Normed(Backbone):
    """Features of points behind BatchNorm."""

    reads = frozenset({"images"})
    width = 5

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, batch):
        return self.norm(self.layer(batch["x"])).unsqueeze(1)

    def layers(self):
        return [Layer("all", ("layer.", "norm."), "all")]


def test_the_teacher_is_frozen_and_its_batchnorm_neither_looks_at_the_batch_nor_learns_from_it():
    method = Lwf(strength=3.0)
    first, second = make_points([2, 3])
    stage, trainer = begin_points([first, second], method)
    stage.learner = Learner(Normed())
    stage.learner.grow(first.head)
    stage = go_on(stage, method, trainer)
    before = copy_state(method.old)
    trainer.fit(stage, method)
    assert_identical(copy_state(method.old), before)
    assert not [name for name, tensor in method.old.tensors.items() if tensor.requires_grad]
    assert all(module.training for module in stage.learner.modules())
    assert int(stage.learner.encoder.norm.num_batches_tracked) > 0
    batch = read_batch(stage)
    one = {name: values[:1] for name, values in batch.items()}
    assert_close(method.old(one, second.head).logits, method.old(batch, second.head).logits[:1])


def test_a_run_resumed_within_a_task_has_the_teacher_of_its_beginning():
    method = Lwf(strength=3.0)
    stage, trainer = reach_second_task(method)
    expected = copy_state(method.old)
    # the learner moves on
    trainer.fit(stage, method)
    resumed = Lwf(strength=3.0)
    resumed.restore(stage, method.state_dict())
    assert_identical(copy_state(resumed.old), expected)
    assert not [name for name, tensor in resumed.old.tensors.items() if tensor.requires_grad]


def test_a_run_resumed_within_its_first_task_has_no_teacher():
    method = Lwf(strength=3.0)
    stage, _ = begin_points(make_points([2, 3]), method)
    resumed = Lwf(strength=3.0)
    resumed.restore(stage, method.state_dict())
    assert resumed.old is None


def test_a_run_resumed_between_tasks_takes_the_learner_as_it_is():
    tasks = make_points([2, 3, 2])
    method = Lwf(strength=3.0)
    stage, trainer = begin_points(tasks, method)
    stage = go_on(stage, method, trainer)
    trainer.fit(stage, method)
    resumed = Lwf(strength=3.0)
    resumed.restore(stage, method.state_dict())
    stage = go_on(stage, resumed, trainer)
    assert_identical(copy_state(resumed.old), copy_state(stage.learner))


def test_one_network_is_held():
    method = Lwf(strength=3.0)
    stage, _ = reach_second_task(method)
    assert method.bytes_held() == sum(
        t.numel() * t.element_size() for t in stage.learner.state_dict().values()
    )
    assert method.state_dict()["old"].keys() == stage.learner.state_dict().keys()


def test_it_runs_over_a_sequence_of_images(tmp_path):
    run = learn(configure("shapes:3x2", "lwf", method__strength=3.0), tmp_path)
    assert [len(row) for row in run.rows] == [1, 2, 3]
    assert "strength 3, temperature 2" in run.result.to_dict()["estimator"]


@pytest.mark.parametrize(("option", "value"), [("strength", -1.0), ("temperature", 0.0)])
def test_impossible_options_are_refused(option, value):
    config = configure("shapes:3x2", "lwf", **{"method__strength": 3.0, f"method__{option}": value})
    with pytest.raises(ConfigError, match=f"method.{option} must be"):
        resolve(config)


# Tasks with heads of their own, and answers in words


def test_answers_that_may_hold_together_are_distilled_by_sigmoids():
    new, old = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    wanted = torch.sigmoid(old / 2)
    given = torch.sigmoid(new / 2)
    each = -(wanted * given.log() + (1 - wanted) * (1 - given).log())
    head = Head("words", 3, kind="multi_label")
    assert_close(distill_answers(head, new, old, 2.0), each.sum(dim=1).mean())


def test_words_count_where_they_answer_and_every_answer_counts_once():
    new, old = torch.randn(2, 2, 4, 7, generator=torch.Generator().manual_seed(0))
    answered = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]]).bool()
    places = [distill(new[0, 1:], old[0, 1:], 2.0), distill(new[1, 3:], old[1, 3:], 2.0)]
    assert_close(distill_words(new, old, answered, 2.0), sum(places) / 2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


class Watched(Lwf):
    """Keeps what is added to the loss of every batch, and what its terms should sum to."""

    def begin_task(self, stage):
        self.seen = []
        self.before = copy.deepcopy(stage.learner).eval()
        return super().begin_task(stage)

    def extra_loss(self, stage, batch, output):
        found = super().extra_loss(stage, batch, output)
        if found is not None:
            taught = self.before(batch, stage.task.head).features.detach()
            self.seen.append((float(found.detach()), output.features.detach(), taught))
        return found


@pytest.mark.parametrize("rank", [0, 2])
def test_earlier_heads_answer_for_new_inputs_and_features_stand_for_those_that_cannot(
    world, tmp_path, rank
):
    method = Watched(strength=3.0)
    config = configure("snli-ve,nlvr2,vqa", "lwf", world, method__strength=3.0)
    config = replace(config, model=replace(config.model, lora=LoraConfig(rank=rank)))
    run = learn(config, tmp_path, method=method)
    # a pair of images came second: its head cannot read the one image of the third task
    head = method.before.heads["snli-ve"]
    for found, features, taught in method.seen:
        own = distill(head(features[:, None]), head(taught[:, None]), 2.0)
        expected = 3 * (own + F.mse_loss(features, taught)).detach()
        assert_close(found, float(expected), rtol=1e-4, atol=0)
    assert len(method.seen) == 3
    assert [len(row) for row in run.rows] == [1, 2, 3]
    kept = {name for name in method.old.tensors if name.startswith("encoder.")}
    assert all("lora_" in name for name in kept) == bool(rank)


def test_strength_zero_is_finetuning_bit_for_bit_with_heads(world, tmp_path):
    runs = []
    for name, options in (("finetune", {}), ("lwf", {"method__strength": 0.0})):
        config = configure("vcr,nlvr2", name, world, **options)
        runs.append(learn(config, tmp_path / name))
    assert_identical(runs[0].state, runs[1].state)

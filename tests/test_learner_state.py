"""What a checkpoint holds of a learner: what may have changed, and a digest of a frozen base."""

from __future__ import annotations

import pytest
import torch
from tiny_run import Perceptron, assert_identical, configure, copy_state, learn, write_world
from torch import nn

from mcit.checkpoint import CheckpointError, list_checkpoints, read_checkpoint
from mcit.config.schema import LoraConfig
from mcit.models.learner import Learner
from mcit.runner.learner_state import LearnerStore
from mcit.session import Session
from mcit.task import Head

HEAD = Head("classes", 3, layout="linear")


class Adaptable(Perceptron):
    """Points through two layers, of which the first takes adapters."""

    lora_targets = ("l1",)


def make_learner(seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    return Learner(Adaptable())


def adapt(learner: Learner) -> None:
    """Freeze the base, and add an adapter and a head that train."""
    learner.encoder.requires_grad_(False)
    learner.add_adapter("first", LoraConfig(rank=2))
    learner.grow(HEAD)
    with torch.no_grad():
        learner.encoder.l1.lora_B["first"].weight.normal_()


def test_a_base_that_trains_is_stored_whole():
    learner = make_learner()
    store = LearnerStore(learner)
    learner.grow(HEAD)
    state = store.take()
    assert state.tensors.keys() == learner.state_dict().keys()
    assert state.base is None
    assert not state.frozen


def test_a_frozen_base_is_stored_by_its_digest_alone():
    learner = make_learner()
    store = LearnerStore(learner)
    adapt(learner)
    state = store.take()
    assert set(state.tensors) == {
        "encoder.l1.lora_A.first.weight",
        "encoder.l1.lora_B.first.weight",
        "heads.classes.layers.0.weight",
        "heads.classes.layers.0.bias",
    }
    assert len(state.base) == 64
    assert "encoder.l1.base_layer.weight" in state.frozen


def test_a_learner_built_again_is_brought_to_the_state():
    learner = make_learner()
    store = LearnerStore(learner)
    adapt(learner)
    learner.eval()
    state = store.take()
    again = make_learner()
    LearnerStore(again).restore(state)
    assert_identical(copy_state(again), copy_state(learner))
    assert not again.training
    trained = {name for name, p in learner.named_parameters() if p.requires_grad}
    assert {name for name, p in again.named_parameters() if p.requires_grad} == trained


def test_a_base_that_was_frozen_late_is_stored_as_it_has_become():
    learner = make_learner()
    store = LearnerStore(learner)
    store.take()
    with torch.no_grad():
        learner.encoder.l2.weight.add_(1)
    learner.encoder.requires_grad_(False)
    state = store.take()
    assert "encoder.l2.weight" in state.tensors
    assert state.base is None


def test_what_has_trained_before_a_resumption_stays_in_later_states():
    learner = make_learner()
    learner_state = LearnerStore(learner).take()
    again = make_learner()
    store = LearnerStore(again)
    store.restore(learner_state)
    again.encoder.requires_grad_(False)
    assert set(store.take().tensors) == set(learner_state.tensors)


def test_buffers_of_a_frozen_base_are_stored():
    learner = Learner(Adaptable())
    learner.encoder.norm = nn.BatchNorm1d(5)
    store = LearnerStore(learner)
    learner.encoder.requires_grad_(False)
    kept = {"running_mean", "running_var", "num_batches_tracked"}
    assert set(store.take().tensors) == {f"encoder.norm.{name}" for name in kept}


def test_another_base_is_refused_with_what_to_do():
    learner = make_learner()
    store = LearnerStore(learner)
    adapt(learner)
    other = LearnerStore(make_learner(seed=1))
    with pytest.raises(
        CheckpointError, match=r"frozen weights are not those .* use the same model"
    ):
        other.restore(store.take())


def test_a_state_of_another_network_is_refused_by_the_name_of_a_weight():
    learner = make_learner()
    state = LearnerStore(learner).take()
    other = Learner(Adaptable())
    other.encoder.extra = nn.Linear(2, 2)
    del state.tensors["encoder.l1.weight"]
    state.tensors["encoder.l3.weight"] = torch.zeros(2)
    with pytest.raises(CheckpointError, match=r"does not fit the network: see encoder\.l3\.weight"):
        LearnerStore(other).restore(state)


# In runs


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


def read_newest(run):
    return read_checkpoint(list_checkpoints(run.result.output / "checkpoints")[0])


@pytest.mark.parametrize(
    ("method", "options"),
    [("adapters", {"method__rank": 2}), ("finetune", {"model__lora__rank": 2})],
)
def test_a_checkpoint_of_a_run_with_adapters_holds_what_trains(world, tmp_path, method, options):
    run = learn(configure("snli-ve,nlvr2", method, world, **options), tmp_path)
    state = read_newest(run).learner
    assert all("lora_" in name or name.startswith("heads.") for name in state.tensors)
    adapters = 2 if method == "adapters" else 1
    # two matrices at query and value of two layers
    assert len([name for name in state.tensors if "lora_" in name]) == adapters * 2 * 2 * 2
    assert state.base is not None


@pytest.mark.parametrize(
    ("method", "options"),
    [("adapters", {"method__rank": 2}), ("finetune", {"model__lora__rank": 2})],
)
def test_a_run_with_adapters_is_restored_bit_for_bit(world, tmp_path, method, options):
    run = learn(configure("snli-ve,nlvr2", method, world, **options), tmp_path)
    session = Session(run.result.plan)
    session.restore(read_newest(run))
    assert_identical(copy_state(session.learner), run.state)


def test_a_run_is_not_resumed_on_another_base(world, tmp_path):
    config = configure("snli-ve,nlvr2", "finetune", world, model__lora__rank=2)
    run = learn(config, tmp_path / "run")
    checkpoint = read_newest(run)
    session = Session(run.result.plan)
    with torch.no_grad():
        session.learner.encoder.vilt.pooler.dense.weight.add_(1e-3)
    with pytest.raises(CheckpointError, match=r"use the same model\.name, with the same files"):
        session.restore(checkpoint)

"""Heads, how they grow, and the learner that holds them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mcit.config.schema import LoraConfig, ModelConfig
from mcit.errors import ConfigError, DataError
from mcit.models import build, find_model_problems
from mcit.models.backbone import Backbone, Layer
from mcit.models.heads import TaskHead
from mcit.models.learner import Learner
from mcit.registry import find_task
from mcit.task import Head

WIDTH = 6


class TinyEncoder(Backbone):
    """Features from a table, so that a head's arithmetic can be checked by hand."""

    reads = frozenset({"images"})
    lora_targets = ("layer",)

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)

    def forward(self, batch):
        return self.frozen(self.layer(batch["x"]))

    def layers(self):
        return [Layer("all", ("layer.", "frozen."), "all")]


def make_learner(*heads: Head) -> Learner:
    torch.manual_seed(0)
    learner = Learner(TinyEncoder())
    for head in heads:
        learner.grow(head)
    return learner.eval()


def make_batch(batch: int = 3, views: int = 1):
    return {"x": torch.randn(batch, views, WIDTH, generator=torch.Generator().manual_seed(1))}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


VQA = Head("vqa", 3129, "multi_label")
NLVR2 = Head("nlvr2", 2, views=2)
SNLI_VE = Head("snli-ve", 3)
VCR = Head("vcr", 4, "choice", "linear", views=4)
CLASSES = Head("classes", 5, layout="linear")


@pytest.mark.parametrize(
    ("head", "size"), [(VQA, 5_993_529), (NLVR2, 2_366_978), (SNLI_VE, 1_188_867), (VCR, 769)]
)
def test_heads_have_the_size_of_the_reference(head, size):
    assert count(TaskHead(head, 768)) == size


@pytest.mark.parametrize(("head", "first"), [(VQA, 768), (NLVR2, 1536)])
def test_the_layers_of_an_mlp_are_those_of_the_reference(head, first):
    linear, norm, activation, last = TaskHead(head, 768).layers
    assert (linear.in_features, linear.out_features, last.in_features) == (first, 1536, 1536)
    assert norm.normalized_shape == (1536,)
    assert isinstance(activation, nn.GELU)


@pytest.mark.parametrize(
    "head", [Head("a", 7), NLVR2, VCR, CLASSES, Head("b", 4, "choice", views=4)]
)
def test_logits_have_one_column_per_output(head):
    logits = make_learner(head)(make_batch(views=head.views), head).logits
    assert logits.shape == (3, head.outputs)


@pytest.mark.parametrize("head", [CLASSES, NLVR2, VCR])
def test_features_are_the_views_of_the_encoder_one_after_the_other(head):
    learner = make_learner(head)
    batch = make_batch(views=head.views)
    features = learner(batch, head).features
    assert torch.equal(features, learner.encoder(batch).flatten(1))
    assert features.shape == (3, head.views * WIDTH)


def test_what_is_scored_are_the_logits_in_single_precision():
    learner = make_learner(SNLI_VE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = learner.predict(make_batch(), SNLI_VE)
        logits = learner(make_batch(), SNLI_VE).logits
    assert logits.dtype == torch.bfloat16
    assert torch.equal(predicted, logits.float())


def test_a_choice_scores_every_view_by_itself():
    learner = make_learner(VCR)
    batch = make_batch(views=4)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = learner({"x": batch["x"][:, order]}, VCR).logits
    assert_close(shuffled, learner(batch, VCR).logits[:, order])
    assert learner.heads["vcr"].layers[0].p == 0.1


def test_a_pair_is_seen_side_by_side():
    learner = make_learner(NLVR2)
    batch = make_batch(views=2)
    features = learner.encoder(batch)
    expected = learner.heads["nlvr2"].layers(torch.cat([features[:, 0], features[:, 1]], dim=1))
    assert_close(learner(batch, NLVR2).logits, expected)


def test_a_batch_of_one_keeps_its_shape():
    assert make_learner(VCR)(make_batch(1, 4), VCR).logits.shape == (1, 4)


def test_new_rows_leave_the_old_bit_for_bit():
    learner = make_learner(CLASSES)
    with torch.no_grad():
        learner.heads["classes"].layers[-1].bias.normal_()
    old = {name: tensor.clone() for name, tensor in learner.heads["classes"].state_dict().items()}
    logits = learner(make_batch(), CLASSES).logits
    wider = Head("classes", 8, layout="linear")
    learner.grow(wider)
    linear = learner.heads["classes"].layers[-1]
    assert (linear.out_features, linear.weight.shape, linear.bias.shape) == (8, (8, WIDTH), (8,))
    assert torch.equal(linear.weight[:5], old["layers.0.weight"])
    assert torch.equal(linear.bias[:5], old["layers.0.bias"])
    assert_close(learner(make_batch(), wider).logits[:, :5], logits)


def test_new_rows_start_uniform_within_the_bound_of_their_inputs_and_without_bias():
    torch.manual_seed(0)
    head = TaskHead(Head("classes", 2, layout="linear"), 400)
    head.grow(200)
    linear = head.layers[-1]
    bound = (3 / 400) ** 0.5
    assert torch.equal(linear.bias, torch.zeros(200))
    for rows in (linear.weight[:2], linear.weight[2:]):
        assert rows.abs().max() <= bound
        assert_close(rows.std().item(), bound / 3**0.5, rtol=0.1, atol=0)


def test_a_grown_head_is_free_to_move():
    learner = make_learner(CLASSES)
    wider = Head("classes", 8, layout="linear")
    learner.grow(wider)
    learner.activate(wider)
    learner(make_batch(), wider).logits.square().sum().backward()
    assert (learner.heads["classes"].layers[-1].weight.grad.abs().sum(dim=1) > 0).all()


def test_growing_to_the_same_size_changes_nothing():
    learner = make_learner(CLASSES)
    before = learner.heads["classes"].layers[-1].weight
    state = torch.get_rng_state()
    learner.grow(CLASSES)
    assert learner.heads["classes"].layers[-1].weight is before
    assert torch.equal(torch.get_rng_state(), state)


def test_an_mlp_widens_too():
    learner = make_learner(Head("vqa", 3, "multi_label"))
    logits = learner(make_batch(), Head("vqa", 3, "multi_label")).logits
    wider = Head("vqa", 6, "multi_label")
    learner.grow(wider)
    assert_close(learner(make_batch(), wider).logits[:, :3], logits)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (Head("classes", 4, layout="linear"), "has 5 outputs and cannot shrink to 4"),
        (
            Head("classes", 6, "multi_label", "linear"),
            r"is \(class, linear, 1 views\) and cannot become \(multi_label",
        ),
        (Head("classes", 6), r"cannot become \(class, mlp, 1 views\)"),
        (Head("classes", 6, layout="linear", views=2), r"cannot become \(class, linear, 2 views\)"),
    ],
)
def test_a_head_neither_shrinks_nor_changes_its_nature(head, message):
    with pytest.raises(ValueError, match=message):
        make_learner(CLASSES).grow(head)


def test_a_choice_has_as_many_outputs_as_views():
    with pytest.raises(ValueError, match="5 outputs need as many views, found 4"):
        make_learner(Head("vcr", 5, "choice", "linear", views=4))
    with pytest.raises(ValueError, match="chooses among 4 views and cannot have 5 outputs"):
        make_learner(VCR).grow(Head("vcr", 5, "choice", "linear", views=4))


def test_only_the_active_head_trains_and_the_encoder_is_left_alone():
    learner = make_learner(SNLI_VE, NLVR2, CLASSES)
    for active in (NLVR2, SNLI_VE):
        learner.activate(active)
        for name, parameter in learner.heads.named_parameters():
            assert parameter.requires_grad is name.startswith(f"{active.name}.")
        assert learner.encoder.layer.weight.requires_grad
        assert not learner.encoder.frozen.weight.requires_grad


def test_an_unknown_head_is_named():
    learner = make_learner(SNLI_VE, NLVR2)
    with pytest.raises(LookupError, match="unknown head 'nlvr'; did you mean 'nlvr2'"):
        learner(make_batch(), Head("nlvr", 2))
    with pytest.raises(LookupError, match="unknown head 'vqa'"):
        learner.activate(VQA)


def test_a_batch_with_the_wrong_number_of_views_is_named():
    with pytest.raises(ValueError, match="head 'nlvr2' needs 2 views, the batch has 1"):
        make_learner(NLVR2)(make_batch(), NLVR2)


def test_a_state_fits_a_learner_with_the_same_heads_in_any_order():
    first = make_learner(SNLI_VE, NLVR2)
    second = make_learner(NLVR2, SNLI_VE)
    second.load_state_dict(first.state_dict())
    assert_close(second(make_batch(), SNLI_VE).logits, first(make_batch(), SNLI_VE).logits)


def test_a_learner_knows_which_parameters_are_whose():
    learner = make_learner(SNLI_VE, CLASSES)
    assert learner.head_of("heads.snli-ve.layers.0.weight") == "snli-ve"
    assert learner.head_of("encoder.layer.weight") is None
    assert learner.outputs(CLASSES) == 5
    assert learner.outputs(VQA) == 0
    assert learner.known_heads == {"snli-ve": SNLI_VE, "classes": CLASSES}


def test_a_frozen_copy_stays_as_it_was_and_shares_the_processor():
    learner = make_learner(CLASSES)
    learner.processor = object()
    copied = learner.frozen_copy()
    before = copied(make_batch(), CLASSES).logits
    with torch.no_grad():
        learner.encoder.layer.weight.zero_()
    assert torch.equal(copied(make_batch(), CLASSES).logits, before)
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert not copied.training
    assert copied.processor is learner.processor


# structure


def test_a_structure_is_json_and_rebuilds_heads_and_adapters():
    learner = make_learner(NLVR2, CLASSES)
    learner.grow(Head("classes", 8, layout="linear"))
    learner.add_adapter("nlvr2", LoraConfig(rank=2))
    structure = json.loads(json.dumps(learner.structure()))
    again = make_learner()
    again.rebuild(structure)
    assert again.structure() == learner.structure()
    shapes = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    assert {name: tensor.shape for name, tensor in again.state_dict().items()} == shapes


def test_what_is_there_already_is_not_built_again():
    learner = make_learner(NLVR2)
    learner.add_adapter("nlvr2", LoraConfig(rank=2))
    before = {name: id(parameter) for name, parameter in learner.named_parameters()}
    learner.rebuild(learner.structure())
    assert {name: id(parameter) for name, parameter in learner.named_parameters()} == before


# adapters


def test_of_several_adapters_one_acts_and_trains():
    learner = make_learner(SNLI_VE)
    plain = learner(make_batch(), SNLI_VE).logits
    answers = {}
    for name in ("first", "second"):
        learner.add_adapter(name, LoraConfig(rank=2))
        with torch.no_grad():
            learner.encoder.layer.lora_B[name].weight.normal_()
        answers[name] = learner(make_batch(), SNLI_VE).logits
    learner.encoder.use_adapter("first")
    assert torch.equal(learner(make_batch(), SNLI_VE).logits, answers["first"])
    assert not torch.equal(answers["first"], answers["second"])
    assert not torch.equal(answers["first"], plain)
    trained = [n for n, p in learner.encoder.named_parameters() if p.requires_grad]
    assert trained == ["layer.lora_A.first.weight", "layer.lora_B.first.weight"]


def test_an_unknown_target_of_an_adapter_is_named():
    with pytest.raises(ConfigError, match="no layer 'layr'; did you mean 'layer'"):
        make_learner().add_adapter("a", LoraConfig(rank=2, targets=("layr",)))


# build


@pytest.fixture
def classes():
    return find_task("shapes").sequence("5x4", {}, seed=1)


@pytest.fixture
def pairs(tmp_path):
    return find_task("nlvr2").sequence(None, {"root": str(tmp_path)}, seed=1)


def test_a_resnet_is_built_by_its_name_with_the_stem_of_the_data_set(classes):
    learner = build(ModelConfig(name="resnet18", width=4), classes)
    head = Head("classes", 3, layout="linear")
    learner.grow(head)
    logits = learner({"pixel_values": torch.randn(2, 3, 16, 16)}, head).logits
    assert logits.shape == (2, 3)
    assert learner.processor is None
    assert learner.encoder.settings["stem"] == "podnet"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            ModelConfig(name="resnet18", lora=LoraConfig(rank=4)),
            "model.lora.rank needs pretrained weights, and 'resnet18' starts at random",
        ),
        (
            ModelConfig(name="resnet18", gradient_checkpointing=True),
            "model.gradient_checkpointing is an option of transformers' models",
        ),
        (
            ModelConfig(name="/some/vit", width=8),
            "model.width is an option of resnet18; other networks have a fixed width",
        ),
    ],
)
def test_an_option_the_backbone_does_not_have_is_refused(classes, config, problem):
    assert find_model_problems(config, classes) == [problem]


def test_a_backbone_that_cannot_read_the_tasks_is_refused(classes, pairs):
    (problem,) = find_model_problems(ModelConfig(name="resnet18"), pairs)
    assert problem == "model.name is 'resnet18', which reads no text; use a ViLT for nlvr2"
    problems = find_model_problems(ModelConfig(name="embedded"), classes[:1])
    assert "an image model of transformers: a hub name or a folder" in problems[0]


def test_a_backbone_that_does_not_exist_is_named(classes, pairs):
    for tasks in (classes, pairs):
        with pytest.raises(DataError, match="/no/such/folder: no checkpoint"):
            build(ModelConfig(name="/no/such/folder"), tasks)

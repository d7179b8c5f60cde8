"""Heads, how they grow, and the learner that holds them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mcit.config import ConfigError, LoraConfig, ModelConfig
from mcit.models import build
from mcit.models.heads import TaskHead
from mcit.models.learner import Learner
from mcit.task import DataError, Head

WIDTH = 6


class TinyEncoder(nn.Module):
    """Features from a table, so that a head's arithmetic can be checked by hand."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)

    def forward(self, batch):
        return self.frozen(self.layer(batch["x"]))


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
    logits = make_learner(head)(make_batch(views=head.views), head)
    assert logits.shape == (3, head.outputs)


def test_a_choice_scores_every_view_by_itself():
    learner, batch = make_learner(VCR), make_batch(views=4)
    order = torch.tensor([2, 0, 3, 1])
    assert_close(learner({"x": batch["x"][:, order]}, VCR), learner(batch, VCR)[:, order])
    assert learner.heads["vcr"].layers[0].p == 0.1


def test_a_pair_is_seen_side_by_side():
    learner, batch = make_learner(NLVR2), make_batch(views=2)
    features = learner.encoder(batch)
    expected = learner.heads["nlvr2"].layers(torch.cat([features[:, 0], features[:, 1]], dim=1))
    assert_close(learner(batch, NLVR2), expected)


def test_a_batch_of_one_keeps_its_shape():
    assert make_learner(VCR)(make_batch(1, 4), VCR).shape == (1, 4)


def test_new_rows_leave_the_old_bit_for_bit():
    learner = make_learner(CLASSES)
    with torch.no_grad():
        learner.heads["classes"].layers[-1].bias.normal_()
    old = {name: tensor.clone() for name, tensor in learner.heads["classes"].state_dict().items()}
    logits = learner(make_batch(), CLASSES)
    wider = Head("classes", 8, layout="linear")
    learner.grow(wider)
    linear = learner.heads["classes"].layers[-1]
    assert (linear.out_features, linear.weight.shape, linear.bias.shape) == (8, (8, WIDTH), (8,))
    assert torch.equal(linear.weight[:5], old["layers.0.weight"])
    assert torch.equal(linear.bias[:5], old["layers.0.bias"])
    assert_close(learner(make_batch(), wider)[:, :5], logits)


def test_new_rows_start_uniform_within_the_bound_of_their_inputs_and_without_bias():
    torch.manual_seed(0)
    head = TaskHead(Head("classes", 2, layout="linear"), 400)
    head.grow(200)
    linear, bound = head.layers[-1], (3 / 400) ** 0.5
    assert torch.equal(linear.bias, torch.zeros(200))
    for rows in (linear.weight[:2], linear.weight[2:]):
        assert rows.abs().max() <= bound
        assert_close(rows.std().item(), bound / 3**0.5, rtol=0.1, atol=0)


def test_a_grown_head_is_free_to_move():
    learner = make_learner(CLASSES)
    wider = Head("classes", 8, layout="linear")
    learner.grow(wider)
    learner.activate(wider)
    learner(make_batch(), wider).square().sum().backward()
    assert (learner.heads["classes"].layers[-1].weight.grad.abs().sum(dim=1) > 0).all()


def test_growing_to_the_same_size_changes_nothing():
    learner = make_learner(CLASSES)
    before, state = learner.heads["classes"].layers[-1].weight, torch.get_rng_state()
    learner.grow(CLASSES)
    assert learner.heads["classes"].layers[-1].weight is before
    assert torch.equal(torch.get_rng_state(), state)


def test_an_mlp_widens_too():
    learner = make_learner(Head("vqa", 3, "multi_label"))
    logits = learner(make_batch(), Head("vqa", 3, "multi_label"))
    wider = Head("vqa", 6, "multi_label")
    learner.grow(wider)
    assert_close(learner(make_batch(), wider)[:, :3], logits)


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


def test_a_state_comes_back_into_a_learner_grown_alike():
    first, second = make_learner(SNLI_VE, NLVR2), make_learner(NLVR2, SNLI_VE)
    second.load_state_dict(first.state_dict())
    assert_close(second(make_batch(), SNLI_VE), first(make_batch(), SNLI_VE))


# build


def test_a_resnet_is_built_by_its_name():
    learner = build(ModelConfig(name="resnet18", width=4))
    head = Head("classes", 3, layout="linear")
    learner.grow(head)
    logits = learner({"pixel_values": torch.randn(2, 3, 16, 16)}, head)
    assert logits.shape == (2, 3)
    assert learner.processor is None


def test_an_option_the_backbone_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is an option of ViLT"):
        build(ModelConfig(name="resnet18", lora=LoraConfig(rank=4)))


def test_a_backbone_that_does_not_exist_is_named():
    with pytest.raises(DataError, match="/no/such/folder: no ViLT checkpoint"):
        build(ModelConfig(name="/no/such/folder"))

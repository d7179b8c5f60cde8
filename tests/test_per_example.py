"""Every path of per-example gradients, against one backward per example in float64."""

from __future__ import annotations

from collections import Counter

import peft
import pytest
import tiny_vilt
import torch
from importance_models import (
    ConvNet,
    Convolutions,
    Functional,
    Late,
    Parametrized,
    Reader,
    Recurrent,
    Thrice,
    Tied,
    TimeFirst,
    Unbatched,
    Views,
    pictures,
    sentences,
    vectors,
)
from importance_oracle import assert_same_importance, one_at_a_time, split
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close

from mcit.gradients.per_example import PerExampleGradients
from mcit.importance import measure_importance
from mcit.models.learner import Learner
from mcit.models.resnet import build_resnet
from mcit.models.vilt import ViltEncoder
from mcit.task import Head

SCORES = ("plain", "reversed", "log_odds", "output_norm")
UNBATCHED = ("table", "norm.weight", "norm.bias", "project.weight", "project.bias")

# model, inputs, and the parameters that no rule serves (all others must be served by one)
MODELS = {
    "convnet": (ConvNet, pictures, ()),
    "convolutions": (Convolutions, pictures, ("reflect.weight", "reflect.bias")),
    "reader": (
        Reader,
        sentences,
        (
            "token",
            "places",
            "scale",
            "attention.in_proj_weight",
            "attention.in_proj_bias",
            "attention.out_proj.weight",
            "attention.out_proj.bias",
            "unused.weight",
            "unused.bias",
        ),
    ),
    "recurrent": (
        Recurrent,
        sentences,
        ("lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0", "lstm.bias_hh_l0"),
    ),
    "tied": (lambda: Tied(False), sentences, ()),
    "tied functionally": (lambda: Tied(True), sentences, ("words.weight",)),
    "functional": (lambda: Functional(1.0), vectors, ("layer.weight",)),
    "only functional": (
        lambda: Functional(1.0, called=False),
        vectors,
        ("layer.weight", "layer.bias"),
    ),
    "thrice": (Thrice, vectors, ()),
    "parametrized": (
        Parametrized,
        vectors,
        ("layer.parametrizations.weight.original0", "layer.parametrizations.weight.original1"),
    ),
    "table of one row": (lambda: Unbatched((1, 6)), vectors, UNBATCHED),
    "table of six rows": (lambda: Unbatched((6, 6)), vectors, UNBATCHED),
    "time first": (TimeFirst, sentences, ("words.weight", "inner.weight", "inner.bias")),
}


def prepare(name: str, examples: int = 7) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(len(name))
    build, draw, _ = MODELS[name]
    model = build().eval()
    classes = 9 if name.startswith("tied") else 4
    return model, draw(examples), torch.randint(classes, (examples,))


def in_batches(x: Tensor, y: Tensor, *sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def truth(model: nn.Module, x: Tensor, y: Tensor, **options) -> dict[str, Tensor]:
    return one_at_a_time(model, zip(x.split(1), y.split(1), strict=True), **options)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_exact_and_served_by_a_rule_where_there_is_one(name, score):
    model, x, y = prepare(name)
    # the last batch is ragged
    found = measure_importance(model, in_batches(x, y, 3, 3, 1), score=score)
    expected = truth(model, x, y, score=score)
    unused = {key: value for key, value in found.values.items() if key.startswith("unused")}
    assert not any(value.any() for value in unused.values())
    assert_same_importance(
        {key: value for key, value in found.values.items() if key not in unused},
        {key: value for key, value in expected.items() if key not in unused},
    )
    assert found.paths.keys() == found.values.keys()
    assert {key for key, path in found.paths.items() if path != "rule"} == set(MODELS[name][2])


@pytest.mark.parametrize("sizes", [(1, 6), (7,), (1,) * 7, (2, 1, 4), (6, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_no_order_of_batch_sizes_changes_the_result(name, sizes):
    model, x, y = prepare(name)
    found = measure_importance(
        model.double(), in_batches(x if x.dtype == torch.long else x.double(), y, *sizes)
    )
    expected = truth(model, x, y)
    for key, value in expected.items():
        assert_close(
            found.values[key],
            value,
            atol=1e-12,
            rtol=1e-9,
            msg=lambda text, key=key: f"{key}: {text}",
        )


@pytest.mark.parametrize("labels", ["all", "predicted"])
@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds"])
@pytest.mark.parametrize("name", ["convnet", "reader", "thrice", "tied"])
def test_other_labels_are_exact_as_well(name, score, labels):
    model, x, y = prepare(name)
    x = x if x.dtype == torch.long else x.double()
    found = measure_importance(model.double(), in_batches(x, y, 4, 3), score=score, labels=labels)
    for key, value in truth(model, x, y, score=score, labels=labels).items():
        assert_close(found.values[key], value, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", ["convnet", "reader"])
def test_sampled_labels_estimate_all_labels_and_do_not_depend_on_the_batch(name):
    model, x, y = prepare(name, 2)
    x = x.repeat(150, *[1] * (x.ndim - 1))
    y = y.repeat(150)
    found = measure_importance(model, in_batches(x, y, 100, 200), labels="sampled")
    again = measure_importance(model, in_batches(x, y, 7, 290, 3), labels="sampled")
    assert_same_importance(
        {k: v for k, v in again.values.items() if "unused" not in k},
        {k: v for k, v in found.values.items() if "unused" not in k},
        2e-5,
    )
    exact = measure_importance(model, in_batches(x[:2], y[:2], 2), labels="all")
    ratio = sum(float(v.sum()) for v in found.values.values()) / sum(
        float(v.sum()) for v in exact.values.values()
    )
    assert ratio == pytest.approx(1, abs=0.25)


def test_a_layer_reached_only_in_the_second_batch_is_exact():
    torch.manual_seed(0)
    model = Late()
    x = vectors(6)
    y = torch.randint(4, (6,))
    x[3:, 0] = 6.0
    found = measure_importance(model, in_batches(x, y, 3, 3))
    assert_same_importance(found.values, truth(model, x, y))
    assert found.values["late.weight"].any()


@pytest.mark.parametrize("share", [0.1, 0.01, 0.002])
def test_a_weight_that_is_a_little_used_outside_its_layer_is_exact(share):
    torch.manual_seed(1)
    model = Functional(share)
    x = vectors(8)
    y = torch.randint(4, (8,))
    found = measure_importance(model, in_batches(x, y, 4, 4))
    assert_same_importance(found.values, truth(model, x, y))


def test_a_weight_whose_use_outside_its_layer_begins_in_a_later_batch_is_exact_or_refused():
    class Gated(Functional):
        def forward(self, x: Tensor) -> Tensor:
            self.share = (x[:, :1] > 5).to(x.dtype)
            return super().forward(x)

    torch.manual_seed(1)
    model = Gated(0.0)
    x = vectors(6)
    y = torch.randint(4, (6,))
    x[3:, 0] = 6.0
    try:
        found = measure_importance(model, in_batches(x, y, 3, 3))
    except RuntimeError as error:
        refusal = str(error)
    else:
        assert_same_importance(found.values, truth(model, x, y))
        return
    assert "layer.weight" in refusal


def test_a_layer_on_a_learned_vector_is_exact():
    torch.manual_seed(1)
    model = Unbatched((6,))
    x = vectors(6)
    y = torch.randint(4, (6,))
    for sizes in ((4, 2), (3, 3), (6,)):
        found = measure_importance(model, in_batches(x, y, *sizes))
        assert_same_importance(found.values, truth(model, x, y))


@pytest.mark.parametrize("layout", ["consecutive", "blocks"])
@pytest.mark.parametrize("views", [(2, 2), (2, 3), (1, 2), (3, 1)])
def test_rows_in_either_order_are_exact_or_refused_even_if_their_number_changes(layout, views):
    torch.manual_seed(2)
    model = Views(layout)
    batches = [(torch.randn(3, k, 6), torch.randint(4, (3,))) for k in views]
    examples = [part for batch in batches for part in split(batch, 3)]
    try:
        found = measure_importance(model, batches)
    except RuntimeError as error:
        refusal = str(error)
    else:
        assert_same_importance(found.values, one_at_a_time(model, examples))
        return
    assert views[0] != views[1]
    assert "same form" in refusal


class Fickle(nn.Module):
    """A layer that can be called by keyword."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.by_keyword = False

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x) if self.by_keyword else self.layer(x)


def test_a_layer_that_is_called_by_keyword_from_the_second_batch_on_is_refused():
    model = Fickle()
    gradients = PerExampleGradients(model, dict(model.named_parameters()))
    x = vectors(5)
    gradients.add(lambda: [model(x).sum(dim=1)])
    model.by_keyword = True
    with pytest.raises(RuntimeError, match="a Linear was called without a positional input"):
        gradients.add(lambda: [model(x).sum(dim=1)])


def test_a_norm_that_leaves_eval_mode_after_the_first_batch_is_refused():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).eval()
    gradients = PerExampleGradients(model, dict(model.named_parameters()))
    x = vectors(5)
    gradients.add(lambda: [model(x).sum(dim=1)])
    model.train()
    with pytest.raises(RuntimeError, match="a BatchNorm1d had other options in the first batch"):
        gradients.add(lambda: [model(x).sum(dim=1)])


def test_an_encoder_layer_with_frozen_attention_is_exact():
    # in eval, transformer layers skip their submodules if nothing in them requires gradients
    torch.manual_seed(3)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.layer(x).mean(dim=1))

    model = Encoder().eval()
    x = torch.randn(6, 3, 6)
    y = torch.randint(4, (6,))
    model.layer.self_attn.requires_grad_(False)
    assert_same_importance(
        measure_importance(model, in_batches(x, y, 4, 2)).values, truth(model, x, y)
    )


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm", "prune"])
def test_weights_that_a_hook_recomputes_on_the_layer_itself_are_exact(wrap):
    torch.manual_seed(4)
    layer = nn.Linear(6, 5)
    if wrap == "prune":
        prune.random_unstructured(layer, "weight", 0.3)
    else:
        getattr(nn.utils, wrap)(layer)
    x = vectors(6)
    y = torch.randint(4, (6,))
    fc = nn.Linear(5, 4)
    model = nn.Sequential(layer, nn.Tanh(), fc).eval()
    with torch.no_grad():
        model(x)
    found = measure_importance(model, in_batches(x, y, 4, 2))
    single = [{} for _ in range(6)]
    for index in range(6):
        loss = nn.functional.cross_entropy(model(x[index : index + 1]), y[index : index + 1])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        single[index] = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    expected = {key: sum(g[key].square() for g in single) / 6 for key in single[0]}
    assert_same_importance(found.values, expected)


def test_a_layer_called_with_a_keyword_is_exact():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(self.layer(input=x)))

    torch.manual_seed(5)
    model = Keyword()
    x = vectors(5)
    y = torch.randint(4, (5,))
    assert_same_importance(
        measure_importance(model, in_batches(x, y, 3, 2)).values, truth(model, x, y)
    )


def test_examples_that_come_out_in_another_order_are_exact():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(self.layer(x.flip(0))).flip(0))

    torch.manual_seed(6)
    model = Turned()
    x = vectors(7)
    y = torch.randint(4, (7,))
    assert_same_importance(
        measure_importance(model, in_batches(x, y, 4, 3)).values, truth(model, x, y)
    )


def test_a_layer_whose_input_is_overwritten_afterwards_is_exact_or_refused():
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            inner = self.layer(x)
            x.mul_(3)
            return self.fc(torch.tanh(inner))

    torch.manual_seed(7)
    model = Overwriting()
    x = vectors(4)
    y = torch.randint(4, (4,))
    with pytest.raises(RuntimeError, match=r"in place|inplace"):
        measure_importance(model, in_batches(x, y, 4))


def test_a_lora_model_is_exact_and_measures_what_trains_only():
    torch.manual_seed(8)
    base = Thrice()
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["layer"], modules_to_save=["fc"])
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    x = vectors(7)
    y = torch.randint(4, (7,))
    found = measure_importance(model, in_batches(x, y, 3, 4))
    assert found.values.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(found.values) == 4
    assert_same_importance(found.values, truth(model, x, y))
    assert set(found.paths.values()) == {"rule"}


def test_a_resnet_18_is_exact_and_all_by_rules():
    torch.manual_seed(9)
    learner = Learner(build_resnet(width=4))
    head = Head("head", 5, layout="linear")
    learner.grow(head)
    learner.eval()
    batch = {"pixel_values": torch.randn(6, 3, 16, 16), "labels": torch.randint(5, (6,))}

    def forward(model, batch):
        return model(batch, head).logits, batch["labels"]

    batches = [
        {key: value[rows] for key, value in batch.items()} for rows in (slice(4), slice(4, 6))
    ]
    found = measure_importance(learner, batches, score="reversed", forward=forward)
    assert_same_importance(
        found.values, one_at_a_time(learner, split(batch, 6), "reversed", forward=forward), 2e-5
    )
    assert set(found.paths.values()) == {"rule"}


class Vilt(nn.Module):
    """Transformers' own ViLT, as four kinds of task use it."""

    def __init__(self, use: str):
        super().__init__()
        self.use = use
        self.vilt = tiny_vilt.make_model(modality_type_vocab_size=3)
        views = 2 if use in ("two passes", "pair, consecutive", "pair, blocks") else 1
        self.head = nn.Linear(16 * views, 1 if use == "choice" else 3)

    def run(self, batch, image_rows: Tensor, text_rows: Tensor, kind: int | None = None) -> Tensor:
        texts = {name: batch[name][text_rows] for name in ("input_ids", "attention_mask")}
        images = {name: batch[name][image_rows] for name in ("pixel_values", "pixel_mask")}
        return self.vilt(**texts, **images, image_token_type_idx=kind).pooler_output

    def forward(self, batch) -> Tensor:
        texts = torch.arange(len(batch["input_ids"]))
        images = torch.arange(len(batch["pixel_values"]))
        if self.use == "single":
            return self.head(self.run(batch, images, texts))
        if self.use == "two passes":
            sides = [self.run(batch, images[side::2], texts, side + 1) for side in (0, 1)]
            return self.head(torch.cat(sides, dim=1))
        if self.use == "pair, consecutive":
            return self.head(
                self.run(batch, images, texts.repeat_interleave(2)).view(len(texts), -1)
            )
        if self.use == "pair, blocks":
            pooled = self.run(batch, torch.cat([images[::2], images[1::2]]), texts.repeat(2))
            return self.head(torch.cat(pooled.chunk(2), dim=1))
        return self.head(self.run(batch, images.repeat_interleave(4), texts)).view(-1, 4)


USES = {
    "single": (1, 1),
    "two passes": (1, 2),
    "pair, consecutive": (1, 2),
    "pair, blocks": (1, 2),
    "choice": (4, 1),
}


def vilt_batch(use: str, examples: int):
    texts, images = USES[use]
    sizes = [tiny_vilt.SIZES[index % len(tiny_vilt.SIZES)] for index in range(images * examples)]
    batch = tiny_vilt.make_batch(texts * examples, sizes, seed=3)
    return {**batch, "labels": torch.randint(4 if use == "choice" else 3, (examples,))}


def read_vilt(model: nn.Module, batch) -> tuple[Tensor, Tensor]:
    return model(batch), batch["labels"]


def merge_first(batch, examples: int, first: int) -> list:
    """The batch as two batches, of the first examples and of the others."""

    def cut(value: Tensor, start: int, stop: int) -> Tensor:
        rows = len(value) // examples
        return value[start * rows : stop * rows]

    spans = ((0, first), (first, examples))
    return [{key: cut(value, *span) for key, value in batch.items()} for span in spans]


def zero_gradients(use: str, score: str, head_bias: str) -> tuple[str, ...]:
    """Biases that a softmax ignores, as all its inputs share them: of keys and of choices."""
    return ("key.bias", head_bias) if use == "choice" and score != "output_norm" else ("key.bias",)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("use", USES)
def test_transformers_own_vilt_is_exact_in_every_use(use, score):
    torch.manual_seed(10)
    model = Vilt(use).eval()
    batch = vilt_batch(use, 5)
    found = measure_importance(model, merge_first(batch, 5, 3), score=score, forward=read_vilt)
    expected = one_at_a_time(model, split(batch, 5), score, forward=read_vilt)
    assert_same_importance(found.values, expected, zero=zero_gradients(use, score, "head.bias"))
    slow = {name.partition("vilt.")[2] for name, path in found.paths.items() if path == "network"}
    allowed = {name for name in slow if name.startswith("embeddings.") or name.endswith("key.bias")}
    assert slow == allowed
    layers = [
        path
        for name, path in found.paths.items()
        if ".layer." in name and not name.endswith("key.bias")
    ]
    assert Counter(layers).keys() == {"rule"}


@pytest.mark.parametrize("use", ["single", "pair", "choice"])
def test_the_learner_s_vilt_is_exact_and_never_goes_through_the_whole_network(use):
    torch.manual_seed(11)
    views, kind = {"single": (1, "multi_label"), "pair": (2, "class"), "choice": (4, "choice")}[use]
    head = Head("head", 4 if use == "choice" else 3, kind=kind, views=views)
    learner = Learner(ViltEncoder(tiny_vilt.make_model()))
    learner.grow(head)
    # in single precision, rounding alone comes to 1e-5 of the largest value
    learner.double().eval()
    batch = vilt_batch({"pair": "pair, consecutive"}.get(use, use), 5)
    batch = {
        key: value.double() if value.is_floating_point() else value for key, value in batch.items()
    }
    if kind == "multi_label":
        batch["labels"] = torch.tensor([0, 0.3, 0.6, 0.9, 1])[torch.randint(5, (5, 3))]

    def forward(model, batch):
        return model(batch, head).logits, batch["labels"]

    for score in SCORES:
        found = measure_importance(learner, merge_first(batch, 5, 2), score=score, forward=forward)
        expected = one_at_a_time(learner, split(batch, 5), score, forward=forward)
        idle = {name for name, value in expected.items() if not value.any()}
        assert idle <= {"encoder.vilt.embeddings.position_embeddings"}
        zero = zero_gradients(use, score, "heads.head.layers.3.bias")
        assert_same_importance(found.values, expected, tolerance=1e-10, zero=zero)
        slow = {name for name, path in found.paths.items() if path == "network"}
        assert all(name.endswith("key.bias") for name in slow), slow
        modules = {
            name.rpartition(".")[2] for name, path in found.paths.items() if path == "module"
        }
        assert modules <= {"cls_token", "position_embeddings", "bias"}, modules

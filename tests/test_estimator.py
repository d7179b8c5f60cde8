"""Gradients with respect to logits, in closed form, for every score, label and kind of head."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from importance_oracle import one_at_a_time, score_one
from torch import Tensor, nn
from torch.testing import assert_close

from mcit.draws import draw_uniform
from mcit.errors import ConfigError
from mcit.estimator import MOST_EXACT_CLASSES, Estimator, score_examples
from mcit.importance import measure_importance

Z = torch.tensor([6.0, 1.0, -8.0], dtype=torch.float64)


def gradient(logits: Tensor, target: Tensor, **options) -> Tensor:
    """Gradients [batch, outputs] of the one vector of scores."""
    logits = logits.clone().requires_grad_()
    (vector,) = score_examples(Estimator(**options), logits, target, torch.arange(len(target)))
    return torch.autograd.grad(vector.sum(), logits)[0]


def squares(logits: Tensor, target: Tensor, position: Tensor | None = None, **options) -> Tensor:
    """Squared gradients [batch, outputs], added up over all vectors of scores."""
    logits = logits.clone().requires_grad_()
    position = torch.arange(len(target)) if position is None else position
    vectors = score_examples(Estimator(**options), logits, target, position)
    return sum(torch.autograd.grad(v.sum(), logits, retain_graph=True)[0].square() for v in vectors)


def some(outputs: int, rows: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, outputs, generator=generator, dtype=torch.float64)
    return logits, torch.randint(outputs, (rows,), generator=generator)


def soft(outputs: int, rows: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    logits, _ = some(outputs, rows, seed)
    levels = torch.tensor([0, 0, 0.3, 0.6, 0.9, 1], dtype=torch.float64)
    return logits, levels[
        torch.randint(6, (rows, outputs), generator=torch.Generator().manual_seed(seed + 1))
    ]


@pytest.mark.parametrize(
    ("score", "expected", "tolerance"),
    [
        ("output_norm", [0.60, 0.10, -0.80], 5e-3),
        ("reversed", [1.0, -1e-4, -1.0], 5e-4),
        ("plain", [-0.007, 0.007, 0.0], 5e-4),
        ("log_odds", [1.0, -1.0, -1e-4], 5e-4),
    ],
)
def test_the_worked_example(score, expected, tolerance):
    found = gradient(Z[None], torch.tensor([0]), score=score)
    assert_close(found[0], torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0)


# 4: a multiple-choice head is a class head over its choices
@pytest.mark.parametrize("outputs", [2, 4, 9])
def test_gradients_of_a_class_head_are_the_table_s(outputs):
    z, label = some(outputs)
    y = torch.zeros_like(z).scatter_(1, label[:, None], 1)
    p = z.softmax(1)
    q = (-z).softmax(1)
    right = p.gather(1, label[:, None])
    assert_close(gradient(z, label), p - y)
    assert_close(gradient(z, label, score="reversed"), y - q)
    assert_close(gradient(z, label, score="log_odds"), torch.where(y > 0, 1.0, -p / (1 - right)))
    assert_close(
        gradient(z, label, score="output_norm"), z / z.square().sum(1, keepdim=True).sqrt()
    )
    assert_close(gradient(z, label, score="output_norm", norm="squared_l2"), 2 * z)


def test_two_classes_give_p_and_one_minus_p_and_one():
    z, label = some(2)
    right = z.softmax(1).gather(1, label[:, None])
    assert_close(gradient(z, label).abs(), (1 - right).expand(-1, 2))
    assert_close(gradient(z, label, score="reversed").abs(), right.expand(-1, 2))
    assert_close(gradient(z, label, score="log_odds").abs(), torch.ones_like(z))


def test_log_odds_stay_exact_where_the_label_is_nearly_certain():
    z = torch.tensor([[60.0, 1.0, 0.0], [-60.0, 1.0, 0.0]])
    found = gradient(z, torch.tensor([0, 0]), score="log_odds")
    share = math.e / (1 + math.e)
    assert_close(found, torch.tensor([[1.0, -share, share - 1]] * 2))


def test_gradients_of_a_multi_label_head_are_the_table_s():
    z, y = soft(7)
    s = z.sigmoid()
    q = (-z).softmax(1)
    share = y / y.sum(1, keepdim=True)
    assert bool((y.sum(1) > 0).all())
    assert_close(gradient(z, y), s - y)
    assert_close(gradient(z, y, score="reversed"), y * s)
    assert_close(gradient(z, y, score="reversed", reversal="positives"), y * s)
    assert_close(gradient(z, y, score="reversed", reversal="literal"), s - (1 - y))
    assert_close(gradient(z, y, score="reversed", reversal="softmax"), share - q)
    assert_close(gradient(z, y, score="log_odds"), y)
    assert_close(gradient(z, y, score="output_norm"), z / z.square().sum(1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    "options",
    [{"score": "reversed"}, {"score": "reversed", "reversal": "softmax"}, {"score": "log_odds"}],
    ids=["positives", "softmax", "log_odds"],
)
def test_an_all_zero_target_contributes_nothing_and_changes_no_neighbour(options):
    z, y = soft(5)
    y[2] = 0
    found = gradient(z, y, **options)
    assert not found[2].any()
    assert bool(found.isfinite().all())
    keep = [0, 1, 3, 4, 5]
    assert_close(found[keep], gradient(z[keep], y[keep], **options))
    assert not squares(z[2:3], y[2:3], **options).any()


@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds", "output_norm"])
def test_values_are_those_of_the_formulas(score):
    for z, y in (some(5), soft(5)):
        (vector,) = score_examples(Estimator(score=score), z, y, torch.arange(len(y)))
        assert_close(
            vector, torch.stack([score_one(a, b, score) for a, b in zip(z, y, strict=True)])
        )


@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds"])
def test_all_labels_of_a_class_head_weigh_every_class_by_its_chance(score):
    z, label = some(5)
    p = z.softmax(1)
    expected = sum(
        p[:, k, None] * gradient(z, torch.full_like(label, k), score=score).square()
        for k in range(z.shape[1])
    )
    assert_close(squares(z, label, score=score, labels="all"), expected)


@pytest.mark.parametrize("labels", ["true", "predicted", "sampled"])
@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds"])
def test_a_weight_multiplies_squared_gradients_by_the_label_s_probability(score, labels):
    z, label = some(5)
    options = {"score": score, "labels": labels, "seed": 2}
    plain = gradient(z, label, **options)
    # the gradient of the plain score is p less the label
    chosen = (z.softmax(1) - gradient(z, label, labels=labels, seed=2)).argmax(1)
    p = z.softmax(1).gather(1, chosen[:, None])
    assert_close(squares(z, label, weight="probability", **options), p * plain.square())


def test_the_weighted_fisher_of_a_linear_softmax_model_is_its_closed_form():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x = torch.randn(11, 4, dtype=torch.float64)
    y = torch.randint(3, (11,))
    found = measure_importance(model, [(x[:5], y[:5]), (x[5:], y[5:])], weight="probability").values
    p = model(x).softmax(1).detach()
    squared = p.gather(1, y[:, None]) * (p - nn.functional.one_hot(y, 3)).square()
    assert_close(found["weight"], (squared[:, :, None] * x[:, None, :].square()).mean(0))
    assert_close(found["bias"], squared.mean(0))


def test_a_weight_is_refused_for_soft_labels():
    z, y = soft(4)
    with pytest.raises(ValueError, match="weight 'probability' needs class ids, found soft labels"):
        squares(z, y, weight="probability")


def test_exact_fisher_of_a_linear_softmax_model_is_its_closed_form():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x = torch.randn(11, 4, dtype=torch.float64)
    y = torch.randint(3, (11,))
    found = measure_importance(model, [(x[:5], y[:5]), (x[5:], y[5:])], labels="all").values
    p = model(x).softmax(1).detach()
    # the diagonal of diag(p) - p p^T
    inner = p * (1 - p)
    assert_close(found["weight"], (inner[:, :, None] * x[:, None, :].square()).mean(0))
    assert_close(found["bias"], inner.mean(0))


@pytest.mark.parametrize(
    "options",
    [
        {"score": "plain"},
        {"score": "reversed"},
        {"score": "reversed", "reversal": "literal"},
        {"score": "log_odds"},
    ],
    ids=["plain", "positives", "literal", "log_odds"],
)
def test_all_labels_of_a_multi_label_head_equal_the_sum_over_every_set_of_labels(options):
    z, y = soft(4, rows=3)
    expected = torch.zeros_like(z)
    for bits in itertools.product([0.0, 1.0], repeat=4):
        drawn = torch.tensor(bits, dtype=torch.float64).expand_as(z)
        weight = torch.where(drawn > 0, z.sigmoid(), (-z).sigmoid()).prod(dim=1, keepdim=True)
        expected += weight * gradient(z, drawn, **options).square()
    assert_close(squares(z, y, labels="all", **options), expected)
    # and through weights shared by all outputs, where products of different labels matter
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4)).double()
    x = torch.randn(3, 3, dtype=torch.float64)
    found = measure_importance(model, [(x, y)], labels="all", **options).values
    examples = [(x[i : i + 1], y[i : i + 1]) for i in range(3)]
    truth = one_at_a_time(model, examples, labels="all", **options)
    for name, value in truth.items():
        assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_all_labels_refuse_the_softmax_reversal_and_say_what_to_use():
    z, y = soft(4)
    with pytest.raises(ValueError, match="sampled"):
        squares(z, y, score="reversed", reversal="softmax", labels="all")


@pytest.mark.parametrize("make", [some, soft])
def test_all_labels_refuse_thousands_of_classes_and_say_what_to_use(make):
    z, y = make(3129, rows=2)
    with pytest.raises(ValueError, match=r"3129.*sampled"):
        squares(z, y, labels="all")
    z, y = make(MOST_EXACT_CLASSES, rows=1)
    assert squares(z, y, labels="all").shape == z.shape


def test_predicted_labels_are_the_likeliest():
    z, label = some(5)
    assert_close(gradient(z, label, labels="predicted"), gradient(z, z.argmax(1)))
    z, y = soft(5)
    assert_close(gradient(z, y, labels="predicted"), gradient(z, (z > 0).double()))


@pytest.mark.parametrize("make", [some, soft])
def test_sampled_labels_converge_to_all_labels(make):
    z, y = make(4, rows=2)
    # no label so rare that it is never drawn
    z = z / 3
    many = 20_000
    rows = torch.arange(2).repeat_interleave(many)
    found = squares(z[rows], y[rows], labels="sampled", seed=3).view(2, many, 4)
    exact = squares(z, y, labels="all")
    error = found.std(dim=1) / math.sqrt(many)
    assert bool(((found.mean(dim=1) - exact).abs() <= 5 * error + 1e-9).all())


@pytest.mark.parametrize("make", [some, soft])
def test_sampled_labels_belong_to_the_example_not_to_its_batch(make):
    z, y = make(4, rows=9)
    together = gradient(z, y, labels="sampled", seed=5)
    position = torch.arange(9)
    for rows in (position[4:], position.flip(0), position[::3]):
        logits = z[rows].clone().requires_grad_()
        (vector,) = score_examples(Estimator(labels="sampled", seed=5), logits, y[rows], rows)
        assert_close(torch.autograd.grad(vector.sum(), logits)[0], together[rows])
    assert not torch.equal(together, gradient(z, y, labels="sampled", seed=6))


def test_draws_are_uniform_and_independent_of_neighbours_columns_and_seeds():
    counter = torch.arange(20_000).view(4000, 5)
    draws = draw_uniform(0, counter).numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    counts, _ = np.histogram(draws, bins=50, range=(0, 1))
    chi_square = ((counts - draws.size / 50) ** 2 / (draws.size / 50)).sum()
    assert chi_square < 49 + 4 * math.sqrt(2 * 49)
    limit = 4 / math.sqrt(4000)
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < limit
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < limit
    for seed in (1, 2, 2**40, -1):
        other = draw_uniform(seed, counter).numpy()
        assert abs(np.corrcoef(draws[:, 0], other[:, 0])[0, 1]) < limit
        assert len(np.intersect1d(draws, other)) == 0


def test_int32_and_byte_class_ids_are_as_good_as_int64():
    z, label = some(4)
    for labels, score in itertools.product(
        ("true", "predicted", "sampled", "all"), ("plain", "reversed", "log_odds")
    ):
        expected = squares(z, label, labels=labels, score=score)
        for dtype in (torch.int32, torch.uint8):
            assert_close(squares(z, label.to(dtype), labels=labels, score=score), expected)


def test_half_precision_soft_labels_are_read_in_the_logits_precision():
    z, y = soft(4)
    assert_close(gradient(z.float(), y), gradient(z.float(), y.float()))


@pytest.mark.parametrize(
    ("logits", "target", "message"),
    [
        (torch.zeros(3), torch.zeros(3), r"\[batch, outputs\]"),
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.long), r"\[3\]"),
        (torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.long), "class ids"),
        (torch.zeros(3, 4), torch.zeros(3), "float32"),
        (torch.zeros(3, 4), torch.zeros(3, 5), r"\[3, 5\]"),
        (torch.zeros(3, 4), torch.tensor([0, 4, 1]), r"0\.\.3.*4"),
        (torch.zeros(3, 4), torch.tensor([0, -100, 1]), r"0\.\.3.*-100"),
    ],
)
@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds", "output_norm"])
def test_targets_that_do_not_fit_are_refused(logits, target, message, score):
    with pytest.raises(ValueError, match=message):
        list(score_examples(Estimator(score=score), logits, target, torch.arange(3)))


@pytest.mark.parametrize("score", ["plain", "reversed", "log_odds"])
def test_class_ids_of_a_single_output_are_refused_and_soft_labels_recommended(score):
    with pytest.raises(ValueError, match=r"soft labels, a float tensor \[batch, 1\]"):
        gradient(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), score=score)


@pytest.mark.parametrize("target", [-0.01, 1.5, 50.0])
def test_float_targets_outside_of_zero_and_one_are_refused_and_regression_is_explained(target):
    with pytest.raises(ValueError, match=r"soft labels and must lie in 0\.\.1.*Regression needs"):
        gradient(torch.zeros(2, 1), torch.tensor([[0.5], [target]]), score="plain")


@pytest.mark.parametrize("field", ["score", "labels", "weight", "unit", "mode", "norm"])
def test_an_unknown_choice_is_refused_with_the_choices(field):
    with pytest.raises(ConfigError, match=rf"estimator\.{field} is 'fisher' \(choices: .*,"):
        Estimator(**{field: "fisher"})


@pytest.mark.parametrize(
    "options",
    [
        {"cap": 0.0},
        {"cap": -1.0},
        {"cap": math.nan},
        {"samples": 0},
        {"samples": -3},
        {"samples": 0.0},
        {"samples": 1.5},
        {"samples": math.nan},
        {"samples": True},
        {"unit": "batch", "labels": "all"},
        {"update_buffers": True},
        {"update_buffers": True, "unit": "batch"},
        {"score": "output_norm", "labels": "predicted"},
        {"score": "output_norm", "weight": "probability"},
        {"labels": "all", "weight": "probability"},
        {"unit": "batch", "weight": "probability"},
        {"score": "log_odds", "reversal": "literal"},
        {"score": "reversed", "norm": "squared_l2"},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        Estimator(**options)


def test_every_problem_is_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        Estimator(score="fisher", cap=-1.0, samples=0)
    assert len(caught.value.problems) == 3


def test_the_description_is_one_line_and_differs_between_any_two_estimates():
    base = Estimator()
    changed = [
        {"score": "reversed"},
        {"score": "log_odds"},
        {"score": "output_norm"},
        {"labels": "predicted"},
        {"labels": "sampled"},
        {"labels": "all"},
        {"weight": "probability"},
        {"score": "reversed", "weight": "probability"},
        {"unit": "batch"},
        {"mode": "train"},
        {"cap": 1e-4},
        {"cap": 1e-3},
        {"samples": 100},
        {"samples": 0.5},
        {"shuffle": True},
        {"unit": "batch", "mode": "train"},
        {"unit": "batch", "mode": "train", "update_buffers": True},
        {"score": "reversed", "reversal": "literal"},
        {"score": "reversed", "reversal": "softmax"},
        {"score": "output_norm", "norm": "squared_l2"},
        {"score": "output_norm", "unit": "batch"},
        {"samples": 100, "seed": 1},
        {"shuffle": True, "seed": 1},
        {"labels": "sampled", "seed": 1},
    ]
    lines = [
        base.describe(),
        *(dataclasses.replace(base, **options).describe() for options in changed),
    ]
    assert not any("\n" in line for line in lines)
    twins = [
        (a, b) for a, b in itertools.combinations([{}, *changed], 2) if _describe(a) == _describe(b)
    ]
    assert not twins


def _describe(options: dict) -> str:
    return Estimator(**options).describe()


def test_a_cap_is_described_to_the_last_digit_that_matters():
    assert Estimator(cap=1.23456e-4).describe() != Estimator(cap=1.23457e-4).describe()

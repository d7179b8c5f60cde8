"""Named exemplar-free methods: what they add to the loss, what answers, what is carried over."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_classifiers import assert_like, draw, load, measure
from test_transports import FULL, make_drift
from tiny_run import assert_identical, configure, learn, resolve
from torch.testing import assert_close

from mcit.answering import Answering
from mcit.class_statistics import ClassStatistics, Features, find_sensitivity
from mcit.classifier import Known
from mcit.classifiers.softmax import Softmax, add_draws
from mcit.errors import ConfigError
from mcit.methods.adagauss import EPSILON, measure_collapse
from mcit.methods.efc import Efc
from mcit.sequence import run
from mcit.transports.none import NoTransport
from mcit.transports.ridge import RidgeTransport

SMALL = {"tasks__shapes__classes": 4}
FEW = {**SMALL, "model__bottleneck": 4, "method__hidden": 8}


def set_up(method: str, **options):
    return configure("shapes:2x2", method, **{**SMALL, **options})


# --- the points of the grid


@pytest.mark.parametrize(
    ("method", "classifier", "transport", "options"),
    [
        ("fetril", "svm", "none", {}),
        ("fecam", "gaussian", "none", {}),
        ("efc", "softmax", "displacement", {}),
        ("ldc", "nearest_mean", "ridge", {}),
        ("adc", "nearest_mean", "attack", {}),
        ("dpcr", "ridge", "ridge", {}),
        ("adagauss", "gaussian", "network", FEW),
        ("gatf", "gaussian", "ridge", FEW),
    ],
)
def test_a_published_method_names_what_answers_and_what_carries(
    method, classifier, transport, options
):
    answering = resolve(set_up(method, **options)).answering
    assert answering.own == classifier
    assert answering.transport.name == transport
    # and the head, which has nothing to carry over, if that is asked for
    if resolve(set_up(method, **options)).method.trains_head:
        plain = resolve(set_up(method, classifier__name="head", **options)).answering
        assert plain.transport.name == "none"


@pytest.mark.parametrize(
    ("method", "options", "problem"),
    [
        ("fetril", {"classifier__name": "head,svm"}, "'fetril' trains no head after the first"),
        ("fecam", {"model__bottleneck": 4}, r"those of a bottleneck \(model.bottleneck=4\)"),
        ("adagauss", {}, "more examples in a batch than there are features, found 16 and 32"),
        ("efc", {"method__damping": -1.0}, "method.damping must be at least 0"),
        ("gatf", {"method__hidden": 0}, "method.hidden must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_built(method, options, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(set_up(method, **options))


@pytest.mark.parametrize("name", ["efc", "adagauss"])
def test_pretrained_features_may_be_negative_and_have_no_power(name):
    from mcit.classifiers.gaussian import Gaussian
    from mcit.config.schema import ModelConfig

    (problem,) = Gaussian(power=0.5).find_problems([], ModelConfig(name=name))
    assert f"those of {name!r} may be" in problem
    assert not Gaussian(power=0.5).find_problems([], ModelConfig(name="resnet18"))


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """Plain finetuning."""
    return learn(set_up("finetune"), tmp_path_factory.mktemp("free"))


# --- what the losses are


def test_the_anti_collapse_term_is_that_of_adagauss():
    truth = load("adagauss")
    features = truth["collapse/features"].clone().requires_grad_(True)
    loss = measure_collapse(features)
    loss.backward()
    assert_like(loss.detach(), truth["collapse/loss"].view(()))
    assert_like(features.grad, truth["collapse/grad"])


def test_a_batch_that_is_too_small_has_no_anti_collapse_term():
    assert float(measure_collapse(draw(4, 4))) == 0
    large = draw(50, 4)
    factor = torch.linalg.cholesky(torch.cov(large.double().T) + EPSILON * torch.eye(4))
    expected = -factor.diagonal().clamp_max(1).mean()
    assert_close(measure_collapse(large).double(), expected, rtol=1e-6, atol=0)


def test_features_are_held_by_the_fisher_information_of_the_answers():
    weight, features, moved = draw(3, 5), draw(40, 5, seed=1), draw(7, 5, seed=2)
    method = Efc(strength=10.0, damping=0.1)
    method.sensitivity = find_sensitivity(features, weight).float()
    expected = []
    for row in moved.double():
        total = 0.1 * row @ row
        for x in features.double():
            p = (weight.double() @ x).softmax(dim=0)
            turned = weight.double() @ row
            # the variance of the change of logits under p
            total += 10 / 40 * ((p * turned**2).sum() - (p * turned).sum() ** 2)
        expected.append(total)
    assert_like(method.measure(moved), torch.stack(expected), 1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("efc", {"method__strength": 0, "method__damping": 0, "method__fixed_norms": False}),
        ("ldc", {"method__strength": 0}),
        ("adagauss", {"method__strength": 0, "method__anti_collapse": 0}),
    ],
)
def test_without_strength_a_method_is_finetuning_bit_for_bit(tmp_path, free, method, options):
    held = learn(set_up(method, classifier__name="head", **options), tmp_path)
    assert_identical(held.state, free.state)


def test_efc_keeps_batchnorm_and_learns_the_rest(tmp_path):
    gentle = {"tasks__shapes__recipe__learning_rate": 1e-3, "training__refresh_batchnorm": True}
    run = learn(set_up("efc", **gentle), tmp_path)
    first, second = run.states
    norms = [name for name in first if ".norm" in name]
    assert_identical({n: second[n] for n in norms}, {n: first[n] for n in norms})
    assert not torch.equal(first["encoder.stem.0.weight"], second["encoder.stem.0.weight"])
    assert torch.equal(run.method.sensitivity, run.result.plan.answering.statistics.sensitivity)


def test_efc_takes_its_metric_from_the_softmax_that_answers():
    known = measure(draw(3, 30, 4), FULL)
    answering = Answering({"softmax": Softmax(decay=0.01)}, NoTransport())
    answering.fitted["softmax"] = answering.classifiers["softmax"].fit(known)
    found = answering.measure_sensitivity(None, known.features)
    weight, bias = answering.fitted["softmax"]["weight"], answering.fitted["softmax"]["bias"]
    assert_close(found.double(), find_sensitivity(known.features.values, weight, bias))
    # one direction fewer than classes changes the answers
    assert torch.linalg.matrix_rank(found.double(), rtol=1e-5) == 2


def test_a_frozen_network_takes_no_step_after_the_first_task(tmp_path):
    run = learn(set_up("fetril"), tmp_path)
    encoder = {name for name in run.states[0] if name.startswith("encoder.")}
    assert_identical(
        {name: run.states[1][name] for name in encoder},
        {name: run.states[0][name] for name in encoder},
    )
    # 50 images in batches of 16, once
    assert run.result.cost["steps"] == 4


def test_the_projector_lives_as_long_as_its_task(tmp_path):
    run = learn(set_up("adagauss", **FEW, classifier__name="head"), tmp_path)
    assert list(run.learner.heads) == ["classes"]
    assert run.method.old is None


# --- what answers


def test_softmax_regression_is_at_its_minimum():
    features = draw(3, 30, 4) + torch.arange(3).view(3, 1, 1)
    known = measure(features, FULL)
    rule = Softmax(decay=0.01, iterations=500)
    fitted = rule.fit(known)
    scale = float(known.features.values.norm(dim=1).mean())
    weight = (fitted["weight"].double() * scale).requires_grad_(True)
    bias = fitted["bias"].double().requires_grad_(True)
    logits = known.features.values.double() / scale @ weight.T + bias
    loss = F.cross_entropy(logits, known.features.labels) + 0.005 * weight.square().sum()
    loss.backward()
    assert float(weight.grad.abs().max()) < 1e-4
    assert float(bias.grad.abs().max()) < 1e-4
    assert rule.score(fitted, features[2]).argmax(dim=1).eq(2).float().mean() > 0.6


def test_old_classes_are_drawn_as_often_as_they_had_images():
    statistics = measure(draw(3, 2000, 4), FULL).statistics
    new = Features(draw(5, 4, seed=9), torch.full((5,), 2))
    rows = add_draws(Known(statistics, new))
    assert rows.labels.bincount().tolist() == [2000, 2000, 5]
    assert torch.equal(rows.values[:5], new.values)
    found = ClassStatistics.measure(rows, 0, 2, FULL)
    assert_close(found.means, statistics.means[:2], rtol=0, atol=0.1)
    assert_close(found.covariances[1.0], statistics.covariances[1.0][:2], rtol=0, atol=0.2)


# --- what is carried over


def test_dpcr_is_its_formula_from_the_images_features(tmp_path):
    """Grams and shifts one class at a time, as the paper writes them."""
    plan = resolve(set_up("dpcr"))
    carry, rule = plan.answering.transport, plan.answering.classifiers["ridge"]
    old = draw(2, 40, 6).double() @ torch.diag(torch.tensor([1.0, 1, 1, 1, 0, 0])).double()
    before, turn = draw(90, 6, seed=1).double(), draw(6, 6, seed=2).double()
    after = before @ turn + 0.1 * draw(90, 6, seed=3)
    shift = torch.linalg.lstsq(before, after).solution
    grams, sums = torch.zeros(6, 6).double(), []
    for features in old:
        values, vectors = torch.linalg.eigh(features.T @ features)
        basis = vectors[:, values > 1e-6]
        moved = basis @ basis.T @ shift
        grams += moved.T @ features.T @ features @ moved
        sums.append(features.sum(dim=0) @ moved)
    expected = torch.linalg.solve(grams + 200 * torch.eye(6), torch.stack(sums).T).T
    drift = make_drift(before.float(), after.float())
    moved = carry.move(measure(old.float(), FULL).statistics, drift)
    assert_like(rule.fit(Known(moved))["weight"], F.normalize(expected, dim=1))


def test_a_running_average_of_maps_begins_with_a_network_that_has_not_moved():
    before, statistics = draw(60, 5), measure(draw(3, 9, 5, seed=1), FULL).statistics
    rule = RidgeTransport(ridge=0.01, relative=False, toward="zero", average=0.9, looks=2)
    moments = [before @ (torch.eye(5) + 0.1 * draw(5, 5, seed=seed)) + seed for seed in (2, 3)]
    single = RidgeTransport(ridge=0.01, relative=False, toward="zero")
    matrix, shift = single.solve(before, before)
    for after in moments:
        rule.look(make_drift(before, after))
        now = single.solve(before, after)
        matrix = 0.9 * matrix + 0.1 * now[0]
        shift = 0.9 * shift + 0.1 * now[1]
    moved = rule.move(statistics, make_drift(before, 7 * before))
    assert_like(moved.means, statistics.means.double() @ matrix + shift, 1e-6)
    again = RidgeTransport(average=0.9)
    again.restore(rule.state_dict())
    assert torch.equal(again.matrix, rule.matrix)
    rule.begin_task()
    assert rule.state_dict() == {}


def test_a_transport_that_looks_leaves_the_training_alone(tmp_path, free, monkeypatch):
    seen = []
    look = RidgeTransport.look
    monkeypatch.setattr(
        RidgeTransport, "look", lambda self, drift: seen.append(1) or look(self, drift)
    )
    average = {"transport__average": 0.5, "transport__looks": 2}
    config = set_up("finetune", classifier__name="lda", transport__name="ridge", **average)
    assert_identical(learn(config, tmp_path).state, free.state)
    assert len(seen) == 2


# --- what runs share


def test_methods_that_train_alike_share_all_steps(tmp_path):
    said: list[str] = []

    def start(method: str, **options):
        plan = resolve(set_up(method, **options))
        output = tmp_path / f"{method}{len(said)}"
        run(plan, output, progress=False, say=said.append, cache=tmp_path / "cache")
        return sum("steps from the stage cache" in line for line in said)

    assert start("lwf", method__strength=10.0) == 0
    assert start("ldc") == 2
    # the first task is finetuning; the second is not that of another strength
    assert start("dpcr", method__strength=1.0) == 3
    # frozen networks
    assert start("fetril") == 3
    assert start("fecam") == 5
    # the maps of the moment are seen by taking the steps
    assert start("ldc", transport__name="ridge", transport__average=0.5) == 5

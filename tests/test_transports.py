"""Transports of class statistics: numbers of the public implementations, and closed forms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_classifiers import assert_like, draw, gather, load, measure
from torch.testing import assert_close

from mcit.class_statistics import (
    ClassStatistics,
    Features,
    Needs,
    draw_normal,
    find_sensitivity,
)
from mcit.errors import ConfigError
from mcit.transport import Drift
from mcit.transports.attack import Attack
from mcit.transports.displacement import Displacement
from mcit.transports.network import Network
from mcit.transports.none import NoTransport
from mcit.transports.ridge import RidgeTransport, find_spans

FULL = Needs(means=True, powers=frozenset({1.0}))


def make_drift(before: torch.Tensor, after: torch.Tensor) -> Drift:
    labels = torch.zeros(len(before), dtype=torch.long)
    stage = SimpleNamespace(seed=1, index=1)
    return Drift(stage, None, Features(before, labels), Features(after, labels))


def test_the_map_is_the_one_that_gatf_computes():
    truth = load("gatf_transport")
    rule = RidgeTransport(ridge=float(truth["ridge"]), relative=False, toward="zero")
    matrix, shift = rule.solve(truth["old_features"], truth["new_features"])
    for kind in ("diag", "full"):
        assert_like(matrix, truth[f"map_{kind}"])
        assert_like(shift, truth[f"bias_{kind}"])


def test_means_are_displaced_as_in_sdc():
    truth = load("adc")
    means = truth["sdc/prototypes"]
    statistics = ClassStatistics(torch.full((len(means),), 5), means)
    rule = Displacement(sigma=float(truth["sdc/sigma"]))
    drift = make_drift(truth["sdc/old_features"], truth["sdc/new_features"])
    assert_like(rule.move(statistics, drift).means - means, truth["sdc/displacement"])


def test_images_are_attacked_as_in_adc():
    truth = load("adc")
    rule = Attack(step=float(truth["alpha"]), iterations=int(truth["iterations"]))
    target = truth["prototypes"][int(truth["target"])]

    def see(images: torch.Tensor, network: str) -> torch.Tensor:
        return torch.tanh(images.flatten(1) @ truth[f"{network}_map"])

    found = rule.attack(lambda x: see(x, "old"), truth["images"], target)
    assert_like(found, truth["perturbed"])
    before = see(found, "old")
    chosen = torch.cdist(before, truth["prototypes"]).argmin(dim=1) == int(truth["target"])
    assert int(chosen.sum()) == int(truth["successes"])
    moved = see(found, "new") - before
    assert_like(moved[chosen].mean(dim=0), truth["drift"])


@pytest.mark.parametrize("toward", ["identity", "zero"])
def test_a_linear_drift_is_followed_exactly(toward):
    features = draw(4, 40, 5)
    turn = torch.eye(5) + 0.3 * draw(5, 5, seed=1)
    shift = draw(5, seed=2)
    seen = draw(60, 5, seed=3)
    rule = RidgeTransport(ridge=1e-9, toward=toward)
    moved = rule.move(measure(features, FULL).statistics, make_drift(seen, seen @ turn + shift))
    truth = measure(features @ turn + shift, FULL).statistics
    assert_like(moved.means, truth.means, 1e-5)
    assert_like(moved.covariances[1.0], truth.covariances[1.0], 1e-5)


def test_one_covariance_follows_a_linear_drift_too():
    features, seen = draw(4, 40, 5), draw(60, 5, seed=3)
    turn = torch.eye(5) + 0.3 * draw(5, 5, seed=1)
    rule = RidgeTransport(ridge=1e-9)
    needs = Needs(means=True, shared=True)
    moved = rule.move(measure(features, needs).statistics, make_drift(seen, seen @ turn))
    truth = measure(features @ turn, needs).statistics
    assert_like(moved.shared, truth.shared, 1e-5)


def test_a_network_that_did_not_move_leaves_statistics_alone():
    statistics = measure(draw(3, 9, 5), FULL).statistics
    seen = draw(30, 5, seed=3)
    for rule in (RidgeTransport(), NoTransport(), Displacement(), Displacement(sigma=0.1)):
        moved = rule.move(statistics, make_drift(seen, seen))
        assert_close(moved.means, statistics.means, rtol=1e-5, atol=1e-6)
        assert_close(moved.covariances, statistics.covariances, rtol=1e-5, atol=1e-6)


def test_directions_that_no_image_shows_stay_when_the_map_is_drawn_to_the_identity():
    seen = draw(30, 5, seed=3)
    seen[:, 4] = 0
    statistics = measure(draw(3, 9, 5), FULL).statistics
    moved = RidgeTransport(ridge=1e-4).move(statistics, make_drift(seen, 2 * seen))
    assert_close(moved.means[:, 4], statistics.means[:, 4], rtol=1e-4, atol=1e-4)
    assert_close(moved.means[:, :4], 2 * statistics.means[:, :4], rtol=1e-2, atol=1e-2)


def test_a_class_is_projected_onto_the_span_of_its_own_features():
    basis = torch.linalg.qr(draw(6, 2)).Q
    features = (draw(3, 20, 2, seed=1) @ basis.T).double()
    projectors = find_spans(torch.einsum("cnd,cne->cde", features, features))
    expected = (basis @ basis.T).double().expand(3, 6, 6)
    assert_close(projectors, expected, rtol=0, atol=1e-6)


def test_a_projected_class_ignores_how_other_directions_move():
    """DPCR: T acts on the class's own span only, so that noise elsewhere does not enter."""
    features = draw(2, 20, 6)
    features[..., 4:] = 0
    seen = draw(80, 6, seed=2)
    after = seen.clone()
    after[:, 4:] *= 9
    moved = RidgeTransport(ridge=1e-9, project=True).move(
        measure(features, FULL).statistics, make_drift(seen, after)
    )
    truth = measure(features, FULL).statistics
    assert_like(moved.means, truth.means, 1e-4)
    assert_like(moved.covariances[1.0], truth.covariances[1.0], 1e-4)


def test_the_fisher_kernel_weighs_by_the_directions_that_matter_to_the_head():
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    features = draw(50, 2)
    metric = find_sensitivity(features, weight)
    p = (features @ weight.T).double().softmax(dim=1)
    inner = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    expected = torch.einsum("kd,nkl,le->de", weight.double(), inner, weight.double()) / 50
    assert_close(metric, expected)
    # the second feature moves no logit: images that differ in it alone are equally near
    statistics = ClassStatistics(torch.tensor([9]), torch.zeros(1, 2), sensitivity=metric.float())
    seen = torch.tensor([[0.1, 0.0], [0.1, 7.0], [2.0, 0.0]])
    weights = Displacement(kernel="fisher", sigma=0.2).weigh(statistics, seen.double())[0]
    assert_close(weights[0], weights[1])
    assert weights[2] < 1e-4 * weights[0]


def test_the_network_learns_a_drift_that_is_not_linear():
    features = draw(2, 50, 3)
    seen = 1.5 * draw(400, 3, seed=3)

    def bend(x):
        return x + torch.relu(x)

    rule = Network(hidden=64, epochs=60, learning_rate=0.1, draws=4000, batch_size=50)
    statistics = measure(features, FULL).statistics
    moved = rule.move(statistics, make_drift(seen, bend(seen)))
    truth = measure(bend(features), FULL).statistics
    before = float((statistics.means - truth.means).norm())
    assert float((moved.means - truth.means).norm()) < 0.3 * before


def test_draws_have_the_mean_and_covariance_asked_for_even_if_it_is_singular():
    mean = torch.tensor([1.0, -2.0, 0.5])
    covariance = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    found = draw_normal(mean, covariance, 40_000, torch.Generator().manual_seed(0))
    assert_close(found.mean(dim=0), mean, rtol=0, atol=0.03)
    assert_close(torch.cov(found.T), covariance, rtol=0, atol=0.06)
    assert bool((found[:, 2] == 0.5).all())


def test_statistics_come_back_from_their_state():
    statistics = measure(draw(3, 9, 5), FULL | Needs(shared=True)).statistics
    found = ClassStatistics.from_state_dict(statistics.state_dict())
    assert_close(found.covariances[1.0], statistics.covariances[1.0], rtol=0, atol=0)
    assert torch.equal(found.means, statistics.means)
    assert torch.equal(found.counts, statistics.counts)


def test_a_power_of_features_follows_no_map():
    needs = Needs(powers=frozenset({0.5}))
    assert NoTransport().find_problems(needs) == []
    (problem,) = RidgeTransport().find_problems(needs)
    assert "raised to a power" in problem


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: RidgeTransport(ridge=0.0), "'ridge' must be above 0"),
        (lambda: Displacement(sigma=0.0), "'sigma' must be above 0"),
        (lambda: Attack(candidates=0), "'candidates' must be at least 1"),
        (lambda: Network(draws=1), "'draws' must be at least 2"),
    ],
)
def test_bad_options_are_refused_by_name(make, problem):
    with pytest.raises(ConfigError, match=problem):
        make()


def test_gathered_features_are_found_by_class():
    rows = gather(draw(3, 4, 2))
    assert torch.equal(rows.of_class(1), rows.values[4:8])

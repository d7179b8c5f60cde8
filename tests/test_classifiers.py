"""Classifiers on features: numbers of the public implementations, and closed forms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.testing import assert_close

from mcit.class_statistics import ClassStatistics, Features, Needs, find_shrinkage
from mcit.classifier import Known
from mcit.classifiers.gaussian import Gaussian
from mcit.classifiers.lda import Lda
from mcit.classifiers.nearest_mean import NearestMean
from mcit.classifiers.ridge import Ridge
from mcit.classifiers.svm import Svm, borrow_features, find_neighbors, fit_machines
from mcit.errors import ConfigError

ZOO = Path(__file__).parent / "fixtures" / "zoo"


def load(name: str) -> dict[str, torch.Tensor]:
    return load_file(ZOO / f"{name}.safetensors")


def assert_like(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Within a fraction of the largest expected value."""
    largest = float(expected.abs().max())
    assert_close(found.double(), expected.double(), rtol=0, atol=tolerance * largest)


def gather(features: torch.Tensor) -> Features:
    """Features [classes, each, width] as those of so many classes."""
    labels = torch.arange(len(features)).repeat_interleave(features.shape[1])
    return Features(features.flatten(0, 1), labels)


def measure(features: torch.Tensor, needs: Needs) -> Known:
    found = gather(features)
    return Known(ClassStatistics.measure(found, 0, len(features), needs), found)


def answer(classifier, features: torch.Tensor, test: torch.Tensor) -> torch.Tensor:
    fitted = classifier.fit(measure(features, classifier.needs()))
    return classifier.score(fitted, test)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FECAM = {"power": 0.5, "shrinkage": 1.0, "off_diagonal": 1.0, "repeats": 2}


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("distances", FECAM),
        ("distances_not_normalised", {**FECAM, "correlation": False}),
        ("distances_diagonal", {**FECAM, "diagonal": True}),
        (
            "distances_plain_mahalanobis",
            {"power": 1.0, "shrinkage": 0.0, "correlation": False},
        ),
    ],
)
def test_distances_are_those_of_fecam(key, options):
    truth = load("fecam")
    found = -answer(Gaussian(**options), truth["features"], truth["test"])
    assert_like(found, truth[key])


def test_the_order_of_classes_is_that_of_fecam():
    truth = load("fecam")
    found = -answer(Gaussian(**FECAM), truth["features"], truth["test"])
    assert torch.equal(found.argsort(dim=1), truth["ranking"])


def test_covariances_are_shrunk_as_fecam_shrinks_them():
    truth = load("fecam")
    statistics = measure(truth["features"], Needs(powers=frozenset({0.5}))).statistics
    for key, repeats in (("cov_once_shrunk", 1), ("cov_twice_shrunk", 2)):
        rule = Gaussian(**{**FECAM, "repeats": repeats})
        shrunk = [rule.shrink(s.double(), torch.zeros(())) for s in statistics.covariances[0.5]]
        assert_like(torch.stack(shrunk), truth[key])


def test_the_first_task_of_fecam_is_the_nearest_direction():
    truth = load("fecam")
    known = int(truth["known"])
    rule = NearestMean()
    fitted = {"means": F.normalize(truth["fc_weight"][:known], dim=1)}
    assert_like(-rule.score(fitted, truth["test"]), truth["distances_first_task"])


def test_answers_are_those_of_adagauss():
    truth = load("adagauss")
    rule = Gaussian(shrinkage=3.0)
    statistics = measure(truth["features"], rule.needs()).statistics
    given = ClassStatistics(
        statistics.counts, truth["means"], None, {1.0: truth["covariances"]}, statistics.shrinkages
    )
    fitted = rule.fit(Known(given))
    assert_like(fitted["inverse"], truth["inverse"])
    assert torch.equal(rule.score(fitted, truth["test"]).argmax(dim=1), truth["predictions"])


def test_old_classes_borrow_features_as_in_pycil():
    truth = load("fetril")
    known = int(truth["known"])
    new = truth["features"][known:]
    labels = torch.arange(known, len(truth["features"])).repeat_interleave(new.shape[1])
    means = truth["means"]
    nearest = find_neighbors(means[:known], means[known:], "cosine")
    assert torch.equal(nearest + known, truth["relations"])
    found = borrow_features(Features(new.flatten(0, 1), labels), means, "cosine")
    assert_like(found.values.view_as(truth["pseudo"]), truth["pseudo"])
    assert found.labels[:: new.shape[1]].tolist() == truth["pseudo_classes"].tolist()


def test_the_machines_are_those_of_linear_svc():
    truth = load("fetril")
    rule = Svm()
    values = truth["pseudo"].flatten(0, 1).double()
    labels = truth["pseudo_classes"].repeat_interleave(truth["pseudo"].shape[1])
    found = fit_machines(F.normalize(values, dim=1), labels, 6, rule.cost, rule.iterations)
    # LinearSVC itself stops at a tolerance
    assert_like(found[:, :-1], truth["svm_weight"], 1e-3)
    assert_like(found[:, -1], truth["svm_bias"], 1e-3)
    fitted = {"weight": found[:, :-1].float(), "bias": found[:, -1].float()}
    right = rule.score(fitted, truth["test"]).argmax(dim=1) == truth["test_labels"]
    assert_close(100 * right.double().mean(), truth["svm_accuracy"][0], rtol=0, atol=0.01)


def test_mahalanobis_with_the_identity_is_the_nearest_mean():
    features, test = draw(4, 9, 5).abs(), draw(7, 5, seed=1).abs()
    rule = Gaussian(correlation=False)
    statistics = measure(features, rule.needs()).statistics
    identity = {1.0: torch.eye(5).expand(4, 5, 5)}
    plain = ClassStatistics(
        statistics.counts, statistics.means, None, identity, statistics.shrinkages
    )
    found = Gaussian(correlation=False, shrinkage=0.0)
    scores = found.score(found.fit(Known(plain)), test)
    assert_close(scores, answer(NearestMean(), features, test))


def test_lda_is_the_nearest_mean_where_features_are_white():
    """Bayes' rule for one covariance: it is the distance after whitening, in double precision."""
    features, test = draw(4, 30, 5).double(), draw(7, 5, seed=1)
    scores = answer(Lda(shrinkage=0.1), features.float(), test)
    within = torch.stack([torch.cov(each.T) for each in features]).mean(dim=0)
    within += 0.1 * within.diagonal().mean() * torch.eye(5).double()
    away = test.double().unsqueeze(1) - features.mean(dim=1)
    distances = torch.einsum("ncd,de,nce->nc", away, within.inverse(), away)
    # up to what all classes of an example share
    found = scores - scores[:, :1]
    assert_like(found, -(distances - distances[:, :1]) / 2, 1e-5)


def test_ridge_is_least_squares_on_all_the_data():
    features = draw(3, 12, 5)
    found = Ridge(gamma=0.5, normalize=False).fit(measure(features, Ridge().needs()))["weight"]
    rows = gather(features)
    x = rows.values.double()
    targets = F.one_hot(rows.labels).double()
    # the penalty as further rows of the data
    stacked = torch.cat([x, 0.5**0.5 * torch.eye(5).double()])
    wanted = torch.cat([targets, torch.zeros(5, 3).double()])
    assert_like(found, torch.linalg.lstsq(stacked, wanted).solution.T, 1e-5)


@pytest.mark.parametrize("rule", [Lda(), Ridge(gamma=1.0), Gaussian(), NearestMean()])
def test_statistics_of_tasks_one_after_the_other_are_those_of_all_at_once(rule):
    features, test = draw(5, 8, 4).abs(), draw(6, 4, seed=1).abs()
    rows = gather(features)
    parts = [ClassStatistics.measure(rows, a, b, rule.needs()) for a, b in ((0, 2), (2, 5))]
    joined = rule.fit(Known(parts[0].join(parts[1])))
    whole = rule.fit(measure(features, rule.needs()))
    assert_like(rule.score(joined, test), rule.score(whole, test), 1e-5)


def test_one_covariance_is_the_same_whether_kept_or_pooled_from_those_of_classes():
    features = draw(5, 8, 4)
    one = measure(features, Needs(shared=True)).statistics
    each = measure(features, Needs(shared=True, powers=frozenset({1.0}))).statistics
    assert each.shared is None
    assert_close(one.shared_covariance(), each.shared_covariance(), rtol=1e-5, atol=1e-6)
    assert_close(one.total_gram(), each.total_gram(), rtol=1e-5, atol=1e-5)


def test_the_gram_matrices_are_the_sums_of_products():
    features = draw(3, 8, 4).double()
    statistics = measure(features.float(), Needs(powers=frozenset({1.0}))).statistics
    expected = torch.einsum("cnd,cne->cde", features, features)
    assert_like(statistics.gram(), expected, 1e-5)
    assert_like(statistics.total_gram(), expected.sum(dim=0), 1e-5)


def test_the_shrinkage_is_that_of_ledoit_and_wolf():
    sklearn = pytest.importorskip("sklearn.covariance")
    values = draw(15, 6) @ draw(6, 6, seed=1)
    expected = sklearn.ledoit_wolf_shrinkage(values.double().numpy())
    assert_close(float(find_shrinkage(values)), float(expected), rtol=1e-9, atol=0)


def test_ledoit_and_wolf_shrink_few_examples_more():
    values = draw(400, 6) @ draw(6, 6, seed=1)
    assert float(find_shrinkage(values[:10])) > 5 * float(find_shrinkage(values))
    assert float(find_shrinkage(values[:1])) == 1
    rule = Gaussian(ledoit_wolf=True, correlation=False)
    covariance = torch.diag(torch.tensor([1.0, 3.0])).double()
    half = rule.shrink(covariance, torch.tensor(0.5).double())
    assert_close(half, torch.diag(torch.tensor([1.5, 2.5])).double())


def test_what_is_kept_is_counted_in_bytes():
    def held(needs: Needs) -> int:
        return measure(draw(3, 8, 4), needs).statistics.bytes_held()

    assert held(Needs(means=True)) == 3 * 8 + 4 * 3 * 4
    assert held(Needs(shared=True)) - held(Needs(means=True)) == 4 * 4 * 4
    # and one number for Ledoit and Wolf
    assert held(Needs(powers=frozenset({1.0}))) - held(Needs(means=True)) == 4 * 3 * (4 * 4 + 1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Gaussian(power=0.0), "'power' must be above 0 and at most 1, found 0"),
        (lambda: Gaussian(repeats=0), "'repeats' must be at least 1, found 0"),
        (lambda: Lda(shrinkage=0.0), "'shrinkage' must be above 0"),
        (lambda: Ridge(gamma=-1.0), "'gamma' must be above 0"),
        (lambda: Svm(cost=0.0), "'cost' must be above 0"),
    ],
)
def test_bad_options_are_refused_by_name(make, problem):
    with pytest.raises(ConfigError, match=problem):
        make()

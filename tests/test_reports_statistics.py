"""Ranks, tests and intervals against published figures, closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_runs import make_config, make_group, make_run
from scipy import stats

from mcit.reports import statistics
from mcit.reports.paper import METHODS, list_settings, read_paper
from mcit.reports.runs import group_runs
from mcit.reports.significance import make_significance_tables, rank_groups

# Demšar (2006), "Statistical comparisons of classifiers over multiple data sets", table 5: Nemenyi's q for 2 to 10.
Q_05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
Q_10 = [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]


# --- the paper's own settings


def test_the_papers_ranks_come_out_of_its_average_accuracies():
    settings, scores = list_settings("A_avg")
    assert len(settings) == 18
    assert METHODS == ("ewc_dr", "online_ewc", "mas", "ewc", "si")
    assert [f"{value:.2f}" for value in statistics.average_ranks(scores)] == [
        "1.00",
        "2.44",
        "2.56",
        "4.17",
        "4.83",
    ]


def test_the_last_accuracies_rank_the_same_way_with_other_figures():
    ranks = statistics.average_ranks(list_settings("A_last")[1])
    assert [f"{value:.2f}" for value in ranks] == ["1.00", "2.50", "2.56", "4.06", "4.89"]


def test_the_papers_critical_difference():
    told = read_paper()["critical_difference"]
    found = statistics.critical_difference(told["methods"], told["settings"], told["alpha"])
    assert round(found, 3) == told["value"] == 1.438


def test_in_the_paper_ewc_dr_is_1st_by_more_than_one_critical_difference():
    ranks = statistics.average_ranks(list_settings("A_avg")[1])
    cliques = statistics.find_cliques(ranks, statistics.critical_difference(5, 18))
    assert [[METHODS[method] for method in clique] for clique in cliques] == [
        ["online_ewc", "mas"],
        ["ewc", "si"],
    ]


def test_the_papers_settings_are_not_independent_and_that_is_said():
    settings = list_settings("A_avg")[0]
    (warning,) = statistics.warn_about_blocks(
        "settings", 18, [dataset for dataset, _, _ in settings]
    )
    assert warning.startswith("18 settings come from 3 data sets, so they are not independent")


def test_the_papers_table_of_forgetting_follows_from_its_accuracies():
    paper = read_paper()["mcit"]
    chance = [0.0, 50.0, 100 / 3, 25.0]
    for method in ("ewc", "ewc_dr"):
        rows = paper[method]["a"]
        for t, row in enumerate(paper[method]["f"]):
            made = [
                100 * (rows[j][j] - rows[t][j]) / (rows[j][j] - chance[j]) for j in range(len(row))
            ]
            assert made == pytest.approx(row, abs=0.1)


# --- ranks, Friedman, Nemenyi


def test_ties_share_the_mean_of_their_ranks():
    assert statistics.rank([[5, 7, 5, 9], [1, 1, 1, 1]]).tolist() == [[3.5, 2, 3.5, 1], [2.5] * 4]


def test_friedman_by_hand_without_ties():
    """Ranks (1,2,3), (1,2,3), (1,3,2), (2,1,3): sums 5, 8, 11; chi2 = 12/(4*3*4) * 210 - 3*4*4 = 4.5; F = 3.86."""
    test = statistics.friedman([[9, 8, 7], [9, 8, 7], [9, 7, 8], [8, 9, 7]])
    assert test.chi_square == pytest.approx(4.5)
    assert test.p_chi_square == pytest.approx(
        math.exp(-4.5 / 2)
    )  # chi-square with two degrees of freedom
    assert test.f == pytest.approx(3 * 4.5 / (4 * 2 - 4.5))
    assert test.p_f == pytest.approx(stats.f.sf(test.f, 2, 6))


def test_friedman_with_ties_is_scipys():
    scores = np.random.default_rng(1).integers(0, 4, size=(12, 5))
    expected = stats.friedmanchisquare(*scores.T)
    test = statistics.friedman(scores)
    assert (test.chi_square, test.p_chi_square) == pytest.approx(
        (expected.statistic, expected.pvalue)
    )


def test_friedman_where_all_agree_and_where_nobody_differs():
    assert statistics.friedman([[3, 2, 1]] * 4).f == math.inf
    assert statistics.friedman([[3, 2, 1]] * 4).p_f == 0
    assert statistics.friedman([[1, 1, 1]] * 4) == statistics.Friedman(0.0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize("scores", [[[1, 2], [2, 1]], [[1, 2, 3]]])
def test_friedman_refuses_too_little(scores):
    with pytest.raises(ValueError, match="needs 3 methods and 2 blocks"):
        statistics.friedman(scores)


def test_a_table_with_holes_has_no_ranks():
    with pytest.raises(ValueError, match="full table"):
        statistics.rank([[1.0, math.nan]])


@pytest.mark.parametrize(("alpha", "table"), [(0.05, Q_05), (0.10, Q_10)])
def test_critical_differences_are_those_of_the_published_table(alpha, table):
    for methods, q in enumerate(table, start=2):
        found = statistics.critical_difference(methods, 14, alpha)
        assert found == pytest.approx(q * math.sqrt(methods * (methods + 1) / (6 * 14)), rel=3e-4)


def test_cliques_are_the_largest_sets_within_the_difference():
    assert statistics.find_cliques([1.0, 1.9, 2.5, 4.0], 1.0) == [[0, 1], [1, 2]]
    assert statistics.find_cliques([3.0, 1.0, 2.0], 5.0) == [[1, 2, 0]]
    assert statistics.find_cliques([1.0, 3.0], 1.0) == []


def test_few_blocks_are_told_and_enough_independent_ones_are_not():
    assert "3 seeds are few" in statistics.warn_about_blocks("seeds", 3)[0]
    assert statistics.warn_about_blocks("settings", 12, [f"data{n}" for n in range(12)]) == []


# --- paired tests


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_differences_of_one_sign_have_the_least_p_that_signs_allow(count):
    values = np.linspace(0.5, 2.0, count)
    assert (
        statistics.sign_flip_test(values)
        == statistics.sign_flip_test(-values)
        == 2.0 ** (1 - count)
    )
    assert statistics.least_p(count) == 2.0 ** (1 - count)


def test_sign_flips_by_hand():
    """Of 1, 2, -4 the sums are +-7, +-5, +-3, +-1: |1+2-4| = 1 is reached by all; |4-1+2| = 5 by four of eight."""
    assert statistics.sign_flip_test([1, 2, -4]) == 1.0
    assert statistics.sign_flip_test([4, -1, 2]) == 0.5
    assert statistics.sign_flip_test([0.0, 0.0]) == 1.0


def test_sign_flips_are_scipys_permutation_test():
    values = np.random.default_rng(0).normal(0.5, 1, 9)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert statistics.sign_flip_test(values) == pytest.approx(expected.pvalue)


def test_the_order_of_adding_does_not_decide():
    """0.1 + 0.2 - 0.3 is not 0 in floating point, yet flipping every sign of it is as far from 0."""
    assert statistics.sign_flip_test([0.1, 0.2, -0.3]) == 1.0


def test_many_differences_are_sampled_and_agree_with_the_normal_law():
    values = np.random.default_rng(3).normal(0.4, 1, 40)
    expected = 2 * stats.norm.sf(abs(values.sum()) / math.sqrt((values**2).sum()))
    assert statistics.sign_flip_test(values) == pytest.approx(expected, abs=0.01)
    assert statistics.sign_flip_test(values) == statistics.sign_flip_test(values)


def test_wilcoxon_by_hand_and_by_scipy():
    assert statistics.wilcoxon_test([1, 2, 3, 4, 5]) == 2 / 32
    assert statistics.wilcoxon_test([1, 2, 3, 4, 5, 0]) == 2 / 32  # an equal pair tells nothing
    assert statistics.wilcoxon_test([0, 0]) == 1.0
    values = np.random.default_rng(2).normal(0.3, 1, 14)
    assert statistics.wilcoxon_test(values) == pytest.approx(stats.wilcoxon(values).pvalue)


def test_holm_by_hand():
    """3 * 0.01, 2 * 0.03, and 0.04 may not fall below the one before it."""
    assert statistics.adjust_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.adjust_holm([0.9, 0.8]) == [1.0, 1.0]


# --- bootstrap


def test_the_bootstrap_of_two_values_reaches_from_one_to_the_other():
    """Means of resamples are a, the middle, or b, with chances 1/4, 1/2, 1/4."""
    assert statistics.bootstrap_interval([3.0, 5.0]) == (3.0, 5.0)
    assert statistics.bootstrap_interval([3.0, 5.0], level=0.4) == (4.0, 4.0)


def test_the_bootstrap_of_many_values_is_the_normal_interval():
    values = np.random.default_rng(4).normal(50, 4, 400)
    half = 1.96 * values.std() / math.sqrt(400)
    low, high = statistics.bootstrap_interval(values)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert statistics.bootstrap_interval(values) == (low, high)
    assert statistics.bootstrap_interval(values, seed=1) != (low, high)


def test_one_value_has_no_interval():
    assert statistics.bootstrap_interval([3.0]) is None


# --- the tables that are made of them


def seeds_of(method: str, finals: list[float]) -> list:
    """Runs of two tasks that end with this average."""
    return [
        make_run(method, [[80.0], [a, a]], seed, tasks="ab", chance=(0, 0))
        for seed, a in enumerate(finals, 1)
    ]


def test_methods_are_ranked_over_seeds_where_there_is_one_setting():
    groups = group_runs(
        [
            *seeds_of("ewc", [50, 51, 52]),
            *seeds_of("mas", [60, 61, 50]),
            *seeds_of("si", [40, 40, 40]),
        ]
    )
    ranks, pairs = make_significance_tables(groups)
    # ewc is 2nd, 2nd, 1st; mas 1st, 1st, 2nd; si last
    assert ranks.rows == [["mas", "1.33", "1.33"], ["ewc", "1.67", "1.67"], ["si", "3.00", "3.00"]]
    assert ranks.best == {(0, 1), (0, 2)}
    notes = " ".join(ranks.notes)
    for words in (
        "critical difference at 0.05 is 1.914",
        "not told apart: mas, ewc, si",
        "3 seeds are few",
    ):
        assert words in notes
    assert pairs.header[:3] == ["pair", "n", "A_last difference"]
    # 10, 10, -2: mean 6; signs give |sum| 18 or more in 4 of 8; Holm of (0.5, 0.25, 0.25) is (0.75, 0.75, 0.75)
    assert pairs.rows[0][:5] == ["mas vs ewc", "3", "+6.00", "-2.00 to +10.00", "0.750"]
    assert any(
        "3 seeds and 3 comparisons cannot give a p below 0.75" in note for note in pairs.notes
    )
    found = rank_groups(groups)
    assert (found.methods, found.blocks, found.kind) == (["ewc", "mas", "si"], 3, "seeds")
    assert found.ranks == pytest.approx([5 / 3, 4 / 3, 3])


def test_seeds_are_paired_by_number_and_others_are_left_out():
    runs = [*seeds_of("ewc", [50, 51, 52, 53]), *reversed(seeds_of("mas", [55, 57, 59]))]
    (pairs,) = make_significance_tables(group_runs(runs))  # two methods have no ranks to speak of
    assert pairs.rows[0][:3] == ["mas vs ewc", "3", "+6.00"]  # 5, 6 and 7


@pytest.mark.parametrize(
    "finals", [{"ewc": [50, 51]}, {"ewc": [50], "mas": [60]}, {"ewc": [50, 51], "joint": [60, 61]}]
)
def test_too_little_gives_no_table(finals):
    runs = [run for method, values in finals.items() for run in seeds_of(method, values)]
    assert make_significance_tables(group_runs(runs)) == []
    assert rank_groups(group_runs(runs)) is None


def test_settings_are_the_blocks_where_there_are_several():
    """The paper's CIFAR-100 and Tiny-ImageNet as runs: ranks as scipy has them, and the data sets are counted."""
    settings, scores = list_settings("A_avg")
    kept = [(s, row) for s, row in zip(settings, scores, strict=True) if s[0] != "imagenet_subset"]
    runs = []
    for (dataset, split, length), row in kept:
        start = 50 if split == "big_start" else 5
        tasks = [f"{dataset}[0-{start - 1}]", f"{dataset}[{start}-{start + int(length)}]"]
        order = [f"{dataset}:{split}{length}"]
        for method, value in zip(METHODS, row, strict=True):
            config = {"order": order, "method": {"name": method}}
            run = make_run(
                method,
                [[value], [value, value]],
                tasks=tasks,
                chance=(0, 0),
                track="efcil",
                config=config,
            )
            runs.append(run)
    ranks, pairs = make_significance_tables(group_runs(runs))
    expected = stats.rankdata([[-value for value in row] for _, row in kept], axis=1).mean(axis=0)
    assert {row[0]: row[2] for row in ranks.rows} == {
        m: f"{e:.2f}" for m, e in zip(METHODS, expected, strict=True)
    }
    assert any("12 settings come from 2 data sets" in note for note in ranks.notes)
    assert any("12 settings come from 2 data sets" in note for note in pairs.notes)
    assert any("Wilcoxon" in note for note in pairs.notes)
    assert len(pairs.rows) == 10


def test_a_method_that_was_run_in_some_settings_only_does_not_end_the_comparison():
    orders = [("a", "b"), ("b", "a"), ("c", "d")]
    made = [
        make_group(
            name,
            [[[80.0], [50.0 + place, 80.0]]],
            (0.0, 0.0),
            order,
            config=make_config(name, order),
        )
        for place, name in enumerate(("ewc", "mas", "si"))
        for order in orders
    ]
    extra = make_group(
        "lwf", [[[99.0], [99.0, 99.0]]], (0.0, 0.0), orders[0], config=make_config("lwf", orders[0])
    )
    ranks, pairs = make_significance_tables([*made, extra])
    assert [row[:2] for row in ranks.rows] == [["si", "1.00"], ["mas", "2.00"], ["ewc", "3.00"]]
    assert [row[0] for row in pairs.rows] == ["si vs mas", "si vs ewc", "mas vs ewc"]
    told = "Left out, for they were run in some settings only: lwf."
    assert told in ranks.notes
    assert told in pairs.notes

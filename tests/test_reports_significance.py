"""Ranks, tests and intervals against published numbers, closed forms and scipy."""

from __future__ import annotations

import json
import math
from importlib.resources import files

import numpy as np
import pytest
from report_runs import make_config, make_run
from scipy import stats

from mcit.reports import significance
from mcit.reports.formats import Table, TableKind
from mcit.reports.groups import group_runs
from mcit.reports.significance import compare, make_significance_tables

# Demšar (2006), table 5: Nemenyi's q for 2 to 10 methods
Q_05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
Q_10 = [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]
METHODS = ("ewc_dr", "online_ewc", "mas", "ewc", "si")


def read_paper() -> dict:
    """Return the tables of the EWC-DR paper."""
    return json.loads(files("mcit.reports").joinpath("paper_tables.json").read_text("utf-8"))


def list_settings(metric: str) -> list[tuple[str, str, str, list[float]]]:
    """Return data set, split, length and the scores by method, for the paper's 18 settings."""
    tables = read_paper()["efcil"]
    return [
        (data, split, length, [tables[data][name][split][length][metric] for name in METHODS])
        for data in tables
        for split in ("big_start", "equal_split")
        for length in ("5", "10", "20")
    ]


def make(groups) -> list[Table]:
    return make_significance_tables(compare(groups))


def texts(table: Table) -> list[list[str]]:
    return [table.texts(row) for row in table.rows]


def notes(table: Table) -> str:
    return " ".join(note.text for note in table.notes)


# --- what a number of seeds can show


@pytest.mark.parametrize(
    ("count", "effect"),
    # effect sizes of a two-sided paired t test at 0.05 with power 0.8, as in published tables
    [(3, 3.26), (5, 1.68), (10, 0.996), (20, 0.660), (34, 0.495)],
)
def test_the_detectable_difference_is_that_of_published_tables(count, effect):
    assert significance.detectable_difference(2.0, count) == pytest.approx(2 * effect, rel=2e-3)


@pytest.mark.parametrize("count", [3, 6])
def test_a_detectable_difference_is_found_four_times_out_of_five(count):
    rng = np.random.default_rng(0)
    true = significance.detectable_difference(1.5, count)
    found = stats.ttest_1samp(rng.normal(true, 1.5, (100_000, count)), 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.006)


# --- the paper's own settings


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("A_avg", ["1.00", "2.44", "2.56", "4.17", "4.83"]),
        ("A_last", ["1.00", "2.50", "2.56", "4.06", "4.89"]),
    ],
)
def test_the_papers_ranks_come_out_of_its_accuracies(metric, expected):
    scores = [row[-1] for row in list_settings(metric)]
    assert len(scores) == 18
    assert [f"{value:.2f}" for value in significance.average_ranks(scores)] == expected


def test_the_papers_critical_difference():
    stated = read_paper()["critical_difference"]
    found = significance.critical_difference(stated["methods"], stated["settings"], stated["alpha"])
    assert round(found, 3) == stated["value"] == 1.438


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
    assert significance.average_ranks([[5, 7, 5, 9]]).tolist() == [3.5, 2, 3.5, 1]


def test_friedman_by_hand_without_ties():
    """Ranks (1,2,3), (1,2,3), (1,3,2), (2,1,3) have sums 5, 8, 11: chi2 = 210 / 4 - 48 = 4.5."""
    p_value = significance.friedman_p([[9, 8, 7], [9, 8, 7], [9, 7, 8], [8, 9, 7]])
    # chi-square with two degrees of freedom
    assert p_value == pytest.approx(math.exp(-4.5 / 2))


def test_nobody_differs_if_all_scores_are_equal():
    assert significance.friedman_p([[1, 1, 1]] * 4) == 1.0


@pytest.mark.parametrize(("alpha", "table"), [(0.05, Q_05), (0.10, Q_10)])
def test_critical_differences_are_those_of_the_published_table(alpha, table):
    for methods, q in enumerate(table, start=2):
        found = significance.critical_difference(methods, 14, alpha)
        assert found == pytest.approx(q * math.sqrt(methods * (methods + 1) / (6 * 14)), rel=3e-4)


# --- paired tests


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_differences_of_one_sign_have_the_least_p_that_signs_allow(count):
    values = np.linspace(0.5, 2.0, count)
    assert significance.sign_flip_test(values) == pytest.approx(2.0 ** (1 - count))
    assert significance.sign_flip_test(-values) == pytest.approx(2.0 ** (1 - count))


def test_sign_flips_by_hand():
    """Of 1, 2, -4 the sums are ±7, ±5, ±3, ±1: 1 is reached by all, and 5 by four of eight."""
    assert significance.sign_flip_test([1, 2, -4]) == 1.0
    assert significance.sign_flip_test([4, -1, 2]) == 0.5
    assert significance.sign_flip_test([0.0, 0.0]) == 1.0


def test_the_order_of_adding_does_not_decide():
    """0.1 + 0.2 - 0.3 is not 0 in floating point, but as far from 0 with all signs flipped."""
    assert significance.sign_flip_test([0.1, 0.2, -0.3]) == 1.0


def test_many_differences_are_sampled_and_agree_with_the_normal_law():
    values = np.random.default_rng(3).normal(0.4, 1, 40)
    expected = 2 * stats.norm.sf(abs(values.sum()) / math.sqrt((values**2).sum()))
    assert significance.sign_flip_test(values) == pytest.approx(expected, abs=0.01)
    assert significance.sign_flip_test(values) == significance.sign_flip_test(values)


def test_wilcoxon_by_hand():
    assert significance.wilcoxon_test([1, 2, 3, 4, 5]) == 2 / 32
    assert significance.wilcoxon_test([0, 0]) == 1.0


def test_holm_by_hand():
    """3 * 0.01, 2 * 0.03, and 0.04 may not fall below the one before it."""
    assert significance.adjust_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.adjust_holm([0.9, 0.8]) == [1.0, 1.0]


# --- bootstrap


def test_the_bootstrap_of_two_values_reaches_from_one_to_the_other():
    assert significance.bootstrap_interval([3.0, 5.0]) == (3.0, 5.0)


def test_the_bootstrap_of_many_values_is_the_normal_interval():
    values = np.random.default_rng(4).normal(50, 4, 400)
    half = 1.96 * values.std() / math.sqrt(400)
    low, high = significance.bootstrap_interval(values)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    assert significance.bootstrap_interval(values) == (low, high)


# --- the tables that are made of them


def seeds_of(method: str, finals: list[float]) -> list:
    """Return runs of two tasks that end with these averages."""
    return [
        make_run(method, [[80.0], [value, value]], seed, tasks="ab", chance=(0, 0))
        for seed, value in enumerate(finals, 1)
    ]


def test_methods_are_ranked_over_seeds_if_there_is_one_setting():
    groups = group_runs(
        [
            *seeds_of("ewc", [50, 51, 52]),
            *seeds_of("mas", [60, 61, 50]),
            *seeds_of("si", [40, 40, 40]),
        ]
    )
    ranks, pairs = make(groups)
    assert (ranks.kind, pairs.kind) == (TableKind.RANKS, TableKind.PAIRS)
    # ewc is 2nd, 2nd, 1st; mas 1st, 1st, 2nd; si last
    assert texts(ranks) == [
        ["mas", "1.33", "1.33"],
        ["ewc", "1.67", "1.67"],
        ["si", "3.00", "3.00"],
    ]
    assert [cell.best for cell in ranks.rows[0].cells] == [True, True]
    assert "critical difference at 0.05 is 1.914" in notes(ranks)
    assert "3 seeds are few" in notes(ranks)
    heads = [column.head for column in pairs.columns]
    assert heads == [
        "pair",
        "measure",
        "n",
        "difference",
        "95 % low",
        "95 % high",
        "detectable",
        "p",
    ]
    # 10, 10, -2: mean 6; signs give |sum| 18 or more in 4 of 8; Holm makes 0.75 of it
    assert texts(pairs)[0] == [
        "mas vs ewc",
        "A_last",
        "3",
        "+6.00",
        "-2.00",
        "+10.00",
        "22.61",
        "0.750",
    ]
    assert "3 seeds and 3 comparisons cannot give a p below 0.75" in notes(pairs)
    assert compare(groups).ranks == pytest.approx([5 / 3, 4 / 3, 3])


def test_seeds_are_paired_by_number_and_others_are_left_out():
    runs = [*seeds_of("ewc", [50, 51, 52, 53]), *reversed(seeds_of("mas", [55, 57, 59]))]
    # two methods have no ranks to speak of
    (pairs,) = make(group_runs(runs))
    # 5, 6 and 7
    assert texts(pairs)[0][:4] == ["mas vs ewc", "A_last", "3", "+6.00"]


def test_of_many_methods_the_best_is_compared_with_each():
    runs = [run for n in range(8) for run in seeds_of(f"m{n}", [50.0 + n, 51.0 + n])]
    _, pairs = make(group_runs(runs))
    labels = [row.label for row in pairs.rows]
    assert labels == 2 * [f"m7 vs m{n}" for n in (6, 5, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    "finals",
    [
        {},
        {"ewc": [50, 51]},
        {"ewc": [50], "mas": [60]},
        {"ewc": [50, 51], "joint": [60, 61]},
        {"ewc": [50, 51, 52], "mas": [60]},
    ],
)
def test_too_little_gives_no_table(finals):
    runs = [run for method, values in finals.items() for run in seeds_of(method, values)]
    assert make(group_runs(runs)) == []


def test_settings_are_the_blocks_if_there_are_several():
    """The paper's CIFAR-100 and Tiny-ImageNet as runs have the ranks that scipy computes."""
    kept = [row for row in list_settings("A_avg") if row[0] != "imagenet_subset"]
    runs = []
    for dataset, split, length, scores in kept:
        start = 50 if split == "big_start" else 5
        more = int(length)
        tasks = [f"{dataset}[0-{start - 1}]", f"{dataset}[{start}-{start + more - 1}]"]
        chance = (100 / start, 100 / (start + more))
        for method, value in zip(METHODS, scores, strict=True):
            config = make_config(method, [f"{dataset}:{split}{length}"])
            about = {"tasks": tasks, "chance": chance, "track": "efcil"}
            runs.append(make_run(method, [[value], [value, value]], config=config, **about))
    ranks, pairs = make(group_runs(runs))
    expected = stats.rankdata([[-value for value in row[-1]] for row in kept], axis=1).mean(axis=0)
    assert {row[0]: row[2] for row in texts(ranks)} == {
        method: f"{value:.2f}" for method, value in zip(METHODS, expected, strict=True)
    }
    assert "12 settings come from 2 data sets" in notes(ranks)
    assert "12 settings come from 2 data sets" in notes(pairs)
    assert "Wilcoxon" in notes(pairs)
    assert len(pairs.rows) == 2 * 10


def test_a_method_that_was_run_in_few_settings_does_not_end_the_comparison():
    orders = [("a", "b"), ("b", "a"), ("c", "d")]
    runs = []
    for place, name in enumerate(("ewc", "mas", "si")):
        for order in orders:
            rows = [[80.0], [50.0 + place, 80.0]]
            runs.append(make_run(name, rows, tasks=order, chance=(0.0, 0.0)))
    runs.append(make_run("lwf", [[99.0], [99.0, 99.0]], tasks=orders[0], chance=(0.0, 0.0)))
    ranks, pairs = make(group_runs(runs))
    assert [row[:2] for row in texts(ranks)] == [["si", "1.00"], ["mas", "2.00"], ["ewc", "3.00"]]
    labels = [row.label for row in pairs.rows]
    assert labels == 2 * ["si vs mas", "si vs ewc", "mas vs ewc"]
    for table in (ranks, pairs):
        assert "Left out because they have fewer settings: lwf." in notes(table)

"""The sentences of a report: what they say, and that they say no more than the runs allow."""

from __future__ import annotations

import pytest
from report_runs import CLASS_CHANCE, CLASSES, make_config, make_group, make_run

from mcit.reports.groups import Group, group_runs
from mcit.reports.runs import read_runs
from mcit.reports.summary import (
    HEADLINES,
    REMARKS,
    Summary,
    join_words,
    summarize_group,
    summarize_settings,
)

TWO = {"tasks": ("a", "b"), "chance": (0.0, 50.0)}
CLASS_INCREMENTAL = {"tasks": CLASSES, "chance": CLASS_CHANCE, "track": "efcil"}


def end_at(*finals: float, learned: float = 90.0) -> list[list[list[float]]]:
    """Return a matrix of two tasks for each final average; the second task ends at `learned`."""
    return [[[learned], [2 * final - learned, learned]] for final in finals]


def make(method: str, *finals: float, **options) -> Group:
    return make_group(method, end_at(*finals), **TWO, **options)


def summarize(*groups: Group) -> Summary:
    """Return the summary of groups of one setting."""
    (found,) = summarize_settings(groups)
    return found


def test_one_run_says_how_it_ended_what_it_forgot_and_what_it_cost():
    # from 90 to 70 of 90 above chance: 22.2 %
    found = summarize(make("ewc", 80.0))
    assert found.headline == (
        "ewc reached 80.0 % on average over 2 tasks; it forgot 22.2 % of what it had learned."
    )
    assert found.remarks == [
        "ewc took 70 s and kept 3.0 MiB between tasks.",
        "ewc learned the tasks after the first to 90.0 %.",
        "One seed shows what happened once, not how far another would differ.",
    ]


def test_seeds_are_summarized_as_mean_and_standard_deviation():
    found = summarize(make("ewc", 79.0, 80.0, 81.0))
    assert found.headline.startswith("ewc reached 80.0 ± 1.0 % on average")
    assert found.remarks[-1] == "± is the standard deviation over 3 seeds."


def test_the_best_of_several_is_named_with_the_next_and_with_finetuning():
    found = summarize(
        make("finetune", 50.0, 52.0), make("ewc", 70.0, 72.0), make("mas", 80.0, 82.0)
    )
    assert found.headline.startswith("mas is best of 3 with 81.0 ± 1.4 %")
    assert "Next is ewc with 71.0 ± 1.4 %." in found.remarks
    assert (
        "finetune, which protects nothing, reached 51.0 ± 1.4 %; it forgot 86.7 % of what it had "
        "learned." in found.remarks
    )


def test_methods_within_the_spread_of_seeds_are_too_close_to_call():
    found = summarize(
        make("ewc", 78.0, 80.0), make("mas", 80.0, 82.0), make("finetune", 50.0, 50.0)
    )
    assert found.headline == (
        "mas and ewc are too close to call: 81.0 ± 1.4 and 79.0 ± 1.4 % on average over 2 tasks."
    )


def test_beyond_the_spread_of_seeds_there_is_a_best():
    # 2 points apart, deviations 0.7 each
    found = summarize(make("ewc", 78.0, 79.0), make("mas", 80.0, 81.0))
    assert "mas is best of 2" in found.headline


def test_what_prints_the_same_is_not_called_better():
    assert "too close to call" in summarize(make("ewc", 80.01), make("mas", 80.02)).headline


def test_one_seed_is_taken_to_vary_as_much_as_those_that_are_known():
    # 78 ± 2.8, and twice that is 5.7
    best = make("mas", 76.0, 80.0)
    assert "too close to call" in summarize(best, make("ewc", 73.0)).headline
    assert "mas is best" in summarize(best, make("ewc", 72.0)).headline


def test_of_many_that_are_too_close_the_highest_is_named_and_the_others_counted():
    groups = [make(f"method{n}", 78.0 + n / 10, 80.0 + n / 10) for n in range(5)]
    found = summarize(*groups)
    assert found.headline.startswith("method4 is highest with 79.4 ± 1.4 %")
    assert found.headline.endswith(", but 4 others are too close to call.")
    assert found.remarks[0] == "method4 took 70 s and kept 3.0 MiB between tasks."


def test_one_seed_each_is_said():
    found = summarize(make("ewc", 60.0), make("mas", 80.0))
    assert found.remarks[-1] == "With one seed each, the order may change with other seeds."


def test_different_numbers_of_seeds_are_said():
    found = summarize(make("ewc", 60.0), make("mas", 80.0, 82.0))
    assert found.remarks[-1] == "± is the standard deviation over 1 to 2 seeds."


def test_how_well_new_tasks_were_learned_is_said_next_to_what_was_kept():
    """Who learns nothing has nothing to forget, and may be best."""
    stiff = make_group("ewc", [[[80.0], [80.0, 30.0]]], **TWO)
    free = make_group("finetune", [[[80.0], [20.0, 85.0]]], **TWO)
    found = summarize(stiff, free)
    assert "ewc is best" in found.headline
    assert "It learned the tasks after the first to 30.0 % (finetune: 85.0 %)." in found.remarks


def test_an_upper_bound_is_mentioned_and_never_the_best():
    found = summarize(make("joint", 89.0), make("ewc", 80.0))
    assert "ewc reached 80.0 %" in found.headline
    assert "Upper bound: joint 89.0 %." in found.remarks


def test_an_upper_bound_alone_has_the_headline():
    assert "joint" in summarize(make("joint", 89.0)).headline


def test_an_external_result_does_not_take_the_headline(tmp_path):
    (tmp_path / "lwf.csv").write_text("a,b\n99\n99,99\n", encoding="utf-8")
    runs = [make_run("ewc", end_at(80.0)[0], **TWO), *read_runs([tmp_path / "lwf.csv"])]
    found = summarize(*group_runs(runs))
    assert "ewc reached 80.0 %" in found.headline
    assert "From elsewhere: lwf 99.0 %." in found.remarks


def test_external_results_alone_have_the_headline_and_no_forgetting_is_made_up(tmp_path):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    found = summarize(*group_runs(read_runs([tmp_path / "lwf.csv"])))
    assert found.headline == "lwf reached 75.0 % on average over 2 tasks."


@pytest.mark.parametrize(
    ("rows", "options", "end"),
    [
        ([[80.0], [85.0, 90.0]], TWO, "; it forgot nothing."),
        ([[80.0], [20.0, 90.0]], TWO, "; it forgot 75.0 % of what it had learned."),
        (
            [[80.0], [40.0, 90.0]],
            {"tasks": ("a", "b"), "chance": (50.0, 50.0)},
            "; it fell below chance on earlier tasks.",
        ),
        ([[80.0], [20.0, 90.0]], CLASS_INCREMENTAL, "; it forgot 75.0 % of what it had learned."),
        ([[80.0], [0.0, 90.0]], CLASS_INCREMENTAL, "; it forgot all that it had learned."),
    ],
)
def test_what_was_forgotten_is_said_in_words(rows, options, end):
    assert summarize(make_group("ewc", [rows], **options)).headline.endswith(end)


def test_one_task_has_nothing_to_forget():
    found = summarize(make_group("ewc", [[[80.0]]], tasks=("a",), chance=(0.0,)))
    assert found.headline == "ewc reached 80.0 % on a."


def test_class_incremental_scores_are_over_all_classes():
    group = make_group("ewc", [[[80.0], [70.0, 90.0]]], **CLASS_INCREMENTAL)
    assert summarize(group).headline.startswith("ewc reached 80.0 % on all 4 classes")


def test_a_method_that_keeps_nothing_is_not_said_to_keep_it():
    cost = {"fit_seconds": 200.0, "end_task_seconds": 0.0, "score_seconds": 0.0, "bytes_held": 0.0}
    assert summarize(make("finetune", 80.0, cost=cost)).remarks[0] == "finetune took 3.3 min."


def test_a_cost_that_is_not_known_is_not_mentioned():
    remarks = " ".join(summarize(make("ewc", 80.0, cost={})).remarks)
    assert "took" not in remarks
    assert "kept" not in remarks


def test_an_unfinished_run_is_not_compared():
    begun = make_run("mas", [[99.0]], **TWO)
    (group,) = group_runs([begun])
    found = summarize(group)
    assert found.headline == "No run is finished yet."
    assert found.remarks == ["mas (seed 1, 1 of 2 tasks)."]
    both = group_runs([begun, make_run("ewc", end_at(80.0)[0], **TWO)])
    assert "ewc reached 80.0 %" in summarize(*both).headline


def test_variants_of_a_method_are_named_with_their_strength():
    runs = [
        make_run("ewc", rows, config=make_config("ewc", "ab", options={"strength": s}), **TWO)
        for rows, s in zip(end_at(60.0, 80.0), (1, 10), strict=True)
    ]
    assert "ewc@10 is best of 2" in summarize(*group_runs(runs)).headline


def test_every_setting_has_a_summary_of_its_own():
    other = {"tasks": ("c", "d"), "chance": (0.0, 0.0)}
    runs = [
        make_run("ewc", end_at(80.0)[0], **TWO),
        make_run("ewc", [[40.0], [30.0, 50.0]], **other),
    ]
    found = summarize_settings(group_runs(runs))
    assert [summary.setting.name for summary in found] == ["a,b", "c,d"]
    assert "80.0 %" in found[0].headline
    assert "40.0 %" in found[1].headline


def test_time_is_the_sum_of_all_parts_on_average_over_seeds():
    summary = summarize_group(make("ewc", 80.0, 82.0))
    assert (summary.seconds, summary.bytes_held) == (70.0, 3 * 2**20)


def test_a_name_with_braces_is_no_template():
    assert summarize(make("{best.label}", 80.0)).headline.startswith("{best.label} reached 80.0 %")


@pytest.mark.parametrize(
    ("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined_as_in_english(words, text):
    assert join_words(words) == text


def test_every_template_ends_its_sentence():
    for templates in (HEADLINES, *REMARKS):
        for _, template in templates:
            assert template.endswith(".")

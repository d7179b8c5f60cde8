"""The answer in words: what it says, and that it says no more than the runs allow."""

from __future__ import annotations

import pytest
from report_runs import make_config, make_group, make_run

from mcit.reports.answer import answer_groups, format_bytes, format_seconds, make_standing
from mcit.reports.runs import Group, group_runs, read_foreign

TWO = {"tasks": ("a", "b"), "chance": (0.0, 50.0)}


def end_at(*finals: float, learned: float = 90.0) -> list[list[list[float]]]:
    """A matrix of two tasks for each final average: the second ends at `learned`, the first makes up the rest."""
    return [[[learned], [2 * final - learned, learned]] for final in finals]


def answer(*groups: Group):
    (found,) = answer_groups(groups)
    return found


def test_one_run_says_how_it_ended_what_it_forgot_what_it_cost_and_that_it_is_one_seed():
    told = answer(
        make_group("ewc", end_at(80.0), **TWO)
    )  # from 90 to 70 of 90 above chance: 22.2 %
    assert told.headline == (
        "With one seed, ewc ended at 80.0 % on average over the 2 tasks, having forgotten 22.2 % of what it had "
        "learned above chance."
    )
    assert told.remarks[0] == "It took 70 s (6 s of it for importance) and held 3.0 MiB."
    assert told.remarks[1:] == (
        "Tasks after the first were learned to 90.0 %.",
        "One seed shows what happened once, not how far another would differ.",
    )


def test_seeds_are_told_as_mean_and_standard_deviation():
    told = answer(make_group("ewc", end_at(79.0, 80.0, 81.0), **TWO))
    assert told.headline.startswith("ewc ended at 80.0 ± 1.0 % on average")
    assert told.remarks[-1] == "Figures are mean ± standard deviation over 3 seeds."


def test_the_best_of_several_is_named_with_the_next_and_with_what_finetuning_does():
    groups = [
        make_group("finetune", end_at(50.0, 52.0), **TWO),
        make_group("ewc", end_at(70.0, 72.0), **TWO),
    ]
    told = answer(*groups, make_group("mas", end_at(80.0, 82.0), **TWO))
    assert told.headline.startswith("mas ended highest of 3 methods: 81.0 ± 1.4 %")
    assert "Next is ewc, at 71.0 ± 1.4 %." in told.remarks
    assert (
        "finetune, which protects nothing, ended at 51.0 ± 1.4 % and forgot 86.7 %, in 70 s."
        in told.remarks
    )
    assert [leader.label for leader in told.leaders] == ["mas"]


def test_methods_within_the_spread_of_seeds_are_not_told_apart():
    first, second = (
        make_group("ewc", end_at(78.0, 80.0), **TWO),
        make_group("mas", end_at(80.0, 82.0), **TWO),
    )
    told = answer(first, second, make_group("finetune", end_at(50.0, 50.0), **TWO))
    assert told.headline == (
        "mas and ewc cannot be told apart: they ended at 81.0 ± 1.4 and 79.0 ± 1.4 % on average over the 2 tasks, "
        "within the spread of the seeds."
    )
    assert (
        told.remarks[0]
        == "mas forgot 20.0 %, took 70 s and held 3.0 MiB; ewc 24.4 %, 70 s and 3.0 MiB."
    )
    assert {leader.label for leader in told.leaders} == {"mas", "ewc"}


def test_beyond_the_spread_of_seeds_they_are_told_apart():
    first, second = (
        make_group("ewc", end_at(78.0, 79.0), **TWO),
        make_group("mas", end_at(80.0, 81.0), **TWO),
    )
    assert len(answer(first, second).leaders) == 1  # 2 points apart, deviations 0.7 each


def test_one_seed_each_is_said_in_the_headline():
    told = answer(make_group("ewc", end_at(60.0), **TWO), make_group("mas", end_at(80.0), **TWO))
    assert told.headline.startswith("With one seed each, mas ended highest of 2 methods")
    assert "more seeds would tell whether the order holds" in " ".join(told.remarks)


def test_what_is_printed_alike_is_not_called_better():
    told = answer(make_group("ewc", end_at(80.01), **TWO), make_group("mas", end_at(80.02), **TWO))
    assert "cannot be told apart" in told.headline
    assert "too close to call" in told.headline


def test_one_seed_is_taken_to_vary_as_much_as_those_that_are_known():
    best = make_group("mas", end_at(76.0, 80.0), **TWO)  # 78 ± 2.8
    assert (
        len(answer(best, make_group("ewc", end_at(73.0), **TWO)).leaders) == 2
    )  # 5.0 apart, 2.8 twice is 5.7
    assert len(answer(best, make_group("ewc", end_at(72.0), **TWO)).leaders) == 1


def test_of_many_that_cannot_be_told_apart_the_highest_is_named_and_the_others_counted():
    groups = [
        make_group(f"method{n}", end_at(78.0 + n / 10, 80.0 + n / 10), **TWO) for n in range(5)
    ]
    told = answer(*groups)
    assert told.headline.startswith(
        "method4 ended highest, at 79.4 ± 1.4 % on average over the 2 tasks"
    )
    assert told.headline.endswith(
        "; but 4 others cannot be told apart from it, within the spread of the seeds."
    )
    assert told.remarks[0] == "method4 took 70 s (6 s of it for importance) and held 3.0 MiB."


def test_a_method_with_one_seed_among_others_is_named():
    told = answer(
        make_group("ewc", end_at(60.0), **TWO), make_group("mas", end_at(80.0, 82.0), **TWO)
    )
    assert "ewc has one seed only, whose spread is unknown." in told.remarks


def test_how_well_new_tasks_were_learned_is_told_beside_what_was_kept():
    """Who learns nothing has nothing to forget, and may end highest."""
    stiff, free = [[80.0], [80.0, 30.0]], [[80.0], [20.0, 85.0]]
    told = answer(make_group("ewc", [stiff], **TWO), make_group("finetune", [free], **TWO))
    assert "ewc ended highest" in told.headline
    assert "Tasks after the first were learned to 30.0 % (85.0 % by finetune)." in told.remarks
    alike = answer(make_group("ewc", [stiff], **TWO), make_group("mas", [stiff], **TWO))
    assert "Tasks after the first were learned to 30.0 % by ewc and 30.0 % by mas." in alike.remarks


def test_a_bound_is_mentioned_and_never_the_best():
    told = answer(make_group("joint", end_at(89.0), **TWO), make_group("ewc", end_at(80.0), **TWO))
    assert "ewc ended at 80.0 %" in told.headline
    assert "As a bound, joint ended at 89.0 %." in told.remarks
    assert (
        "joint" in answer(make_group("joint", end_at(89.0), **TWO)).headline
    )  # unless there is nothing else


def test_what_rose_is_not_said_to_be_forgotten():
    assert answer(make_group("ewc", [[[80.0], [85.0, 90.0]]], **TWO)).headline.endswith(
        ", and it forgot nothing."
    )


def test_what_fell_below_chance_is_all_forgotten():
    told = answer(
        make_group("ewc", [[[80.0], [40.0, 90.0]]], tasks=("a", "b"), chance=(50.0, 50.0))
    )
    assert told.headline.endswith(
        ", having fallen below chance on earlier tasks (133.3 % of what it had learned above chance is lost)."
    )


def test_forgetting_of_classes_is_a_share_of_what_was_learned():
    classes = {"tasks": ("x[0-1]", "x[2-3]"), "chance": (50.0, 25.0), "track": "efcil"}
    told = answer(make_group("ewc", [[[80.0], [20.0, 90.0]]], **classes))
    assert told.headline.endswith(", having forgotten 75.0 % of what it had learned.")
    told = answer(make_group("ewc", [[[80.0], [0.0, 90.0]]], **classes))
    assert told.headline.endswith(", having forgotten all of what it had learned.")


def test_no_sentence_tells_a_share_of_classes_above_all():
    """Chance was 50 when the first two classes were learned, and all of 80 is 267 % of what was above it."""
    classes = {"tasks": ("x[0-1]", "x[2-3]"), "chance": (50.0, 25.0), "track": "efcil"}
    lost = make_group("finetune", [[[80.0], [0.0, 90.0]]], **classes)
    told = answer(make_group("ewc", [[[80.0], [78.0, 90.0]]], **classes), lost)
    assert (
        "finetune, which protects nothing, ended at 45.0 % and forgot all, in 70 s." in told.remarks
    )


def test_one_task_has_nothing_to_forget():
    told = answer(make_group("ewc", [[[80.0]]], tasks=("a",), chance=(0.0,)))
    assert told.headline == "With one seed, ewc ended at 80.0 % on a."


def test_class_incremental_scores_are_over_all_classes():
    told = answer(make_group("ewc", end_at(80.0), track="efcil", **TWO))
    assert told.headline.startswith(
        "With one seed, ewc ended at 80.0 % over all classes of 2 tasks, having forgotten"
    )


def test_forgetting_is_told_in_points_where_chance_is_not_known(tmp_path):
    (tmp_path / "lwf.csv").write_text("a,b\n80\n60,90\n", encoding="utf-8")
    told = answer(*group_runs([read_foreign(tmp_path / "lwf.csv")]))
    assert "75.0 %" in told.headline
    assert told.headline.endswith(
        "on average over the 2 tasks, having lost 20.0 points on earlier tasks since they were at their best."
    )
    assert told.remarks[0] == "What it cost is not stated."


def test_an_unfinished_run_is_no_answer_and_is_not_compared():
    begun = Group("mas", (make_run("mas", [[99.0]], **TWO),), variant="mas (1 of 2 tasks)")
    told = answer(begun)
    assert told.headline == "No run is finished, so there is no answer yet."
    assert told.remarks == ("mas (1 of 2 tasks) stands at 99.0 %.",)
    assert "ewc ended at 80.0 %" in answer(make_group("ewc", end_at(80.0), **TWO), begun).headline


def test_variants_of_a_method_are_not_called_methods():
    runs = [
        make_run(
            "ewc",
            rows,
            config=make_config("ewc") | {"method": {"name": "ewc", "strength": strength}},
            **TWO,
        )
        for rows, strength in zip(end_at(60.0, 80.0), (1, 10), strict=True)
    ]
    assert "ewc@10 ended highest of 2 variants" in answer(*group_runs(runs)).headline


def test_every_setting_has_an_answer_of_its_own():
    other = make_group(
        "ewc", [[[40.0], [30.0, 50.0]]], tasks=("x[0-1]", "x[2-3]"), chance=(50.0, 25.0), config={}
    )
    told = answer_groups([make_group("ewc", end_at(80.0), config={}, **TWO), other])
    assert [found.setting for found in told] == ["a,b", "x:2x2"]
    assert "80.0 %" in told[0].headline
    assert "40.0 %" in told[1].headline


def test_time_is_the_sum_of_all_parts_on_average_over_seeds():
    standing = make_standing(make_group("ewc", end_at(80.0, 82.0), **TWO))
    assert (standing.seconds, standing.importance_seconds, standing.held) == (70.0, 6.0, 3 * 2**20)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99.4, "99 s"), (312.0, "5.2 min"), (5999.0, "100.0 min"), (12240.0, "3.4 h")],
)
def test_seconds_in_the_unit_that_suits_them(seconds, text):
    assert format_seconds(seconds) == text


def test_bytes_in_mebibytes():
    assert format_bytes(7194624) == "6.9 MiB"
    assert format_bytes(0) == "0 MiB"

"""The score matrix and what derives from it."""

from __future__ import annotations

import json

import pytest

from mcit.metrics import (
    ScoreMatrix,
    average_old,
    average_seen,
    backward_transfer,
    forgetting,
    forgetting_transfer,
    forgetting_transfer_average,
    forward_transfer,
    knowledge_transfer,
    last_average,
    mean_average,
    score_when_learned,
    to_dict,
)

TASKS = ("vqa", "nlvr2", "snli-ve", "vcr")
CHANCE = (0.0, 50.0, 33.33, 25.0)
# Elastic Weight Consolidation Done Right for Continual Learning, the table of the four
# vision-language tasks
EWC = [[67.89], [39.94, 72.85], [40.83, 64.95, 74.6], [18.7, 52.13, 41.84, 59.3]]
EWC_FORGETTING = [[], [41.17], [39.86, 34.59], [72.46, 90.66, 79.39]]
EWC_DR = [[67.72], [43.25, 72.77], [54.25, 70.65, 74.58], [33.61, 66.51, 50.86, 59.38]]
EWC_DR_FORGETTING = [[], [36.15], [19.9, 9.31], [50.37, 27.48, 57.52]]


def published(rows, **more) -> ScoreMatrix:
    return ScoreMatrix(TASKS, CHANCE, rows, **more)


@pytest.mark.parametrize(("rows", "printed"), [(EWC, EWC_FORGETTING), (EWC_DR, EWC_DR_FORGETTING)])
def test_the_printed_forgetting_values_are_reproduced(rows, printed):
    for ours, theirs in zip(forgetting_transfer(published(rows)), printed, strict=True):
        assert list(ours) == pytest.approx(theirs, abs=0.03)


@pytest.mark.parametrize(("rows", "printed"), [(EWC, 42.99), (EWC_DR, 52.59)])
def test_the_printed_final_averages_are_reproduced_exactly(rows, printed):
    assert round(last_average(published(rows)), 2) == printed


def test_averages_by_hand():
    matrix = ScoreMatrix(("a", "b", "c"), (0, 50, 25), [[80], [60, 90], [70, 70, 85]])
    assert average_seen(matrix) == (80, 75, 75)
    assert score_when_learned(matrix) == (80, 90, 85)
    assert last_average(matrix) == 75
    assert mean_average(matrix) == pytest.approx((80 + 75 + 75) / 3)
    assert backward_transfer(matrix) == pytest.approx(((70 - 80) + (70 - 90)) / 2)
    assert forgetting(matrix) == pytest.approx(((80 - 70) + (90 - 70)) / 2)
    assert forgetting_transfer(matrix) == ((), (25.0,), (12.5, 50.0))
    assert forgetting_transfer_average(matrix) == (None, 25.0, 31.25)


def test_forgetting_is_measured_from_the_best_ever_and_transfer_from_when_it_was_learned():
    matrix = ScoreMatrix(("a", "b", "c"), (0, 0, 0), [[40], [60, 50], [50, 50, 50]])
    assert forgetting(matrix) == pytest.approx(((60 - 50) + 0) / 2)
    assert backward_transfer(matrix) == pytest.approx(((50 - 40) + 0) / 2)


def test_the_measured_baseline_is_the_score_before_learning():
    matrix = ScoreMatrix(
        ("a", "b", "c"), (0, 50, 25), [[80], [60, 90], [70, 70, 85]], before=(20, 60, None)
    )
    assert forgetting_transfer(matrix, "measured") == (
        (),
        (pytest.approx(100 * 20 / 60),),
        (
            pytest.approx(100 * 10 / 60),
            pytest.approx(100 * 20 / 30),
        ),
    )


def test_forward_transfer_needs_the_scores_before_learning():
    rows = [[80], [60, 90], [70, 70, 85]]
    assert forward_transfer(ScoreMatrix(("a", "b", "c"), (0, 50, 25), rows)) is None
    assert (
        forward_transfer(ScoreMatrix(("a", "b", "c"), (0, 50, 25), rows, before=(0, 60, None)))
        is None
    )
    whole = ScoreMatrix(("a", "b", "c"), (0, 50, 25), rows, before=(None, 60, 30))
    assert forward_transfer(whole) == pytest.approx((10 + 5) / 2)


def test_knowledge_transfer_compares_with_learning_alone():
    matrix = ScoreMatrix(("a", "b", "c"), (0, 50, 25), [[80], [60, 90], [70, 70, 85]])
    assert knowledge_transfer(matrix, {"a": 80, "b": 75, "c": 25}) == (0.0, 60.0, None)
    assert knowledge_transfer(matrix, {"b": 100}) == (None, -20.0, None)


def test_classes_can_lose_all_of_their_score_and_no_more():
    """Chance was 25 when the first classes were learned and is 8.3 at the end: neither is a
    floor."""
    rows = [[60], [0, 80], [15, 0, 90]]
    matrix = ScoreMatrix(("a", "b", "c"), (25, 12.5, 100 / 12), rows, class_incremental=True)
    assert forgetting_transfer(matrix) == ((), (100.0,), (75.0, 100.0))
    assert forgetting_transfer_average(matrix) == (None, 100.0, 87.5)
    assert to_dict(matrix)["metrics"]["forgetting_transfer"] == [[], [100.0], [75.0, 100.0]]
    assert to_dict(matrix)["chance"] == [25, 12.5, 100 / 12]


def test_classes_that_were_never_learned_have_no_forgetting():
    matrix = ScoreMatrix(("a", "b"), (50, 25), [[0], [0, 80]], class_incremental=True)
    assert forgetting_transfer(matrix) == ((), (None,))


def test_the_track_of_a_file_says_what_can_be_lost():
    matrix = ScoreMatrix(("a", "b"), (50, 25), [[60], [0, 80]], class_incremental=True)
    assert ScoreMatrix.from_dict({"track": "efcil", **to_dict(matrix)}) == matrix
    other = ScoreMatrix.from_dict({"track": "mcit", **to_dict(matrix)})
    assert forgetting_transfer(other) == ((), (600.0,))


def test_what_never_rose_above_chance_has_no_forgetting():
    matrix = ScoreMatrix(("a", "b", "c"), (50, 50, 50), [[50], [49, 40], [48, 39, 60]])
    assert forgetting_transfer(matrix) == ((), (None,), (None, None))
    assert forgetting_transfer_average(matrix) == (None, None, None)
    assert backward_transfer(matrix) == pytest.approx(-1.5)


def test_a_chance_level_that_is_rounded_is_not_exceeded_by_its_rounding():
    # a third of the answers, where chance is given as 33.33
    rows = ((100 / 3,), (20.0, 60.0), (20.0, 30.0, 50.0))
    matrix = ScoreMatrix(("a", "b", "c"), (33.33, 33.33, 25.0), rows)
    assert forgetting_transfer(matrix)[1] == (None,)
    assert forgetting_transfer(matrix)[2] == (None, pytest.approx(100 * 30 / 26.67))


def test_a_single_task_has_nothing_to_transfer():
    matrix = ScoreMatrix(("a",), (0,), [[70]], before=(1,))
    assert (last_average(matrix), mean_average(matrix)) == (70, 70)
    assert (backward_transfer(matrix), forward_transfer(matrix), forgetting(matrix)) == (
        None,
        None,
        None,
    )


def test_pooled_classes_bring_their_own_averages():
    matrix = ScoreMatrix(("a", "b"), (2, 10), [[80], [40, 90]], seen=(80, 48.5))
    assert average_seen(matrix) == (80, 48.5)
    assert last_average(matrix) == 48.5
    assert mean_average(matrix) == pytest.approx(64.25)


def test_a_matrix_grows_row_by_row_and_stays_frozen():
    empty = ScoreMatrix(TASKS, CHANCE)
    matrix = empty
    for row in EWC:
        matrix = matrix.add(row)
    assert empty.rows == ()
    assert matrix == published(EWC)
    assert last_average(empty) is None
    assert mean_average(empty) is None
    grown = empty.add([60], seen=61).add([50, 70], seen=62, before=51)
    assert grown.before == (None, 51)
    assert grown.seen == (61, 62)


def test_the_dictionary_is_json_and_comes_back():
    for matrix in (
        published(EWC, before=(0.5, 50, 33, 26)),
        published(EWC_DR, seen=(1, 2, 3, 4)),
        published(EWC[:2]),
        ScoreMatrix(TASKS, CHANCE),
    ):
        data = json.loads(json.dumps(to_dict(matrix, single={"vqa": 68.0}), allow_nan=False))
        assert ScoreMatrix.from_dict(data) == matrix
        assert data["matrix"] == [list(row) for row in matrix.rows]
        assert (
            len(data["seen"]) == len(data["matrix"]) == len(data["metrics"]["forgetting_transfer"])
        )


def test_the_dictionary_has_the_agreed_names():
    data = to_dict(published(EWC))
    assert list(data) == ["tasks", "chance", "matrix", "seen", "metrics"]
    assert data["metrics"]["A_last"] == pytest.approx(42.9925)
    assert data["metrics"]["A_avg"] == pytest.approx(sum(data["seen"]) / 4)
    assert data["metrics"]["FWT"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [[50, 60]]}, "row 0 of the matrix needs 1 scores, found 2"),
        ({"rows": [[float("nan")]]}, "row 0, task 0 must be a percentage from 0 to 100, found nan"),
        ({"rows": [[101]]}, "found 101"),
        ({"rows": [[None]]}, "found None"),
        ({"rows": [[1], [1, 2], [1, 2, 3]]}, "2 tasks cannot have 3 rows"),
        ({"chance": (1,)}, "2 tasks need as many chance levels, found 1"),
        ({"tasks": ("a", "a")}, "named twice: a"),
        ({"rows": [[1]], "seen": (1, 2)}, "1 rows need as many averages"),
        ({"before": (1, 2, 3)}, "2 tasks cannot have 3 scores from before"),
    ],
)
def test_a_malformed_matrix_is_refused_with_its_reason(changes, message):
    with pytest.raises(ValueError, match=message):
        ScoreMatrix(**{"tasks": ("a", "b"), "chance": (0, 50), **changes})


def test_old_classes_are_pooled_by_their_images():
    matrix = ScoreMatrix(("a", "b", "c"), (50, 25, 20))
    assert average_old(matrix) == ()
    # 300, 100 and 100 images
    matrix = matrix.add([80], seen=80, old=None)
    matrix = matrix.add([40, 60], seen=(3 * 40 + 60) / 4, old=40)
    matrix = matrix.add([20, 40, 60], seen=(3 * 20 + 40 + 60) / 5, old=(3 * 20 + 40) / 4)
    assert average_old(matrix) == (None, 40, 25)
    assert to_dict(matrix)["metrics"]["A_old"] == [None, 40, 25]
    again = ScoreMatrix.from_dict(json.loads(json.dumps(to_dict(matrix))))
    assert to_dict(again) == to_dict(matrix)


def test_old_tasks_with_scores_of_their_own_kind_are_averaged_alike():
    matrix = ScoreMatrix(("a", "b", "c"), (0, 50, 25), [[80], [60, 90], [70, 72, 85]])
    assert average_old(matrix) == (None, 60, 71)
    assert ScoreMatrix.from_dict(to_dict(matrix)) == matrix


def test_a_pooled_matrix_goes_on_from_what_was_written_after_the_first_task():
    first = ScoreMatrix(("a", "b"), (50, 25)).add([80], seen=80)
    written = ScoreMatrix.from_dict(to_dict(first))
    after = {"seen": 45.0, "old": 40.0}
    assert to_dict(written.add([40, 60], **after)) == to_dict(first.add([40, 60], **after))


def test_averages_over_old_tasks_are_checked():
    with pytest.raises(
        ValueError, match="2 rows need as many averages over earlier tasks, or none; found 1"
    ):
        ScoreMatrix(("a", "b"), (0, 0), [[1], [1, 2]], old=(None,))
    with pytest.raises(ValueError, match="the old average after task 1 must be a percentage"):
        ScoreMatrix(("a", "b"), (0, 0), [[1], [1, 2]], old=(None, 101))

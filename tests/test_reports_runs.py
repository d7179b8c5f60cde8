"""Runs as they are read, grouped, named and held against each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import CHANCE, TASKS, make_config, make_passport, make_run, make_scores, write_run

from mcit.reports.compare import find_differences
from mcit.reports.html import make_page
from mcit.reports.identity import format_value
from mcit.reports.report import make_all_tables
from mcit.reports.runs import group_runs, read_run, read_runs, split_settings
from mcit.reports.splits import find_split
from mcit.task import DataError

ROWS = [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]]


def labels(*runs) -> list[str]:
    return [group.label for group in group_runs(runs)]


# --- folders


def test_a_run_is_read_from_its_folder(tmp_path):
    folder = write_run(tmp_path / "ewc-seed3", make_scores("ewc", ROWS, seed=3))
    (run,) = read_runs([folder])
    assert (run.label, run.method, run.seed, run.track, run.tasks) == (
        "ewc-seed3",
        "ewc",
        3,
        "mcit",
        TASKS,
    )
    assert run.matrix.rows == tuple(map(tuple, ROWS))
    assert run.complete
    assert run.config["method"] == {"name": "ewc"}
    assert run.passport["threads"] == "1"


def test_a_folder_of_runs_is_read_to_its_depths_once_each_and_counting_up(tmp_path):
    for name in ("b/seed10", "b/seed9", "a"):
        write_run(tmp_path / name, make_scores("ewc", ROWS, seed=1))
    runs = read_runs([tmp_path, tmp_path / "a", tmp_path / "a" / "scores.json"])
    assert [run.label for run in runs] == ["a", "seed9", "seed10"]


def test_a_run_of_before_is_given_what_it_did_not_tell(tmp_path):
    """A_old by hand: 4 classes at 60 and 2 at 30 are (4 * 60 + 2 * 30) / 6 = 50."""
    tasks = ["shapes[0-3]", "shapes[4-5]", "shapes[6-7]"]
    scores = make_scores(
        "ewc", [[80], [70, 40], [60, 30, 20]], tasks, (25, 16, 12), "efcil", seen=(80, 60, 42.5)
    )
    del scores["metrics"]["A_old"]
    run = read_run(write_run(tmp_path / "run", scores))
    assert run.metrics["A_old"] == [None, 70, 50]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds no run, for there is no scores.json"),
        ({"config.yaml": "order: [vqa]"}, "holds no run: no task of it is finished yet"),
        ({"scores.json": "{"}, "is not valid JSON"),
        ({"scores.json": "[]"}, "must hold one JSON object, found a list"),
        ({"scores.json": '{"method": "ewc"}'}, "has no seed, track, estimator, metrics, seen"),
    ],
)
def test_a_folder_that_holds_no_run_is_named_with_what_is_wrong(tmp_path, files, words):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words) as error:
        read_runs([tmp_path])
    assert str(tmp_path) in str(error.value)


def test_a_damaged_matrix_or_configuration_is_named(tmp_path):
    scores = make_scores("ewc", ROWS)
    scores["matrix"][1] = [60.0]
    with pytest.raises(DataError, match="row 1 of the matrix needs 2 scores"):
        read_runs([write_run(tmp_path / "a", scores)])
    folder = write_run(tmp_path / "b", make_scores("ewc", ROWS))
    (folder / "config.yaml").write_text("{")
    with pytest.raises(DataError, match=r"config.yaml is not valid YAML"):
        read_runs([folder])


def test_an_earlier_versions_forgetting_is_computed_anew(tmp_path):
    """It measured from chance for classes too, and could say 150 %."""
    tasks = ["shapes[0-3]", "shapes[4-7]"]
    scores = make_scores(
        "ewc", [[75.0], [0.0, 80.0]], tasks, (25.0, 12.5), "efcil", seen=(75.0, 40.0)
    )
    scores["metrics"]["forgetting_transfer"] = [[], [150.0]]
    scores["metrics"]["forgetting_transfer_average"] = [None, 150.0]
    run = read_run(write_run(tmp_path / "run", scores))
    assert run.metrics["forgetting_transfer"] == [[], [100.0]]
    assert run.metrics["forgetting_transfer_average"] == [None, 100.0]
    assert run.metrics["A_last"] == 40.0


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("metrics",), [], "'metrics' must be a section, found []"),
        (("metrics", "A_old"), 7, "'metrics' 'A_old' must be a list, found 7"),
        (("metrics", "A_old"), [None, 1.0], "rows need as many averages over earlier tasks"),
        (
            ("metrics", "knowledge_transfer"),
            [1.0],
            "'metrics' 'knowledge_transfer' must have 4 items, found 1",
        ),
        (
            ("metrics", "knowledge_transfer"),
            [1.0, "x", 2.0, 3.0],
            "item 1 must be a number, found 'x'",
        ),
        (("seen",), ["a", "b", "c", "d"], "'seen' item 0 must be a number, found 'a'"),
        (("seen",), [1.0], "'seen' must have 4 items, found 1"),
        (("seen",), [], "'seen' must have 4 items, found 0"),
        (("seen",), 80.0, "'seen' must be a list, found 80.0"),
        (("cost", "fit_seconds"), "long", "'cost' 'fit_seconds' must be a number, found 'long'"),
        (("cost",), 3, "'cost' must be a section, found 3"),
        (("stiffness",), [{"mean": "high"}], "'stiffness' item 0 'capped' is missing"),
        (("diagnoses",), [3], "'diagnoses' item 0 must be text, found 3"),
        (("seed",), "one", "'seed' must be a whole number, found 'one'"),
        (("method",), None, "'method' must be text, found None"),
        (("tasks",), ["a", 1, "b", "c"], "'tasks' item 1 must be text, found 1"),
        (("matrix",), [["x"]], "'matrix' item 0 item 0 must be a number, found 'x'"),
        (("chance",), [0.0, None, 1.0, 2.0], "'chance' item 1 must be a number, found None"),
    ],
)
def test_numbers_of_another_kind_or_length_are_one_clear_error(tmp_path, place, value, words):
    scores = make_scores("ewc", ROWS)
    section = scores
    for name in place[:-1]:
        section = section[name]
    section[place[-1]] = value
    with pytest.raises(DataError) as error:
        read_runs([write_run(tmp_path / "run", scores)])
    assert "scores.json" in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.yaml", {"method": "ewc"}, "'method' must be a section, found 'ewc'"),
        ("config.yaml", {"order": 3}, "'order' must be a list, found 3"),
        ("config.yaml", {"tasks": {"vqa": 1}}, "'tasks' 'vqa' must be a section, found 1"),
        ("passport.json", {"packages": []}, "'packages' must be a section, found []"),
        ("passport.json", {"command": "mcit run"}, "'command' must be a list, found 'mcit run'"),
        ("passport.json", {"recipes": {"vqa": 1}}, "'recipes' 'vqa' must be a section, found 1"),
    ],
)
def test_a_configuration_or_passport_of_another_kind_is_one_clear_error(
    tmp_path, file, changes, words
):
    given = {"config.yaml": make_config("ewc"), "passport.json": make_passport()}
    given[file] = {**given[file], **changes}
    folder = write_run(
        tmp_path / "run", make_scores("ewc", ROWS), given["config.yaml"], given["passport.json"]
    )
    with pytest.raises(DataError) as error:
        read_runs([folder])
    assert f"{file} was not written by `mcit run`, or was changed since: {words}" in str(
        error.value
    )


def mutate(data: Any, value: Any) -> Iterator[Any]:
    """Copies of nested data, each with another leaf or branch replaced."""
    for key in data if isinstance(data, dict) else range(len(data)):
        yield (
            {**data, key: value}
            if isinstance(data, dict)
            else [*data[:key], value, *data[key + 1 :]]
        )
        if isinstance(data[key], (dict, list)):
            for inner in mutate(data[key], value):
                yield (
                    {**data, key: inner}
                    if isinstance(data, dict)
                    else [*data[:key], inner, *data[key + 1 :]]
                )


@pytest.mark.parametrize("value", [None, "x", 1e999, -5, True, [], {}, [[None]]], ids=repr)
def test_a_changed_file_is_reported_on_or_refused(tmp_path, value):
    """Whatever is changed in scores.json, everything that is made of a run is made, or a DataError tells."""
    scores = make_scores("ewc", ROWS[:2], TASKS[:2], CHANCE[:2])
    refused = 0
    for number, changed in enumerate(mutate(scores, value)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps(changed))
        try:
            groups = group_runs([read_run(folder)])
        except DataError:
            refused += 1
            continue
        tables = make_all_tables(groups)
        assert make_page(groups, tables, [], [], "mcit report")
    assert refused > 10


@pytest.mark.parametrize("value", [None, "x", 1e999, -5, True, [], {}, [[None]]], ids=repr)
def test_a_changed_matrix_of_another_toolkit_is_reported_on_or_refused(tmp_path, value):
    data = {
        "method": "lwf",
        "seed": 1,
        "tasks": ["a", "b"],
        "chance": [0.0, 50.0],
        "matrix": [[80.0], [60.0, 90.0]],
    }
    for changed in mutate({**data, "seen": [80.0, 75.0]}, value):
        (tmp_path / "lwf.json").write_text(json.dumps(changed))
        try:
            groups = group_runs(read_runs([tmp_path / "lwf.json"]))
        except DataError:
            continue
        assert make_page(groups, make_all_tables(groups), [], [], "mcit report")


def test_what_is_not_there_is_told():
    with pytest.raises(DataError, match="there is no run at nowhere"):
        read_runs(["nowhere"])
    with pytest.raises(DataError, match="nothing to report on"):
        read_runs([])


# --- other toolkits


def foreign(folder: Path, text: str, name: str = "lwf.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    (run,) = read_runs([folder / name])
    return run


@pytest.mark.parametrize(
    "text",
    [
        "vqa,nlvr2\n80\n60,90\n",
        "vqa,nlvr2\n80,\n60,90\n",
        "vqa;nlvr2\n80;12\n60;90\n",  # the score before a task was learned is no part of the matrix
        "\ufeffafter,vqa,nlvr2\nvqa,80,\n\nnlvr2,60,90\n",
        "checkpoint\tvqa\tnlvr2\n1\t80\t\n2\t60\t90\n",
    ],
)
def test_a_plain_matrix_is_read_however_it_is_laid_out(tmp_path, text):
    run = foreign(tmp_path, text)
    assert (run.method, run.seed, run.track, run.tasks) == (
        "lwf",
        None,
        "foreign",
        ("vqa", "nlvr2"),
    )
    assert run.matrix.rows == ((80,), (60, 90))
    assert (run.metrics["A_last"], run.metrics["A_avg"], run.metrics["BWT"]) == (75, 77.5, -20)


def test_forgetting_is_not_made_up_where_chance_is_not_stated(tmp_path):
    assert foreign(tmp_path, "vqa,nlvr2\n80\n60,90\n").metrics["forgetting_transfer"] == [
        [],
        [None],
    ]
    run = foreign(tmp_path, "after,vqa,nlvr2\nchance,0,50\nvqa,80,\nnlvr2,60,90\n")
    assert run.metrics["forgetting_transfer"] == [[], [25.0]]


def test_json_may_tell_everything(tmp_path):
    data = {
        "method": "LwF",
        "seed": 4,
        "tasks": ["a", "b"],
        "chance": [50, 50],
        "matrix": [[80], [60, 90]],
    }
    run = foreign(tmp_path, json.dumps({**data, "seen": [80, 70]}), "any.json")
    assert (run.method, run.seed, run.metrics["A_last"]) == ("LwF", 4, 70)


def test_a_file_name_may_tell_the_seed_and_a_column_the_average(tmp_path):
    run = foreign(tmp_path, "after,a,b,A_t\na,80,,80\nb,60,90,70\n", "lwf-seed2.csv")
    assert (run.method, run.seed, run.tasks, run.metrics["A_last"]) == ("lwf", 2, ("a", "b"), 70)


def test_classes_of_others_count_alike(tmp_path):
    """After the second task 4 classes have 60 % and 2 have 90 %: together 70 %."""
    run = foreign(tmp_path, '"x[0-3]","x[4-5]"\n80\n60,90\n')
    assert (run.metrics["A_last"], run.metrics["A_old"]) == (70, [None, 60])


def test_an_unfinished_matrix_is_read_as_such(tmp_path):
    assert not foreign(tmp_path, "a,b,c\n80\n60,90\n").complete


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: its first row names the tasks"),
        ("a,b\n", "has no scores"),
        ("80,60\n60,90\n", "begins with figures"),
        ("a,b\n80\n60,high\n", "line 3: 'high' is no percentage"),
        ("a,b\n80\n,90\n", "the score on 'a' after 'b' is missing"),
        ("a,b\n80\n60\n", "the score on 'b' after 'b' is missing"),
        ("a,b\n80,1,2\n", "line 2 has 3 cells, but the header has 2"),
        ("a\n80\n70\n", "has 1 tasks, but more than as many rows"),
        ("a,a\n80\n60,90\n", "tasks named twice: a"),
        ("a,b\n80\n60,190\n", "must be a percentage from 0 to 100, found 190"),
        ("a,b\n80\n60,nan\n", "must be a percentage from 0 to 100, found nan"),
        ("after,a,b\nchance,50\na,80\nb,60,90\n", "2 tasks need as many chance levels, found 1"),
    ],
)
def test_what_is_wrong_with_a_plain_matrix_is_named(tmp_path, text, words):
    with pytest.raises(DataError, match=words) as error:
        foreign(tmp_path, text)
    assert "lwf.csv" in str(error.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tasks": ["a"]}, "needs `tasks`, a list of names, and `matrix`"),
        (
            {"tasks": ["a"], "matrix": [80]},
            "row 1 of the matrix must be a list of percentages, found 80",
        ),
        ({"tasks": ["a"], "matrix": [["80"]]}, "must be a percentage from 0 to 100, found '80'"),
    ],
)
def test_what_is_wrong_with_plain_json_is_named(tmp_path, data, words):
    with pytest.raises(DataError, match=words):
        foreign(tmp_path, json.dumps(data), "lwf.json")


def test_fractions_are_refused_not_shown_as_half_a_percent(tmp_path):
    with pytest.raises(
        DataError,
        match=r"no score is above 0.9, so these look like fractions.*multiply them by 100",
    ):
        foreign(tmp_path, "a,b\n0.8\n0.6,0.9\n")
    data = {"tasks": ["a"], "matrix": [[0.8]], "unit": "percent"}
    assert foreign(tmp_path, json.dumps(data), "poor.json").metrics["A_last"] == 0.8
    assert foreign(tmp_path, "a,b\n0\n0,0\n").metrics["A_last"] == 0


# --- groups and their names


def test_seeds_of_one_method_are_one_group():
    (group,) = group_runs([make_run("ewc", ROWS, seed) for seed in (1, 2, 3)])
    assert (group.label, group.variant, group.method, group.seeds) == (
        "ewc",
        "ewc",
        "ewc",
        [1, 2, 3],
    )
    assert group.setting == "vqa,nlvr2,snli-ve,vcr"


def with_method(method: str = "ewc", seed: int = 1, **options):
    return make_run(method, ROWS, seed, make_config(method, seed=seed, options=options))


def test_strengths_are_told_apart_and_only_where_there_are_several():
    runs = [
        with_method(strength=1000),
        with_method(strength=300, seed=2),
        with_method("mas", strength=7),
    ]
    assert labels(*runs) == ["ewc@1000", "ewc@300", "mas"]
    assert labels(with_method(strength=1000), with_method(strength=1e3, seed=2)) == ["ewc"]


def test_other_options_are_told_by_their_name_and_no_more_of_them_than_needed():
    runs = [
        with_method(estimator={"cap": 1e-4, "unit": "batch"}),
        with_method(estimator={"cap": None, "unit": "example"}),
    ]
    assert labels(*runs) == ["ewc[cap=0.0001]", "ewc[cap=unset]"]
    runs = [with_method(strength=s, merge=m) for s, m in ((1, "sum"), (1, "share"), (2, "sum"))]
    assert labels(*runs) == ["ewc@1[merge=sum]", "ewc@1[merge=share]", "ewc@2[merge=sum]"]


def test_the_options_of_a_method_are_its_own_on_top_of_the_usual_ones():
    usual = {"ewc": {"strength": 300}, "mas": {"strength": 5}}
    plain = make_run("ewc", ROWS, 1, make_config("ewc", methods=usual))
    same = make_run(
        "ewc",
        ROWS,
        2,
        make_config("ewc", seed=2, methods={"ewc": {"strength": 1}}, options={"strength": 300}),
    )
    other = make_run(
        "ewc", ROWS, 3, make_config("ewc", seed=3, methods=usual | {"mas": {"strength": 6}})
    )
    assert labels(plain, same, other) == ["ewc"]


def test_flavours_are_told_by_their_own_name():
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", flavour=name, options={"strength": s}))
        for name, s in (("release", 1e4), ("exact", 1))
    ]
    assert labels(*runs) == ["ewc[release]", "ewc[exact]"]


def test_what_cannot_change_a_score_makes_no_group():
    runs = [
        make_run(
            "ewc",
            ROWS,
            1,
            make_config("ewc", output="a", training={"clip_norm": 1.0, "workers": 4}),
        ),
        make_run(
            "ewc",
            ROWS,
            2,
            make_config("ewc", output="b", data_root="elsewhere", checkpoint={"keep": 5}),
        ),
    ]
    assert labels(*runs) == ["ewc"]


def test_the_folder_of_data_without_fingerprint_tells_them_apart():
    passport = make_passport(data=dict.fromkeys(TASKS))
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", data_root=root), passport=passport)
        for root in ("x/one", "x/two")
    ]
    assert labels(*runs) == ["ewc[data_root=one]", "ewc[data_root=two]"]


def test_another_recipe_is_another_group():
    recipes = {task: {"epochs": 9} for task in TASKS}
    runs = [
        make_run("ewc", ROWS),
        make_run("ewc", ROWS, 2, passport=make_passport(recipes=recipes)),
    ]
    assert len(set(labels(*runs))) == 2


def test_an_unfinished_run_is_a_group_by_itself():
    groups = group_runs(
        [make_run("ewc", ROWS, 1), make_run("ewc", ROWS[:2], 2), make_run("ewc", ROWS[:2], 3)]
    )
    assert [group.label for group in groups] == [
        "ewc",
        "ewc (seed 2, 2 of 4 tasks)",
        "ewc (seed 3, 2 of 4 tasks)",
    ]
    assert [group.complete for group in groups] == [True, False, False]


def test_no_two_groups_share_a_label():
    twice = [make_run("ewc", ROWS[:2], 1), make_run("ewc", ROWS[:2], 1)]
    assert len(set(labels(*twice))) == 2


def test_settings_are_named_where_there_are_several():
    one = make_run("ewc", ROWS)
    groups = group_runs(
        [one, make_run("ewc", [[80], [60, 90]], 1, {}, tasks=["x[0-4]", "x[5-9]"], chance=(20, 10))]
    )
    assert [group.label for group in groups] == ["ewc on vqa,nlvr2,snli-ve,vcr", "ewc on x:2x5"]
    assert [group.variant for group in groups] == ["ewc", "ewc"]
    assert list(split_settings(groups)) == ["vqa,nlvr2,snli-ve,vcr", "x:2x5"]


def test_embedded_and_real_data_are_two_settings():
    groups = group_runs([make_run("ewc", ROWS), make_run("ewc", ROWS, embedded=True)])
    assert [group.setting.rpartition(", ")[2] for group in groups] == ["real", "embedded"]


def test_results_of_others_stand_beside_ours_under_their_own_name(tmp_path):
    own = make_run("ewc", ROWS)
    text = ",".join(TASKS) + "\n" + "\n".join(",".join(map(str, row)) for row in ROWS)
    groups = group_runs(
        [own, foreign(tmp_path, text, "lwf.csv"), foreign(tmp_path, text, "ewc.csv")]
    )
    assert [group.label for group in groups] == ["ewc", "lwf", "ewc (ewc)"]
    assert len(split_settings(groups)) == 1


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        (["c[0-49]", "c[50-54]", "c[55-59]"], ("c:50+2x5", True, 2)),
        (["c[0-9]", "c[10-19]"], ("c:2x10", False, 2)),
        (["c[0-9]", "c[10-19]", "c[20-24]"], ("c:10+2x10", False, 3)),
    ],
)
def test_splits_are_read_from_names(tasks, expected):
    split = find_split(tasks)
    assert (split.order, split.big_start, split.length) == expected


@pytest.mark.parametrize(
    "tasks", [["vqa", "vcr"], ["a[0-4]", "b[5-9]"], ["a[0-4]", "a[6-9]"], ["a[1-4]"], []]
)
def test_other_names_are_no_split(tasks):
    assert find_split(tasks) is None


# --- differences


def test_method_and_seed_are_no_difference():
    runs = [with_method("ewc", seed, strength=s) for seed in (1, 2) for s in (1, 2)]
    runs += [with_method("mas", seed, estimator={"cap": 3}) for seed in (1, 2)]
    assert find_differences(runs) == []


@pytest.mark.parametrize(
    ("config", "passport", "expected"),
    [
        (
            {"model": {"name": "tiny", "width": 32}},
            {},
            "model.width differs: 64 (ewc-seed1); 32 (mas-seed1)",
        ),
        (
            {},
            {"packages": {"torch": "2.6", "numpy": "2.4.6"}},
            "version of torch differs: 2.13.0 (ewc-seed1); 2.6 (mas-seed1)",
        ),
        ({}, {"mcit": "0.2.0"}, "version of mcit differs: 0.1.0 (ewc-seed1); 0.2.0 (mas-seed1)"),
        ({}, {"threads": "8"}, "note: threads differs: 1 (ewc-seed1); 8 (mas-seed1)"),
    ],
)
def test_a_difference_is_named_with_both_values(config, passport, expected):
    runs = [
        make_run("ewc", ROWS),
        make_run("mas", ROWS, 1, make_config("mas", **config), passport=make_passport(**passport)),
    ]
    assert find_differences(runs) == [expected]


def test_other_data_and_other_recipes_are_differences():
    data = {**make_passport()["data"], "vqa": "f" * 24}
    recipes = {
        **make_passport()["recipes"],
        "vcr": {"epochs": 9, "batch_size": 16, "learning_rate": 0.0005},
    }
    other = make_run("mas", ROWS, passport=make_passport(data=data, recipes=recipes))
    found = find_differences([make_run("ewc", ROWS), other])
    assert found == [
        f"data.vqa differs: {'0' * 24} (ewc-seed1); {'f' * 24} (mas-seed1)",
        "recipe.epochs differs: 3 (ewc-seed1); 3/3/3/9 (mas-seed1)",
    ]


def test_values_that_look_alike_when_shortened_still_differ():
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", model={"name": name}))
        for name in ("a/vilt", "b/vilt")
    ]
    assert len(find_differences(runs)) == 1


def test_embedded_and_real_data_are_told():
    found = find_differences([make_run("ewc", ROWS), make_run("mas", ROWS, embedded=True)])
    assert found == [
        "some runs are on the embedded benchmark and some on real data: they are tabulated apart"
    ]


def test_unfinished_repeated_and_foreign_runs_are_told(tmp_path):
    runs = [make_run("ewc", ROWS), make_run("ewc", ROWS), make_run("mas", ROWS[:3])]
    text = ",".join(TASKS) + "\n" + "\n".join(",".join(map(str, row)) for row in ROWS)
    found = find_differences([*runs, foreign(tmp_path, text)])
    assert found == [
        "ewc with seed 1 is there 2 times and counted as often: ewc-seed1, ewc-seed1",
        "seeds differ: 1 (ewc); not stated (lwf)",
        "mas-seed1 is not complete (3 of 4 tasks): it is shown by itself and averaged with nothing",
        "lwf.csv comes from elsewhere: nothing is known of how lwf was run there",
    ]


def test_unequal_seeds_and_chance_levels_are_told():
    runs = [make_run("ewc", ROWS, 1), make_run("ewc", ROWS, 2), make_run("mas", ROWS, 1)]
    assert find_differences(runs) == ["seeds differ: 1, 2 (ewc); 1 (mas)"]
    runs = [make_run("ewc", ROWS), make_run("mas", ROWS, chance=(10.0, *CHANCE[1:]))]
    (line,) = find_differences(runs)
    assert line == "chance differs: 0/50/33.3/25 (ewc-seed1); 10/50/33.3/25 (mas-seed1)"
    rounded = make_run("mas", ROWS, chance=[round(level, 1) for level in CHANCE])
    assert find_differences([make_run("ewc", ROWS), rounded]) == []


def test_a_method_that_is_not_the_same_in_all_settings_is_told():
    other = ("vcr", "nlvr2", "snli-ve", "vqa")
    runs = [with_method("ewc", 1, strength=300)]
    config = make_config("ewc", other, options={"strength": 1000})
    runs.append(make_run("ewc", ROWS, 1, config, tasks=other))
    (line,) = find_differences(runs)
    assert line == (
        "ewc: method.strength differs between settings: 300 (vqa,nlvr2,snli-ve,vcr); 1000 (vcr,nlvr2,snli-ve,vqa)"
    )


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path):
    for parent, width in (("a", 32), ("b", 64)):
        config = make_config("ewc", model={"name": "tiny", "width": width})
        write_run(tmp_path / parent / "ewc", make_scores("ewc", ROWS), config)
    (line,) = find_differences(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert line == "model.width differs: 32 (a/ewc); 64 (b/ewc)"


def test_lists_of_lists_stay_readable():
    assert format_value([[12, 17], [6, 9]]) == "12,17/6,9"


def test_many_runs_are_named_in_part():
    runs = [make_run("ewc", ROWS, seed) for seed in range(1, 9)]
    runs += [
        make_run("mas", ROWS, seed, passport=make_passport(threads="2")) for seed in range(1, 9)
    ]
    (line,) = find_differences(runs)
    assert line.startswith(
        "note: threads differs: 1 (ewc-seed1, ewc-seed2, ewc-seed3 and 5 more); 2 ("
    )

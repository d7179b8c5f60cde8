"""Runs as they are read, grouped, named and compared in all but method and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import (
    CHANCE,
    CLASS_CHANCE,
    CLASSES,
    TASKS,
    make_config,
    make_experiment,
    make_provenance,
    make_run,
    make_scores,
    write_run,
)

from mcit.errors import DataError
from mcit.reports.caveats import Severity, find_caveats
from mcit.reports.experiment import experiment_of, format_value
from mcit.reports.groups import group_runs, split_settings
from mcit.reports.page import Report, format_markdown, make_page
from mcit.reports.runs import Run, read_run, read_runs
from mcit.reports.tables import make_tables

ROWS = [[80.0], [60.0, 90.0], [50.0, 80.0, 70.0], [40.0, 70.0, 60.0, 85.0]]


def names(*runs: Run) -> list[str]:
    return [group.name for group in group_runs(runs)]


def caveats(*runs: Run) -> list[str]:
    return [str(caveat) for caveat in find_caveats(group_runs(runs))]


def render(runs: list[Run]) -> None:
    """Make all text of a report, without figures."""
    groups = group_runs(runs)
    report = Report(groups, make_tables(groups), [], find_caveats(groups), "mcit report", Path())
    assert make_page(report)
    assert format_markdown(report)


# --- folders


def test_a_run_is_read_from_its_folder(tmp_path):
    folder = write_run(tmp_path / "ewc-seed3", make_scores("ewc", ROWS, seed=3))
    (run,) = read_runs([folder])
    assert (run.label, run.method, run.seed, run.track) == ("ewc-seed3", "ewc", 3, "mcit")
    assert run.tasks == TASKS
    assert run.matrix.rows == tuple(map(tuple, ROWS))
    assert run.complete
    assert run.config["method"] == {"name": "ewc"}
    assert run.provenance["threads"] == "1"


def test_files_of_other_names_are_not_read(tmp_path):
    folder = write_run(tmp_path / "run", make_scores("ewc", ROWS))
    (folder / "provenance.json").rename(folder / "passport.json")
    assert read_run(folder).provenance == {}


def test_a_folder_of_runs_is_read_to_its_depths_once_each_and_counting_up(tmp_path):
    for name in ("b/seed10", "b/seed9", "a"):
        write_run(tmp_path / name, make_scores("ewc", ROWS, seed=1))
    runs = read_runs([tmp_path, tmp_path / "a", tmp_path / "a" / "scores.json"])
    assert [run.label for run in runs] == ["a", "seed9", "seed10"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds no run: there is no scores.json"),
        ({"config.yaml": "order: [vqa]"}, "holds no run: none of its tasks is finished yet"),
        ({"scores.json": "{"}, "is not valid JSON"),
        ({"scores.json": "[]"}, "must hold one JSON object, found a list"),
        ({"scores.json": '{"method": "ewc"}'}, "'seed' is missing"),
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


def test_forgetting_is_computed_from_the_matrix_whatever_was_written(tmp_path):
    scores = make_scores(
        "ewc", [[75.0], [0.0, 80.0]], CLASSES, CLASS_CHANCE, "efcil", seen=(75.0, 40.0)
    )
    scores["metrics"]["forgetting_transfer"] = [[], [150.0]]
    run = read_run(write_run(tmp_path / "run", scores))
    assert run.metrics["forgetting_transfer"] == [[], [100.0]]
    assert run.metrics["A_last"] == 40.0


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("metrics",), [], "'metrics' must be a section"),
        (("metrics", "A_old"), 7, "'metrics.A_old' must be a list"),
        (("metrics", "A_old"), [None, 1.0], "rows need as many averages over earlier tasks"),
        (("metrics", "knowledge_transfer"), [1.0, "x"], "must be a number, found 'x'"),
        (("seen",), ["a", "b", "c", "d"], "'seen[0]' must be a number, found 'a'"),
        (("seen",), [1.0], "'seen' must have 4 items, found 1"),
        (("seen",), [], "'seen' must have 4 items, found 0"),
        (("seen",), 80.0, "'seen' must be a list"),
        (("cost", "fit_seconds"), "long", "'cost.fit_seconds' must be a number"),
        (("cost",), 3, "'cost' must be a section"),
        (("stiffness",), [{"mean": "high"}], "'stiffness[0].mean' must be a number"),
        (("diagnoses",), 3, "'diagnoses' must be a list"),
        (("seed",), "one", "'seed' must be a whole number"),
        (("method",), None, "'method' must be text, found nothing"),
        (("matrix",), [["x"]], "'matrix[0][0]' must be a number"),
        (("chance",), [0.0, None, 1.0, 2.0], "'chance[1]' must be a number"),
        (("views",), {"format": [[1.0], [2.0]]}, "row 1 of the matrix needs 2 scores"),
        (("classifiers",), {"lda": {"matrix": [[1.0]]}}, "is not a matrix of scores"),
    ],
)
def test_a_value_of_another_kind_or_length_is_one_clear_error(tmp_path, place, value, words):
    scores = make_scores("ewc", ROWS)
    section = scores
    for name in place[:-1]:
        section = section[name]
    section[place[-1]] = value
    folder = write_run(tmp_path / "run", make_scores("ewc", ROWS))
    (folder / "scores.json").write_text(json.dumps(scores))
    with pytest.raises(DataError) as error:
        read_runs([folder])
    assert "scores.json" in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.yaml", {"order": 3}, "'order' must be a list"),
        ("config.yaml", {"tasks": {"vqa": 1}}, "'tasks.vqa' must be a section"),
        ("provenance.json", {"packages": []}, "'packages' must be a section"),
        ("provenance.json", {"command": 3}, "'command' must be a list"),
        ("provenance.json", {"experiment": []}, "'experiment' must be a section"),
        (
            "provenance.json",
            {"experiment": {"method": "ewc"}},
            "'experiment.method' must be a section",
        ),
        (
            "provenance.json",
            {"experiment": {"tasks": {"vqa": 1}}},
            "'experiment.tasks.vqa' must be a section",
        ),
    ],
)
def test_a_configuration_or_provenance_of_another_kind_is_one_clear_error(
    tmp_path, file, changes, words
):
    config = make_config("ewc")
    given = {"config.yaml": config, "provenance.json": make_provenance(config)}
    given[file] = {**given[file], **changes}
    folder = write_run(
        tmp_path / "run", make_scores("ewc", ROWS), given["config.yaml"], given["provenance.json"]
    )
    with pytest.raises(DataError) as error:
        read_runs([folder])
    assert f"{file} was not written by `mcit run`, or has been changed since" in str(error.value)
    assert words in str(error.value)


def mutate(data: Any, value: Any) -> Iterator[Any]:
    """Yield copies of nested data, each with another leaf or branch replaced."""
    for key in data if isinstance(data, dict) else range(len(data)):
        changes = [value]
        if isinstance(data[key], (dict, list)):
            changes += mutate(data[key], value)
        for change in changes:
            copy = data.copy()
            copy[key] = change
            yield copy


def read_and_render(folder: Path) -> bool:
    """Return whether the run in a folder was reported on; if not, it was refused."""
    try:
        run = read_run(folder)
    except DataError:
        return False
    render([run])
    return True


@pytest.mark.parametrize("value", [None, "x", 1e999, -5, True, [], {}, [[None]]], ids=repr)
def test_a_changed_file_is_reported_on_or_refused(tmp_path, value):
    scores = make_scores("ewc", ROWS[:2], TASKS[:2], CHANCE[:2])
    scores["views"] = {"format": [[50.0], [60.0, 70.0]]}
    scores["classifiers"] = {"lda": {name: scores[name] for name in ("matrix", "seen", "metrics")}}
    refused = 0
    for number, changed in enumerate(mutate(scores, value)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps(changed))
        refused += not read_and_render(folder)
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
            runs = read_runs([tmp_path / "lwf.json"])
        except DataError:
            continue
        render(runs)


@pytest.mark.parametrize("value", [None, "x", 3, [], [[]], {"a": {"b": 1}}], ids=repr)
def test_a_changed_configuration_is_reported_on_or_refused(tmp_path, value):
    config = make_config("ewc", options={"strength": 3})
    provenance = make_provenance(config)
    for number, changed in enumerate(mutate(config, value)):
        folder = tmp_path / str(number)
        write_run(folder, make_scores("ewc", ROWS), changed, provenance)
        read_and_render(folder)
        (folder / "provenance.json").unlink()
        read_and_render(folder)


@pytest.mark.parametrize("value", [None, "x", 3, [], [[]], {"a": {"b": 1}}], ids=repr)
def test_a_changed_provenance_is_reported_on_or_refused(tmp_path, value):
    config = make_config("ewc", TASKS[:2], options={"strength": 3})
    scores = make_scores("ewc", ROWS[:2], TASKS[:2], CHANCE[:2])
    for number, changed in enumerate(mutate(make_provenance(config, TASKS[:2]), value)):
        read_and_render(write_run(tmp_path / str(number), scores, config, changed))


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(DataError, match="there is no run at nowhere"):
        read_runs(["nowhere"])
    with pytest.raises(DataError, match="nothing to report on"):
        read_runs([])


# --- views and classifiers


def test_a_run_has_a_group_for_each_of_its_classifiers():
    better = [[90.0], [80.0, 90.0]]
    scores = make_scores("ewc_dr", better, CLASSES, CLASS_CHANCE, "efcil", seen=(90.0, 85.0))
    lda = {"lda": {name: scores[name] for name in ("matrix", "seen", "metrics")}}
    rows = [[80.0], [20.0, 90.0]]
    runs = [
        make_run(
            "ewc_dr",
            rows,
            seed,
            tasks=CLASSES,
            chance=CLASS_CHANCE,
            track="efcil",
            seen=(80.0, 55.0),
            classifiers=lda,
        )
        for seed in (1, 2)
    ]
    head, other = group_runs(runs)
    assert (head.name, head.classifier) == ("ewc_dr", None)
    assert (other.name, other.classifier) == ("ewc_dr + lda", "lda")
    assert other.paper_name == "EWC-DR + LDA"
    assert [run.metrics["A_last"] for run in other.runs] == [85.0, 85.0]
    assert len(other.runs) == len(head.runs) == 2


def test_views_are_read_as_further_matrices():
    views = {"normalized": [[70.0], [60.0, 50.0]], "format": [[99.0], [98.0, 97.0]]}
    run = make_run(
        "lwf", [[80.0], [60.0, 90.0]], tasks="ab", chance=(0, 0), track="instructions", views=views
    )
    assert run.views["normalized"].rows == ((70.0,), (60.0, 50.0))
    assert run.views["format"].rows[-1] == (98.0, 97.0)


# --- other toolkits


def external(folder: Path, text: str, name: str = "lwf.csv") -> Run:
    (folder / name).write_text(text, encoding="utf-8")
    (run,) = read_runs([folder / name])
    return run


@pytest.mark.parametrize(
    "text",
    [
        "vqa,nlvr2\n80\n60,90\n",
        "vqa,nlvr2\n80,\n60,90\n",
        "vqa;nlvr2\n80;12\n60;90\n",
        "\ufeffafter,vqa,nlvr2\nvqa,80,\n\nnlvr2,60,90\n",
        "checkpoint\tvqa\tnlvr2\n1\t80\t\n2\t60\t90\n",
    ],
)
def test_a_plain_matrix_is_read_however_it_is_laid_out(tmp_path, text):
    run = external(tmp_path, text)
    assert (run.method, run.seed, run.track) == ("lwf", None, "external")
    assert run.tasks == ("vqa", "nlvr2")
    assert run.matrix.rows == ((80,), (60, 90))
    assert (run.metrics["A_last"], run.metrics["A_avg"], run.metrics["BWT"]) == (75, 77.5, -20)


def test_forgetting_is_not_made_up_if_chance_is_not_stated(tmp_path):
    run = external(tmp_path, "vqa,nlvr2\n80\n60,90\n")
    assert run.metrics["forgetting_transfer"] == [[], [None]]
    run = external(tmp_path, "after,vqa,nlvr2\nchance,0,50\nvqa,80,\nnlvr2,60,90\n")
    assert run.metrics["forgetting_transfer"] == [[], [25.0]]


def test_json_may_state_everything(tmp_path):
    data = {
        "method": "LwF",
        "seed": 4,
        "tasks": ["a", "b"],
        "chance": [50, 50],
        "matrix": [[80], [60, 90]],
    }
    run = external(tmp_path, json.dumps({**data, "seen": [80, 70]}), "any.json")
    assert (run.method, run.seed, run.metrics["A_last"]) == ("LwF", 4, 70)


def test_a_file_name_may_state_the_seed_and_a_column_the_average(tmp_path):
    run = external(tmp_path, "after,a,b,A_t\na,80,,80\nb,60,90,70\n", "lwf-seed2.csv")
    assert (run.method, run.seed, run.tasks, run.metrics["A_last"]) == ("lwf", 2, ("a", "b"), 70)


def test_an_unfinished_matrix_is_read_as_such(tmp_path):
    assert not external(tmp_path, "a,b,c\n80\n60,90\n").complete


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: its first row names the tasks"),
        ("a,b\n", "has no scores"),
        ("80,60\n60,90\n", "begins with numbers"),
        ("a,b\n80\n60,high\n", "must be a number, found 'high'"),
        ("a,b\n80\n,90\n", "needs a percentage for a, b"),
        ("a,b\n80\n60\n", "needs a percentage for a, b"),
        ("a,b\n80,1,2\n", "a row has 3 cells, the header 2"),
        ("a\n80\n70\n", "has 1 tasks but more rows"),
        ("a,a\n80\n60,90\n", "tasks named twice: a"),
        ("a,b\n80\n60,190\n", "must be a percentage from 0 to 100, found 190"),
        ("a,b\n80\n60,nan\n", "must be a finite number"),
        ("after,a,b\nchance,50\na,80\nb,60,90\n", "2 tasks need as many chance levels, found 1"),
    ],
)
def test_what_is_wrong_with_a_plain_matrix_is_named(tmp_path, text, words):
    with pytest.raises(DataError, match=words) as error:
        external(tmp_path, text)
    assert "lwf.csv" in str(error.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tasks": ["a"]}, "needs `tasks`, a list of names, and `matrix`"),
        ({"tasks": ["a"], "matrix": [80]}, "needs a percentage for a, found 80"),
        ({"tasks": ["a"], "matrix": [["x"]]}, "must be a number, found 'x'"),
    ],
)
def test_what_is_wrong_with_plain_json_is_named(tmp_path, data, words):
    with pytest.raises(DataError, match=words):
        external(tmp_path, json.dumps(data), "lwf.json")


def test_fractions_are_refused_not_shown_as_half_a_percent(tmp_path):
    with pytest.raises(
        DataError,
        match=r"no score is above 0.9, so these look like fractions.*multiply them by 100",
    ):
        external(tmp_path, "a,b\n0.8\n0.6,0.9\n")
    data = {"tasks": ["a"], "matrix": [[0.8]], "unit": "percent"}
    assert external(tmp_path, json.dumps(data), "poor.json").metrics["A_last"] == 0.8
    assert external(tmp_path, "a,b\n0\n0,0\n").metrics["A_last"] == 0


# --- what decides a run's results


def test_an_experiment_has_dotted_keys_and_no_seed():
    config = make_config("ewc", options={"strength": 3, "estimator": {"cap": None}}, seed=7)
    experiment = experiment_of(config, make_provenance(config))
    assert experiment["method.strength"] == 3
    assert experiment["recipe.epochs"] == 3
    assert experiment["data.vqa"] == "0" * 24
    assert not {"seed", "output", "training.log_every", "data_root"} & experiment.keys()
    assert "method.estimator.cap" not in experiment


def test_external_results_have_no_experiment(tmp_path):
    assert external(tmp_path, "a,b\n80\n60,90\n").experiment == {}


def test_settings_of_the_configuration_decide_if_the_provenance_is_lost(tmp_path):
    for number, strength in enumerate((1, 1000), start=1):
        config = make_config("ewc", seed=number, options={"strength": strength})
        scores = make_scores("ewc", ROWS, seed=number)
        folder = write_run(tmp_path / f"seed{number}", scores, config)
        (folder / "provenance.json").unlink()
    assert names(*read_runs([tmp_path])) == ["ewc@1", "ewc@1000"]


def test_a_recipe_that_differs_between_tasks_is_a_list():
    tasks = {"vqa": {"recipe": {"epochs": 1}}, "vcr": {"recipe": {"epochs": 2}}}
    experiment = experiment_of({}, {"experiment": {"tasks": tasks}})
    assert experiment["recipe.epochs"] == [1, 2]


# --- groups and their names


def test_seeds_of_one_method_are_one_group():
    (group,) = group_runs([make_run("ewc", ROWS, seed) for seed in (1, 2, 3)])
    assert (group.label, group.name, group.method) == ("ewc", "ewc", "ewc")
    assert group.seeds == [1, 2, 3]
    assert group.setting.name == "vqa,nlvr2,snli-ve,vcr"


def with_method(method: str = "ewc", seed: int = 1, **options) -> Run:
    return make_run(method, ROWS, seed, make_config(method, seed=seed, options=options))


def test_strengths_are_told_apart_and_only_if_there_are_several():
    runs = [
        with_method(strength=1000),
        with_method(strength=300, seed=2),
        with_method("mas", strength=7),
    ]
    assert names(*runs) == ["ewc@1000", "ewc@300", "mas"]
    assert names(with_method(strength=1000), with_method(strength=1e3, seed=2)) == ["ewc"]


def test_a_group_knows_its_strength_and_its_family():
    weak, strong = group_runs([with_method(strength=1), with_method(strength=10.0)])
    assert (weak.strength, strong.strength) == (1.0, 10.0)
    assert weak.family.name == strong.family.name == "ewc"
    assert group_runs([with_method("finetune")])[0].strength is None


def test_the_strength_is_that_of_the_experiment_wherever_it_was_set():
    usual = make_config("ewc", methods={"ewc": {"strength": 300}})
    own = make_config("ewc", seed=2, options={"strength": 300})
    experiment = make_experiment(own)
    (group,) = group_runs(
        [
            make_run("ewc", ROWS, 1, usual, {"experiment": experiment}),
            make_run("ewc", ROWS, 2, own),
        ]
    )
    assert group.strength == 300.0


def test_other_options_are_told_by_their_name_and_no_more_of_them_than_needed():
    runs = [
        with_method(estimator={"cap": 1e-4, "unit": "batch"}),
        with_method(estimator={"cap": None, "unit": "example"}),
    ]
    assert names(*runs) == ["ewc (cap=0.0001)", "ewc (cap=unset)"]
    runs = [with_method(strength=s, merge=m) for s, m in ((1, "sum"), (1, "share"), (2, "sum"))]
    assert names(*runs) == ["ewc@1 (merge=sum)", "ewc@1 (merge=share)", "ewc@2 (merge=sum)"]


def test_papers_write_methods_their_own_way():
    runs = [with_method("ewc_dr", strength=s) for s in (300, 1000)] + [with_method("my_method")]
    runs.append(with_method("lwf+ewc_lo"))
    assert [group.paper_name for group in group_runs(runs)] == [
        "EWC-DR (λ = 300)",
        "EWC-DR (λ = 1000)",
        "my-method",
        "LwF + EWC-LO",
    ]


def test_presets_are_told_by_their_own_name():
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", options={"strength": s}), preset=name)
        for name, s in (("release", 1e4), ("exact", 1))
    ]
    assert names(*runs) == ["ewc (release)", "ewc (exact)"]


def test_a_preset_alone_makes_no_group():
    runs = [make_run("ewc", ROWS, 1, preset="release"), make_run("ewc", ROWS, 2)]
    assert names(*runs) == ["ewc"]


def test_what_cannot_change_a_score_makes_no_group():
    training = {"clip_norm": 1.0, "log_every": 4, "eval_batch_size": 7}
    elsewhere = {"output": "b", "data_root": "elsewhere", "checkpoint": {"keep": 5}}
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", output="a", training=training)),
        make_run("ewc", ROWS, 2, make_config("ewc", **elsewhere)),
    ]
    assert names(*runs) == ["ewc"]


def test_the_folder_of_data_without_fingerprint_tells_them_apart():
    data = dict.fromkeys(TASKS)
    runs = [
        make_run("ewc", ROWS, 1, make_config("ewc", data_root=root), {"data": data})
        for root in ("x/one", "x/two")
    ]
    assert names(*runs) == ["ewc (data_root=one)", "ewc (data_root=two)"]


def test_another_recipe_is_another_group():
    tasks = {task: {"recipe": {"epochs": 9}} for task in TASKS}
    other = make_run("ewc", ROWS, 2, make_config("ewc", tasks=tasks))
    assert names(make_run("ewc", ROWS), other) == ["ewc (epochs=3)", "ewc (epochs=9)"]


def test_an_unfinished_run_is_a_group_by_itself():
    groups = group_runs(
        [make_run("ewc", ROWS, 1), make_run("ewc", ROWS[:2], 2), make_run("ewc", ROWS[:2], 3)]
    )
    assert [group.name for group in groups] == [
        "ewc",
        "ewc (seed 2, 2 of 4 tasks)",
        "ewc (seed 3, 2 of 4 tasks)",
    ]
    assert [group.complete for group in groups] == [True, False, False]


def test_no_two_groups_share_a_name():
    twice = [make_run("ewc", ROWS[:2], 1), make_run("ewc", ROWS[:2], 1)]
    assert len(set(names(*twice))) == 2


def test_settings_are_named_if_there_are_several():
    other = make_run("ewc", [[80], [60, 90]], tasks="ab", chance=(20, 10))
    groups = group_runs([make_run("ewc", ROWS), other])
    assert [group.label for group in groups] == ["ewc on vqa,nlvr2,snli-ve,vcr", "ewc on a,b"]
    assert [group.name for group in groups] == ["ewc", "ewc"]
    assert [setting.name for setting in split_settings(groups)] == ["vqa,nlvr2,snli-ve,vcr", "a,b"]


def test_embedded_and_real_data_are_two_settings():
    groups = group_runs([make_run("ewc", ROWS), make_run("ewc", ROWS, embedded=True)])
    assert [group.setting.name.rpartition(", ")[2] for group in groups] == ["real", "embedded"]


def test_the_number_of_classes_follows_from_chance():
    tasks = ("c[0-49]", "c[50-54]", "c[55-59]")
    chance = (2.0, 100 / 55, 100 / 60)
    rows = [[80.0], [60.0, 70.0], [50.0, 60.0, 70.0]]
    config = make_config("ewc", ["c:50+2x5"])
    (group,) = group_runs(
        [make_run("ewc", rows, config=config, tasks=tasks, chance=chance, track="efcil")]
    )
    assert group.setting.classes == (50, 5, 5)
    assert (group.setting.name, group.setting.dataset) == ("c:50+2x5", "c")


def test_tasks_with_heads_of_their_own_have_no_classes():
    assert group_runs([make_run("ewc", ROWS)])[0].setting.classes is None


def make_text(rows=ROWS) -> str:
    return ",".join(TASKS) + "\n" + "\n".join(",".join(map(str, row)) for row in rows)


def test_results_of_others_stand_next_to_ours_under_their_own_name(tmp_path):
    runs = [make_run("ewc", ROWS)]
    runs += [external(tmp_path, make_text(), name) for name in ("lwf.csv", "ewc.csv")]
    groups = group_runs(runs)
    assert [group.name for group in groups] == ["ewc", "lwf", "ewc (ewc)"]
    assert len(split_settings(groups)) == 1


# --- caveats


def test_method_and_seed_are_no_caveat():
    runs = [with_method("ewc", seed, strength=s) for seed in (1, 2) for s in (1, 2)]
    runs += [with_method("mas", seed, estimator={"cap": 3}) for seed in (1, 2)]
    assert caveats(*runs) == []


@pytest.mark.parametrize(
    ("config", "provenance", "expected"),
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
def test_a_difference_is_named_with_both_values(config, provenance, expected):
    other = make_run("mas", ROWS, 1, make_config("mas", **config), provenance)
    assert caveats(make_run("ewc", ROWS), other) == [expected]


def test_a_caveat_knows_how_much_it_matters():
    other = make_run("mas", ROWS, provenance={"threads": "8", "mcit": "0.2"})
    found = find_caveats(group_runs([make_run("ewc", ROWS), other]))
    assert [caveat.severity for caveat in found] == [Severity.WARNING, Severity.NOTE]


def test_other_data_and_other_recipes_are_caveats():
    config = make_config("mas", tasks={"vcr": {"recipe": {"epochs": 9}}})
    data = {**make_provenance(config)["data"], "vqa": "f" * 24}
    other = make_run("mas", ROWS, 1, config, {"data": data})
    assert caveats(make_run("ewc", ROWS), other) == [
        f"data.vqa differs: {'0' * 24} (ewc-seed1); {'f' * 24} (mas-seed1)",
        "recipe.epochs differs: 3 (ewc-seed1); 3/3/3/9 (mas-seed1)",
    ]


def test_values_that_look_the_same_when_shortened_still_differ():
    runs = [
        make_run(method, ROWS, 1, make_config(method, model={"name": name}))
        for method, name in (("ewc", "a/vilt"), ("mas", "b/vilt"))
    ]
    assert len(caveats(*runs)) == 1


def test_unfinished_repeated_and_external_runs_are_caveats(tmp_path):
    runs = [make_run("ewc", ROWS), make_run("ewc", ROWS), make_run("mas", ROWS[:3])]
    assert caveats(*runs, external(tmp_path, make_text())) == [
        "ewc with seed 1 is counted 2 times: ewc-seed1, ewc-seed1",
        "seeds differ: 1 (ewc); not stated (lwf)",
        "mas-seed1 is unfinished (3 of 4 tasks) and is shown separately",
        "lwf comes from another source: how it was run is not known, and its A_t is the plain mean over "
        "tasks",
    ]


def test_unequal_seeds_and_chance_levels_are_caveats():
    runs = [make_run("ewc", ROWS, 1), make_run("ewc", ROWS, 2), make_run("mas", ROWS, 1)]
    assert caveats(*runs) == ["seeds differ: 1, 2 (ewc); 1 (mas)"]
    other = make_run("mas", ROWS, chance=(10.0, *CHANCE[1:]))
    assert caveats(make_run("ewc", ROWS), other) == [
        "chance differs: 0/50/33.3/25 (ewc-seed1); 10/50/33.3/25 (mas-seed1)"
    ]
    rounded = make_run("mas", ROWS, chance=[round(level, 1) for level in CHANCE])
    assert caveats(make_run("ewc", ROWS), rounded) == []


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path):
    for parent, method, width in (("a", "ewc", 32), ("b", "mas", 64)):
        config = make_config(method, model={"name": "tiny", "width": width})
        write_run(tmp_path / parent / "run", make_scores(method, ROWS), config)
    found = caveats(*read_runs([tmp_path / "a", tmp_path / "b"]))
    assert found == ["model.width differs: 32 (a/run); 64 (b/run)"]


def test_lists_of_lists_stay_readable():
    assert format_value([[12, 17], [6, 9]]) == "12,17/6,9"


def test_many_runs_are_named_in_part():
    runs = [make_run("ewc", ROWS, seed) for seed in range(1, 9)]
    other = {"threads": "2"}
    runs += [make_run("mas", ROWS, seed, provenance=other) for seed in range(1, 9)]
    (found,) = caveats(*runs)
    assert found.startswith(
        "note: threads differs: 1 (ewc-seed1, ewc-seed2, ewc-seed3 and 5 more); 2 ("
    )

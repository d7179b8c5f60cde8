"""Sweeps: the grid, the runs that are made of it side by side, and how a strength is chosen."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from report_runs import make_group, make_passport, make_scores
from tiny_run import resolve as resolve_few

from mcit.cli import main
from mcit.commands.sweep import read_options
from mcit.config import ConfigError, parse, to_dict, to_yaml
from mcit.errors import McitError
from mcit.runner.plan import resolve
from mcit.sequence import run
from mcit.sweeps import grid as sweep
from mcit.sweeps import jobs as running
from mcit.sweeps.grid import (
    Grid,
    MethodGrid,
    describe_rule,
    keep_chosen,
    plan_jobs,
    read_grid,
    select,
)
from mcit.sweeps.jobs import Job, find_state, identify, last_line, run_jobs
from mcit.sweeps.stiffness import Measured, match_strengths, measure_stiffness, tabulate_stiffness
from mcit.training import Trainer

TINY = (
    "model.width=8",
    "tasks.shapes.classes=4",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
)
ORDER = "shapes:2x2"
GRID = Grid(
    {"finetune": MethodGrid(), "ewc": MethodGrid()}, (ORDER,), (1.0, 10.0), (1, 2), set=TINY
)


def plan(grid: Grid, output: Path) -> list[Job]:
    return plan_jobs(grid, output, read_options)


def write_complete(job: Job, rows: Sequence[Sequence[float]], **changes: object) -> None:
    """What a complete run of the job leaves in its folder."""
    tasks = tuple(f"shapes[{2 * t}-{2 * t + 1}]" for t in range(len(rows)))
    chance = tuple(100 / (2 * t + 2) for t in range(len(rows)))
    scores = make_scores(job.method, rows, tasks, chance, track="efcil", seed=job.seed, **changes)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (job.folder / "config.yaml").write_text(to_yaml(resolve(job.config).config), encoding="utf-8")
    (job.folder / "passport.json").write_text(json.dumps(make_passport(tasks)), encoding="utf-8")


# --- the grid


def test_a_grid_is_every_method_at_each_of_its_strengths_with_every_seed(tmp_path):
    names = [job.name for job in plan(GRID, tmp_path)]
    assert names == [
        f"{label}-seed{seed}" for label in ("finetune", "ewc@1", "ewc@10") for seed in (1, 2)
    ]


def test_a_job_is_what_mcit_run_makes_of_its_options(tmp_path):
    job = plan(GRID, tmp_path)[-1]
    assert (job.method, job.strength, job.seed) == ("ewc", 10.0, 2)
    assert resolve(job.config).method.strength == 10.0
    assert job.config.model.width == 8
    assert job.command.startswith(
        f"mcit run --order {ORDER} --method ewc --seed 2 --set model.width=8 "
    )
    assert job.command.endswith(f"--set method.strength=10.0 --output {tmp_path}/ewc@10-seed2")


def test_a_method_may_have_strengths_and_settings_of_its_own(tmp_path):
    own = {"ewc": MethodGrid((5.0,), ("method.merge=online",)), "mas": MethodGrid()}
    jobs = plan(replace(GRID, methods=own, seeds=(1,)), tmp_path)
    assert [job.name for job in jobs] == ["ewc@5-seed1", "mas@1-seed1", "mas@10-seed1"]
    assert resolve(jobs[0].config).method.merge == "online"


def test_runs_of_several_orders_are_told_apart(tmp_path):
    grid = replace(
        GRID, methods={"finetune": MethodGrid()}, orders=(ORDER, "shapes:1+3x1"), seeds=(1,)
    )
    assert [job.name for job in plan(grid, tmp_path)] == [
        "shapes-2x2-finetune-seed1",
        "shapes-1+3x1-finetune-seed1",
    ]


def test_a_grid_file_has_short_forms(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(
        "order: [vqa, nlvr2]\nmethods: {finetune: , ewc: [300, 1e3], mas: 7, si: {set: [seed=1]}}\n"
    )
    grid = sweep.make_grid(read_grid(path))
    assert grid.orders == ("vqa,nlvr2",)
    assert {name: own.strengths for name, own in grid.methods.items()} == {
        "finetune": (),
        "ewc": (300.0, 1000.0),
        "mas": (7.0,),
        "si": (),
    }
    assert grid.methods["si"].set == ("seed=1",)
    assert grid.seeds == (1, 2, 3)
    path.write_text("orders: ['vqa,nlvr2', [nlvr2, vqa]]\nmethods: finetune, ewc\nseeds: [4]\n")
    grid = sweep.make_grid(read_grid(path))
    assert grid.orders == ("vqa,nlvr2", "nlvr2,vqa")
    assert list(grid.methods) == ["finetune", "ewc"]


def test_all_that_is_wrong_with_a_grid_comes_in_one_message(tmp_path):
    methods = {
        "ewcc": MethodGrid(),
        "finetune": MethodGrid((3.0,)),
        "mas": MethodGrid((), ("method.strenth=1",)),
    }
    with pytest.raises(ConfigError) as caught:
        plan(replace(GRID, methods=methods), tmp_path)
    for words in ("did you mean 'ewc'?", "'finetune' has no strength", "did you mean 'strength'?"):
        assert words in str(caught.value)
    assert str(caught.value).count("strenth") == 1  # once, not for every run
    with pytest.raises(ConfigError, match="seeds lists 1 twice"):
        replace(GRID, seeds=(1, 1))
    with pytest.raises(ConfigError, match="a strength must be a number from 0"):
        parse(Grid, {"methods": {"ewc": {"strengths": [-1]}}})


def test_strengths_are_for_all_methods_or_for_one():
    assert sweep.parse_strengths(["1,10", "ewc=5"], ["ewc", "mas"]) == ([1.0, 10.0], {"ewc": [5.0]})
    with pytest.raises(ConfigError, match="'ewcc' is not in --methods; did you mean 'ewc'"):
        sweep.parse_strengths(["ewcc=5"], ["ewc", "mas"])
    with pytest.raises(ConfigError, match="expected numbers"):
        sweep.parse_strengths(["ewc:5"], ["ewc"])


# --- what is there already


def test_a_folder_holds_the_whole_run_part_of_it_or_nothing(tmp_path):
    job = plan(GRID, tmp_path)[2]
    assert find_state(job) == "new"
    write_complete(job, [[90.0], [60.0, 80.0]])
    assert find_state(job) == "done"
    scores = json.loads((job.folder / "scores.json").read_text())
    scores["matrix"].pop(), scores["seen"].pop(), scores["metrics"]["A_old"].pop()
    (job.folder / "scores.json").write_text(json.dumps(scores))
    assert find_state(job) == "begun"
    (job.folder / "scores.json").unlink()
    assert find_state(job) == "begun"


def test_a_folder_with_another_experiment_is_refused_with_the_difference(tmp_path):
    write_complete(plan(GRID, tmp_path)[2], [[90.0], [60.0, 80.0]])
    changed = plan(replace(GRID, set=(*TINY[1:], "model.width=16")), tmp_path)[2]
    with pytest.raises(
        ConfigError, match=r"holds a run with other settings \(model.width 8 there, 16 here\)"
    ):
        find_state(changed)


def test_a_folder_with_a_run_that_would_be_refused_now_is_named(tmp_path):
    """An earlier version refreshed BatchNorm's statistics in the importance pass of the release's flavour."""
    job = plan(GRID, tmp_path)[2]
    write_complete(job, [[90.0], [60.0, 80.0]])
    path = job.folder / "config.yaml"
    path.write_text(
        path.read_text().replace("mode: train", "mode: train\n      update_buffers: true")
    )
    with pytest.raises(
        ConfigError,
        match=r"ewc@1-seed1 holds a run whose settings .* \(.*training.refresh_batchnorm",
    ):
        find_state(job)


def test_the_same_experiment_is_known_however_it_is_spelled():
    short = read_options(
        ["--order", ORDER, "--method", "ewc_dr", "--set", "tasks.shapes.classes=4"]
    )
    spelled = [
        f"method.{k}={v}"
        for k, v in {"strength": 1e4, "merge": "share", "estimator.cap": 1e-4}.items()
    ]
    spelled += [
        "method.penalty=gradient",
        "method.estimator.unit=batch",
        "method.estimator.mode=train",
        "training.refresh_batchnorm=true",
    ]
    words = [
        w for s in (*spelled, "tasks.shapes.classes=4", "training.workers=2") for w in ("--set", s)
    ]
    long = read_options(
        ["--order", ORDER, "--method", "ewc_dr", "--flavour", "exact", *words, "--output", "there"]
    )
    assert identify(short) == identify(long)
    assert identify(short) != identify(replace(short, seed=7))


# --- making runs


STAND_IN = """
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--output") + 1])
seed = int(words[words.index("--seed") + 1])
pathlib.Path(folder.parent, f"{folder.name}.begin").write_text(json.dumps([time.time(), words, dict(os.environ)]))
print("hello from", folder.name, flush=True)
exec(os.environ["ACT"])
pathlib.Path(folder.parent, f"{folder.name}.end").write_text(str(time.time()))
"""


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Runs jobs with a program that stands in for `mcit run`, quick and with whatever behaviour is asked for."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)

    def run(
        jobs: Sequence[Job], code: str = "", **options: object
    ) -> tuple[list[running.Failure], list[str]]:
        monkeypatch.setenv("ACT", code)
        said: list[str] = []
        return run_jobs(
            jobs, say=said.append, program=(sys.executable, "-S", str(script)), **options
        ), said

    return run


def began(job: Job) -> tuple[float, list[str], dict[str, str]]:
    return json.loads(job.folder.with_name(f"{job.name}.begin").read_text())


def test_no_more_runs_are_under_way_than_asked_for(act, tmp_path):
    jobs = plan(GRID, tmp_path / "runs")
    failures, said = act(jobs, "time.sleep(0.3)", at_once=2)
    assert (failures, len(said)) == ([], len(jobs))
    spans = [
        (began(job)[0], float(job.folder.with_name(f"{job.name}.end").read_text())) for job in jobs
    ]
    together = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
    assert max(together) == 2


def test_every_run_has_its_threads_its_log_and_its_graphics_card(act, tmp_path):
    jobs = plan(GRID, tmp_path / "runs")[:3]
    act(jobs, at_once=1, threads=3, gpus=["5"], extra=["--stage-cache", "there"])
    for job in jobs:
        _, words, environment = began(job)
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["CUDA_VISIBLE_DEVICES"] == "5"
        assert words == [
            *job.options,
            "--stage-cache",
            "there",
            "--output",
            str(job.folder),
            "--quiet",
        ]
        assert (job.folder / "console.log").read_text() == f"hello from {job.name}\n"


def test_a_run_executes_no_file_of_the_working_folder(tmp_path, monkeypatch):
    """`mcit run` does not either: a folder with data may hold an evaluate.py, or a yaml.py that does harm."""
    monkeypatch.chdir(tmp_path)
    for name in ("argparse", "evaluate", "json", "yaml"):
        Path(f"{name}.py").write_text("open('executed', 'a').close()\n")
    job = replace(plan(GRID, tmp_path / "runs")[0], options=("--help",))
    assert run_jobs([job], say=lambda line: None) == []
    assert "usage: mcit run" in (job.folder / "console.log").read_text()
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["scores.json", "passport.json"])
def test_a_run_with_a_damaged_file_is_resumed_and_not_in_the_way(act, tmp_path, name):
    job = plan(GRID, tmp_path / "runs")[0]
    write_complete(job, [[90.0], [60.0, 80.0]])
    (job.folder / name).write_text("{")
    assert find_state(job) == "begun"
    act([job])
    assert began(job)[1][-1] == "--resume"


def test_a_run_that_was_begun_is_resumed(act, tmp_path):
    job = plan(GRID, tmp_path / "runs")[0]
    write_complete(job, [[90.0], [60.0, 80.0]])
    (job.folder / "scores.json").unlink()
    act([job])
    assert began(job)[1][-1] == "--resume"


def test_a_failed_run_is_told_by_its_last_line_and_stops_no_other(act, tmp_path):
    jobs = plan(
        replace(GRID, methods={"finetune": MethodGrid()}, seeds=(1, 2, 3)), tmp_path / "runs"
    )
    code = (
        "if seed == 2: print('mcit: the loss is nan', '', sep='\\n', file=sys.stderr); sys.exit(2)"
    )
    failures, said = act(jobs, code)
    assert [(failure.job, failure.code, failure.last_line) for failure in failures] == [
        (jobs[1], 2, "mcit: the loss is nan")
    ]
    assert (
        f"finetune-seed2 failed (code 2): mcit: the loss is nan (see {jobs[1].folder}/console.log)"
        in said
    )
    assert len(said) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_stops_every_run_and_is_passed_on(act, tmp_path, number):
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # tests started in the background ignore it
    jobs = plan(GRID, tmp_path / "runs")[:3]
    code = "signal.signal(signal.SIGINT, lambda *_: (print('saved', flush=True), sys.exit(75))); time.sleep(60)"

    def interrupt() -> None:
        while sum((job.folder / "console.log").is_file() for job in jobs[:2]) < 2 or not all(
            "hello" in (job.folder / "console.log").read_text() for job in jobs[:2]
        ):
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        act(jobs, code, at_once=2)
    assert time.monotonic() - start < 20
    assert [(job.folder / "console.log").is_file() for job in jobs] == [True, True, False]
    assert all((job.folder / "console.log").read_text().endswith("saved\n") for job in jobs[:2])
    signal.signal(signal.SIGINT, before)


def test_a_run_that_will_not_stop_is_ended():
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    process = running.subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=running.subprocess.PIPE, start_new_session=True
    )
    process.stdout.readline()
    running.stop([process], grace=0.3)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


# --- choosing strengths


THREE = [[80.0], [70.0, 80.0], [60.0, 70.0, 80.0]]


def three_tasks(a_2: float, a_3: float) -> list[list[float]]:
    return [[80.0], [a_2, a_2], [a_3, a_3, a_3]]


SELECTING = replace(
    GRID,
    orders=("shapes:3x2",),
    strengths=(1.0, 10.0, 100.0),
    seeds=(11, 12),
    set=(*TINY, "tasks.shapes.classes=6"),
)


def test_a_strength_is_picked_by_the_first_tasks_only(tmp_path):
    jobs = plan(SELECTING, tmp_path)
    seen = {None: 10.0, 1.0: 40.0, 10.0: 60.0, 100.0: 50.0}
    later = {None: 10.0, 1.0: 99.0, 10.0: 1.0, 100.0: 60.0}  # what comes later would pick another
    for job in jobs:
        write_complete(job, three_tasks(seen[job.strength] + job.seed / 10, later[job.strength]))
    (choice,) = select(jobs, 2)
    assert (choice.method, choice.strength, choice.seeds) == ("ewc", 10.0, (11, 12))
    assert choice.seen == ("shapes[0-1]", "shapes[2-3]")
    assert choice.tried[10.0] == pytest.approx([(80 + 61.1) / 2, (80 + 61.2) / 2])
    assert choice.to_dict()["at_edge"] is False
    assert select(jobs, 3)[0].strength == 1.0
    assert "Only the first 2 tasks are looked at" in describe_rule(2)
    assert {job.strength for job in keep_chosen(jobs, [choice])} == {None, 10.0}


def test_equals_are_decided_for_the_smaller_strength_and_the_edge_is_told(tmp_path):
    jobs = plan(SELECTING, tmp_path)
    for job in jobs:
        write_complete(job, three_tasks(50.0, 50.0))
    (choice,) = select(jobs, 2)
    assert choice.strength == 1.0
    assert "at the edge of the grid" in choice.describe()


def test_the_cause_of_a_failure_is_told_and_not_what_follows_it(tmp_path):
    log = tmp_path / "console.log"
    log.write_text(
        "warning\nmcit: the loss is nan\n  the last good checkpoint is here\n\n", encoding="utf-8"
    )
    assert last_line(log) == "mcit: the loss is nan"
    log.write_text("Traceback\nKeyError: 1\n", encoding="utf-8")
    assert last_line(log) == "KeyError: 1"


def test_a_strength_with_a_failed_run_is_not_picked(tmp_path):
    jobs = plan(SELECTING, tmp_path)
    for job in jobs:
        write_complete(job, three_tasks(90.0 if job.strength == 10.0 else 50.0, 50.0))
    done = [job for job in jobs if (job.strength, job.seed) != (10.0, 12)]
    assert select(done, 2)[0].strength == 1.0


def test_a_selection_needs_two_tasks_at_least_and_no_more_than_there_are(tmp_path):
    jobs = plan(SELECTING, tmp_path)
    for job in jobs:
        write_complete(job, three_tasks(50.0, 50.0))
    with pytest.raises(ConfigError, match="at least 2 tasks"):
        select(jobs, 1)
    with pytest.raises(ConfigError, match="has 3 tasks only"):
        select(jobs, 4)


def test_matched_strengths_make_the_mean_stiffness_equal():
    stiffness = {"ewc": 2e-4, "mas": 5e-2, "ewc_dr": 1e-3}
    matched = match_strengths(stiffness, "ewc_dr", (100.0, 300.0))
    assert matched["ewc_dr"] == (100.0, 300.0)
    for method, strengths in matched.items():
        assert [s * stiffness[method] for s in strengths] == pytest.approx([0.1, 0.3], rel=1e-3)


def test_the_stiffness_that_is_measured_is_that_of_a_run_at_strength_1(tmp_path, monkeypatch):
    """Strength is a plain factor: a whole run reports strength times what was measured after its first task."""
    fits = []
    fit = Trainer.fit
    monkeypatch.setattr(
        Trainer, "fit", lambda *words, **more: fits.append(words[1].index) or fit(*words, **more)
    )
    measured = {}
    for method, merge in (("ewc", "share"), ("mas", "share")):
        words = ["--order", ORDER, "--method", method, *(w for s in TINY for w in ("--set", s))]
        config = read_options(
            [*words, "--set", "method.strength=1", "--set", f"method.merge={merge}"]
        )
        measured[method] = measure_stiffness(resolve_few(config), tmp_path / "stages")
    assert fits == [0]  # the second method found the steps of the first
    assert measured["mas"] > measured["ewc"] > 0
    config = replace(
        config, method=replace(config.method, options={**config.method.options, "strength": 30.0})
    )
    result = run(resolve_few(config), tmp_path / "run", progress=False, say=lambda line: None)
    assert result.stiffness[0]["mean"] == pytest.approx(30 * measured["mas"], rel=1e-6)


def test_importance_that_is_not_finite_is_told_with_its_method(tmp_path, monkeypatch):
    """What `measure_importance` raises of weights that diverged."""

    def diverge(*arguments: object, **options: object) -> None:
        raise FloatingPointError("the plain score of batch 1 is not finite")

    monkeypatch.setattr("mcit.methods._consolidating.measure_importance", diverge)
    job = plan(replace(GRID, methods={"ewc": MethodGrid()}, seeds=(1,)), tmp_path)[0]
    with pytest.raises(
        McitError, match="ewc after the first task: the plain score of batch 1 is not finite"
    ):
        measure_stiffness(resolve(job.config), tmp_path)


def test_an_order_of_one_task_cannot_be_matched(tmp_path):
    config = read_options(
        ["--order", "shapes:1x2", "--method", "ewc", "--set", "tasks.shapes.classes=2"]
    )
    with pytest.raises(ConfigError, match="at least two tasks"):
        measure_stiffness(resolve(config), tmp_path)


def test_what_was_measured_is_kept_for_the_same_experiment_only(tmp_path):
    Measured(tmp_path / "stiffness.json").add("ewc", {"seed": 1}, 0.25)
    again = Measured(tmp_path / "stiffness.json")
    assert again.find("ewc", {"seed": 1}) == 0.25
    assert again.find("ewc", {"seed": 2}) is None
    assert again.find("mas", {"seed": 1}) is None


def test_stiffness_is_tabulated_after_every_task():
    found = [{"mean": mean, "max": 9.0, "capped": 0.0, "near_zero": 0.0} for mean in (0.5, 0.75)]
    table = tabulate_stiffness(
        [
            make_group("ewc", [THREE, THREE], stiffness=found),
            make_group("finetune", [THREE], stiffness=[]),
        ]
    )
    assert table.rows == [["ewc", "0.5", "0.75", "", ""]]
    assert "Later it differs again" in table.notes[0]


# --- as a command


def sweep_words(output: Path, *more: str) -> list[str]:
    words = [
        "sweep",
        "--order",
        ORDER,
        "--methods",
        "finetune,ewc",
        "--strengths",
        "1,10",
        "--seeds",
        "1,2",
    ]
    return [*words, *(w for s in TINY for w in ("--set", s)), "--output", str(output), *more]


def test_a_dry_run_counts_what_is_to_be_done_and_writes_nothing(tmp_path, capsys):
    write_complete(plan(GRID, tmp_path / "runs")[3], [[90.0], [60.0, 80.0]])
    before = sorted(tmp_path.rglob("*"))
    assert main(sweep_words(tmp_path / "runs", "--dry-run")) == 0
    printed = capsys.readouterr().out
    assert "6 runs: 1 complete, 0 begun, 5 new" in printed
    assert "ewc@1     done: seed 2; new: seed 1" in printed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_match_plans_the_strengths_that_were_measured(tmp_path, capsys):
    words = [
        "sweep",
        "--order",
        ORDER,
        "--methods",
        "finetune,ewc,mas",
        "--strengths",
        "ewc=10,20",
        "--seeds",
        "1",
    ]
    words += [
        *(w for s in TINY for w in ("--set", s)),
        "--output",
        str(tmp_path),
        "--match",
        "stiffness",
        "--dry-run",
    ]
    assert main(words) == 0
    assert (
        "would measure the mean stiffness of ewc, mas after the first task"
        in capsys.readouterr().out
    )
    alone = replace(
        GRID, methods={"ewc": MethodGrid(), "mas": MethodGrid()}, strengths=(1.0,), seeds=(1,)
    )
    for job, mean in zip(plan(alone, tmp_path), (0.5, 2.0), strict=True):
        Measured(tmp_path / "stiffness.json").add(job.method, identify(job.config), mean)
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "mas: mean stiffness 2 at strength 1, so strength 2.5, 5" in printed
    assert "Later it differs again" in printed
    assert [line.split()[0] for line in printed.splitlines() if "new: seed" in line] == [
        "finetune",
        "ewc@10",
        "ewc@20",
        "mas@2.5",
        "mas@5",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--select-seeds", "3"], "--select-seeds is for --select"),
        (["--select", "--select-seeds", "2,3"], "--select-seeds and --seeds share 2"),
        (["--select", "--match", "stiffness"], "use one of them"),
        (["--reference", "ewc"], "--reference is for --match"),
        (["--match", "stiffness"], "--match needs two methods that hold weights by importance"),
        (["--gpus", "0", "--jobs", "2"], "--jobs 2 needs as many --gpus"),
        (["--seeds", "one"], "seeds are whole numbers from 0, such as 1,2,3 or 1-3; found 'one'"),
        (["--seeds", "3-1"], "seeds '3-1' is no range from a smaller seed to a larger one"),
        (["--methods", "ewc,mas,ewc"], "--methods lists 'ewc' twice"),
        (
            ["--methods", "finetune"],
            "strengths are given, and none of the methods has one (finetune)",
        ),
        (
            ["--methods", "finetune", "--strengths", "finetune=3"],
            "method 'finetune' has no strength",
        ),
        (
            ["--set", "method.strength=3"],
            "'method.strength=3' sets what --strengths lists for 'ewc'",
        ),
        (["--set", "seed=7"], "'seed=7' cannot be set for every run of a grid; use --seeds"),
        (["--select", "9"], "--select 9: the order has 2 tasks; pick by as many or fewer"),
        (["--select", "1"], "--select needs at least 2 tasks, found 1"),
        (["--select", "0"], "--select needs at least 2 tasks, found 0"),
        (["--strengths", "1,,10"], "--strengths 1,,10: expected numbers such as 100,300"),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, more, words, dry):
    assert main(sweep_words(tmp_path / "runs", *more, *dry)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the GPU that is asked for")
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_gpu_that_is_not_there_is_refused_at_once(tmp_path, capsys, dry):
    assert main(sweep_words(tmp_path / "runs", "--gpus", "0", *dry)) == 2
    message = "--gpus 0: torch finds no GPU here; leave --gpus out to run on the CPU"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("words", "seeds"), [("1-3", "1, 2, 3"), ("4,7-8", "4, 7, 8")])
def test_seeds_may_be_a_range(tmp_path, capsys, words, seeds):
    assert main(sweep_words(tmp_path / "runs", "--seeds", words, "--dry-run")) == 0
    assert f"ewc@1     new: seed {seeds}" in capsys.readouterr().out


def test_seeds_of_a_grid_file_may_be_a_range(tmp_path):
    (tmp_path / "grid.yaml").write_text("order: shapes:2x2\nmethods: [ewc]\nseeds: 2-4\n")
    assert sweep.make_grid(read_grid(tmp_path / "grid.yaml")).seeds == (2, 3, 4)


def test_a_method_that_a_grid_file_lists_twice_is_refused(tmp_path):
    (tmp_path / "grid.yaml").write_text("order: shapes:2x2\nmethods: [ewc, mas, ewc]\n")
    with pytest.raises(ConfigError, match="methods lists 'ewc' twice"):
        read_grid(tmp_path / "grid.yaml")


def test_what_is_wrong_in_a_grid_file_is_not_answered_with_the_usage_of_another_command(
    tmp_path, capsys
):
    (tmp_path / "grid.yaml").write_text("order: shapes:2x2\nmethods: [ewc]\nflavour: exat\n")
    assert main(["sweep", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "runs")]) == 2
    message = capsys.readouterr().err
    assert "unknown choice 'exat'; did you mean 'exact'?" in message
    assert "usage" not in message


def test_a_place_that_cannot_be_written_to_is_told_with_its_option(tmp_path, capsys):
    (tmp_path / "rc.txt").write_text("a file")
    for words in (
        ["--output", str(tmp_path / "rc.txt" / "runs")],
        ["--stage-cache", str(tmp_path / "rc.txt")],
    ):
        assert main(sweep_words(tmp_path / "runs", *words)) == 2
        assert (
            f"rc.txt is a file; {words[0]} names the folder to write to" in capsys.readouterr().err
        )


def test_a_complete_sweep_is_reported_and_nothing_is_run(tmp_path, capsys):
    output = tmp_path / "runs"
    scores = {None: (20.0, 30.0), 1.0: (30.0, 40.0), 10.0: (60.0, 50.0)}
    for job in plan(GRID, output):
        a_2, new = scores[job.strength]
        write_complete(job, [[90.0], [a_2 + job.seed, new]])
    given = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert main(sweep_words(output, "--select")) == 0
    printed = capsys.readouterr().out
    assert "ewc: strength 10 (at the edge of the grid: try further)" in printed
    assert "--select-seeds keeps the two apart" in printed
    assert {path: path.stat().st_mtime_ns for path in given if path.is_file()} == {
        path: moment for path, moment in given.items() if path.is_file()
    }
    summary = (output / "summary.md").read_text(encoding="utf-8")
    last = statistics.mean([(60 + seed + 50) / 2 for seed in (1, 2)])
    assert f"{last:.2f}" in summary
    assert "mcit sweep --order" in summary
    summary = (output / "summary.md").read_text(encoding="utf-8")
    assert (
        f"- selection: {describe_rule(2)}." in summary
    )  # who reads the table reads how it was picked
    record = json.loads((output / "selection.json").read_text(encoding="utf-8"))
    assert record["choices"][0]["strength"] == 10.0
    assert record["seeds_reported"] == [1, 2]
    assert (output / "report" / "report.html").is_file()
    assert list((output / "report" / "figures").glob("*sensitiv*.svg"))


@pytest.mark.slow
def test_a_sweep_makes_its_runs_tells_of_failures_and_repeats_nothing(tmp_path, capfd):
    grid, output = tmp_path / "grid.yaml", tmp_path / "runs"
    grid.write_text(
        f"order: {ORDER}\nseeds: [1]\nset: [{', '.join(TINY)}]\n"
        "methods: {finetune: , ewc: {strengths: [1], set: [tasks.shapes.recipe.learning_rate=1e30]}}\n"
    )
    words = ["sweep", str(grid), "--output", str(output), "--stage-cache", str(tmp_path / "stages")]
    assert main([*words, "--jobs", "2"]) == 1
    printed = capfd.readouterr()
    assert "ewc@1-seed1 failed (code 2): " in printed.err
    assert "Left out, for they are not complete: " in printed.out
    assert (
        "ewc@1-seed1"
        in (output / "summary.md").read_text(encoding="utf-8").partition("Left out")[2]
    )
    assert "finetune-seed1: A_last " in printed.err
    assert "written to" in printed.out
    moment = (output / "finetune-seed1" / "scores.json").stat().st_mtime_ns
    scores = json.loads((output / "finetune-seed1" / "scores.json").read_text(encoding="utf-8"))
    assert [len(row) for row in scores["matrix"]] == [1, 2]
    assert main([*words, "--methods", "finetune"]) == 0
    assert (output / "finetune-seed1" / "scores.json").stat().st_mtime_ns == moment


def test_the_settings_of_a_grid_survive_a_round_trip():
    assert parse(Grid, to_dict(GRID)) == GRID

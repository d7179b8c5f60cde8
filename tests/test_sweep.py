"""Sweeps: the grid, the runs that are made of it side by side, and how a strength is chosen."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from report_runs import make_group, make_scores
from tiny_run import resolve as resolve_few

from mcit.arguments import Parser
from mcit.cli import main
from mcit.commands import sweep
from mcit.commands.run import add_options, read_config
from mcit.config.files import load_config, to_yaml
from mcit.config.parse import parse, to_dict
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError, McitError
from mcit.files import CONSOLE_LOG, LOCK, hold_lock
from mcit.method import Stage
from mcit.runner.plan import resolve
from mcit.sequence import run
from mcit.sweeps.attempt import stop
from mcit.sweeps.executor import RunSettings
from mcit.sweeps.grid import Grid, MethodGrid, parse_strengths, read_grid
from mcit.sweeps.jobs import Job, find_state, plan_jobs
from mcit.sweeps.local import LocalPool
from mcit.sweeps.running import Failure, last_line, run_jobs
from mcit.sweeps.selection import check_seen, describe_rule, keep_chosen, select
from mcit.sweeps.stiffness import (
    StiffnessFile,
    match_strengths,
    measure_stiffness,
    tabulate_stiffness,
)
from mcit.training.trainer import Trainer

TINY = (
    "model.width=8",
    "tasks.shapes.classes=4",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
)
ORDER = "shapes:2x2"
GRID = Grid(
    {"finetune": MethodGrid(), "ewc": MethodGrid()},
    orders=(ORDER,),
    strengths=(1.0, 10.0),
    seeds=(1, 2),
    set=TINY,
)
FINETUNE = replace(GRID, methods={"finetune": MethodGrid()}, strengths=())


def write_complete(job: Job, rows: Sequence[Sequence[float]], **changes: object) -> None:
    """Write what a complete run of the job leaves in its folder."""
    tasks = tuple(f"shapes[{2 * t}-{2 * t + 1}]" for t in range(len(rows)))
    chance = tuple(100 / (2 * t + 2) for t in range(len(rows)))
    scores = make_scores(job.method, rows, tasks, chance, track="efcil", seed=job.seed, **changes)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    (job.folder / "config.yaml").write_text(to_yaml(job.plan.config), encoding="utf-8")
    provenance = {"experiment": job.plan.experiment()}
    (job.folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")


# --- the grid


def test_a_grid_is_every_method_at_each_of_its_strengths_with_every_seed(tmp_path):
    names = [job.name for job in plan_jobs(GRID, tmp_path)]
    assert names == [
        f"{label}-seed{seed}" for label in ("finetune", "ewc@1", "ewc@10") for seed in (1, 2)
    ]


def test_a_job_is_what_mcit_run_makes_of_its_options(tmp_path):
    job = plan_jobs(GRID, tmp_path)[-1]
    assert (job.method, job.strength, job.seed) == ("ewc", 10.0, 2)
    assert job.plan.method.strength == 10.0
    assert job.plan.config.model.width == 8
    assert job.command.startswith(
        f"mcit run --order {ORDER} --method ewc --seed 2 --set model.width=8 "
    )
    assert job.command.endswith(f"--set method.strength=10.0 --output {tmp_path}/ewc@10-seed2")


def test_the_words_of_a_job_lead_to_its_configuration(tmp_path):
    job = plan_jobs(replace(GRID, preset="exact"), tmp_path)[-1]
    parser = Parser()
    add_options(parser)
    config = read_config(parser.parse_args(job.words))
    assert resolve(config).config == job.plan.config


def test_a_method_may_have_strengths_and_settings_of_its_own(tmp_path):
    own = {"ewc": MethodGrid((5.0,), ("method.merge=online",)), "mas": MethodGrid()}
    jobs = plan_jobs(replace(GRID, methods=own, seeds=(1,)), tmp_path)
    assert [job.name for job in jobs] == ["ewc@5-seed1", "mas@1-seed1", "mas@10-seed1"]
    assert jobs[0].plan.method.merge == "online"


def test_runs_of_several_orders_have_names_of_their_own(tmp_path):
    grid = replace(FINETUNE, orders=(ORDER, "shapes:1+3x1"), seeds=(1,))
    assert [job.name for job in plan_jobs(grid, tmp_path)] == [
        "shapes-2x2-finetune-seed1",
        "shapes-1+3x1-finetune-seed1",
    ]


def test_a_grid_file_has_short_forms(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(
        "order: [vqa, nlvr2]\nmethods: {finetune: , ewc: [300, 1e3], mas: 7, si: {set: [seed=1]}}\n"
    )
    grid = parse(Grid, read_grid(path))
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
    grid = parse(Grid, read_grid(path))
    assert grid.orders == ("vqa,nlvr2", "nlvr2,vqa")
    assert list(grid.methods) == ["finetune", "ewc"]


def test_all_that_is_wrong_with_a_grid_comes_in_one_message(tmp_path):
    methods = {
        "ewcc": MethodGrid(),
        "finetune": MethodGrid((3.0,)),
        "mas": MethodGrid((), ("method.strenth=1",)),
    }
    with pytest.raises(ConfigError) as caught:
        plan_jobs(replace(GRID, methods=methods), tmp_path)
    for words in ("did you mean 'ewc'?", "'finetune' has no strength", "did you mean 'strength'?"):
        assert words in str(caught.value)
    # once, not for every run
    assert str(caught.value).count("strenth") == 1
    with pytest.raises(ConfigError, match="seeds lists 1 twice"):
        replace(GRID, seeds=(1, 1))
    with pytest.raises(ConfigError, match="a strength must be at least 0"):
        parse(Grid, {"methods": {"ewc": {"strengths": [-1]}}})


def test_strengths_are_for_all_methods_or_for_one():
    assert parse_strengths(["1,10", "ewc=5"], ["ewc", "mas"]) == ([1.0, 10.0], {"ewc": [5.0]})
    with pytest.raises(ConfigError, match="'ewcc' is not in --methods; did you mean 'ewc'"):
        parse_strengths(["ewcc=5"], ["ewc", "mas"])
    with pytest.raises(ConfigError, match="expected numbers"):
        parse_strengths(["ewc:5"], ["ewc"])


def read_command_line(*words: str) -> Grid:
    parser = Parser()
    sweep.add_options(parser)
    return sweep.build_grid(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "strengths"),
    [
        ([], {"ewc": (300.0,), "mas": (7.0,)}),
        (["--strengths", "1,10"], {"ewc": (1.0, 10.0), "mas": (1.0, 10.0)}),
        (["--strengths", "mas=5"], {"ewc": (300.0,), "mas": (5.0,)}),
        (["--strengths", "1", "--strengths", "mas=5"], {"ewc": (1.0,), "mas": (5.0,)}),
        (["--methods", "ewc,si", "--strengths", "si=2"], {"ewc": (300.0,), "si": (2.0,)}),
    ],
)
def test_strengths_of_the_command_line_stand_over_those_of_the_file(tmp_path, words, strengths):
    path = tmp_path / "grid.yaml"
    path.write_text("order: shapes:2x2\nmethods: {ewc: 300, mas: 7}\n")
    grid = read_command_line(str(path), *words)
    assert {method: grid.strengths_of(method) for method in grid.methods} == strengths


def test_other_options_of_the_command_line_stand_over_the_file_too(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(
        "orders: [shapes:2x2, shapes:1+3x1]\nmethods: [ewc]\nseeds: 1-5\npreset: exact\n"
        "set: training.clip_norm=1\n"
    )
    words = ["--order", "shapes:4x1", "--seeds", "7", "--set", "model.width=8"]
    grid = read_command_line(str(path), *words)
    assert (grid.orders, grid.seeds, grid.preset) == (("shapes:4x1",), (7,), "exact")
    assert grid.set == ("training.clip_norm=1", "model.width=8")


def test_the_runs_of_a_sweep_are_one_group_of_a_tracker(tmp_path):
    words = [*sweep_words(tmp_path / "2024")[1:], "--tracker", "tensorboard"]
    grid = read_command_line(*words)
    (job, *others) = plan_jobs(grid, tmp_path / "2024")
    for each in (job, *others):
        assert each.plan.config.tracker == "tensorboard"
        assert each.plan.config.tracker_group == "2024"
    (alone, *_) = plan_jobs(GRID, tmp_path / "2024")
    assert job.plan.experiment() == alone.plan.experiment()


# --- what is there already


def test_a_folder_holds_the_whole_run_part_of_it_or_nothing(tmp_path):
    job = plan_jobs(GRID, tmp_path)[2]
    assert find_state(job) == "new"
    write_complete(job, [[90.0], [60.0, 80.0]])
    assert find_state(job) == "done"
    scores = json.loads((job.folder / "scores.json").read_text())
    for entries in (scores["matrix"], scores["seen"], scores["metrics"]["A_old"]):
        entries.pop()
    (job.folder / "scores.json").write_text(json.dumps(scores))
    assert find_state(job) == "begun"
    (job.folder / "scores.json").unlink()
    assert find_state(job) == "begun"


def test_a_folder_with_another_experiment_is_refused_with_the_difference(tmp_path):
    write_complete(plan_jobs(GRID, tmp_path)[2], [[90.0], [60.0, 80.0]])
    changed = plan_jobs(replace(GRID, set=(*TINY[1:], "model.width=16")), tmp_path)[2]
    with pytest.raises(McitError, match="ewc@1-seed1 holds another run") as caught:
        find_state(changed)
    assert "model.width: 8 -> 16" in str(caught.value)


def test_the_same_experiment_is_known_however_it_is_written():
    given = {"order": ORDER, "method": "ewc_dr"}
    classes = "tasks.shapes.classes=4"
    short = load_config(options=given, assignments=[classes])
    written_out = [
        classes,
        "method.strength=1e4",
        "method.merge=share",
        "method.penalty=gradient",
        "method.estimator.cap=1e-4",
        "method.estimator.unit=batch",
        "method.estimator.mode=train",
        "training.refresh_batchnorm=true",
        "training.log_every=7",
    ]
    elsewhere = {**given, "preset": "exact", "output": "there"}
    long = load_config(options=elsewhere, assignments=written_out)
    assert resolve(short).experiment() == resolve(long).experiment()
    assert resolve(short).experiment() != resolve(replace(short, seed=7)).experiment()


# --- making runs


STAND_IN = """
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--output") + 1])
seed = int(words[words.index("--seed") + 1])
begun = [time.time(), words, dict(os.environ)]
pathlib.Path(folder.parent, f"{folder.name}.begin").write_text(json.dumps(begun))
print("hello from", folder.name, flush=True)
exec(os.environ["ACT"])
pathlib.Path(folder.parent, f"{folder.name}.end").write_text(str(time.time()))
"""


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Return a function that runs jobs by a program which executes code in place of `mcit run`."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)

    def run(
        jobs: Sequence[Job],
        code: str = "",
        at_once: int = 1,
        gpus: Sequence[str] = (),
        **settings: object,
    ) -> tuple[list[Failure], list[str]]:
        monkeypatch.setenv("ACT", code)
        said: list[str] = []
        started = RunSettings(program=("-S", str(script)), **settings)
        failures = run_jobs(jobs, LocalPool(started, at_once, gpus), say=said.append)
        return failures, said

    return run


def began(job: Job) -> tuple[float, list[str], dict[str, str]]:
    return json.loads(job.folder.with_name(f"{job.name}.begin").read_text())


def test_no_more_runs_are_under_way_than_asked_for(act, tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")
    failures, said = act(jobs, "time.sleep(0.3)", at_once=2)
    assert (failures, len(said)) == ([], len(jobs))
    spans = [
        (began(job)[0], float(job.folder.with_name(f"{job.name}.end").read_text())) for job in jobs
    ]
    together = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
    assert max(together) == 2


def test_every_run_has_its_threads_its_log_and_its_graphics_card(act, tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:3]
    act(jobs, at_once=1, threads=3, gpus=["5"], extra=("--stage-cache", "there"))
    for job in jobs:
        _, words, environment = began(job)
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["CUDA_VISIBLE_DEVICES"] == "5"
        assert words == [
            *job.words,
            "--stage-cache",
            "there",
            "--output",
            str(job.folder),
            "--quiet",
        ]
        assert (job.folder / "console.log").read_text() == f"hello from {job.name}\n"


def test_a_run_executes_no_file_of_the_working_folder(tmp_path, monkeypatch):
    """A folder with data may hold an evaluate.py, or a yaml.py that does harm."""
    monkeypatch.chdir(tmp_path)
    for name in ("argparse", "evaluate", "json", "yaml"):
        Path(f"{name}.py").write_text("open('executed', 'a').close()\n")
    job = replace(plan_jobs(GRID, tmp_path / "runs")[0], words=("--help",))
    assert run_jobs([job], LocalPool(), say=lambda line: None) == []
    assert "usage: mcit run" in (job.folder / "console.log").read_text()
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["scores.json", "provenance.json"])
def test_a_run_with_a_damaged_file_is_resumed_and_not_in_the_way(act, tmp_path, name):
    job = plan_jobs(GRID, tmp_path / "runs")[0]
    write_complete(job, [[90.0], [60.0, 80.0]])
    (job.folder / name).write_text("{")
    assert find_state(job) == "begun"
    act([job])
    assert began(job)[1][-1] == "--resume"


def test_a_run_that_was_begun_is_resumed(act, tmp_path):
    job = plan_jobs(GRID, tmp_path / "runs")[0]
    write_complete(job, [[90.0], [60.0, 80.0]])
    (job.folder / "scores.json").unlink()
    act([job])
    assert began(job)[1][-1] == "--resume"


def test_a_failed_run_is_reported_with_its_last_line_and_stops_no_other(act, tmp_path):
    jobs = plan_jobs(replace(FINETUNE, seeds=(1, 2, 3)), tmp_path / "runs")
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
    # tests that were started in the background ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = plan_jobs(GRID, tmp_path / "runs")[:3]
    logs = [job.folder / "console.log" for job in jobs]
    code = """
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGINT, save)
time.sleep(60)
"""

    def interrupt() -> None:
        while not all(log.is_file() and "hello" in log.read_text() for log in logs[:2]):
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        act(jobs, code, at_once=2)
    assert time.monotonic() - start < 20
    assert [log.is_file() for log in logs] == [True, True, False]
    assert all(log.read_text().endswith("saved\n") for log in logs[:2])
    signal.signal(signal.SIGINT, before)


def test_a_run_that_will_not_stop_is_ended():
    code = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("on", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    process.stdout.readline()
    stop([process], grace=0.3)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


def test_a_machine_that_cannot_make_a_run_says_why(tmp_path):
    (job,) = plan_jobs(replace(FINETUNE, seeds=(1,)), tmp_path / "runs")
    attempt = RunSettings().make_attempt(job)
    assert attempt.find_problem() is None
    elsewhere = replace(attempt, folder=str(tmp_path / "elsewhere"))
    ending = elsewhere.make()
    assert ending.code is None
    assert f"does not see {tmp_path}/elsewhere; give an --output" in ending.problem
    other = replace(attempt, version="0.0.1")
    assert "and the runs were planned by 0.0.1; install the same version" in other.find_problem()


def test_a_second_attempt_waits_for_the_lock_of_the_first_and_resumes(tmp_path):
    (job,) = plan_jobs(replace(FINETUNE, seeds=(1,)), tmp_path / "runs")
    settings = RunSettings(patience=60, program=("-S", "-c", "import sys; print(*sys.argv)"))
    attempt = settings.make_attempt(job)
    (job.folder / CONSOLE_LOG).write_text("the first attempt\n")
    held = threading.Event()

    def hold() -> None:
        with hold_lock(job.folder / LOCK):
            held.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert attempt.make().code == 0
    assert not holder.is_alive()
    assert (job.folder / CONSOLE_LOG).read_text().endswith("--quiet --resume\n")


@pytest.mark.slow
def test_a_run_ends_with_the_process_that_started_it(tmp_path):
    (job,) = plan_jobs(replace(FINETUNE, seeds=(1,)), tmp_path / "runs")
    attempt = RunSettings(extra=("--set", "tasks.shapes.first_epochs=99999")).make_attempt(job)
    code = (
        "from mcit.sweeps.attempt import Attempt\n"
        f"process = Attempt({attempt.folder!r}, {attempt.words!r}, cwd={attempt.cwd!r}).start()\n"
        "print(process.pid, flush=True)\n"
        "process.wait()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    run = psutil.Process(int(starter.stdout.readline()))
    log = job.folder / CONSOLE_LOG
    while "mcit" not in log.read_text():
        time.sleep(0.05)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    # reaped or not
    while run.is_running() and run.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


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
    jobs = plan_jobs(SELECTING, tmp_path)
    seen = {None: 10.0, 1.0: 40.0, 10.0: 60.0, 100.0: 50.0}
    # what comes later would pick another
    later = {None: 10.0, 1.0: 99.0, 10.0: 1.0, 100.0: 60.0}
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


def test_equals_are_decided_for_the_smaller_strength_and_the_edge_is_named(tmp_path):
    jobs = plan_jobs(SELECTING, tmp_path)
    for job in jobs:
        write_complete(job, three_tasks(50.0, 50.0))
    (choice,) = select(jobs, 2)
    assert choice.strength == 1.0
    assert "at the edge of the grid" in choice.describe()


def test_the_cause_of_a_failure_is_reported_and_not_what_follows_it(tmp_path):
    log = tmp_path / "console.log"
    log.write_text(
        "warning\nmcit: the loss is nan\n  the last good checkpoint is here\n\n", encoding="utf-8"
    )
    assert last_line(log) == "mcit: the loss is nan"
    log.write_text("Traceback\nKeyError: 1\n", encoding="utf-8")
    assert last_line(log) == "KeyError: 1"


def test_a_strength_with_a_failed_run_is_not_picked(tmp_path):
    jobs = plan_jobs(SELECTING, tmp_path)
    for job in jobs:
        write_complete(job, three_tasks(90.0 if job.strength == 10.0 else 50.0, 50.0))
    done = [job for job in jobs if (job.strength, job.seed) != (10.0, 12)]
    assert select(done, 2)[0].strength == 1.0


def test_a_selection_needs_two_tasks_at_least_and_no_more_than_there_are(tmp_path):
    jobs = plan_jobs(SELECTING, tmp_path)
    check_seen(jobs, 3)
    with pytest.raises(ConfigError, match="at least 2 tasks, found 1"):
        check_seen(jobs, 1)
    with pytest.raises(ConfigError, match="the order has 3 tasks"):
        check_seen(jobs, 4)


def test_matched_strengths_make_the_mean_stiffness_equal():
    stiffness = {"ewc": 2e-4, "mas": 5e-2, "ewc_dr": 1e-3}
    matched = match_strengths(stiffness, "ewc_dr", (100.0, 300.0))
    assert matched["ewc_dr"] == (100.0, 300.0)
    for method, strengths in matched.items():
        assert [s * stiffness[method] for s in strengths] == pytest.approx([0.1, 0.3], rel=1e-3)


def test_the_stiffness_that_is_measured_is_that_of_a_run_at_strength_1(tmp_path, monkeypatch):
    """A whole run reports its strength times what was measured after its first task."""
    fitted = []
    fit = Trainer.fit

    def count(trainer: Trainer, stage: Stage, *arguments: object, **options: object) -> int:
        fitted.append(stage.index)
        return fit(trainer, stage, *arguments, **options)

    monkeypatch.setattr(Trainer, "fit", count)

    def configure(method: str, strength: float) -> RunConfig:
        assignments = [*TINY, f"method.strength={strength}", "method.merge=share"]
        return load_config(options={"order": ORDER, "method": method}, assignments=assignments)

    measured = {}
    for method in ("ewc", "mas"):
        plan = resolve_few(configure(method, 1.0))
        measured[method] = measure_stiffness(plan, tmp_path / "stages")
    # the second method found the steps of the first
    assert fitted == [0]
    assert measured["mas"] > measured["ewc"] > 0
    plan = resolve_few(configure("mas", 30.0))
    result = run(plan, tmp_path / "run", progress=False, say=lambda line: None)
    assert result.stiffness[0]["mean"] == pytest.approx(30 * measured["mas"], rel=1e-6)


def test_importance_that_is_not_finite_is_reported_with_its_method(tmp_path, monkeypatch):
    def diverge(*arguments: object, **options: object) -> None:
        raise FloatingPointError("the plain score of batch 1 is not finite")

    monkeypatch.setattr("mcit.consolidating.measure_importance", diverge)
    (job,) = plan_jobs(
        replace(GRID, methods={"ewc": MethodGrid()}, strengths=(1.0,), seeds=(1,)), tmp_path
    )
    with pytest.raises(
        McitError, match="ewc after the first task: the plain score of batch 1 is not finite"
    ):
        measure_stiffness(job.plan, tmp_path)


def test_an_order_of_one_task_cannot_be_matched(tmp_path):
    given = {"order": "shapes:1x2", "method": "ewc"}
    config = load_config(options=given, assignments=["tasks.shapes.classes=2"])
    with pytest.raises(ConfigError, match="at least two tasks"):
        measure_stiffness(resolve(config), tmp_path)


def test_what_was_measured_is_kept_for_the_same_experiment_only(tmp_path):
    StiffnessFile(tmp_path / "stiffness.json").add("ewc", {"seed": 1}, 0.25)
    again = StiffnessFile(tmp_path / "stiffness.json")
    assert again.find("ewc", {"seed": 1}) == 0.25
    assert again.find("ewc", {"seed": 2}) is None
    assert again.find("mas", {"seed": 1}) is None


def test_a_damaged_file_of_stiffness_is_measured_again(tmp_path):
    (tmp_path / "stiffness.json").write_text("{")
    assert StiffnessFile(tmp_path / "stiffness.json").find("ewc", {"seed": 1}) is None


def test_stiffness_is_tabulated_after_every_task():
    found = [{"mean": mean, "max": 9.0, "capped": 0.0, "near_zero": 0.0} for mean in (0.5, 0.75)]
    table = tabulate_stiffness(
        [
            make_group("ewc", [THREE, THREE], stiffness=found),
            make_group("finetune", [THREE], stiffness=[]),
        ]
    )
    assert [table.texts(row) for row in table.rows] == [["ewc", "0.5", "0.75", "", ""]]
    assert "Later it differs again" in table.notes[0].text


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
    write_complete(plan_jobs(GRID, tmp_path / "runs")[3], [[90.0], [60.0, 80.0]])
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
        "would first measure the mean stiffness of ewc, mas after the first task"
        in capsys.readouterr().out
    )
    alone = replace(
        GRID, methods={"ewc": MethodGrid(), "mas": MethodGrid()}, strengths=(1.0,), seeds=(1,)
    )
    for job, mean in zip(plan_jobs(alone, tmp_path), (0.5, 2.0), strict=True):
        StiffnessFile(tmp_path / "stiffness.json").add(job.method, job.plan.experiment(), mean)
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
        (["--address", "auto"], "--address is for --executor ray"),
        (["--executor", "ray", "--address", "ray://head:10001"], "ray://head:10001 is a client's"),
        (["--retries", "2"], "--retries is for clusters"),
        (["--gpus-per-run", "1"], "--gpus-per-run is for clusters; on this machine use"),
        (["--executor", "ray", "--gpus", "0"], "with --executor ray use --gpus-per-run 1"),
        (
            ["--executor", "ray", "--gpus-per-run", "2"],
            "--gpus-per-run must be from 0 to 1, found 2",
        ),
        (
            ["--executor", "ray", "--cpus-per-run", "0"],
            "--cpus-per-run must be at least 1, found 0",
        ),
        (["--slurm", "time=60"], "--slurm time=60 is for --executor slurm"),
        (["--executor", "slurm"], "--executor slurm needs --slurm time=MINUTES"),
        (["--executor", "slurm", "--slurm", "time"], "--slurm time: expected KEY=VALUE"),
        (["--executor", "slurm", "--gpus-per-run", "0.5"], "--gpus-per-run must be 0 or 1 with"),
        (["--executor", "ray", "--retries", "-1"], "--retries must be at least 0, found -1"),
        (["--seeds", "one"], "seeds are whole numbers from 0, such as 1,2,3 or 1-3; found 'one'"),
        (["--seeds", "3-1"], "seeds '3-1' is not a range from a smaller seed to a larger one"),
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
        (["--select", "9"], "--select 9: the order has 2 tasks; choose by that many or fewer"),
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
    assert parse(Grid, read_grid(tmp_path / "grid.yaml")).seeds == (2, 3, 4)


def test_a_method_that_a_grid_file_lists_twice_is_refused(tmp_path):
    (tmp_path / "grid.yaml").write_text("order: shapes:2x2\nmethods: [ewc, mas, ewc]\n")
    with pytest.raises(ConfigError, match="methods lists 'ewc' twice"):
        read_grid(tmp_path / "grid.yaml")


def test_what_is_wrong_in_a_grid_file_is_not_answered_with_a_usage(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("order: shapes:2x2\nmethods: [ewc]\npreset: exat\n")
    assert main(["sweep", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "runs")]) == 2
    message = capsys.readouterr().err
    assert "'preset' is 'exat'" in message
    assert "did you mean 'exact'?" in message
    assert "usage" not in message


def test_a_folder_that_cannot_be_written_to_is_named_with_its_option(tmp_path, capsys):
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
    for job in plan_jobs(GRID, output):
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
    # who reads the table reads how it was picked
    assert f"- selection: {describe_rule(2)}." in summary
    record = json.loads((output / "selection.json").read_text(encoding="utf-8"))
    assert record["choices"][0]["strength"] == 10.0
    assert record["seeds_reported"] == [1, 2]
    assert (output / "report" / "report.html").is_file()
    assert list((output / "report" / "figures").glob("*sensitiv*.svg"))


@pytest.mark.slow
def test_a_sweep_makes_its_runs_reports_failures_and_repeats_nothing(tmp_path, capfd):
    grid = tmp_path / "grid.yaml"
    output = tmp_path / "runs"
    grid.write_text(
        f"order: {ORDER}\nseeds: [1]\nset: [{', '.join(TINY)}]\nmethods:\n  finetune:\n"
        "  ewc: {strengths: [1], set: [tasks.shapes.recipe.learning_rate=1e30]}\n"
    )
    words = ["sweep", str(grid), "--output", str(output), "--stage-cache", str(tmp_path / "stages")]
    assert main([*words, "--jobs", "2"]) == 1
    printed = capfd.readouterr()
    assert "ewc@1-seed1 failed (code 2): " in printed.err
    assert "Left out because they are not complete: ewc@1-seed1." in printed.out
    summary = (output / "summary.md").read_text(encoding="utf-8")
    assert "Left out because they are not complete: ewc@1-seed1." in summary
    assert "finetune-seed1: A_last " in printed.err
    assert "written to" in printed.out
    moment = (output / "finetune-seed1" / "scores.json").stat().st_mtime_ns
    scores = json.loads((output / "finetune-seed1" / "scores.json").read_text(encoding="utf-8"))
    assert [len(row) for row in scores["matrix"]] == [1, 2]
    assert main([*words, "--methods", "finetune"]) == 0
    assert (output / "finetune-seed1" / "scores.json").stat().st_mtime_ns == moment


def test_the_settings_of_a_grid_survive_a_round_trip():
    assert parse(Grid, to_dict(GRID)) == GRID

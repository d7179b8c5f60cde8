"""Resuming as a user does: options of `mcit run`, its messages and exit codes, killed processes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from killing import assert_same_end, read_events
from tiny_run import configure, resolve, write_world

from mcit.cli import main
from mcit.commands import run as command
from mcit.config.files import to_yaml
from mcit.config.parse import to_dict
from mcit.errors import FolderError
from mcit.runner.interruption import explain_resumption
from mcit.runner.plan import Plan
from mcit.runner.run_folder import FILES, choose_output, find_newest, read_command
from mcit.training.trainer import Trainer

SHAPES = {
    "tasks__shapes__classes": 2,
    "tasks__shapes__recipe__batch_size": 32,
    "model__channels_last": False,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Configuration files of both tracks, and the runs of them that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    world = write_world(folder)
    configs = {
        "shapes": configure(
            "shapes:2x1", "ewc", checkpoint__every_steps=2, method__strength=10.0, **SHAPES
        ),
        "pairs": configure(
            "vcr,nlvr2", "si", world, checkpoint__every_steps=1, method__strength=10.0
        ),
    }
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(to_yaml(config), encoding="utf-8")
        start(folder, name, "--output", str(folder / name))
    return folder


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(folder: Path, name: str, *more: str) -> list[str]:
    return ["run", "--config", str(folder / f"{name}.yaml"), "--quiet", *more]


def start(folder: Path, name: str, *more: str, code: int = 0) -> None:
    assert main(options(folder, name, *more)) == code


@pytest.fixture
def interrupt(monkeypatch):
    """Sends SIGINT in the middle of a step of this number, counted over all tasks."""
    take_step, left = Trainer._take_step, [0]

    def send(*arguments):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        take_step(*arguments)

    monkeypatch.setattr(Trainer, "_take_step", send)
    return lambda number: left.__setitem__(0, number)


# In one process


def test_an_interrupted_command_goes_on_with_resume_and_is_finished_then(
    runs, somewhere, interrupt, capsys
):
    interrupt(9)
    start(runs, "shapes", code=75)
    output, message = Path("runs/shapes-2x1-ewc-seed1"), capsys.readouterr().err
    assert f"mcit: interrupted, saved as {output}/checkpoints/01-fit-00000002" in message
    assert f"to resume: mcit run --resume --output {output}\n" in message
    start(runs, "shapes", "--resume")
    assert "resumed after 2 of 7 steps of shapes[1-1] (task 2 of 2)" in capsys.readouterr().out
    assert_same_end(output, runs / "shapes")
    assert (output / "report.md").is_file()
    start(runs, "shapes", "--resume")
    printed = capsys.readouterr().out
    assert f"{output} is finished; nothing is left to do" in printed
    assert "shapes[1-1]" in printed
    assert [path.name for path in Path("runs").iterdir()] == [output.name]


def test_a_folder_alone_is_enough_and_other_options_are_refused(runs, somewhere, interrupt, capsys):
    interrupt(3)
    start(runs, "shapes", "--output", "mine", code=75)
    capsys.readouterr()
    resume = ["run", "--resume", "--output", "mine", "--quiet"]
    assert main([*resume, "--seed", "7", "--set", "method.strength=3"]) == 2
    message = capsys.readouterr().err
    assert "mine holds another run; the requested one differs from it (there -> now):" in message
    assert "  - seed: 1 -> 7" in message
    assert "  - method.strength: 10.0 -> 3.0" in message
    assert main([*resume, "--set", "checkpoint.every_steps=50"]) == 0
    assert_same_end(somewhere / "mine", runs / "shapes")


def test_resume_where_nothing_is_says_so_and_begins(runs, somewhere, interrupt, capsys):
    interrupt(1)
    start(runs, "shapes", "--resume", "--output", "new", code=75)
    assert "nothing to resume: new starts from the beginning" in capsys.readouterr().out
    assert find_newest(Path("new")).name == "00-fit-00000001"


def test_resume_and_overwrite_exclude_each_other(runs, capsys):
    start(runs, "shapes", "--resume", "--overwrite", code=2)
    assert (
        "--resume continues a run, --overwrite discards it: pass only one"
    ) in capsys.readouterr().err


def test_an_interruption_before_anything_was_saved_is_said(runs, somewhere, monkeypatch, capsys):
    monkeypatch.setattr(Plan, "build_learner", lambda plan: signal.raise_signal(signal.SIGTERM))
    start(runs, "shapes", "--output", "early", code=75)
    message = capsys.readouterr().err
    assert (
        "mcit: interrupted, before anything was saved\nto resume: the same command again" in message
    )
    monkeypatch.undo()
    assert main(["run", "--resume", "--output", "early"]) == 2
    assert "nothing to resume in early; pass --order to start a run" in capsys.readouterr().err


def test_several_processes_are_told_to_be_launched_again(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    assert f"launch 2 processes as before, with --resume --output {tmp_path}" in explain_resumption(
        tmp_path, 2
    )


def test_a_report_that_was_cut_off_is_written_by_resume(runs, somewhere, monkeypatch, capsys):
    def cut(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("mcit.reports.report.make_page", cut)
    start(runs, "shapes", "--output", "mine", code=130)
    monkeypatch.undo()
    monkeypatch.chdir(somewhere)
    assert not Path("mine/report.html").exists()
    assert main(["run", "--resume", "--output", "mine"]) == 0
    assert "mine is finished, but for its report" in capsys.readouterr().out
    assert Path("mine/report.html").is_file()


@pytest.mark.parametrize("begun", [["mcit", "run"], ["run_sequence.py"]])
def test_the_report_of_a_resumed_run_names_the_command_that_it_was_begun_with(tmp_path, begun):
    assert read_command(tmp_path, "mcit run --resume") == "mcit run --resume"
    (tmp_path / "provenance.json").write_text(
        json.dumps({"command": [*begun, "--order", "shapes:5x4"]})
    )
    assert read_command(tmp_path, "mcit run --resume") == "mcit run --order shapes:5x4"


def test_a_run_is_not_given_up_for_one_that_cannot_be(runs, somewhere, capsys):
    shutil.copytree(runs / "shapes", "mine")
    before = Path("mine/scores.json").read_bytes()
    for wrong in (
        ["--single", "nowhere"],
        ["--stage-cache", "mine/scores.json"],
        ["--method", "single"],
    ):
        start(runs, "shapes", "--output", "mine", "--overwrite", *wrong, code=2)
    assert Path("mine/scores.json").read_bytes() == before
    assert find_newest(Path("mine")) is not None


# Which run it is


def make_run(folder: Path, plan: Plan, done: bool) -> None:
    folder.mkdir(parents=True)
    provenance = {"experiment": plan.experiment()}
    (folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")
    scores = {"tasks": ["one", "two"], "matrix": [[1.0], [1.0, 2.0]] if done else [[1.0]]}
    (folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")


def test_the_newest_unfinished_run_of_the_same_experiment_is_resumed(somewhere, capsys):
    plan = resolve(configure("shapes:2x1", "ewc", method__strength=10.0, **SHAPES))
    other = resolve(configure("shapes:2x1", "ewc", method__strength=3.0, **SHAPES))
    base = Path("runs/shapes-2x1-ewc-seed1")
    places = [base, *(base.with_name(f"{base.name}-{number}") for number in (2, 3, 4, 5))]

    def choose(wanted: Plan) -> tuple[Path, bool]:
        return choose_output(wanted, overwrite=False, resume=True)

    assert choose(plan) == (places[0], False)
    make_run(places[0], plan, done=True)
    # what is finished is in nobody's way
    assert choose(other) == (places[1], False)
    make_run(places[1], plan, done=False)
    with pytest.raises(
        FolderError, match=r"-2 holds another run.*\n.* - method.strength: 10.0 -> 3.0"
    ):
        choose(other)
    make_run(places[2], plan, done=True)
    make_run(places[3], other, done=False)
    assert choose(plan) == (places[1], True)
    assert choose(other) == (places[3], True)
    shutil.rmtree(places[1])
    places[2].rename(places[1])
    places[3].rename(places[2])
    # finished, and will say so
    assert choose(plan) == (places[1], True)


def test_what_is_cleared_is_what_was_written():
    assert set(FILES) == set(command.WRITTEN)


# Processes


def launch(folder: Path, name: str, *more: str) -> subprocess.Popen:
    words = [sys.executable, "-m", "mcit", *options(folder, name, *more)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def wait_for_checkpoint(process: subprocess.Popen, output: Path) -> None:
    while find_newest(output) is None:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shapes", "pairs"])
def test_a_process_that_was_killed_is_resumed_to_the_same_bits(runs, somewhere, name):
    process = launch(runs, name, "--output", "run")
    wait_for_checkpoint(process, Path("run"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert main(["run", "--resume", "--output", "run", "--quiet"]) == 0
    assert_same_end(somewhere / "run", runs / name)


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on_to_the_same_bits(somewhere):
    few = {"tasks__shapes__classes": 4, "model__channels_last": False}  # four steps a task
    config = configure("shapes:2x2", "ewc", method__strength=10.0, **few)
    (somewhere / "config.json").write_text(json.dumps(to_dict(config)), encoding="utf-8")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words += [str(Path(__file__).with_name("killing.py")), str(somewhere)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        words, env=alone, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert read_events(somewhere / "stopped", resumed=True)
    assert_same_end(somewhere / "stopped", somewhere / "whole")


def press_ctrl_c(words: list[str], output: Path) -> tuple[str, int]:
    """Start a program on a terminal, and press Ctrl-C once it has a checkpoint; what is shown, and
    how it ends."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(words[0], words)
    shown = b""
    pressed = False
    while True:
        if not pressed and find_newest(output) is not None:
            os.write(terminal, b"\x03")
            pressed = True
        ready, _, _ = select.select([terminal], [], [], 0.02)
        try:
            found = os.read(terminal, 65536) if ready else None
        except OSError:  # nobody is left who could write to the terminal
            found = b""
        if found == b"":
            os.close(terminal)
            return shown.decode(), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        shown += found or b""


@pytest.mark.slow
def test_ctrl_c_under_accelerate_launch_saves_and_shows_no_traceback(runs, somewhere):
    script = Path(__file__).parent.parent / "scripts" / "run_sequence.py"
    words = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        str(script),
        *options(runs, "shapes")[1:],
    ]
    words += ["--set", "tasks.shapes.recipe.epochs=500", "--output", "run"]
    shown, code = press_ctrl_c(words, Path("run"))
    assert "Traceback" not in shown, shown
    assert "mcit: accelerate launch ends; process" in shown
    assert "to resume: mcit run --resume --output run" in shown
    assert code == -signal.SIGTERM  # the launcher passes no code on; a shell calls this 143
    provenance = json.loads(Path("run/provenance.json").read_text(encoding="utf-8"))
    assert provenance["command"] == ["python", *words[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_process_is_killed_another_says_how_to_go_on(runs, somewhere, killed):
    script = Path(__file__).parent.parent / "scripts" / "run_sequence.py"
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(script),
    ]
    words += [
        *options(runs, "shapes")[1:],
        "--set",
        "tasks.shapes.recipe.epochs=500",
        "--output",
        "run",
    ]
    launched = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(launched, Path("run"))
    (process,) = (
        child
        for child in psutil.Process(launched.pid).children()
        if child.environ()["RANK"] == str(killed)
    )
    process.kill()
    _, message = launched.communicate()
    assert launched.returncode == 1
    # the lost connection and the launcher's signal may come in either order
    assert re.search(
        "mcit: (interrupted|stopped by the error above, as when another process is killed), "
        "saved as run/checkpoints/",
        message,
    ), message
    assert "to resume: launch 2 processes as before, with --resume --output run" in message


@pytest.mark.slow
def test_a_process_that_is_asked_to_end_saves_and_returns_75(runs, somewhere):
    process = launch(runs, "shapes", "--output", "run")
    wait_for_checkpoint(process, Path("run"))
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate()
    assert process.returncode == 75, message
    assert "mcit: interrupted, saved as run/checkpoints/" in message
    assert "to resume: mcit run --resume --output run" in message
    start(runs, "shapes", "--resume", "--output", "run")
    assert_same_end(somewhere / "run", runs / "shapes")

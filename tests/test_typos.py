"""A typo on the command line is reported at once: without torch, with usage and nearest word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcit.cli import main

# Each command with what its message must say.
TYPOS = {
    "rnu": "did you mean 'run'?",
    "run --metod ewc --order vqa": "unknown option '--metod'; did you mean '--method'?",
    "run --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "run --order vqa,shaps:5x4": "unknown task 'shaps'; did you mean 'shapes'?",
    "run --order vqa --method ewcdr": "unknown method 'ewcdr'; did you mean 'ewc_dr'?",
    "run --order vqa --set sed=2": "unknown key 'sed'; did you mean 'seed'?",
    "run --order vqa --set training.worker=2": "unknown key 'training.worker'; did you mean 'workers'?",
    "run --order vqa --method ewc --set method.strenth=2": "unknown key 'method.strenth'; did you mean 'strength'?",
    "run --order vqa --method ewc --set method.estimator.scor=plain": "did you mean 'score'?",
    "run --order vqa --set tasks.vqa.recipe.epoch=1": "unknown key 'tasks.vqa.recipe.epoch'; did you mean 'epochs'?",
    "run --order vqa --set tasks.vqaa.minimum=1": "unknown task 'vqaa'; did you mean 'vqa'?",
    "run --order vqa --set methods.ewcc.strength=1": "unknown method 'ewcc'; did you mean 'ewc'?",
    "run --order shapes:5x4 --preset exat": "did you mean 'exact'?",
    "run --config climbb": "did you mean 'climb'?",
    "run --order vqa --data-root nowhere": "--data-root 'nowhere' is not a directory",
    "sweep --order shapes:5x4 --methods ewc,ewcdr": "unknown method 'ewcdr'; did you mean 'ewc_dr'?",
    "sweep --order shaps:5x4 --methods ewc": "unknown task 'shaps'; did you mean 'shapes'?",
    "sweep --order shapes:5x4 --methods ewc --set method.decai=1": "did you mean 'decay'?",
    "sweep --order shapes:5x4 --methods ewc --set trainin.workers=1": "did you mean 'training'?",
    "sweep --order shapes:5x4 --methods ewc --preset exat": "did you mean 'exact'?",
    "reproduce cifra100": "did you mean 'cifar100'?",
    "reproduce cifar100 --only ewcdr": "did you mean 'ewc_dr'?",
    "reproduce cifar100 --setting bigstrt-10": "did you mean 'bigstart-10'?",
    "doctor --data-root . --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "doctor --data-root . --set tasks.vcr.drawm=true": "did you mean 'drawn'?",
    "prepare --data-root . --order nlvr": "unknown task 'nlvr'; did you mean 'nlvr2'?",
    "report nowhere": "there is no run at nowhere",
    "bench speech": "unknown choice 'speech'",
    "list --methods": "unknown option '--methods'",
    "list ewcdr": "unknown name 'ewcdr'; did you mean 'ewc_dr'?",
    "export nowhere --output x": "nowhere is not a directory",
}
# Runs every command in one process, which must never come to need torch.
PROGRAM = """
import contextlib, io, json, sys
from mcit.cli import main

said = {}
for command in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            code = main(command.split())
        except SystemExit as stopped:
            code = stopped.code
    heavy = sorted({"torch", "transformers", "datasets", "accelerate"} & set(sys.modules))
    said[command] = [code, printed.getvalue(), heavy]
print(json.dumps(said))
"""


def start(*words: str, cwd: Path, text: str | None = None) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, list]:
    """What each command printed, its code, and the heavy modules that were loaded by then."""
    folder = tmp_path_factory.mktemp("typos")
    commands = ["list", *TYPOS]
    done = start("-c", PROGRAM, cwd=folder, text=json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", TYPOS)
def test_a_typo_is_reported_with_the_nearest_word_and_without_torch(said, command):
    code, message, heavy = said[command]
    assert (code, heavy) == (2, [])
    assert TYPOS[command] in message
    assert "Traceback" not in message


def test_names_are_listed_without_torch(said):
    code, printed, heavy = said["list"]
    assert (code, heavy) == (0, [])
    assert "nlvr2" in printed
    assert "ewc_dr" in printed


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["run", "--metod", "x"], "usage: mcit run "),
        (["sweep", "--metods", "x"], "usage: mcit sweep "),
        (["doctor", "--data-rot", "."], "usage: mcit doctor "),
        (["rnu"], "usage: mcit [-h]"),
        (["--verson"], "usage: mcit [-h]"),
    ],
)
def test_the_usage_is_that_of_the_command_with_the_slip(capsys, words, usage):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(usage)
    assert "did you mean" in message


def test_the_program_itself_reports_a_typo(tmp_path):
    done = start("-m", "mcit", "run", "--metod", "ewc", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean '--method'?" in done.stderr
    assert "usage: mcit run" in done.stderr


def test_an_option_that_begins_rightly_is_still_understood(capsys):
    """argparse takes `--meth` for `--method`, as it always did."""
    assert main(["run", "--ord", "nlvr"]) == 2
    assert "unknown task 'nlvr'" in capsys.readouterr().err


def test_a_value_with_dashes_inside_is_no_option(capsys):
    assert main(["run", "--order", "nlvr", "--output=--odd"]) == 2
    assert "unknown task 'nlvr'" in capsys.readouterr().err

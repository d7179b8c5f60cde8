"""Sweeps through submitit, on its executor for this machine. Skipped unless it is installed.

What SLURM itself does is stood in for by that executor; sbatch gets what submitit writes for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from test_sweep import GRID, STAND_IN, began

from mcit.errors import ConfigError
from mcit.sweeps.executor import RunSettings
from mcit.sweeps.jobs import plan_jobs
from mcit.sweeps.running import run_jobs
from mcit.sweeps.slurm import SlurmCluster

pytest.importorskip("submitit", reason='needs submitit: pip install "mcit[slurm]"')
pytestmark = pytest.mark.slow

# takes the file of an array job, as sbatch does, and keeps it
SBATCH = """#!/bin/sh
cp "$1" {kept}
{rest}
"""


def connect(tmp_path: Path, code: str, **options: object) -> SlurmCluster:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    settings = RunSettings(threads=3, environment={"ACT": code}, program=("-S", str(script)))
    options = {"parameters": {"time": 60}, "cluster": "local", **options}
    return SlurmCluster(settings, tmp_path / "runs" / "slurm", **options)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(SlurmCluster, "pause", 0.1)
    # tests that were started in the background ignore it, and so would the jobs
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_every_run_is_made_and_a_failed_one_is_named(tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:2]
    code = "if seed == 2: print('mcit: the loss is nan'); sys.exit(2)"
    failures = run_jobs(jobs, connect(tmp_path, code), say=lambda line: None)
    assert [(failure.job, failure.code, failure.last_line) for failure in failures] == [
        (jobs[1], 2, "mcit: the loss is nan")
    ]
    for job in jobs:
        _, words, environment = began(job)
        assert words == [*job.words, "--output", str(job.folder), "--quiet"]
        assert environment["OMP_NUM_THREADS"] == "3"


def test_a_run_that_must_make_room_saves_is_requeued_and_resumes(tmp_path):
    (job,) = plan_jobs(GRID, tmp_path / "runs")[:1]
    log = job.folder / "console.log"
    code = """
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGINT, save)
if "--resume" not in words:
    print("learning", flush=True)
    time.sleep(600)
"""
    executor = connect(tmp_path, code)

    def preempt() -> None:
        while not (log.is_file() and "learning" in log.read_text()):
            time.sleep(0.05)
        # as SLURM does before it ends a job
        task, _ = executor.pending[0]
        (process,) = psutil.Process(int(task.job_id)).children()
        process.send_signal(signal.SIGUSR2)

    threading.Thread(target=preempt, daemon=True).start()
    assert run_jobs([job], executor, say=lambda line: None) == []
    hello = f"hello from {job.name}\n"
    assert log.read_text() == f"{hello}learning\nsaved\n{hello}"
    assert began(job)[1][-1] == "--resume"


def test_an_interruption_ends_the_jobs(tmp_path):
    (job,) = plan_jobs(GRID, tmp_path / "runs")[:1]
    log = job.folder / "console.log"
    # as `mcit run` does: its standard input ends with the process that started it
    code = "print(os.getpid(), flush=True)\nos.read(0, 1)"

    def interrupt() -> None:
        while not (log.is_file() and log.read_text().count("\n") == 2):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], connect(tmp_path, code), say=lambda line: None)
    process = int(log.read_text().splitlines()[1])
    end = time.monotonic() + 60
    while is_alive(process) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_alive(process)


def is_alive(number: int) -> bool:
    return psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that puts an sbatch into the PATH, which answers by a line of shell."""

    def make(rest: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        kept = tmp_path / "submitted.sh"
        for name, text in {
            "sbatch": SBATCH.format(kept=kept, rest=rest),
            "srun": "#!/bin/sh\n",
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return kept

    return make


def test_what_sbatch_is_given_is_one_array_with_what_was_asked_for(machine, tmp_path):
    kept = machine('echo "Submitted batch job 7"')
    jobs = plan_jobs(GRID, tmp_path / "runs")[:3]
    parameters = {"time": 90, "partition": "gpu", "mem": "32GB"}
    executor = connect(
        tmp_path, "", parameters=parameters, cluster="slurm", cpus=4, gpus=1, at_once=2
    )
    with executor:
        executor.submit(jobs)
        asked = {line for line in kept.read_text().splitlines() if line.startswith("#SBATCH")}
        executor.pending.clear()
    for option in (
        "array=0-2%2",
        "time=90",
        "partition=gpu",
        "mem=32GB",
        "cpus-per-task=4",
        "gpus-per-node=1",
        "requeue",
        "signal=USR2@90",
    ):
        assert f"#SBATCH --{option}" in asked, asked


def test_what_sbatch_refuses_is_told_in_its_words(machine, tmp_path):
    machine("echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1")
    executor = connect(tmp_path, "", parameters={"time": 9, "partition": "gpuu"}, cluster="slurm")
    with pytest.raises(ConfigError, match="invalid partition specified: gpuu"):
        run_jobs(plan_jobs(GRID, tmp_path / "runs")[:2], executor, say=lambda line: None)


def test_a_parameter_that_submitit_does_not_know_is_refused(machine, tmp_path):
    machine("exit 1")
    executor = connect(tmp_path, "", parameters={"time": 9, "partitoin": "gpu"}, cluster="slurm")
    with pytest.raises(ConfigError, match="Unknown argument 'partitoin'"):
        run_jobs(plan_jobs(GRID, tmp_path / "runs")[:2], executor, say=lambda line: None)

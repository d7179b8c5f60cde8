"""Sweeps on a Ray cluster of two nodes, one of which dies. Skipped unless Ray is installed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_sweep import GRID, STAND_IN, TINY, began

from mcit.cli import main
from mcit.errors import ConfigError
from mcit.sweeps.executor import RunSettings
from mcit.sweeps.jobs import plan_jobs
from mcit.sweeps.ray import RayCluster
from mcit.sweeps.running import run_jobs

ray = pytest.importorskip("ray", reason='needs Ray: pip install "mcit[ray]"')
from ray.cluster_utils import Cluster  # noqa: E402 - after the skip

pytestmark = pytest.mark.slow
WORDS = (
    "sweep",
    "--order=shapes:2x2",
    "--methods=finetune,ewc",
    "--strengths=1",
    "--seeds=1",
    *(f"--set={setting}" for setting in TINY),
    "--set=tasks.shapes.first_epochs=3",
    "--set=checkpoint.every_steps=1",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU each, on 127.0.0.1."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # nodes find the same checkout
    patch.setenv("PYTHONPATH", os.pathsep.join(place for place in sys.path if place))
    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(num_cpus=1, object_store_memory=80_000_000)
    made.wait_for_nodes()
    yield made
    made.shutdown()
    patch.undo()


@pytest.fixture
def script(tmp_path) -> tuple[str, ...]:
    """A program that executes the variable ACT in place of `mcit run`."""
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return ("-S", str(path))


def connect(cluster: Cluster, script: tuple[str, ...], code: str, **options: object) -> RayCluster:
    settings = RunSettings(threads=3, environment={"ACT": code}, program=script)
    return RayCluster(settings, address=cluster.address, **options)


def test_every_run_is_made_with_its_words_and_threads_and_a_failed_one_is_named(
    cluster, script, tmp_path
):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:4]
    code = "if seed == 2: print('mcit: the loss is nan'); sys.exit(2)"
    said: list[str] = []
    failures = run_jobs(jobs, connect(cluster, script, code), say=said.append)
    assert {(failure.job, failure.code, failure.last_line) for failure in failures} == {
        (job, 2, "mcit: the loss is nan") for job in jobs if job.seed == 2
    }
    assert len(said) == 4
    for job in jobs:
        _, words, environment = began(job)
        assert words == [*job.words, "--output", str(job.folder), "--quiet"]
        assert environment["OMP_NUM_THREADS"] == "3"


def test_no_more_runs_are_under_way_than_asked_for(cluster, script, tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:3]
    run_jobs(jobs, connect(cluster, script, "time.sleep(0.3)", at_once=1), say=lambda line: None)
    spans = sorted(
        (began(job)[0], float(job.folder.with_name(f"{job.name}.end").read_text())) for job in jobs
    )
    assert all(end <= later for (_, end), (later, _) in itertools.pairwise(spans))


def test_an_interruption_stops_every_run_after_it_has_saved(cluster, script, tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:3]
    logs = [job.folder / "console.log" for job in jobs]
    code = """
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGINT, save)
# as `mcit run` does: Ray blocks it
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
print("learning", flush=True)
time.sleep(600)
"""

    def interrupt() -> None:
        while sum("learning" in log.read_text() for log in logs if log.is_file()) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, connect(cluster, script, code), say=lambda line: None)
    ends = [log.read_text().endswith("saved\n") for log in logs if log.is_file()]
    assert ends == [True, True]


def test_a_node_that_cannot_make_the_runs_is_named_before_any_starts(cluster, script, tmp_path):
    jobs = plan_jobs(GRID, tmp_path / "runs")[:1]

    class Older(RunSettings):
        def make_attempt(self, job):
            return replace(super().make_attempt(job), version="0.0.1")

    executor = RayCluster(Older(program=script), address=cluster.address)
    with pytest.raises(ConfigError, match="install the same version on all machines"):
        run_jobs(jobs, executor, say=lambda line: None)
    assert not jobs[0].folder.with_name(f"{jobs[0].name}.begin").exists()


def test_an_address_where_nobody_answers_is_refused(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"no Ray cluster answers there .* `ray start --head`"),
        RayCluster(RunSettings(), address="127.0.0.1:1"),
    ):
        pass


def test_a_sweep_whose_node_dies_ends_with_the_table_of_the_local_executor(cluster, tmp_path):
    """Last: it kills one of the nodes."""
    local, far = tmp_path / "local", tmp_path / "ray"
    (dying,) = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    saved = [far / f"{label}-seed1" / "checkpoints" for label in ("finetune", "ewc@1")]

    def kill() -> None:
        while not all(folder.is_dir() and any(folder.iterdir()) for folder in saved):
            time.sleep(0.05)
        cluster.remove_node(dying, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    words = ["--executor=ray", f"--address={cluster.address}", f"--output={far}"]
    assert main([*WORDS, *words]) == 0
    assert not killer.is_alive()
    assert main([*WORDS, "--jobs=2", f"--output={local}"]) == 0
    assert read_tables(far) == read_tables(local)
    # one was under way on the node that died, and went on from its checkpoint
    resumed = [
        bool(json.loads((folder.parent / "provenance.json").read_text()).get("resumed"))
        for folder in saved
    ]
    assert sorted(resumed) == [False, True]


def read_tables(output: Path) -> list[str]:
    """Return the summary up to what the runs cost, line by line."""
    text = (output / "summary.md").read_text(encoding="utf-8")
    return text.partition("## Cost")[0].splitlines()

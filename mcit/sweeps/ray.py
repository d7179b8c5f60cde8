"""Runs as tasks of a Ray cluster, or of a Ray that is started on this machine.

Ray decides where and when a run is made, and makes it again if its node dies; the run then resumes
from its own newest checkpoint. Nothing but the words of a run and its exit code go over the wire:
what a run writes goes to its folder, which all nodes must see.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcit.errors import ConfigError
from mcit.sweeps.attempt import GRACE, Attempt, Ending
from mcit.sweeps.executor import Executor, RunSettings
from mcit.sweeps.jobs import Job

# what Ray starts on this machine keeps of results, which are a few bytes; Ray wants at least this
STORE_BYTES = 80_000_000
CONNECT_SECONDS = 10.0


@dataclass
class RayCluster(Executor):
    """Every run is a task that asks for so many CPUs and GPUs.

    address: of a running cluster, or "local" to start Ray here. at_once: runs at a time, however
    large the cluster is; None leaves it to Ray. retries: how often a run is made again because its
    node died.
    """

    settings: RunSettings
    address: str = "local"
    cpus: int = 1
    gpus: float = 0
    retries: int = 3
    at_once: int | None = None
    waiting: deque[Job] = field(default_factory=deque)
    # tasks of Ray and their runs
    pending: dict[Any, Job] = field(default_factory=dict)

    def __enter__(self) -> RayCluster:
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == "local":
            options |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
            # a Ray of our own reports to nobody unless the user asks for it
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray takes the signal that run_jobs takes for Ctrl-C
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._knock()
            ray.init(self.address, **options)
        except (OSError, ValueError) as error:
            raise ConfigError(
                [
                    f"--address {self.address}: no Ray cluster answers there ({error}); start one "
                    "with `ray start --head`, or leave --address out to start Ray on this machine"
                ]
            ) from None
        signal.signal(signal.SIGTERM, handler)
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        # the last first: those that wait must not begin where others make room
        for task in reversed(list(self.pending)):
            ray.cancel(task)
        if self.pending:
            # runs save a checkpoint; those that need longer are ended with their workers
            ray.wait(list(self.pending), num_returns=len(self.pending), timeout=GRACE)
        ray.shutdown()

    def submit(self, jobs: Sequence[Job]) -> None:
        self.waiting.extend(jobs)
        self._check_room()
        if jobs:
            self._check_nodes(self.settings.make_attempt(jobs[0]))
        self._fill()

    def collect(self) -> list[tuple[Job, Ending]]:
        import ray

        endings = []
        ready, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
        for task in ready:
            endings.append((self.pending.pop(task), _get_ending(task)))
        self._fill()
        return endings

    def _knock(self) -> None:
        """Raise an OSError if nothing listens at HOST:PORT, for which Ray would wait minutes."""
        host, colon, port = self.address.rpartition(":")
        if colon and port.isdecimal():
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()

    def _fill(self) -> None:
        import ray

        resources = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        remote = ray.remote(max_retries=self.retries, retry_exceptions=False, **resources)(make)
        while self.waiting and (self.at_once is None or len(self.pending) < self.at_once):
            job = self.waiting.popleft()
            task = remote.options(name=job.name).remote(self.settings.make_attempt(job))
            self.pending[task] = job

    def _check_room(self) -> None:
        """Raise if this machine is too small; a cluster may grow, so it is asked and waited for."""
        nodes = [node["Resources"] for node in _list_nodes()]
        if any(
            node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes
        ):
            return
        found = "; ".join(
            f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes
        )
        asked = f"{self.cpus} CPUs and {self.gpus:g} GPUs"
        if self.address == "local":
            raise ConfigError(
                [f"a run asks for {asked}, and this machine has {found}; ask for less"]
            )
        print(
            f"warning: no node of the cluster has the {asked} that a run asks for ({found}); runs "
            "wait until one is added"
        )

    def _check_nodes(self, attempt: Attempt) -> None:
        """Raise if a node cannot make the runs, of which one is given as an example."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        find = ray.remote(find_problem)
        asked = []
        for node in _list_nodes():
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked.append(find.options(num_cpus=0, scheduling_strategy=here).remote(attempt))
        problems = [problem for problem in ray.get(asked) if problem is not None]
        if problems:
            raise ConfigError(problems)


def make(attempt: Attempt) -> Ending:
    """Make a run, on a node."""
    # Ray cancels a task by an interruption, which a Ray that was started in the background ignores
    signal.signal(signal.SIGINT, _interrupt_once)
    return attempt.make()


def _interrupt_once(*_: Any) -> None:
    """Interrupt, and not again: Ray repeats it while the run still saves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def find_problem(attempt: Attempt) -> str | None:
    """Return why a node cannot make a run."""
    return attempt.find_problem()


def _list_nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _get_ending(task: Any) -> Ending:
    """Return how a task ended that Ray has given up or that is over."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(task)
    except RayTaskError:
        # a bug in our own lines keeps its traceback
        raise
    except RayError as error:
        first = str(error).strip().splitlines()[0]
        return Ending(None, 0.0, f"Ray gave it up ({type(error).__name__}: {first})")

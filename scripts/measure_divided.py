"""What processes send and hold of weights that they divide (FSDP2): formulas, and what is counted.

accelerate launch --config_file configs/accelerate/fsdp2_cpu2.yaml scripts/measure_divided.py

The formulas are those of docs/scaling.md, where D is the number of divided weights.
"""

from __future__ import annotations

import math

from measure_scaling import Row, Traffic

from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.embedded.benchmark import ensure_benchmark
from mcit.parallel.launch import join_processes
from mcit.runner.plan import Plan, resolve
from mcit.session import Session

# of the embedded benchmark
RUN = {
    "order": "vqa,nlvr2",
    "method": {"name": "ewc", "strength": 1.0, "estimator": {"samples": 8}},
}
STEPS = 3


def measure_divided(plan: Plan) -> list[Row]:
    """Return what was to be gathered and added up of divided weights, and what was."""
    world = join_processes().num_processes
    traffic = Traffic()
    with traffic:
        session = Session(plan, batches=1)
        stage = session.stage(0)
        session.begin(stage)
        whole = sum(p.numel() for p in session.learner.heads.parameters())
        traffic.phase = "fit"
        session.fit(stage, limit=STEPS)
        traffic.phase = "importance"
        session.conclude(stage)
        traffic.phase = "score"
        session.trainer.evaluate(stage, stage.task, batches=1)
    # parts have equally many rows, some of which may be empty
    divided = 0
    for parameter in session.learner.encoder.parameters():
        divided += world * math.ceil(len(parameter) / world) * parameter[:1].numel()
    read = session.method.examples_read(stage)
    elements = traffic.elements
    gathered = "_allgather_base_"
    added = "_reduce_scatter_base_"
    held = session.method.bytes_held()
    return [
        _row("steps, gathered", "2 D a step", STEPS * 2 * divided, elements["fit"][gathered]),
        _row("steps, added up, parts", "D / w", STEPS * divided // world, elements["fit"][added]),
        _row("steps, all-reduced", "heads", STEPS * whole, elements["fit"]["allreduce_"]),
        _row(
            f"importance of {read} examples, gathered",
            "D, and D an example",
            (1 + read) * divided,
            elements["importance"][gathered],
        ),
        _row(
            f"importance of {read} examples, added up, parts",
            "D / w an example",
            read * divided // world,
            elements["importance"][added],
        ),
        _row("a batch scored, gathered", "D", divided, elements["score"][gathered]),
        _row("held by the first process, bytes", "8 D / w", 8 * divided // world, held),
    ]


def _row(what: str, formula: str, expected: int, counted: int) -> Row:
    return {"what": what, "formula": formula, "expected": expected, "counted": counted}


def main() -> None:
    """Print the rows."""
    processes = join_processes()
    with processes.main_process_first():
        root = ensure_benchmark()
    rows = measure_divided(resolve(parse(RunConfig, RUN), root))
    if not processes.is_main_process:
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()

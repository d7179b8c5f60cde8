"""What a run holds and what its processes send: formulas, and what is counted in a small run.

accelerate launch --config_file configs/accelerate/cpu2.yaml scripts/measure_scaling.py
python scripts/measure_scaling.py --models    # the formulas for ViLT-B/32 and a 7B model with LoRA
python scripts/measure_scaling.py --study     # one run of a sweep, measured, and what 1,000 come to

The formulas are those of docs/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import resource
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.consolidation import ConsolidationManager
from mcit.method import Outcome, Stage
from mcit.parallel.global_batch import BatchNorm2d
from mcit.parallel.launch import join_processes
from mcit.path_integral import PathIntegral
from mcit.runner.plan import resolve
from mcit.runner.run_folder import CHECKPOINTS
from mcit.session import RunSession
from mcit.sweeps.attempt import Attempt
from mcit.training.trainer import Score

# bytes
FLOAT = 4
SHAPES = {
    "order": "shapes:2x2",
    "model": {"name": "resnet18", "width": 8},
    "tasks": {"shapes": {"classes": 4, "recipe": {"epochs": 1, "batch_size": 64}}},
}
UNITS = {
    "example": {"unit": "example"},
    "batch": {"unit": "batch", "mode": "train"},
}

# besides the order, what the run is that a study measures
STUDIED = ("--method", "ewc_dr", "--seed", "1")
# what a sweep adds to it
SWEPT = ("--set", "checkpoint.importance=false")
# of getrusage
BLOCK = 512

Row = dict[str, Any]


class Traffic(TorchDispatchMode):
    """Counts the elements that collectives are called with, by phase and kind."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "begin"
        self.elements: defaultdict[str, Counter] = defaultdict(Counter)
        # forward passes of the learner, by phase
        self.passes: Counter = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args[0]) if isinstance(leaf, Tensor)]
            kind = function.overloadpacket.__name__
            self.elements[self.phase][kind] += sum(tensor.numel() for tensor in tensors)
        return function(*args, **(kwargs or {}))

    def see_pass(self, *_: Any) -> None:
        """Count a forward pass, as a hook."""
        self.passes[self.phase] += 1


class CountedSession(RunSession):
    """A run that says in which phase it is, and notes the sizes that the formulas need."""

    def __init__(self, *arguments: Any, traffic: Traffic, **options: Any):
        super().__init__(*arguments, **options)
        self.traffic = traffic
        # weights that train in the first task, and those that its importance is about
        self.trained = 0
        self.protected = 0
        self.learner.register_forward_hook(traffic.see_pass)

    def fit(self, stage: Stage, **options: Any) -> int:
        self.traffic.phase = f"fit {stage.index}"
        if stage.index == 0:
            self.trained = sum(p.numel() for p in self.learner.parameters() if p.requires_grad)
        return super().fit(stage, **options)

    def conclude(self, stage: Stage) -> Outcome:
        self.traffic.phase = f"importance {stage.index}"
        outcome = super().conclude(stage)
        if stage.index == 0:
            self.protected = sum(value.numel() for value in outcome.importance.values.values())
        return outcome

    def score(self, stage: Stage) -> list[Score]:
        self.traffic.phase = f"score {stage.index}"
        scores = super().score(stage)
        self.traffic.phase = "between"
        return scores


def run_small(unit: str, folder: Path) -> CountedSession:
    """Learn two tasks of shapes and return the session, with what it counted."""
    method = {"name": "ewc", "strength": 0.1, "estimator": UNITS[unit]}
    plan = resolve(parse(RunConfig, {**SHAPES, "method": method}))
    traffic = Traffic()
    options = {"progress": False, "say": _say_nothing, "traffic": traffic}
    with traffic, CountedSession(plan, folder, **options) as session:
        for stage in session.stages():
            session.begin(stage)
            session.fit(stage)
            outcome = session.conclude(stage)
            session.record(stage, session.score(stage), outcome)
    return session


def compare(session: CountedSession, unit: str) -> list[Row]:
    """Return what was to be counted in a small run, and what was."""
    task = session.plan.tasks[0]
    weights = session.protected
    steps = math.ceil(len(task.examples("train")) / task.recipe.batch_size)
    rows = []
    if join_processes().num_processes > 1:
        rows = _compare_traffic(session, unit, steps)
    formula = "batches"
    expected = steps
    if unit == "example":
        formula = "batches, and one for the audit"
        expected = steps + 1
    passes = session.traffic.passes["importance 0"]
    rows.append(_row(f"importance by {unit}, forward passes", formula, expected, passes))
    held = session.method.bytes_held()
    rows.append(_row("held by the method, bytes", "8 P", 2 * FLOAT * weights, held))
    return rows


def _compare_traffic(session: CountedSession, unit: str, steps: int) -> list[Row]:
    world = join_processes().num_processes
    modules = session.learner.modules()
    norms = [module.num_features for module in modules if isinstance(module, BatchNorm2d)]
    statistics = 2 * world * sum(2 * channels + 1 for channels in norms)
    buffers = sum(buffer.numel() for buffer in session.learner.buffers())
    scored = len(session.plan.tasks[0].examples("eval"))
    fit = session.traffic.elements["fit 0"]
    importance = session.traffic.elements["importance 0"]
    score = session.traffic.elements["score 0"]
    by_example = _row(
        "importance by example, all-reduced",
        "P + 1",
        session.protected + 1,
        importance["allreduce_"],
    )
    by_batch = _row(
        "importance by batch, all-reduced",
        f"{steps} (P + w + 2w sum(2C+1))",
        steps * (session.protected + world + statistics),
        importance["allreduce_"],
    )
    return [
        _row(
            "steps of a task, all-reduced",
            f"{steps} (T + 2w sum(2C+1) + 2)",
            steps * (session.trained + statistics + 2),
            fit["allreduce_"],
        ),
        _row(
            "steps of a task, broadcast",
            f"T + ({steps} + 2) B, and DDP's own",
            session.trained + (steps + 2) * buffers,
            fit["broadcast_"],
        ),
        _row(
            f"scores of {scored} examples, gathered bytes",
            "pickled inputs of the metric",
            None,
            score["allgather_"],
        ),
        by_example if unit == "example" else by_batch,
    ]


def measure_path(learner: nn.Module) -> Row:
    """Return what synaptic intelligence holds between steps, once something was consolidated."""
    path = PathIntegral(learner.named_parameters())
    manager = ConsolidationManager(learner.named_parameters(), path=path)
    manager.consolidate(path.importance())
    weights = sum(parameter.numel() for parameter in manager.parameters.values())
    expected = 4 * FLOAT * weights
    return _row("held with a path integral (SI), bytes", "16 P", expected, manager.bytes_held())


def measure_small() -> list[Row]:
    """Return all rows of the small run, in however many processes there are."""
    state = join_processes()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for unit in UNITS:
            run = Path(folder) / unit
            session = run_small(unit, run)
            rows += [row for row in compare(session, unit) if row not in rows]
        if state.is_main_process:
            rows.append(_measure_checkpoint(run, session.learner))
        state.wait_for_everyone()
    rows.append(measure_path(session.learner))
    return rows


def _measure_checkpoint(run: Path, learner: nn.Module) -> Row:
    newest = max((run / "checkpoints").iterdir())
    return _row(
        "a checkpoint's learner, bytes",
        "4 (weights and buffers), and names",
        sum(tensor.nbytes for tensor in learner.state_dict().values()),
        (newest / "learner.safetensors").stat().st_size,
    )


def _row(what: str, formula: str, expected: int | None, counted: int) -> Row:
    return {"what": what, "formula": formula, "expected": expected, "counted": int(counted)}


def describe_models() -> list[Row]:
    """Return the formulas for two models whose weights are counted but never made."""
    from transformers import LlamaConfig, LlamaForCausalLM, ViltConfig, ViltModel

    with torch.device("meta"):
        # a third modality for the second image of a pair
        vilt = ViltModel(ViltConfig(modality_type_vocab_size=3))
        # the defaults are those of the 7B model
        llama = LlamaForCausalLM(LlamaConfig())
    whole = sum(p.numel() for p in llama.parameters())
    few = _count_lora(llama, 16, ("q_proj", "v_proj"))
    every = _count_lora(llama, 16, ("_proj",))
    return [
        _describe("ViLT-B/32, all weights", 0, sum(p.numel() for p in vilt.parameters())),
        _describe("7B, all weights", 0, whole),
        _describe("7B, LoRA of rank 16 on q and v", whole, few),
        _describe("7B, LoRA of rank 16 on every linear layer", whole, every),
    ]


def _count_lora(model: nn.Module, rank: int, endings: tuple[str, ...]) -> int:
    """Return the weights of adapters on the linear layers whose names end so."""
    count = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.endswith(endings):
            count += rank * (module.in_features + module.out_features)
    return count


def _describe(name: str, frozen: int, trained: int) -> Row:
    """Return bytes per process: frozen weights in bf16, all else in single precision."""
    return {
        "model": name,
        "frozen": frozen,
        "trained": trained,
        "model_bytes": 2 * frozen + FLOAT * trained,
        "gradient_and_adamw": 3 * FLOAT * trained,
        "importance_and_anchor": 2 * FLOAT * trained,
        "path_integral": 2 * FLOAT * trained,
        "all_reduced_per_step": FLOAT * trained,
        "all_reduced_per_importance": FLOAT * trained,
    }


def measure_study(order: str, runs: int, machines: int, cores: int, price: float) -> list[Row]:
    """Return what one run takes, measured, and what so many of them come to, computed."""
    with tempfile.TemporaryDirectory() as scratch:
        one = measure_run(order, Path(scratch))
    measured = [{"measured, one run": name, "value": value} for name, value in one.items()]
    return [*measured, *compute_study(one, runs, machines, cores, price)]


def compute_study(
    one: dict[str, int | float], runs: int, machines: int, cores: int, price: float
) -> list[Row]:
    """Return what many runs come to, each on a core of its own and never waiting."""
    at_once = min(runs, machines * cores)
    rounds = math.ceil(runs / at_once)
    hours = rounds * one["cpu_seconds"] / 3600
    written = one["written_bytes"]
    return [
        _computed("runs at once", at_once, "machines x cores, at most runs"),
        _computed("rounds", rounds, "runs / runs at once, rounded up"),
        _computed("hours", hours, "rounds x cpu_seconds / 3600"),
        _computed("machine hours", machines * hours, "machines x hours"),
        _computed("money", machines * hours * price, "machine hours x price"),
        _computed("bytes sent", runs * one["sent_bytes"], "runs x sent_bytes"),
        _computed("bytes written", runs * written, "runs x written_bytes"),
        _computed("bytes left", runs * one["left_bytes"], "runs x left_bytes"),
        _computed("bytes of results", runs * one["result_bytes"], "runs x result_bytes"),
        _computed(
            "bytes written per second",
            at_once * written / one["cpu_seconds"],
            "runs at once x written_bytes / cpu_seconds",
        ),
    ]


def measure_run(order: str, folder: Path) -> dict[str, int | float]:
    """Return what a run of a sweep takes, on one core, and what it leaves."""
    (folder / "run").mkdir()
    attempt = Attempt(
        folder="run",
        words=("--order", order, *STUDIED, *SWEPT),
        environment={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=str(folder),
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ending = attempt.make()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ending.code != 0:
        raise RuntimeError((folder / "run" / "console.log").read_text(encoding="utf-8"))
    files = {path: path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file()}
    results = [size for path, size in files.items() if CHECKPOINTS not in path.parts]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "cpu_seconds": round(seconds, 1),
        # what an executor sends to a machine and gets back
        "sent_bytes": len(pickle.dumps(attempt)) + len(pickle.dumps(ending)),
        "written_bytes": BLOCK * (after.ru_oublock - before.ru_oublock),
        "left_bytes": sum(files.values()),
        "result_bytes": sum(results),
    }


def _computed(what: str, value: float, formula: str) -> Row:
    return {"computed": what, "value": round(value, 3), "formula": formula}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Print the rows, and return them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", action="store_true", help="work the formulas out for two large models"
    )
    parser.add_argument(
        "--study", action="store_true", help="measure one run of a sweep, and compute many"
    )
    parser.add_argument("--order", default="shapes:5x4", help="of the study (default: shapes:5x4)")
    parser.add_argument("--runs", type=int, default=1000, help="of the study (default: 1000)")
    parser.add_argument("--machines", type=int, default=100, help="(default: 100)")
    parser.add_argument("--cores", type=int, default=8, help="of each machine (default: 8)")
    parser.add_argument(
        "--price", type=float, default=0.4, help="of a machine, per hour (default: 0.4)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(argv)
    if options.models:
        rows = describe_models()
    elif options.study:
        rows = measure_study(
            options.order,
            runs=options.runs,
            machines=options.machines,
            cores=options.cores,
            price=options.price,
        )
    else:
        rows = measure_small()
    if not join_processes().is_main_process:
        return rows
    for row in rows:
        if options.json:
            print(json.dumps(row))
        else:
            print("  ".join(f"{key} {_show(value)}" for key, value in row.items()))
    return rows


def _show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _say_nothing(line: str) -> None:
    pass


if __name__ == "__main__":
    main()

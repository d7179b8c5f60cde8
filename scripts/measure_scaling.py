"""What a run holds and what its processes send: the formulas of docs/scaling.md beside what is counted in a small run.

accelerate launch --config_file configs/accelerate/cpu2.yaml scripts/measure_scaling.py
python scripts/measure_scaling.py --models        # the formulas for ViLT-B/32 and for a 7B model with LoRA
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcit import sequence
from mcit.config import RunConfig, parse
from mcit.consolidation import ConsolidationManager, PathIntegral
from mcit.parallel.global_batch import BatchNorm2d
from mcit.parallel.launch import join_processes
from mcit.runner.plan import resolve

FLOAT = 4  # bytes
SHAPES = {
    "order": "shapes:2x2",
    "model": {"name": "resnet18", "width": 8},
    "tasks": {"shapes": {"classes": 4, "recipe": {"epochs": 1, "batch_size": 64}}},
}
UNITS = {
    "example": {"unit": "example"},
    "batch": {"unit": "batch", "mode": "train"},
}


class Traffic(TorchDispatchMode):
    """Counts the elements that collectives are called with, by phase and kind."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "begin"
        self.elements: defaultdict[str, Counter] = defaultdict(Counter)
        self.passes: Counter = Counter()  # forward passes of the learner

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args[0]) if isinstance(leaf, Tensor)]
            self.elements[self.phase][function.overloadpacket.__name__] += sum(
                tensor.numel() for tensor in tensors
            )
        return function(*args, **(kwargs or {}))


def watch(method: Any, traffic: Traffic, seen: dict[str, Any]) -> None:
    """Tell the counter where the run is, and note what the formulas need."""
    begin_task, end_task = method.begin_task, method.end_task
    before_scoring, after_scoring = method.before_scoring, method.after_scoring

    def begin(stage: Any) -> None:
        begin_task(stage)
        traffic.phase = f"fit {stage.index}"
        seen[f"trained {stage.index}"] = sum(
            p.numel() for p in stage.learner.parameters() if p.requires_grad
        )
        if "learner" not in seen:
            stage.learner.register_forward_hook(lambda *_: traffic.passes.update([traffic.phase]))
        seen["learner"] = stage.learner

    def end(stage: Any) -> None:
        traffic.phase = f"importance {stage.index}"
        end_task(stage)
        traffic.phase = "between"
        seen[f"protected {stage.index}"] = sum(
            tensor.numel() for tensor in method.manager.importance.values()
        )

    def score(stage: Any, task: Any) -> None:
        before_scoring(stage, task)
        traffic.phase = f"score {stage.index}"

    def pause(stage: Any) -> None:
        after_scoring(stage)
        traffic.phase = "between"

    method.begin_task, method.end_task = begin, end
    method.before_scoring, method.after_scoring = score, pause


def run_small(unit: str, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two tasks of shapes, and rows that say what was to be counted and what was."""
    estimator = UNITS[unit]
    plan = resolve(
        parse(
            RunConfig,
            {**SHAPES, "method": {"name": "ewc", "strength": 0.1, "estimator": estimator}},
        )
    )
    traffic, seen = Traffic(), {}
    watch(plan.method, traffic, seen)
    with traffic:
        sequence.run(plan, folder, progress=False, say=lambda line: None)
    world = join_processes().num_processes
    examples, batch = len(plan.tasks[0].examples("train")), plan.tasks[0].recipe.batch_size
    steps = math.ceil(examples / batch)
    norms = [m.num_features for m in seen["learner"].modules() if isinstance(m, BatchNorm2d)]
    statistics = 2 * world * sum(2 * channels + 1 for channels in norms)
    weights = seen["protected 0"]
    rows = []
    if world > 1:
        sent = {phase: kinds["allreduce_"] for phase, kinds in traffic.elements.items()}
        fit = steps * (seen["trained 0"] + statistics + 2)
        rows.append(
            _row(
                "steps of a task, all-reduced",
                f"{steps} (T + 2w sum(2C+1) + 2)",
                fit,
                sent["fit 0"],
            )
        )
        spread = traffic.elements["fit 0"]["broadcast_"]
        buffers = sum(buffer.numel() for buffer in seen["learner"].buffers())
        formula, expected = (
            f"T + ({steps} + 2) B, and DDP's own",
            seen["trained 0"] + (steps + 2) * buffers,
        )
        rows.append(_row("steps of a task, broadcast", formula, expected, spread))
        gathered = traffic.elements["score 0"]["allgather_"]
        scored = len(plan.tasks[0].examples("eval"))
        rows.append(
            _row(f"scores of {scored} examples, gathered bytes", "pickled columns", None, gathered)
        )
        if unit == "example":
            rows.append(
                _row(
                    "importance by example, all-reduced", "P + 1", weights + 1, sent["importance 0"]
                )
            )
        else:
            forward = steps * (weights + world + statistics)
            formula = f"{steps} (P + w + 2w sum(2C+1))"
            rows.append(
                _row("importance by batch, all-reduced", formula, forward, sent["importance 0"])
            )
    passes, audit = traffic.passes["importance 0"], unit == "example"
    formula = "batches, and one for the audit" if audit else "batches"
    rows.append(_row(f"importance by {unit}, forward passes", formula, steps + audit, passes))
    rows.append(
        _row("held by the method, bytes", "8 P", 2 * FLOAT * weights, plan.method.bytes_held())
    )
    return rows, {"seen": seen, "traffic": traffic, "plan": plan}


def measure_path(learner: nn.Module) -> dict[str, Any]:
    """What synaptic intelligence holds between steps, once something was consolidated."""
    path = PathIntegral(learner.named_parameters())
    manager = ConsolidationManager(learner.named_parameters(), path=path)
    manager.consolidate(path.importance())
    weights = sum(parameter.numel() for parameter in manager.parameters.values())
    return _row(
        "held with a path integral (SI), bytes", "16 P", 4 * FLOAT * weights, manager.bytes_held()
    )


def measure_small() -> list[dict[str, Any]]:
    """All rows of the small run, in however many processes there are."""
    state = join_processes()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for unit in UNITS:
            found, about = run_small(unit, Path(folder) / unit)
            rows += [row for row in found if row not in rows]
        if state.is_main_process:
            rows += _measure_files(Path(folder) / "example", about["seen"]["learner"])
        state.wait_for_everyone()
    return [*rows, measure_path(about["seen"]["learner"])]


def _measure_files(run: Path, learner: nn.Module) -> list[dict[str, Any]]:
    newest = max((run / "checkpoints").iterdir())
    state = sum(tensor.numel() * tensor.element_size() for tensor in learner.state_dict().values())
    sizes = {path.stem: path.stat().st_size for path in newest.glob("*.safetensors")}
    return [
        _row(
            "a checkpoint's learner, bytes",
            "4 (weights and buffers), and names",
            state,
            sizes["learner"],
        )
    ]


def _row(what: str, formula: str, expected: int | None, counted: int) -> dict[str, Any]:
    return {"what": what, "formula": formula, "expected": expected, "counted": int(counted)}


def describe_models() -> list[dict[str, Any]]:
    """The formulas, for two models whose weights are counted but never made."""
    from transformers import LlamaConfig, LlamaForCausalLM, ViltConfig, ViltModel

    with torch.device("meta"):
        vilt = ViltModel(
            ViltConfig(modality_type_vocab_size=3)
        )  # a third kind for the second image of a pair
        llama = LlamaForCausalLM(LlamaConfig())  # the defaults are those of the 7B model
    weights, whole = (sum(p.numel() for p in model.parameters()) for model in (vilt, llama))
    adapted = {
        name: module for name, module in llama.named_modules() if isinstance(module, nn.Linear)
    }
    rank = 16
    few = sum(
        rank * (m.in_features + m.out_features)
        for n, m in adapted.items()
        if n.endswith(("q_proj", "v_proj"))
    )
    every = sum(
        rank * (m.in_features + m.out_features)
        for n, m in adapted.items()
        if not n.endswith("lm_head")
    )
    return [
        _describe("ViLT-B/32, all weights", 0, weights),
        _describe("7B, all weights", 0, whole),
        _describe("7B, LoRA of rank 16 on q and v", whole, few),
        _describe("7B, LoRA of rank 16 on every linear layer", whole, every),
    ]


def _describe(name: str, frozen: int, trained: int) -> dict[str, Any]:
    """Bytes per process: frozen weights in bf16, all else in single precision."""
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


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", action="store_true", help="work the formulas out for two large models"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = describe_models() if options.models else measure_small()
    if join_processes().is_main_process:
        for row in rows:
            print(
                json.dumps(row)
                if options.json
                else "  ".join(f"{key} {_show(v)}" for key, v in row.items())
            )
    return rows


def _show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()

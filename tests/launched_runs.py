"""A program for any launcher: makes the runs that a JSON file lists, in all processes, and one by the command line."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_run import Run, learn
from torch import Tensor

from mcit.cli import main as run_command
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.consolidating import ConsolidatingMethod
from mcit.data import class_incremental
from mcit.parallel.launch import join_processes


def main(path: str) -> None:
    """Every process takes part in all runs; what each of them ends with is written under its own number."""
    folder = Path(path)
    rank = join_processes().process_index
    for name, data in json.loads((folder / "runs.json").read_text(encoding="utf-8")).items():
        output = folder / name / ("main" if rank == 0 else "other")
        with contextlib.redirect_stdout(sys.stderr), precise(name):
            run = learn(parse(RunConfig, data), output)
        mine = folder / name / f"process-{rank}.safetensors"
        mine.parent.mkdir(parents=True, exist_ok=True)
        save_file(collect(run), mine)
        mine.with_suffix(".json").write_text(json.dumps(run.rows), encoding="utf-8")
    with (folder / f"printed-{rank}").open("w") as file, contextlib.redirect_stdout(file):
        given = ["--config", str(folder / "command.yaml"), "--output", str(folder / "command")]
        code = run_command(["run", *given, "--quiet"])
    (folder / f"code-{rank}").write_text(str(code))
    sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
    from measure_scaling import measure_small

    (folder / f"scaling-{rank}.json").write_text(json.dumps(measure_small()))


@contextlib.contextmanager
def precise(name: str) -> Iterator[None]:
    """Class-incremental runs in double precision. In single precision the last bit of a sum, whose order is another in
    two processes, decides now and then on which side of a ReLU's kink a number falls, and the gradient jumps."""
    if not name.startswith("classes"):
        yield
        return
    normalize = class_incremental.normalize
    class_incremental.normalize = lambda *arguments: normalize(*arguments).double()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        class_incremental.normalize = normalize


def collect(run: Run) -> dict[str, Tensor]:
    """The learner's state, and importance and anchor where the method has them."""
    tensors = dict(run.state)
    if isinstance(run.method, ConsolidatingMethod):
        manager = run.method.manager
        for part, values in (("importance", manager.importance), ("anchor", manager.anchor)):
            tensors.update({f"{part}/{name}": tensor for name, tensor in values.items()})
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main(sys.argv[1])

"""Kill a run many times, resume it each time, and compare its end with that of a run left alone.

python scripts/soak_resume.py --kills 20
python scripts/soak_resume.py --kills 50 -- --order vqa,nlvr2 --method si

What follows `--` are options of `mcit run`; without them, EWC on three small class-incremental
tasks. The run is killed with SIGKILL at random moments: while it starts, in steps, in the
importance pass, in scoring, and while it saves.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import _checkout

from mcit.checkpoint import list_checkpoints, read_checkpoint

SMALL = ["--order", "shapes:3x2", "--method", "ewc"]
for _change in (
    "method.strength=10",
    "model.width=8",
    "tasks.shapes.classes=6",
    "tasks.shapes.first_epochs=3",
    "tasks.shapes.later_epochs=3",
    "tasks.shapes.recipe.batch_size=32",
):
    SMALL += ["--set", _change]


def main() -> int:
    """Exit code 0 if scores and weights are the same to the last bit."""
    arguments = _parse()
    folder = Path(arguments.folder)
    if folder.exists():
        sys.exit(f"{folder} exists; name a new --folder")
    whole, killed, draw = folder / "whole", folder / "killed", random.Random(arguments.seed)
    begin = time.monotonic()
    _start(arguments, whole).wait()
    seconds = time.monotonic() - begin
    print(f"left alone, the run takes {seconds:.0f} s", flush=True)
    done = 0
    while done < arguments.kills:
        process = _start(arguments, killed, "--resume")
        if not _wait_to_begin(process, killed):
            if process.wait() != 0:
                sys.exit(f"the run ended with code {process.returncode}")
            print("the run has ended; once more from the beginning", flush=True)
            _compare(whole, killed)
            shutil.rmtree(killed)
            continue
        time.sleep(draw.uniform(0, arguments.longest or seconds / 4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            newest = list_checkpoints(killed / "checkpoints")[:1]
            print(
                f"kill {done}: newest checkpoint {newest[0].name if newest else 'none'}", flush=True
            )
    if _start(arguments, killed, "--resume").wait():
        sys.exit("the run could not be finished")
    _compare(whole, killed)
    print(
        f"killed {done} times, and the same to the last bit: scores and "
        f"{_count_weights(whole):,} weights"
    )
    shutil.rmtree(folder)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument(
        "--longest", type=float, help="seconds that a part runs at most (default: a quarter of all)"
    )
    parser.add_argument("--every-steps", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--folder", default="soak", help="a new folder, removed if all went well")
    parser.add_argument("options", nargs="*", help="options of `mcit run`, after --")
    return parser.parse_args()


def _start(arguments: argparse.Namespace, output: Path, *more: str) -> subprocess.Popen:
    words = [
        *(arguments.options or SMALL),
        "--set",
        f"checkpoint.every_steps={arguments.every_steps}",
        *more,
    ]
    script = _checkout.ROOT / "scripts" / "run_sequence.py"
    output.parent.mkdir(parents=True, exist_ok=True)
    with (output.parent / "console.log").open("a", encoding="utf-8") as log:
        command = [sys.executable, str(script), *words, "--quiet", "--output", str(output)]
        return subprocess.Popen(command, stdout=log, stderr=log)


def _wait_to_begin(process: subprocess.Popen, output: Path) -> bool:
    """Until the run logs something; False if it ended without."""
    log = output / "log.jsonl"
    before = log.stat().st_mtime_ns if log.exists() else None
    while process.poll() is None:
        if log.exists() and log.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def _read(folder: Path) -> tuple[dict, dict]:
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    scores["cost"] = {
        key: value for key, value in scores["cost"].items() if not key.endswith("_seconds")
    }
    return scores, read_checkpoint(list_checkpoints(folder / "checkpoints")[0]).parts["learner"]


def _compare(whole: Path, killed: Path) -> None:
    (scores, weights), (found_scores, found) = _read(whole), _read(killed)
    differ = [name for name in weights if name not in found or not weights[name].equal(found[name])]
    if scores != found_scores or differ or found.keys() - weights.keys():
        sys.exit(
            f"the runs differ: {len(differ)} of {len(weights)} tensors; see {whole} and {killed}"
        )


def _count_weights(folder: Path) -> int:
    return sum(tensor.numel() for tensor in _read(folder)[1].values())


if __name__ == "__main__":
    sys.exit(main())

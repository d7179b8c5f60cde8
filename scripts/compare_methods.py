"""Run methods over seeds, and strengths where asked, and print one table: mean and spread over the seeds.

    python scripts/compare_methods.py --methods finetune,ewc,ewc_dr --seeds 1,2,3 --jobs 2
    python scripts/compare_methods.py --methods ewc,ewc_dr --strengths 1,10,100 --seeds 11,12 --output runs/strengths

Runs that are already complete are not repeated, so that an interrupted comparison goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _checkout

from mcit.reports.tables import format_markdown


def main() -> int:
    arguments = read_arguments()
    jobs = plan_jobs(arguments)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        failures = [folder for folder, error in zip(jobs, pool.map(run_job, jobs.items()), strict=True) if error]
    if failures:
        print(f"{len(failures)} runs failed, first {failures[0]}: see its log.txt", file=sys.stderr)
        return 1
    table = "\n".join(tabulate(jobs))
    (arguments.output / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", default="vqa,nlvr2,snli-ve,vcr")
    parser.add_argument("--methods", required=True, type=lambda text: text.split(","))
    parser.add_argument("--strengths", default=[None], type=lambda text: text.split(","), help="for every method given")
    parser.add_argument("--seeds", default=["1", "2", "3"], type=lambda text: text.split(","))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--output", type=Path, default=Path("runs/comparison"))
    return parser.parse_args()


def plan_jobs(arguments: argparse.Namespace) -> dict[Path, list[str]]:
    """The folder of every run and the options that make it."""
    jobs = {}
    for method, strength, seed in itertools.product(arguments.methods, arguments.strengths, arguments.seeds):
        label = method if strength is None else f"{method}@{strength}"
        folder = arguments.output / f"{label}-seed{seed}"
        options = ["--order", arguments.order, "--method", method, "--seed", seed, "--output", str(folder)]
        options += ["--quiet", "--overwrite"]
        changes = [*arguments.set, *([] if strength is None else [f"method.strength={strength}"])]
        jobs[folder] = options + [word for change in changes for word in ("--set", change)]
    return jobs


def run_job(job: tuple[Path, list[str]]) -> int:
    folder, options = job
    if is_complete(folder):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = _checkout.ROOT / "scripts" / "run_sequence.py"
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        done = subprocess.run([sys.executable, script, *options], stdout=log, stderr=log, env=environment, check=False)
    print(f"{folder.name}: {'failed' if done.returncode else 'done'}", file=sys.stderr, flush=True)
    return done.returncode


def is_complete(folder: Path) -> bool:
    path = folder / "scores.json"
    if not path.is_file():
        return False
    scores = json.loads(path.read_text(encoding="utf-8"))
    return len(scores["matrix"]) == len(scores["tasks"])


def tabulate(jobs: dict[Path, list[str]]) -> list[str]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for folder in jobs:
        label = folder.name.rpartition("-seed")[0]
        groups.setdefault(label, []).append(json.loads((folder / "scores.json").read_text(encoding="utf-8")))
    tasks = next(iter(groups.values()))[0]["tasks"]
    header = ["method", *(f"{task} (forgetting)" for task in tasks), "A_last", "A_new", "A_avg", "seconds"]
    return format_markdown(header, [summarise(label, runs) for label, runs in groups.items()])


def summarise(label: str, runs: list[dict[str, Any]]) -> list[str]:
    """Final score of every task with its forgetting transfer, then the averages; mean ± standard deviation."""
    cells = []
    for task in range(len(runs[0]["tasks"])):
        final = spread([run["matrix"][-1][task] for run in runs])
        lost = [run["metrics"]["forgetting_transfer"][-1][task] for run in runs if task < len(runs[0]["tasks"]) - 1]
        cells.append(final if not lost or None in lost else f"{final} ({statistics.mean(lost):.1f})")
    new = [statistics.mean(run["metrics"]["A_new"]) for run in runs]
    seconds = [sum(run["cost"][k] for k in ("fit_seconds", "end_task_seconds", "score_seconds")) for run in runs]
    averages = [spread([run["metrics"][name] for run in runs]) for name in ("A_last", "A_avg")]
    return [label, *cells, averages[0], spread(new), averages[1], f"{statistics.mean(seconds):.0f}"]


def spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    sys.exit(main())

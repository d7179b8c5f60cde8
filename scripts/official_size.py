"""Go through a run of ViLT-B/32 on data of the official sizes, and tell what each part takes.

python scripts/official_size.py --folder official                   all of it; some hours on a CPU
python scripts/official_size.py --folder official --scale 0.01      a hundredth of every count
python scripts/official_size.py --folder official --docs            also write docs/scaling.md
python scripts/official_size.py --folder official --show --docs     the same, of figures it has

The data are made (scripts/official_data.py), looked at by `mcit doctor` twice, rehearsed by `mcit
run --dry-run`; steps are taken and importance is measured; a run is killed in the middle of its
first task and resumed. Weights are random and nothing is fetched. Figures are written to
FOLDER/figures.json and as a table to FOLDER/figures.md; with --keep, data that are there are used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _checkout

from mcit.reports.formats import format_seconds
from mcit.runner.interruption import CODE

HEADING = "## At official size"
# steps between two checkpoints of the run that is killed
EVERY = 5
# between two looks at a run's log
PAUSE = 0.2
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


@dataclass(frozen=True)
class Row:
    """What one part took: by the processor, by the clock, and of memory."""

    part: str
    processor_seconds: float
    clock_seconds: float
    # of the largest process
    peak_gib: float
    result: str = ""


class CommandFailed(RuntimeError):
    """A command that ended otherwise than it should."""


def main() -> None:
    arguments = parse_arguments()
    folder = Path(arguments.folder).resolve()
    if arguments.steps_in is not None:
        print(json.dumps(take_steps(arguments, folder)))
        return
    place = folder / "figures.json"
    if arguments.show:
        figures = json.loads(place.read_text(encoding="utf-8"))
    else:
        figures = measure(arguments, folder)
        place.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (folder / "figures.md").write_text(describe(figures), encoding="utf-8")
    print(describe(figures))
    if arguments.docs:
        write_docs(figures, _checkout.ROOT / "docs" / "scaling.md")


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", required=True, help="a new folder for data, runs and figures")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the official counts")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps that are taken")
    parser.add_argument("--samples", type=int, default=128, help="examples of the importance pass")
    parser.add_argument("--batch-size", type=int, help="examples of a step (default: the recipe's)")
    parser.add_argument("--workers", type=int, default=2, help="loader workers")
    parser.add_argument("--small", action="store_true", help="a small ViLT, to try the script")
    parser.add_argument("--keep", action="store_true", help="use data that FOLDER holds already")
    parser.add_argument("--show", action="store_true", help="measure nothing, show figures")
    parser.add_argument("--docs", action="store_true", help="write the section of docs/scaling.md")
    parser.add_argument("--steps-in", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of all parts, each in processes of its own."""
    # imported late: the children need not wait for it
    from official_data import TASKS, Scale, write_data, write_model

    from mcit.provenance import make_provenance

    if folder.exists() and not arguments.keep:
        sys.exit(f"{folder} exists; name a new --folder, or add --keep to use its data")
    os.environ["MCIT_CACHE"] = str(folder / "cache")
    scale = Scale(arguments.scale)
    data = folder / "data"
    rows = []
    if not data.exists():
        rows.append(_time_here("make the data", partial(write_data, data, scale)))
        write_model(folder / "model", **(SMALL if arguments.small else {}))
    order = ",".join(TASKS)
    look = ["-m", "mcit", "doctor", "--data-root", str(data), "--order", order]
    rows.append(_run("doctor, first time", look))
    rows.append(_run("doctor, second time", look))
    run = ["-m", "mcit", "run", *list_options(arguments, folder, scale.answers)]
    rows.append(_run("dry run of all four tasks", [*run, "--dry-run"], find_memory))
    rows += _take_steps(arguments, folder, scale.answers)
    rows += kill_and_resume(run, folder / "run", arguments.steps)
    found = make_provenance()
    return {
        "scale": arguments.scale,
        "records": {task: scale.records(task) for task in TASKS},
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
        "samples": arguments.samples,
        "workers": arguments.workers,
        "small": arguments.small,
        "processor": found["processor"],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "mcit": found["mcit"],
        "torch": found["packages"]["torch"],
        "command": describe_command(arguments),
        "rows": [asdict(row) for row in rows],
    }


def describe_command(arguments: argparse.Namespace) -> str:
    """Return the command that repeats the measurement, without its folder's place."""
    words = ["python scripts/official_size.py --folder official"]
    if arguments.scale != 1:
        words.append(f"--scale {arguments.scale:g}")
    if arguments.batch_size is not None:
        words.append(f"--batch-size {arguments.batch_size}")
    words.append(f"--steps {arguments.steps} --samples {arguments.samples}")
    if arguments.small:
        words.append("--small")
    return " ".join(words)


def list_options(arguments: argparse.Namespace, folder: Path, answers: int) -> list[str]:
    """Return the options of `mcit run`, from the configuration of the official sequence."""
    changes = {
        "model.name": str(folder / "model"),
        "tasks.vqa.answers": answers,
        "training.workers": arguments.workers,
        "training.log_every": 1,
        "checkpoint.every_steps": EVERY,
        "method.estimator.samples": arguments.samples,
    }
    if arguments.batch_size is not None:
        from official_data import TASKS

        changes["training.eval_batch_size"] = arguments.batch_size
        for task in TASKS:
            changes[f"tasks.{task}.recipe.batch_size"] = arguments.batch_size
    options = ["--config", "climb", "--method", "ewc_dr", "--data-root", str(folder / "data")]
    options.append("--quiet")
    for key, value in changes.items():
        options += ["--set", f"{key}={value}"]
    return options


def find_memory(printed: str) -> str:
    """Return what a dry run says of memory."""
    lines = [line for line in printed.splitlines() if "memory" in line]
    if not lines:
        return ""
    return re.sub(r".*(memory: )", r"\1", lines[-1].strip())


# --- steps and importance, in a process of their own


def _take_steps(arguments: argparse.Namespace, folder: Path, answers: int) -> list[Row]:
    words = [__file__, *sys.argv[1:], "--steps-in", str(answers)]
    found: dict[str, Any] = {}

    def read(printed: str) -> str:
        found.update(json.loads(printed.splitlines()[-1]))
        return f"{found['megabytes']:.0f} MB a batch of {found['batch_size']}"

    whole = _run(f"{arguments.steps} steps of vqa and its importance", words, read)
    parts = [Row(**row) for row in found["rows"]]
    return [whole, *parts]


def take_steps(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what some steps of the first task and an importance pass take, in this process."""
    from mcit.commands import run
    from mcit.runner.preparing import prepare_plan
    from mcit.session import Session
    from mcit.task import count_bytes

    os.environ["MCIT_CACHE"] = str(folder / "cache")
    words = list_options(arguments, folder, int(arguments.steps_in))
    parser = argparse.ArgumentParser()
    run.add_options(parser)
    plan = prepare_plan(run.read_config(parser.parse_args(words)), lambda line: None)
    session = Session(plan)
    stage = session.stage(0)
    session.begin(stage)
    steps = _time_here("steps", partial(session.fit, stage, limit=arguments.steps))
    first = next(iter(stage.load(stage.task, "train")))
    concluded = _time_here("importance", partial(session.conclude, stage))
    size = stage.task.recipe.batch_size
    examples = arguments.steps * size
    samples = arguments.samples
    each = Row(
        part="of it, steps",
        processor_seconds=steps.processor_seconds,
        clock_seconds=steps.clock_seconds,
        peak_gib=steps.peak_gib,
        result=f"{steps.processor_seconds / examples:.2f} s of the processor an example",
    )
    importance = Row(
        part=f"of it, importance of {samples} examples",
        processor_seconds=concluded.processor_seconds,
        clock_seconds=concluded.clock_seconds,
        peak_gib=concluded.peak_gib,
        result=f"{concluded.processor_seconds / samples:.2f} s of the processor an example",
    )
    return {
        "batch_size": size,
        "megabytes": count_bytes(first.batch) / 1e6,
        "rows": [asdict(each), asdict(importance)],
    }


# --- a run that is killed


def kill_and_resume(run: Sequence[str], output: Path, steps: int) -> Iterator[Row]:
    """Yield what a run takes until it is killed, and until the resumed one was stopped."""
    if output.exists():
        shutil.rmtree(output)
    middle = max(EVERY + 1, steps // 2)
    command = [*run, "--output", str(output)]
    row, logged = _run_until(f"run, killed after step {middle}", command, output, middle)
    if row is None:
        raise CommandFailed(f"the run ended before step {middle}: {logged}")
    sizes = _describe_checkpoints(output)
    yield Row(**{**asdict(row), "result": sizes})
    command.append("--resume")
    part = f"resumed, stopped after step {steps}"
    row, logged = _run_until(part, command, output, steps, signal.SIGTERM)
    if row is None:
        raise CommandFailed(f"the resumed run ended before step {steps}: {logged}")
    yield Row(**{**asdict(row), "result": f"saved, exit code {CODE}"})


def _run_until(
    part: str, words: Sequence[str], output: Path, step: int, how: int = signal.SIGKILL
) -> tuple[Row | None, list[int]]:
    """Return what a run took that is ended by a signal after a step, and the steps it logged."""
    begin = time.monotonic()
    log = output.parent / "console.log"
    with log.open("a", encoding="utf-8") as console:
        process = subprocess.Popen([sys.executable, *words], stdout=console, stderr=console)
        while process.poll() is None and step not in _read_steps(output):
            time.sleep(PAUSE)
        ended = process.returncode
        if ended is None:
            process.send_signal(how)
        _, status, usage = os.wait4(process.pid, 0) if ended is None else (0, 0, None)
    if usage is None:
        return None, [ended or 0]
    code = os.waitstatus_to_exitcode(status)
    expected = CODE if how == signal.SIGTERM else -how
    if code != expected:
        raise CommandFailed(f"{part}: exit code {code}, expected {expected}; see {log}")
    return _to_row(part, usage, time.monotonic() - begin), _read_steps(output)


def _read_steps(output: Path) -> list[int]:
    log = output / "log.jsonl"
    if not log.exists():
        return []
    steps = []
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        # the last line may be half written
        if not line.endswith("\n"):
            continue
        entry = json.loads(line)
        if entry.get("event") == "step":
            steps.append(entry["step"])
    return steps


def _describe_checkpoints(output: Path) -> str:
    folders = sorted(path for path in (output / "checkpoints").iterdir() if path.is_dir())
    sizes = []
    for folder in folders:
        sizes.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    return f"{len(folders)} checkpoints of up to {max(sizes) / 1e9:.2f} GB"


# --- one command


def _run(part: str, words: Sequence[str], read: Any = None) -> Row:
    """Return what a command took; `read` makes its result of what it printed."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    seconds = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code
    if code:
        raise CommandFailed(f"{part}: exit code {code}\n{printed}")
    row = _to_row(part, usage, seconds)
    if read is None:
        return row
    return Row(**{**asdict(row), "result": read(printed)})


def _time_here(part: str, work: Any) -> Row:
    """Return what work in this process took, its workers included; the peak is that so far."""
    before = os.times()
    begin = time.monotonic()
    work()
    after = os.times()
    spent = sum(after[:4]) - sum(before[:4])
    # imported late: Windows has none
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    row = _to_row(part, usage, time.monotonic() - begin)
    return Row(**{**asdict(row), "processor_seconds": spent})


def _to_row(part: str, usage: Any, seconds: float) -> Row:
    # bytes on macOS, KiB elsewhere
    unit = 1 if sys.platform == "darwin" else 1024
    return Row(
        part=part,
        processor_seconds=usage.ru_utime + usage.ru_stime,
        clock_seconds=seconds,
        peak_gib=usage.ru_maxrss * unit / 2**30,
    )


# --- telling


def describe(figures: dict[str, Any]) -> str:
    """Return the section of docs/scaling.md."""
    lines = [
        HEADING,
        "",
        f"`{figures['command']}` {_describe_counts(figures)}. {_describe_machine(figures)}",
        "",
        "| part | seconds of the processor | by the clock | peak, GiB | |",
        "|---|--:|--:|--:|---|",
    ]
    for row in figures["rows"]:
        lines.append(
            f"| {row['part']} | {row['processor_seconds']:.0f} | "
            f"{format_seconds(row['clock_seconds'])} | {row['peak_gib']:.2f} | {row['result']} |"
        )
    return "\n".join(lines) + "\n"


def _describe_counts(figures: dict[str, Any]) -> str:
    counts = []
    for task, splits in figures["records"].items():
        counts.append(f"{task} {' and '.join(f'{count:,}' for count in splits.values())}")
    network = "ViLT-B/32"
    if figures["small"]:
        network = "a small ViLT"
    batch = "the recipes' batches"
    if figures["batch_size"] is not None:
        batch = f"batches of {figures['batch_size']}"
    whose = "the official counts"
    if figures["scale"] != 1:
        whose = f"{100 * figures['scale']:g} % of the official counts"
    return (
        f"makes annotations with {whose} of records ({', '.join(counts)}) and of images, which are "
        f"hard links to a few photographs, and goes through a run of {network} with random "
        f"weights, `training.workers` {figures['workers']} and {batch}"
    )


def _describe_machine(figures: dict[str, Any]) -> str:
    machine = (
        f"{figures['processor']}, {figures['cores']} cores, no GPU; mcit {figures['mcit']}, torch "
        f"{figures['torch']}; load average at the end {figures['load']:.1f}"
    )
    if figures["load"] <= figures["cores"]:
        return f"{machine}."
    return f"{machine}: the machine was busy with other work, which seconds by the clock include."


def write_docs(figures: dict[str, Any], page: Path) -> None:
    """Put the section in its place, or at the end of the page."""
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(f"{HEADING}\n")
    after = ""
    if found:
        _, heading, further = rest.partition("\n## ")
        after = f"\n{heading.lstrip()}{further}"
    page.write_text(f"{before.rstrip()}\n\n{describe(figures)}{after}", encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()

"""Write docs/benchmarks.md from docs/benchmarks.json, where results of `mcit bench` are recorded.

python scripts/show_benchmarks.py                               write the page only
python scripts/show_benchmarks.py --measure                     measure all benchmarks first
python scripts/show_benchmarks.py --measure generative start    measure these only

Every benchmark is recorded as soon as it is measured. All of them take some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout

from mcit.bench import classifiers, consolidation, efcil, generative, loading, start, steps
from mcit.bench.measuring import Goal, format_ratio, is_met
from mcit.files import write_json
from mcit.provenance import make_provenance

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECORD = DOCS / "benchmarks.json"
PAGE = DOCS / "benchmarks.md"
MADE = "<!-- Made by scripts/show_benchmarks.py: measure again, do not change this page. -->"

Result = dict[str, Any]
Figure = tuple[str, float, Goal | None]


@dataclass(frozen=True)
class Section:
    """A part of the page: its title, the threads of its benchmark, and what writes it."""

    title: str
    threads: int
    write: Callable[[Result], Iterator[str]]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--measure",
        nargs="*",
        choices=SECTIONS,
        metavar="BENCH",
        help=f"measure and record these, or all: {', '.join(SECTIONS)}",
    )
    arguments = parser.parse_args(words)
    if arguments.measure is not None:
        record(arguments.measure or SECTIONS)
    PAGE.write_text(write_page(read_record()), encoding="utf-8")
    print(PAGE.name)


# --- measuring


def record(names: Iterable[str]) -> None:
    """Measure these benchmarks; each is in the file before the next one begins."""
    for name in names:
        measured = measure(name)
        recorded = read_record()
        recorded[name] = measured
        write_json(RECORD, {each: recorded[each] for each in SECTIONS if each in recorded})


def read_record() -> dict[str, Any]:
    """Return by benchmark what was measured, and on which machine."""
    if not RECORD.exists():
        return {}
    return json.loads(RECORD.read_text(encoding="utf-8"))


def measure(name: str) -> dict[str, Any]:
    """Return what a benchmark measures in a process of its own, and on which machine."""
    command = [sys.executable, "-m", "mcit", "bench", name, "--json"]
    threads = SECTIONS[name].threads
    print(f"mcit bench {name}, {_count_threads(threads)} ...", file=sys.stderr)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {"machine": describe_machine(), "result": json.loads(done.stdout)}


def describe_machine() -> dict[str, Any]:
    """Return processor, load and versions."""
    found = make_provenance()
    return {
        "processor": found["processor"],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "mcit": found["mcit"],
        "torch": found["packages"]["torch"],
        "python": found["python"],
    }


# --- the page


def write_page(recorded: dict[str, Any]) -> str:
    """Return the page of benchmarks, goals that were missed included."""
    missing = [name for name in SECTIONS if name not in recorded]
    if missing:
        raise SystemExit(
            f"{RECORD} has no results of {', '.join(missing)}; measure them: "
            f"python scripts/show_benchmarks.py --measure {' '.join(missing)}"
        )
    lines = [
        "# Benchmarks",
        MADE,
        "",
        "What `mcit bench` measured on a CPU; no GPU was measured. Each ratio is taken within one "
        "run, in turns, against an implementation written plainly for the purpose, so that a busy "
        "machine slows both sides. Ratios still vary from run to run. Goals that were missed are "
        "shown as missed. *Ours* is mcit. *Load* is the average over the last minute of a "
        "benchmark, its own threads and workers included.",
        "",
        "Repeat all with `python scripts/show_benchmarks.py --measure`, or one with "
        "`--measure generative`. What was measured is in [benchmarks.json](benchmarks.json).",
    ]
    for name, section in SECTIONS.items():
        result = recorded[name]["result"]
        setting = describe_setting(name, result["threads"], recorded[name]["machine"])
        lines += ["", f"## {section.title}", "", setting, "", *section.write(result)]
    return "\n".join(lines) + "\n"


def describe_setting(name: str, threads: int, machine: dict[str, Any]) -> str:
    """Return a line of command, machine and versions."""
    return (
        f"`mcit bench {name}`, {_count_threads(threads)}; {machine['processor']}, "
        f"{machine['cores']} cores, load {machine['load']:.1f}; mcit {machine['mcit']}, "
        f"torch {machine['torch']}, Python {machine['python']}."
    )


def write_consolidation(result: Result) -> Iterator[str]:
    """Yield the lines on penalty and importance."""
    yield from tabulate_ratios(consolidation.list_figures(result))
    grows = "grows with" if result["bytes_grow_with_tasks"] else "does not grow with"
    yield ""
    yield (
        f"Importance and anchor take {result['bytes_per_weight']:.0f} bytes per protected "
        f"weight; this {grows} the number of tasks. The importance pass costs little more than a "
        "plain pass because autograd need not form the weight gradients that the layer-wise rules "
        "form themselves. On a CPU a loop over single examples is nearly as fast for a "
        "transformer; no GPU was measured."
    )


def write_efcil(result: Result) -> Iterator[str]:
    """Yield the lines on class-incremental training and scoring."""
    yield (
        "Whole training steps with data and penalty, and scoring, against Pillow transforms in a "
        "DataLoader with two workers, an autograd loop for the penalty and PyTorch's default "
        "memory layout. The reference has single precision; rows in bf16 are there where the "
        "processor multiplies in it."
    )
    yield ""
    yield "| images per second | ours | reference | speedup | goal | |"
    yield "|---|--:|--:|--:|---|---|"
    for compared in efcil.list_compared(result):
        verdict = " | ".join(_judge(compared.speedup, compared.goal))
        yield (
            f"| {compared.label} | {compared.ours:.1f} | {compared.reference:.1f} | "
            f"{compared.speedup:.2f} | {verdict} |"
        )
    yield ""
    yield (
        "Where a training step goes, in milliseconds (the reference's penalty has its "
        "backward pass under *backward*):"
    )
    yield ""
    yield f"| width | side | {' | '.join(efcil.PARTS)} | all |"
    yield f"|--:|---|{'--:|' * (len(efcil.PARTS) + 1)}"
    for width, side, milliseconds in efcil.list_steps(result):
        cells = " | ".join(f"{each:.1f}" for each in milliseconds)
        yield f"| {width} | {side} | {cells} |"


def write_classifiers(result: Result) -> Iterator[str]:
    """Yield the lines on classifiers and transports."""
    yield (
        f"Statistics and classifier from {result['features']} features of {result['images']} "
        f"images of {result['classes']} classes, against an epoch of training on as many images; "
        "scoring a task with them, against scoring it by the head; and steps that are projected "
        "as gpm and adam_nscl do, against plain ones. Iterative fits have no goal."
    )
    yield ""
    yield from tabulate_ratios(classifiers.list_figures(result))
    yield ""
    yield (
        "What is kept between tasks, for the classifier and the transport of each method; a copy "
        f"of the network has {result['network_bytes'] / 1e6:.1f} MB:"
    )
    yield ""
    yield "| by | MB |"
    yield "|---|--:|"
    for label, size in classifiers.list_held(result):
        yield f"| {label} | {size / 1e6:.1f} |"


def write_loading(result: Result) -> Iterator[str]:
    """Yield the lines on loading images."""
    width, height = result["image_size"]
    yield (
        f"{result['images']} generated images of {width}x{height}, one in {loading.UPRIGHT} "
        f"upright, with as much detail as photographs, read by {result['workers']} workers in "
        f"batches of {result['batch_size']} as ViLT-B/32 takes them. Rates are images per second "
        "of the processor, workers included, but not their start. All ways end in the same input, "
        "pixel values within one unit in the last place of 1."
    )
    yield ""
    yield "| way | images/s | times the first |"
    yield "|---|--:|--:|"
    rates = result["images_per_second"]
    for name, label in loading.LABELS.items():
        times = rates[name] / rates[loading.PROCESSOR]
        yield f"| {label} | {rates[name]:.0f} | {times:.1f} |"
    yield ""
    yield from tabulate_ratios(loading.list_figures(result))
    yield ""
    yield (
        f"An image takes {result['source_kilobytes']:.0f} kB as a JPEG file and "
        f"{result['cache_kilobytes']:.0f} kB in the cache; one process prepares "
        f"{result['prepared_per_second']:.0f} images a second. Ways to keep a resized image "
        "losslessly:"
    )
    yield ""
    yield "| packing | kB an image | ms to write | ms to read |"
    yield "|---|--:|--:|--:|"
    for name, found in result["packings"].items():
        yield (
            f"| {name} | {found['kilobytes']:.0f} | {found['write_ms']:.1f} | "
            f"{found['read_ms']:.1f} |"
        )


def write_steps(result: Result) -> Iterator[str]:
    """Yield the lines on vision-language steps."""
    yield (
        "Training steps and scoring with the small ViLT that ships, in a run's own precision and "
        "in single precision, against what one writes with transformers: Pillow, ViltProcessor, "
        "ViltModel with a linear head and AdamW, in single precision."
    )
    yield ""
    yield from tabulate_ratios(steps.list_figures(result))


def write_generative(result: Result) -> Iterator[str]:
    """Yield the lines on vision-language models."""
    yield "A LLaVA of about a million weights, LoRA of rank 8 on all of its linear layers."
    yield ""
    yield from tabulate_ratios(generative.list_figures(result))


def write_start(result: Result) -> Iterator[str]:
    """Yield the lines on starting."""
    yield (
        "Seconds of the processor until a command has answered, or until a run on the embedded "
        "benchmark, whose data are there, has taken its first step; the best of "
        f"{result['rounds']}."
    )
    yield ""
    yield f"| until | / `{start.TORCH}` | seconds | goal in seconds | |"
    yield "|---|--:|--:|---|---|"
    # the import is what the others are compared with
    ratios = {start.TORCH: 1.0, **result["over_import_torch"]}
    for name, seconds, goal in start.list_figures(result):
        verdict = " | ".join(_judge(seconds, goal))
        yield f"| {name} | {ratios[name]:.2f} | {seconds:.2f} | {verdict} |"


def tabulate_ratios(figures: Iterable[Figure]) -> Iterator[str]:
    """Yield a table of what was measured, each with its goal and whether it was met."""
    yield "| measured | value | goal | |"
    yield "|---|--:|---|---|"
    for label, value, goal in figures:
        verdict = " | ".join(_judge(value, goal))
        yield f"| {label} | {format_ratio(value)} | {verdict} |"


def _judge(value: float, goal: Goal | None) -> tuple[str, str]:
    """Return a goal in words, and whether it was met."""
    if goal is None:
        return "", ""
    direction, limit = goal
    return f"{direction} {limit:g}", "met" if is_met(value, goal) else "**missed**"


def _count_threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


# in the order of the page
SECTIONS = {
    "consolidation": Section("Penalty and importance", 1, write_consolidation),
    "efcil": Section("Class-incremental training and scoring", 2, write_efcil),
    "classifiers": Section("Classifiers and transports", 2, write_classifiers),
    "loading": Section("Loading images", 1, write_loading),
    "generative": Section("Vision-language models with LoRA", 1, write_generative),
    "start": Section("Starting", 1, write_start),
    "steps": Section("Vision-language steps", 1, write_steps),
}

if __name__ == "__main__":
    main()

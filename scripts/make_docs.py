"""Write the pages of docs/ that are made from the program itself.

python scripts/make_docs.py                 cli, configuration, methods, classifiers, tasks,
                                            and the table on the page fisher
python scripts/make_docs.py --benchmarks    benchmarks, which takes some minutes
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout

from mcit.arguments import Parser
from mcit.bench import consolidation, efcil, generative, loading, start
from mcit.cli import COMMANDS
from mcit.config.options import Kind, OptionInfo, list_options
from mcit.config.schema import RunConfig
from mcit.estimator import PEERS
from mcit.provenance import make_provenance
from mcit.registry import CLASSIFIER, METHOD, TASK, TRANSPORT, Category, find_class, list_names

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Made by scripts/make_docs.py: change the program, not this page. -->"
KINDS = {
    Kind.RESULT: "result",
    Kind.ROUNDING: "last digits",
    Kind.SPEED: "speed",
    Kind.PLACE: "place",
}
# what is measured on how many threads
PEERS_BEGIN = "<!-- peers: made by scripts/make_docs.py -->"
PEERS_END = "<!-- end of peers -->"
BENCHES = {"consolidation": 1, "efcil": 2, "generative": 1, "loading": 1, "start": 1}
# figures of one batch, with the audit
FIRST_BATCH = (
    "importance_first_over_pass",
    "importance_over_best_rival",
    "importance_peak_over_training",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmarks", action="store_true", help="measure, and write that page")
    arguments = parser.parse_args()
    pages = PAGES
    if arguments.benchmarks:
        pages = {"benchmarks": lambda: write_benchmarks(*measure_benchmarks())}
    for name, make in pages.items():
        (DOCS / f"{name}.md").write_text(make(), encoding="utf-8")
        print(f"docs/{name}.md")


# --- parts of pages


def write_fisher() -> str:
    """Return the page of what other codes compute, with the table of their settings."""
    page = (DOCS / "fisher.md").read_text(encoding="utf-8")
    before, opening, rest = page.partition(PEERS_BEGIN)
    _, ending, after = rest.partition(PEERS_END)
    if not opening or not ending:
        raise ValueError(f"docs/fisher.md must have the lines {PEERS_BEGIN} and {PEERS_END}")
    table = "\n".join(_tabulate_peers())
    return f"{before}{opening}\n\n{table}\n\n{ending}{after}"


def _tabulate_peers() -> Iterator[str]:
    """Yield a table of the settings that compute what other code bases do."""
    heads = ("code", "function", "what it computes", "setting", "their importance / ours")
    yield "| " + " | ".join((*heads, "our strength for λ = 1")) + " |"
    yield "|---" * len(heads) + "|--:|"
    named = ""
    for name, setting in PEERS.items():
        # a code base is named in the first of its rows
        code = "" if setting.link == named else f"[{setting.code}]({setting.link})"
        named = setting.link
        cells = [code, setting.function, setting.computes, f"`{name}`", setting.ratio.formula]
        yield "| " + " | ".join([*cells, f"{setting.strength_per_lambda:g}"]) + " |"


# --- reference pages


def write_cli() -> str:
    """Return the page of the command line."""
    lines = [
        "# Command line",
        MADE,
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    modules = {name: import_module(f"mcit.commands.{name}") for name in COMMANDS}
    for name, module in modules.items():
        lines.append(f"| [`mcit {name}`](#mcit-{name}) | {_cell(module.HELP)} |")
    lines += [
        "",
        "`accelerate launch scripts/run_sequence.py` takes the options of `mcit run`.",
        "",
        "A problem that is yours to fix is one message and exit code 2, before anything is "
        "written; "
        "`--debug` shows the traceback too. An interrupted run is saved and exits with code 75.",
    ]
    for name, module in modules.items():
        lines += ["", f"## mcit {name}", "", *_describe_command(name, module.add_options)]
    return _join(lines)


def _describe_command(
    name: str, add_options: Callable[[argparse.ArgumentParser], None]
) -> Iterator[str]:
    parser = Parser(prog=f"mcit {name}")
    add_options(parser)
    if parser.description:
        yield " ".join(parser.description.split())
        yield ""
    yield "| option | meaning |"
    yield "|---|---|"
    for action in parser._actions:
        if action.dest == "help":
            continue
        yield f"| {_describe_action(action)} | {_cell(action.help or '')} |"
    if parser.epilog:
        # commands are indented, sentences are not
        for paragraph in parser.epilog.strip("\n").split("\n\n"):
            yield ""
            if paragraph.startswith("  "):
                yield from ["```text", inspect.cleandoc(paragraph), "```"]
            else:
                yield " ".join(paragraph.split())


def _describe_action(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{_cell(str(action.metavar or value))}`"
    name = action.option_strings[-1]
    if action.nargs == 0:
        return f"`{name}`"
    return f"`{name} {_cell(value)}`"


def write_configuration() -> str:
    """Return the page of all keys of a configuration."""
    lines = [
        "# Configuration",
        MADE,
        "",
        "A configuration is a YAML file (`--config FILE`, or a name in `configs/`). Every key "
        "can be set on the "
        "command line too, `--set training.workers=4`, and in Python, "
        '`mcit.run(..., settings={"training.workers": 4})`. Later wins: '
        "defaults, preset, `--config`, options, "
        "`--set`. `mcit run --print-config` prints the result.",
        "",
        "*Changes* says what another value changes: the result, only its last digits, only "
        "speed, or only where files "
        "are. Runs that differ in nothing but speed and place are the same experiment, and may "
        "be resumed with "
        "another value.",
        "",
        *_tabulate_options(_list_keys(), with_kind=True),
        "",
        "Options of methods, under `method` or `methods.NAME`: [methods](methods.md). Options "
        "of tasks, under "
        "`tasks.NAME`: [tasks](tasks.md).",
    ]
    return _join(lines)


def _list_keys() -> Iterator[OptionInfo]:
    for option in list_options(RunConfig):
        # the options of a method are on another page
        if option.name == "method.name":
            text = "how earlier tasks are protected; its options stand next to it"
            yield dataclasses.replace(option, help=text)
        elif option.name != "method.options":
            yield option


def write_methods() -> str:
    """Return the page of all methods."""
    intro = (
        "Every method, its paper, and its options. `mcit list NAME` prints the same. Options "
        "are set by "
        "`--set method.OPTION=VALUE`, or in a configuration under `methods.NAME`. The fields "
        "of `estimator` are "
        "explained under [what importance means](importance.md)."
    )
    return _write_category("Methods", intro, METHOD)


def write_tasks() -> str:
    """Return the page of all tasks."""
    intro = (
        "Every task, its source, and its options. `mcit list NAME` prints the same. Options "
        "are set by "
        "`--set tasks.NAME.OPTION=VALUE`. Where the files go: [data sets](data.md)."
    )
    return _write_category("Tasks", intro, TASK)


def write_classifiers() -> str:
    """Return the page of all classifiers and transports."""
    intro = (
        "In class-incremental runs three questions are separate: what holds the network "
        "(`--method`), what answers from its features (`--classifier`), and how statistics of old "
        "classes follow a network that moves (`--transport`). Any of the first goes with any of "
        "the others. Several classifiers are scored on one training: `--classifier "
        "head,nearest_mean,lda`. Options are set by `--set classifier.OPTION=VALUE`, or by `--set "
        "classifiers.NAME.OPTION=VALUE` where several are named; those of the transport by `--set "
        "transport.OPTION=VALUE`. `mcit list NAME` prints the same."
    )
    lines = ["# Classifiers and transports", MADE, "", intro, "", "## Classifiers"]
    lines += _describe_names(CLASSIFIER, "###")
    lines += ["", "## Transports"]
    lines += _describe_names(TRANSPORT, "###")
    return _join(lines)


def _write_category(title: str, intro: str, category: Category) -> str:
    return _join([f"# {title}", MADE, "", intro, *_describe_names(category, "##")])


def _describe_names(category: Category, level: str) -> list[str]:
    lines: list[str] = []
    for name in list_names(category):
        cls = find_class(category, name)
        lines += ["", f"{level} {name}", ""]
        lines += _describe_source(sys.modules[cls.__module__].__doc__ or "")
        options = [
            option for option in list_options(cls) if not option.name.startswith("estimator.")
        ]
        if len(options) < len(list(list_options(cls))):
            lines.append(f"Estimator: {_describe_estimator(cls)}.")
            lines.append("")
        lines += _tabulate_options(options) if options else ["No options."]
    return lines


def _describe_estimator(cls: Any) -> str:
    return f"`{cls.estimator.describe()}`"


def _describe_source(text: str) -> Iterator[str]:
    """Yield a module's docstring as Markdown; paragraphs in columns keep their columns."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if re.search(r"\S {3,}\S", paragraph) or paragraph.startswith(("grad ", "loss ")):
            yield from ["```text", paragraph, "```", ""]
        else:
            joined = " ".join(paragraph.split())
            yield re.sub(r"(https?://[^\s,;)]*[^\s,;).])", r"<\1>", joined)
            yield ""


def _tabulate_options(options: Any, with_kind: bool = False) -> list[str]:
    head = "| option | type | default | meaning |"
    rule = "|---|---|---|---|"
    lines = [f"{head} changes |", f"{rule}---|"] if with_kind else [head, rule]
    for option in options:
        cells = [
            f"`{option.name}`",
            _cell(option.type),
            _cell(_show_default(option)),
            _cell(option.help),
        ]
        if with_kind:
            cells.append(KINDS[option.kind])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _show_default(option: OptionInfo) -> str:
    value = option.default
    if option.required:
        return "**required**"
    if value is None or value == () or value == {} or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`"
    return f"`{getattr(value, 'name', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


# --- benchmarks


def measure_benchmarks() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `mcit bench` measures, and on what machine; each in a process of its own."""
    results = {}
    for name, threads in BENCHES.items():
        command = [sys.executable, "-m", "mcit", "bench", name, "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        print(f"mcit bench {name}, {threads} threads ...", file=sys.stderr)
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        results[name] = json.loads(done.stdout)
    found = make_provenance()
    machine = {
        "processor": found["processor"],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "mcit": found["mcit"],
        "torch": found["packages"]["torch"],
        "python": found["python"],
    }
    return results, machine


def write_benchmarks(results: dict[str, Any], machine: dict[str, Any]) -> str:
    """Return the page of benchmarks, goals that were missed included."""
    lines = [
        "# Benchmarks",
        MADE,
        "",
        "What `mcit bench` measured. Each ratio is taken within one run, in turns, against an "
        "implementation written "
        "plainly for the purpose, so that a busy machine slows both sides. Ratios still vary "
        "from run to run. Goals "
        "that were missed are shown as missed.",
        "",
        f"{machine['processor']}, {machine['cores']} cores, no GPU; mcit {machine['mcit']}, "
        f"torch {machine['torch']}, "
        f"Python {machine['python']}. Load average at the end: {machine['load']:.1f}"
        + (
            ", so that the machine was busy with other work."
            if machine["load"] > machine["cores"]
            else "."
        ),
        "",
        "Repeat it with `python scripts/make_docs.py --benchmarks`.",
        "",
        *_show_consolidation(results["consolidation"]),
        "",
        *_show_efcil(results["efcil"]),
        "",
        *_show_loading(results["loading"]),
    ]
    if "generative" in results:
        lines += ["", *_show_generative(results["generative"])]
    lines += ["", *_show_start(results["start"])]
    return _join(lines)


def _show_consolidation(result: dict[str, Any]) -> Iterator[str]:
    yield "## Penalty and importance"
    yield ""
    yield f"`mcit bench consolidation`, {_threads(result)}."
    yield ""
    yield "| measured | ratio | goal | |"
    yield "|---|--:|---|---|"
    millions = result["penalty_parameters"] / 1e6
    milliseconds = 1e3 * result["penalty_seconds"]
    step = f"penalty step on {millions:.0f}M weights ({milliseconds:.0f} ms)"
    yield _ratio(f"{step}: autograd loop / mcit", result["penalty_speedup"], "penalty_speedup")
    yield _ratio(
        "penalty step: mcit / bare memory traffic",
        result["penalty_over_floor"],
        "penalty_over_floor",
    )
    kernels = {
        "penalty_over_kernel": "penalty step: mcit / one fused kernel",
        "penalty_over_kernel_bf16": "penalty step, importance in bfloat16: mcit / the kernel",
    }
    for key, label in kernels.items():
        if key in result:
            yield _ratio(label, result[key], key)
    for name, found in result.get("channels_last", {}).items():
        label = f"penalty step, {name} channels_last: autograd loop / mcit"
        yield _ratio(label, found["penalty_speedup"], "penalty_speedup")
    for key, value in result.get("growth", {}).items():
        label = f"{consolidation.GROWTH_LABELS[key]}: after {consolidation.TASKS} tasks / after one"
        yield _ratio(label, value, "growth")
    for name, value in result["importance_over_pass"].items():
        label = f"importance, {name}: exact per-example squares / plain forward and backward pass"
        yield _ratio(label, value, "importance_over_pass")
    for name, value in result["one_at_a_time_over_ours"].items():
        yield _ratio(f"importance, {name}: one example at a time / mcit", value, "")
    for key in FIRST_BATCH:
        for name, value in result.get(key, {}).items():
            label = f"importance, {name}: {consolidation.IMPORTANCE_LABELS[key]}"
            yield _ratio(label, value, key)
    grows = "grows with" if result["bytes_grow_with_tasks"] else "does not grow with"
    yield ""
    yield (
        f"Importance and anchor take {result['bytes_per_weight']:.0f} bytes per protected "
        f"weight; this {grows} the number "
        "of tasks. The importance pass costs little more than a plain pass because autograd "
        "need not form the weight "
        "gradients that the layer-wise rules form themselves. On a CPU a loop over single "
        "examples is nearly as fast for "
        "a transformer; no GPU was measured."
    )


def _ratio(label: str, value: float, goal: str) -> str:
    if goal not in consolidation.GOALS:
        return f"| {label} | {value:.2f} | | |"
    direction, limit = consolidation.GOALS[goal]
    met = value >= limit if direction == "at least" else value <= limit
    return f"| {label} | {value:.2f} | {direction} {limit:g} | {_met(met)} |"


def _show_efcil(result: dict[str, Any]) -> Iterator[str]:
    yield "## Class-incremental training and scoring"
    yield ""
    yield (
        f"`mcit bench efcil`, {_threads(result)}: whole training steps with data and penalty, "
        "and scoring, against Pillow "
        "transforms in a DataLoader with two workers, an autograd loop for the penalty and "
        "PyTorch's default memory layout."
    )
    yield ""
    yield "| images per second | mcit | reference | speedup | goal | |"
    yield "|---|--:|--:|--:|---|---|"
    for kind, label in (("train", "training"), ("eval", "scoring")):
        for width, speedup in result[f"{kind}_speedup"].items():
            rates = result[f"{kind}_images_per_second"][width]
            goal = efcil.GOALS[width]
            yield (
                f"| {label}, ResNet-18 of width {width} | {rates['ours']:.1f} | "
                f"{rates['reference']:.1f} | "
                f"{speedup:.2f} | at least {goal:g} | {_met(speedup >= goal)} |"
            )
    yield ""
    yield (
        "Where a training step goes, in milliseconds (the reference's penalty has its "
        "backward pass under *backward*):"
    )
    yield ""
    yield f"| width | side | {' | '.join(efcil.PARTS)} | all |"
    yield f"|--:|---|{'--:|' * (len(efcil.PARTS) + 1)}"
    for width, sides in result["milliseconds_per_step"].items():
        for side, parts in sides.items():
            cells = [f"{parts[part]:.1f}" for part in efcil.PARTS]
            name = "mcit" if side == "ours" else side
            yield f"| {width} | {name} | {' | '.join(cells)} | {sum(parts.values()):.1f} |"


def _show_generative(result: dict[str, Any]) -> Iterator[str]:
    yield "## Vision-language models with LoRA"
    yield ""
    yield (
        f"`mcit bench generative`, {_threads(result)}: a LLaVA of about a million weights, LoRA of "
        "rank 8 on all of its linear layers."
    )
    yield ""
    yield "| measured | ratio | goal | |"
    yield "|---|--:|---|---|"
    for label, value, goal in generative.list_figures(result):
        if goal is None:
            yield f"| {label} | {value:.2f} | | |"
            continue
        direction, limit = goal
        verdict = _met(generative.is_met(value, goal))
        yield f"| {label} | {value:.2f} | {direction} {limit:g} | {verdict} |"


def _show_loading(result: dict[str, Any]) -> Iterator[str]:
    width, height = result["image_size"]
    yield "## Loading images"
    yield ""
    yield (
        f"`mcit bench loading`, {_threads(result)}: {result['images']} generated images of "
        f"{width}x{height}, one in {loading.UPRIGHT} upright, with as much detail as photographs, "
        f"read by {result['workers']} workers in batches of {result['batch_size']} as ViLT-B/32 "
        "takes them. Rates are images per second of the processor, workers included, but "
        "not their start. All ways end in the same input, pixel values within one unit in the last "
        "place of 1."
    )
    yield ""
    yield "| way | images/s | times the first |"
    yield "|---|--:|--:|"
    rates = result["images_per_second"]
    for name, label in loading.LABELS.items():
        times = rates[name] / rates[loading.PROCESSOR]
        yield f"| {label} | {rates[name]:.0f} | {times:.1f} |"
    yield ""
    yield "| measured | | goal | |"
    yield "|---|--:|---|---|"
    for label, value, goal in loading.list_figures(result):
        if goal is None:
            yield f"| {label} | {value:.2f} | | |"
            continue
        direction, limit = goal
        verdict = _met(loading.is_met(value, goal))
        yield f"| {label} | {value:.2f} | {direction} {limit:g} | {verdict} |"
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


def _show_start(result: dict[str, Any]) -> Iterator[str]:
    yield "## Starting"
    yield ""
    yield (
        f"`mcit bench start`, {_threads(result)}: seconds of the processor until a command has "
        "answered, or until a run on the embedded benchmark, whose data are there, has taken its "
        "first step; the best of "
        f"{result['rounds']}."
    )
    yield ""
    yield f"| until | / `{start.TORCH}` | seconds | goal in seconds | |"
    yield "|---|--:|--:|---|---|"
    for name, seconds in result["seconds"].items():
        if name == start.TORCH:
            yield f'| `python -c "{name}"` | | {seconds:.2f} | | |'
            continue
        ratio = result["over_import_torch"][name]
        direction, limit = start.GOALS[name]
        verdict = _met(start.is_met(seconds, start.GOALS[name]))
        yield f"| {name} | {ratio:.2f} | {seconds:.2f} | {direction} {limit:g} | {verdict} |"


def _threads(result: dict[str, Any]) -> str:
    count = result["threads"]
    return "1 thread" if count == 1 else f"{count} threads"


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _join(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


PAGES = {
    "cli": write_cli,
    "configuration": write_configuration,
    "methods": write_methods,
    "classifiers": write_classifiers,
    "tasks": write_tasks,
    "fisher": write_fisher,
}

if __name__ == "__main__":
    main()

"""`mcit explore`: where importance lies, and what each score protects in a classifier."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcit.arguments import some_text, whole_number
from mcit.config import ConfigError, suggest
from mcit.errors import DataError
from mcit.folders import find_folder_problem, make_folder

HELP = "look into importance: by layer and modality, its spread, overlap of tasks, and a classifier's rows by class"
DESCRIPTION = """
Look into importance that was saved (by Importance.save or ConsolidationManager.save) or that a run's checkpoint holds:
its share by layer and by modality, its histogram, the overlap between tasks. With --task and --class, and the folder
of a run that has a checkpoint: what EWC, MAS, EWC-DR and log-odds would protect in the classifier for samples of that
class, side by side, measured on the task's training data. Tables are printed and written, with figures, to --output.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `mcit explore`."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "paths",
        nargs="+",
        type=some_text,
        metavar="PATH",
        help="folder of a run, or a file of importance",
    )
    parser.add_argument(
        "--task", type=some_text, help="a task of the run, for the view of its classifier"
    )
    parser.add_argument(
        "--class",
        dest="class_index",
        type=whole_number,
        metavar="K",
        help="the class, as the head counts it",
    )
    parser.add_argument(
        "--samples",
        type=whole_number,
        default=256,
        help="at most so many samples of the class (default: 256)",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder to write to (default: explore/ in the folder of the run, or here)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, measure where that was asked for, print the tables and write everything."""
    check(arguments)
    # from here on torch is needed, which takes seconds to import: a typo is told before
    from mcit.reports.figures.style import write_drawing
    from mcit.reports.formats import format_csv, format_markdown_table, print_tables

    output = choose_output(arguments)
    if arguments.task is None:
        tables, drawings = explore_files(arguments.paths)
    else:
        folder = Path(arguments.paths[0])
        tables, drawings = explore_class(
            folder, arguments.task, arguments.class_index, arguments.samples
        )
    make_folder(output, "--output")
    print_tables(tables)
    files = [write_drawing(drawing, output) for drawing in drawings]
    for table in tables:
        (output / f"{table.name}.md").write_text(
            f"# {table.title}\n\n{format_markdown_table(table)}", encoding="utf-8"
        )
        (output / f"{table.name}.csv").write_text(format_csv(table), encoding="utf-8")
    written = [
        *(f"{table.name}.md and .csv" for table in tables),
        *(f"{file.name}.svg, .pdf, .png" for file in files),
    ]
    print(f"written to {output}: {'; '.join(written)}")
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Raise all that is wrong with the options, in one error."""
    problems = [
        f"there is no importance at {path}: give a file, or the folder of a run"
        for path in arguments.paths
        if not Path(path).exists()
    ]
    if (arguments.task is None) != (arguments.class_index is None):
        problems.append(
            "--task and --class go together: they say whose classifier, and which of its classes"
        )
    if arguments.task is not None and len(arguments.paths) > 1:
        problems.append(
            f"--task looks at one run, found {len(arguments.paths)} paths; give one of them"
        )
    if arguments.class_index is not None and arguments.class_index < 0:
        problems.append(f"--class counts from 0, found {arguments.class_index}")
    if arguments.samples < 1:
        problems.append(f"--samples must be at least 1, found {arguments.samples}")
    problem = (
        None
        if arguments.output is None
        else find_folder_problem(Path(arguments.output), "--output")
    )
    if problem is not None:
        problems.append(problem)
    if problems:
        raise ConfigError(problems)
    if arguments.task is not None:
        check_task(Path(arguments.paths[0]), arguments.task)


def check_task(folder: Path, task: str) -> None:
    """Raise a DataError if a run has scores, and none of that task; without scores its checkpoint tells later."""
    from mcit.reports.runs import SCORES, read_run

    if (folder / SCORES).is_file():
        run = read_run(folder)
        learned = run.tasks[: len(run.matrix.rows)]
        if task not in learned:
            raise DataError(
                f"unknown task {task!r}{suggest(task, learned)} (learned so far: {', '.join(learned)})"
            )


def choose_output(arguments: argparse.Namespace) -> Path:
    """The folder that was given; else `explore/` in the one run, or here."""
    if arguments.output:
        return Path(arguments.output)
    first = Path(arguments.paths[0])
    return (first if len(arguments.paths) == 1 and first.is_dir() else Path.cwd()) / "explore"


def explore_files(paths: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Tables and drawings of the importance that the paths hold."""
    from mcit.reports import explorer, explorer_tables
    from mcit.reports.figures import importance
    from mcit.reports.figures.style import house_style

    sources = explorer.read_sources(paths)
    summaries = [explorer.summarise(source) for source in sources]
    tables = [
        explorer_tables.tabulate_sources(summaries),
        explorer_tables.tabulate_parts(summaries),
        explorer_tables.tabulate_layers(summaries),
    ]
    with house_style():
        drawings = [
            importance.draw_parts(summaries),
            importance.draw_layers(summaries),
            importance.draw_histogram(summaries),
        ]
        if len(sources) > 1:
            overlap = explorer.compare(sources)
            tables.append(explorer_tables.tabulate_overlap(overlap))
            drawings.append(importance.draw_overlap(overlap))
    return tables, drawings


def explore_class(
    folder: Path, task: str, class_index: int, samples: int
) -> tuple[list[Any], list[Any]]:
    """The table and the drawing of what each score protects for samples of a class."""
    from mcit.reports.explorer_tables import tabulate_classes
    from mcit.reports.figures.importance import draw_classes
    from mcit.reports.figures.style import house_style

    view, about = view_class(folder, task, class_index, samples)
    plain = re.sub(r"[^\w.]+", "-", task).strip("-")
    name = f"classifier-{plain}-class-{class_index}"
    with house_style():
        drawing = draw_classes(view, about)
    return [replace(tabulate_classes(view, about), name=name)], [replace(drawing, name=name)]


def view_class(folder: Path, task_name: str, class_index: int, samples: int) -> tuple[Any, str]:
    """What each score protects for samples of a class, in the network of a run's newest checkpoint."""
    from torch import nn

    from mcit.commands.run import prepare
    from mcit.config import RunConfig, parse, read_yaml
    from mcit.reports.classifier import view_classifier
    from mcit.reports.restored import read_newest, restore

    if not (folder / "config.yaml").is_file():
        raise DataError(
            f"{folder} is no folder of a run: it has no config.yaml; give one that `mcit run` wrote"
        )
    snapshot = read_newest(folder)
    restored = restore(prepare(parse(RunConfig, read_yaml(folder / "config.yaml"))), snapshot)
    task = restored.find_task(task_name)
    learner = restored.prepare(task)
    path = f"heads.{task.head.name}"
    linears = [
        name
        for name, module in learner.get_submodule(path).named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        view = view_classifier(
            learner,
            restored.stage.loader(task, "train"),
            f"{path}.{linears[-1]}.weight",
            class_index,
            forward=lambda model, batch: (model(batch, task.head), task.target(batch)),
            most=samples,
        )
    except ValueError as error:
        raise DataError(f"{task_name}: {error}") from None
    return view, f"after {restored.task}, "

"""`mcit explore`: where importance lies, and what each score protects in a classifier."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mcit.arguments import some_text, whole_number
from mcit.errors import ConfigError, DataError
from mcit.files import find_folder_problem, make_folder
from mcit.spelling import suggest

HELP = "show how importance is spread over layers and modalities, and how much of it tasks share"
DESCRIPTION = """
Show the importance that runs keep (or that Importance.save wrote): its share by layer and by
modality, its histogram, and the overlap between tasks. With --task and --class, and the folder of a
run that has a checkpoint: what EWC, MAS, EWC-DR and log-odds would protect in the classifier for
samples of that class, measured on the task's training data. Tables are printed and written, with
figures, to --output.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit explore`."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "paths",
        nargs="+",
        type=some_text,
        metavar="PATH",
        help="folder of a run, or a file of importance",
    )
    parser.add_argument(
        "--task", type=some_text, help="a task of the run whose classifier is shown"
    )
    parser.add_argument(
        "--class",
        dest="class_index",
        type=whole_number,
        metavar="K",
        help="the number of the class in the task's head",
    )
    parser.add_argument(
        "--samples",
        type=whole_number,
        default=256,
        help="use at most this many samples of the class (default: 256)",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder to write to (default: explore/ in the folder of the run, or here)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read or measure importance, print the tables and write everything."""
    check(arguments)
    # torch takes seconds to import: a mistake is reported before
    from mcit.files import write_text
    from mcit.reports.extras import check_extra
    from mcit.reports.formats import format_csv, format_markdown_table, print_tables

    check_extra()
    from mcit.reports.figures.style import SCREEN, drawing_in, write_drawing

    output = choose_output(arguments)
    with drawing_in(SCREEN):
        if arguments.task is None:
            tables, drawings = explore_files(arguments.paths)
        else:
            tables, drawings = explore_class(arguments)
        make_folder(output, "--output")
        for drawing in drawings:
            write_drawing(drawing, output)
    print_tables(tables)
    for table in tables:
        text = f"# {table.title}\n\n{format_markdown_table(table)}"
        write_text(output / f"{table.name}.md", text)
        write_text(output / f"{table.name}.csv", format_csv(table))
    names = dict.fromkeys(each.name for each in [*tables, *drawings])
    print(f"written to {output}: {', '.join(names)}")
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Raise a ConfigError with all that is wrong with the options."""
    problems = [
        f"there is no importance at {path}: give a file, or the folder of a run"
        for path in arguments.paths
        if not Path(path).exists()
    ]
    if (arguments.task is None) != (arguments.class_index is None):
        problems.append("--task and --class go together: a classifier, and one of its classes")
    if arguments.task is not None and len(arguments.paths) > 1:
        problems.append(
            f"--task looks at a single run, found {len(arguments.paths)} paths; give one"
        )
    if arguments.class_index is not None and arguments.class_index < 0:
        problems.append(f"--class counts from 0, found {arguments.class_index}")
    if arguments.samples < 1:
        problems.append(f"--samples must be at least 1, found {arguments.samples}")
    if arguments.output is not None:
        problem = find_folder_problem(Path(arguments.output), "--output")
        problems += [] if problem is None else [problem]
    if problems:
        raise ConfigError(problems)


def choose_output(arguments: argparse.Namespace) -> Path:
    """Return the folder that was given, else `explore/` in the one run, or here."""
    if arguments.output:
        return Path(arguments.output)
    first = Path(arguments.paths[0])
    if len(arguments.paths) == 1 and first.is_dir():
        return first / "explore"
    return Path("explore")


def explore_files(paths: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return tables and drawings of the importance at these paths."""
    from mcit.reports import explorer
    from mcit.reports.figures import importance
    from mcit.reports.figures.style import SCREEN

    sources = explorer.read_sources(paths)
    summaries = [explorer.summarize_source(source) for source in sources]
    tables = [
        explorer.tabulate_sources(summaries),
        explorer.tabulate_parts(summaries),
        explorer.tabulate_layers(summaries),
    ]
    drawings = [
        importance.draw_parts(summaries, SCREEN),
        importance.draw_layers(summaries, SCREEN),
        importance.draw_histogram(summaries, SCREEN),
    ]
    if len(sources) > 1:
        overlap = explorer.compare_sources(sources)
        tables.append(explorer.tabulate_overlap(overlap))
        drawings.append(importance.draw_overlap(overlap, SCREEN))
    return tables, drawings


def explore_class(arguments: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Return the table and the drawing of what each score protects for samples of a class."""
    from mcit.reports.class_table import tabulate_classes
    from mcit.reports.figures.importance import draw_classes
    from mcit.reports.figures.style import SCREEN
    from mcit.reports.runs import SCORES, read_run
    from mcit.reports.tables import make_slug

    folder = Path(arguments.paths[0])
    if (folder / SCORES).is_file():
        # scores are read in no time, a network is not
        run = read_run(folder)
        check_task(arguments.task, run.tasks[: run.learned])
    view, last = view_class(folder, arguments.task, arguments.class_index, arguments.samples)
    name = f"classifier-{make_slug(arguments.task)}-class-{arguments.class_index}"
    about = f"after {last}"
    drawing = draw_classes(view, name, about, SCREEN)
    return [tabulate_classes(view, name, about)], [drawing]


def check_task(task: str, learned: Iterable[str]) -> None:
    """Raise a DataError if a task is not one that was learned."""
    if task not in learned:
        names = ", ".join(learned)
        near = suggest(task, learned)
        raise DataError(f"unknown task {task!r}{near} (learned so far: {names})")


def view_class(folder: Path, task_name: str, class_index: int, samples: int) -> tuple[Any, str]:
    """Return what is protected in the newest checkpoint of a run, and the last task it learned."""
    from mcit.api import load_run
    from mcit.class_importance import view_classifier

    trained = load_run(folder)
    task = trained.find_task(task_name)
    trained.session.method.before_scoring(trained.stage, task)

    def forward(model: Any, batch: Any) -> Any:
        return model(batch, task.head).logits, task.target(batch)

    batches = (part.batch for part in trained.stage.load(task, "train"))
    weight = trained.learner.classifier_weight(task.head)
    try:
        view = view_classifier(
            trained.learner, batches, weight, class_index, forward=forward, most=samples
        )
    except ValueError as error:
        raise DataError(f"{task_name}: {error}") from None
    return view, trained.stage.task.name

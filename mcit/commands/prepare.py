"""`mcit prepare`: resize the images of the vision-language tasks once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcit.arguments import some_text, split_list, whole_number
from mcit.commands.doctor import add_data_options, check_tasks, read_root, read_task_options
from mcit.errors import ConfigError, DataError
from mcit.printable import printable

if TYPE_CHECKING:
    from mcit.data.images import Picture
    from mcit.data.resizing import Resizing

HELP = "resize images once, so that training reads them several times faster"
DESCRIPTION = """
Resize every image of the tasks to the size that ViLT takes, and store it losslessly in
DIR/.mcit/images (or in $MCIT_CACHE if DIR cannot be written to). Training then reads the same
pixels from there. The command can be stopped and started again at any time; images that have
changed since are resized again. Exit code: 0, or 1 if some images cannot be read (they are listed),
2 on errors.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_data_options(parser, example="tasks.vcr.rationale=true")
    parser.add_argument(
        "--order",
        type=split_list,
        default=[],
        help="tasks to prepare, comma-separated (default: all whose data are there)",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="number of processes (default: one per processor)",
    )
    parser.add_argument(
        "--model",
        type=some_text,
        help="resize images for this checkpoint (default: ViLT-B/32, or the embedded ViLT)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also read the files that exist, and replace damaged ones",
    )


def run(arguments: argparse.Namespace) -> int:
    root = read_root(arguments.data_root)
    options = read_task_options(arguments.set)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError([f"--jobs must be at least 1, found {arguments.jobs}"])
    check_tasks(arguments.order, options)
    from mcit.data.preparing import do_work, plan_work
    from mcit.data.problems import SHOWN
    from mcit.data.workers import count_jobs

    resizing = choose_resizing(root, arguments.model)
    pictures = find_pictures(root, arguments.order, options)
    if not pictures:
        return 0
    work = plan_work(root, pictures, resizing, arguments.verify)
    remaining = len(work.pictures)
    print(f"{work.folder}: {work.kept:,} images are there, {remaining:,} to do", flush=True)
    if not work.pictures and not work.outdated:
        return 0
    jobs = count_jobs(arguments.jobs)
    if work.pictures:
        print(f"about {show_bytes(work.bytes)} in {jobs} processes", flush=True)
    try:
        written = do_work(work, jobs)
    except KeyboardInterrupt:
        print("finished images are kept; the same command continues from there")
        raise
    size = show_bytes(written.bytes)
    print(f"{written.pictures:,} images written, {size}; training uses them from now on")
    if not written.problems:
        return 0
    for name, problem in list(written.problems.items())[:SHOWN]:
        print(printable(f"  cannot be read: {name}: {problem}"))
    count = len(written.problems)
    print(f"{count:,} images cannot be read; `mcit doctor --deep` names their records")
    return 1


def show_bytes(count: int) -> str:
    """Return a number of bytes in megabytes, or in gigabytes if there are many."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB"


def choose_resizing(root: Path, model: str | None) -> Resizing:
    """Return how images are resized: as the checkpoint does, or the model for these data."""
    from mcit.data.resizing import Resizing

    if model is None:
        if not (root / "embedded.json").is_file():
            return Resizing()
        model = "embedded"
    from mcit.embedded.benchmark import VILT
    from mcit.models.vilt_inputs import read_image_settings, resizing_of

    resizing = resizing_of(read_image_settings(str(VILT) if model == "embedded" else model))
    if resizing is None:
        raise ConfigError([f"{model} does not resize images, so there is nothing to prepare"])
    return resizing


def find_pictures(
    root: Path, named: list[str], options: dict[str, dict[str, Any]]
) -> list[Picture]:
    """Return the pictures of the tasks, none if no task that was named has any.

    A task that was not named and whose data are not there is left alone, and that is said.
    """
    from mcit.data.annotated import AnnotatedTask
    from mcit.data.preparing import collect_pictures
    from mcit.doctor.examination import make_tasks

    pictures: dict[str, Picture] = {}
    has_pictures = not named
    for task in make_tasks(root, named, options):
        if not isinstance(task, AnnotatedTask):
            if named:
                print(f"{task.dataset}: its images are used as they are; nothing to prepare")
            continue
        has_pictures = True
        try:
            pictures.update(collect_pictures(task, "train", "eval"))
        except DataError as error:
            if named:
                raise
            print(f"{task.name}: left alone, {error}")
    if has_pictures and not pictures:
        raise DataError(
            f"no images to prepare in {root}; `mcit doctor --data-root {root}` says what is missing"
        )
    return list(pictures.values())

"""`mcit prepare`: resize the images of the vision-language tasks once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mcit.arguments import some_text, split_list, whole_number
from mcit.commands.doctor import check_tasks, read_root, read_task_options
from mcit.config import ConfigError
from mcit.printable import printable

SHOWN = 20  # problems that are listed
HELP = "resize images once, so that training reads them several times faster"
DESCRIPTION = """
Resize every image that the tasks show to what ViLT takes, losslessly, into DIR/.mcit/images (or into $MCIT_CACHE where
DIR cannot be written). Training then reads the same pixels from there. It can be stopped and started again at any time;
what has changed since the last time is made anew. Exit code: 0, or 1 if some images cannot be read (they are listed),
2 on errors.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "--data-root",
        required=True,
        type=some_text,
        metavar="DIR",
        help="folder of the official data",
    )
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
        help="processes (default: one for every processor)",
    )
    parser.add_argument(
        "--model",
        type=some_text,
        help="size images for this checkpoint (default: ViLT-B/32, or the embedded ViLT)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also read all that is there, and make damaged files anew",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="e.g. tasks.vcr.rationale=true",
    )


def run(arguments: argparse.Namespace) -> int:
    root, options = read_root(arguments.data_root), read_task_options(arguments.set)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError([f"--jobs must be at least 1, found {arguments.jobs}"])
    check_tasks(arguments.order, options)
    from mcit.data.pool import count_jobs
    from mcit.data.preparing import do_work, plan_work

    resizing = choose_resizing(root, arguments.model)
    pictures = find_pictures(root, arguments.order, options)
    if not pictures:
        return 0
    work = plan_work(root, list(pictures.values()), resizing, arguments.verify)
    print(
        f"{work.folder}: {work.kept:,} images are there, {len(work.pictures):,} to do", flush=True
    )
    if not work.pictures and not work.outdated:
        return 0
    if work.pictures:
        print(
            f"about {show_bytes(work.bytes)} in {count_jobs(arguments.jobs)} processes", flush=True
        )
    try:
        done = do_work(work, count_jobs(arguments.jobs))
    except KeyboardInterrupt:
        print("what is done is kept; the same command goes on from there")
        raise
    print(
        f"{done.pictures:,} images written, {show_bytes(done.bytes)}; training uses them from now on"
    )
    for name, problem in list(done.problems.items())[:SHOWN]:
        print(printable(f"  cannot be read: {name}: {problem}"))
    if done.problems:
        print(
            f"{len(done.problems):,} images cannot be read; `mcit doctor --deep` names their records"
        )
    return 1 if done.problems else 0


def describe_left_alone(name: str, problems: list[str]) -> list[str]:
    """Lines that say why a task is not prepared: one problem beside its name, several below it."""
    if len(problems) == 1:
        return [f"{name}: left alone, {problems[0]}"]
    lines = [f"{name}: left alone, its data have {len(problems)} problems:"]
    lines += [f"  - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  ... and {len(problems) - SHOWN} more")
    return lines


def show_bytes(count: int) -> str:
    """In megabytes, or in gigabytes where there are many."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def choose_resizing(root: Path, model: str | None) -> Any:
    """How images are resized: as a checkpoint does, or as the model does that these data are for."""
    from mcit.data.resizing import Resizing

    if model is None and not (root / "embedded.json").is_file():
        return Resizing()
    from mcit.embedded import VILT
    from mcit.models.vilt_inputs import read_resizing

    found = read_resizing(str(VILT) if model in (None, "embedded") else model)
    if found is None:
        raise ConfigError([f"{model} does not resize images, so there is nothing to prepare"])
    return found


def find_pictures(root: Path, named: list[str], options: dict[str, dict]) -> dict[str, Any]:
    """What the tasks show, by name; nothing where those that were named show none that could be resized.

    Tasks that were not named and whose data are not there are left alone, and that is said.
    """
    from mcit.data.annotated import AnnotatedTask
    from mcit.data.preparing import collect_pictures
    from mcit.data.records import problems_of
    from mcit.doctor.examination import make_tasks
    from mcit.errors import DataError

    pictures: dict[str, Any] = {}
    tasks = make_tasks(root, named, options)
    for task in tasks:
        if not isinstance(task, AnnotatedTask):
            if named:
                print(f"{task.dataset}: its images are used as they are; nothing to prepare")
            continue
        try:
            for split in ("train", "eval"):
                pictures.update(collect_pictures(task, split))
        except DataError as error:
            if named:
                raise
            for line in describe_left_alone(task.name, problems_of(error)):
                print(line)
    if named and not any(isinstance(task, AnnotatedTask) for task in tasks):
        return {}
    if not pictures:
        raise DataError(
            f"no images to prepare in {root}; `mcit doctor --data-root {root}` tells what is missing"
        )
    return pictures

"""`mcit prepare`: resize the images of the vision-language tasks once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mcit.commands.doctor import read_root, read_task_options
from mcit.config import ConfigError

HELP = "resize images once, so that training reads them several times faster"
DESCRIPTION = """
Resize every image that the tasks show to what ViLT takes, losslessly, into DIR/.mcit/images (or into $MCIT_CACHE where
DIR cannot be written). Training then reads the same pixels from there. It can be stopped and started again at any time;
what has changed since the last time is made anew. Exit code: 0, or 1 if some images cannot be read (they are listed),
2 on errors.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("--data-root", required=True, metavar="DIR", help="folder of the official data")
    parser.add_argument("--order", help="tasks to prepare, comma-separated; without it, all whose data are there")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for every processor)")
    parser.add_argument("--model", help="size images for this checkpoint (default: ViLT-B/32, or the embedded ViLT)")
    parser.add_argument(
        "--verify", action="store_true", help="also read all that is there, and make damaged files anew"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. tasks.vcr.rationale=true")


def run(arguments: argparse.Namespace) -> int:
    root, options = read_root(arguments.data_root), read_task_options(arguments.set)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ConfigError([f"--jobs must be at least 1, found {arguments.jobs}"])
    from mcit.data.pool import count_jobs
    from mcit.data.preparing import do_work, plan_work

    resizing = choose_resizing(root, arguments.model)
    pictures = find_pictures(root, arguments.order, options)
    work = plan_work(root, list(pictures.values()), resizing, arguments.verify)
    print(f"{work.folder}: {work.kept:,} images are there, {len(work.pictures):,} to do", flush=True)
    if not work.pictures and not work.outdated:
        return 0
    if work.pictures:
        print(f"about {show_bytes(work.bytes)} in {count_jobs(arguments.jobs)} processes", flush=True)
    try:
        done = do_work(work, count_jobs(arguments.jobs))
    except KeyboardInterrupt:
        print("what is done is kept; the same command goes on from there")
        raise
    print(f"{done.pictures:,} images written, {show_bytes(done.bytes)}; training uses them from now on")
    for name, problem in list(done.problems.items())[:20]:
        print(f"  cannot be read: {name}: {problem}")
    if done.problems:
        print(f"{len(done.problems):,} images cannot be read; `mcit doctor --deep` names their records")
    return 1 if done.problems else 0


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


def find_pictures(root: Path, order: str | None, options: dict[str, dict]) -> dict[str, Any]:
    """What the tasks show, by name. Tasks that were not named and whose data are not there are left alone, and said."""
    from mcit.data.annotated import AnnotatedTask
    from mcit.data.preparing import collect_pictures
    from mcit.doctor.examination import make_tasks
    from mcit.task import DataError

    named = [item.strip() for item in (order or "").split(",") if item.strip()]
    pictures: dict[str, Any] = {}
    for task in make_tasks(root, named, options):
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
            print(f"{task.name}: left alone, {str(error).splitlines()[0]}")
    if not pictures:
        raise DataError(f"no images to prepare in {root}; `mcit doctor --data-root {root}` tells what is missing")
    return pictures

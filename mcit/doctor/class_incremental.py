"""The doctor's look at a data set that is learned class by class."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.image_folders import NOT_HERE, Images
from mcit.data.splits import order_classes
from mcit.doctor.annotated import SKIP
from mcit.doctor.findings import MISSING, Finding, SplitFinding
from mcit.doctor.layout import explain_missing
from mcit.task import DataError

_SAMPLE = 32  # images that are opened of a split whose images stay in files
_TRIED = 3  # classes of which all images are opened without --deep, where images are small


def examine_classes(task: ClassIncrementalTask, deep: bool) -> Finding:
    """Classes and images counted, some or all of them opened."""
    finding = Finding(task.dataset, track="efcil")
    present: dict[str, Counter[int]] = {}
    for split in ("train", "eval"):
        finding.splits[split] = SplitFinding(split, official=task.sizes.get(split))
        try:
            present[split] = task.count_labels(split)
        except DataError as error:
            _explain(task, error, finding)
        else:
            finding.splits[split].examples = present[split].total()
    if len(present) == 2:
        labels = _count_classes(task, present, finding)
        finding.order = f"{task.dataset}:{_split_evenly(len(labels))}"
        for split in present if labels else ():
            _open_images(task, split, labels, deep, finding)
    return finding


def _explain(task: ClassIncrementalTask, error: DataError, finding: Finding) -> None:
    root, text = task.root, str(error)
    if NOT_HERE not in text:
        finding.add(text, f"download it again from {task.page}")
        return
    fetch = f"download from {task.page} and put it in {shlex.quote(str(root / task.home))}"
    problem = explain_missing(root, root / task.home, task.archives, fetch)
    needed = text.partition(f"{NOT_HERE}: ")[2].partition(" (looked in")[0]
    finding.add(
        needed if problem.text.endswith(MISSING) else problem.text, problem.remedy, problem.status
    )


def _count_classes(
    task: ClassIncrementalTask, present: dict[str, Counter[int]], finding: Finding
) -> list[int]:
    """The labels that can be learned: all, or as many of the class order as are there from its start."""
    both = present["train"].keys() & present["eval"].keys()
    order = order_classes(
        task.class_count, 1993 if task.class_order_seed is None else task.class_order_seed
    )
    usable = next((place for place, label in enumerate(order) if label not in both), len(order))
    wanted = task.classes or task.class_count
    if usable >= wanted:
        return order[:wanted]
    here = f"{len(both)} of {task.class_count} classes are there"
    if usable == 0:
        seed = f"the first that is learned in the order of seed {task.class_order_seed} is not among them"
        finding.add(f"{here}, and {seed}", f"download all from {task.page}")
        return []
    finding.notes.append(f"{here}; a run can learn the first {usable} of the class order")
    finding.options.append(f"--set tasks.{task.dataset}.classes={usable}")
    return order[:usable]


def _split_evenly(classes: int) -> str:
    """Ten tasks where that makes sense, else five, else one for each class."""
    tasks = next(
        (tasks for tasks in (10, 5) if classes % tasks == 0 and classes >= 4 * tasks),
        max(1, classes),
    )
    return f"{tasks}x{max(1, classes // tasks)}"


def _open_images(
    task: ClassIncrementalTask, split: str, labels: list[int], deep: bool, finding: Finding
) -> None:
    tried = (
        labels
        if deep
        else [labels[place] for place in {0, len(labels) // 2, len(labels) - 1}][:_TRIED]
    )
    # a part of its own, so that what is left out is counted here only
    lenient = replace(
        task, on_bad_record="skip" if deep else "fail", part=replace(task.part, pool={}, skipped={})
    )
    try:
        images = lenient.read_images(split, tried)
        _fetch_some(images)
    except DataError as error:
        finding.add(str(error), SKIP, "fixable")
        return
    bad = lenient.part.skipped.get(split)
    if bad is not None and len(bad):
        described = bad.describe(len(images.labels) + len(bad)).replace("are left out", "are wrong")
        finding.add(f"{split}: {described}", SKIP, "fixable")


def _fetch_some(images: Images) -> None:
    if len(images.labels):
        rows = np.unique(np.linspace(0, len(images.labels) - 1, _SAMPLE).astype(int))
        images.fetch(torch.from_numpy(rows), training=False)

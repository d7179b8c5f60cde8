"""The doctor's look at a data set that is learned class by class."""

from __future__ import annotations

import shlex
from collections import Counter

import numpy as np
import torch

from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.problems import BadRecords, MissingData, refuse
from mcit.doctor.findings import SKIP, Finding, Problem, SplitFinding
from mcit.doctor.layout import explain_missing
from mcit.errors import DataError

# images of a split that are opened if they stay in files
_SAMPLE = 32


def examine_classes(task: ClassIncrementalTask, deep: bool) -> Finding:
    """Count classes and images, and open some or all of them."""
    finding = Finding(task.dataset, track=task.track)
    present: list[Counter[int]] = []
    for split in ("train", "eval"):
        noted = SplitFinding(split, official=task.sizes.get(split))
        finding.splits[split] = noted
        try:
            counts = task.count_labels(split)
        except DataError as error:
            finding.add(_explain(task, error))
        else:
            noted.examples = counts.total()
            present.append(counts)
    if len(present) < 2:
        return finding
    labels = _choose_classes(task, present, finding)
    if labels:
        finding.order = f"{task.dataset}:{_split_evenly(len(labels))}"
        for split in ("train", "eval"):
            _open_images(task, split, labels, deep=deep, finding=finding)
    return finding


def _explain(task: ClassIncrementalTask, error: DataError) -> Problem:
    """Return why the images could not be listed: they are elsewhere, or nowhere, or wrong."""
    if not isinstance(error, MissingData):
        return Problem(str(error), f"download it again from {task.page}")
    home = task.path(task.home)
    fetch = f"download from {task.page} and put it in {shlex.quote(str(home))}"
    problem = explain_missing(task.path(), home, task.archives, fetch)
    if problem.absent:
        return Problem(error.needed, fetch)
    return problem


def _choose_classes(
    task: ClassIncrementalTask, present: list[Counter[int]], finding: Finding
) -> list[int]:
    """Return the labels that can be learned: all, or those that the class order begins with."""
    both = present[0].keys() & present[1].keys()
    order = list(task.part.order)
    usable = 0
    while usable < len(order) and order[usable] in both:
        usable += 1
    if usable == len(order):
        return order
    here = f"{len(both)} of {task.class_count} classes are there"
    if usable == 0:
        text = (
            f"{here}, and the first class in the order of seed "
            f"{task.class_order_seed} is not among them"
        )
        finding.add(Problem(text, f"download all from {task.page}"))
    else:
        finding.notes.append(f"{here}; a run can learn the first {usable} of the class order")
        finding.options.append(f"--set tasks.{task.dataset}.classes={usable}")
    return order[:usable]


def _split_evenly(classes: int) -> str:
    """Return ten tasks if that makes sense, else five, else one for each class."""
    for tasks in (10, 5):
        if classes % tasks == 0 and classes >= 4 * tasks:
            return f"{tasks}x{classes // tasks}"
    return f"{classes}x1"


def _open_images(
    task: ClassIncrementalTask, split: str, labels: list[int], deep: bool, finding: Finding
) -> None:
    """Note images that cannot be opened: of all classes, or of three until the first."""
    bad = BadRecords()
    chosen = labels if deep else sorted({labels[0], labels[len(labels) // 2], labels[-1]})
    try:
        images = task.read_images(split, chosen, bad.add if deep else refuse)
        count = len(images.labels)
        if count:
            rows = np.unique(np.linspace(0, count - 1, _SAMPLE).astype(int))
            task.eval_transform(images.load_rows(torch.from_numpy(rows)))
    except DataError as error:
        finding.add(Problem(str(error), SKIP, "fixable"))
        return
    if len(bad):
        described = bad.describe(count + len(bad), verdict="wrong")
        finding.add(Problem(f"{split}: {described}", SKIP, "fixable"))

"""`mcit bench steps`: a vision-language step beside transformers' own processor and model.

Ours is what a run on the embedded benchmark does, with its precision there and in single precision.
The reference is what one writes with transformers: images opened with Pillow, ViltProcessor on
every batch, ViltModel with a linear head, AdamW. Both learn SNLI-VE with the small ViLT that ships,
over several epochs of the same examples, and score them; they take turns.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import ViltModel, ViltProcessor

from mcit.bench.measuring import Goal, is_met
from mcit.config.files import load_config
from mcit.embedded.benchmark import VILT, Sizes, write_benchmark
from mcit.models.pretrained import quiet_transformers, read_config
from mcit.models.vilt_inputs import ViltInputs
from mcit.parallel.launch import AUTO, choose_precision
from mcit.reports.formats import print_whole
from mcit.runner.plan import resolve
from mcit.session import Session

TASK = "snli-ve"
LABELS = ("entailment", "neutral", "contradiction")
RATE = 2e-4
GOAL: Goal = ("at least", 1.5)
KINDS = {"train": "training step", "eval": "scoring"}


@dataclass(frozen=True)
class Size:
    """How much is measured: examples of a batch, batches and epochs of a round, rounds."""

    batch: int
    steps: int
    epochs: int
    rounds: int


FULL = Size(batch=16, steps=12, epochs=3, rounds=3)
QUICK = Size(batch=4, steps=2, epochs=2, rounds=1)
# returns the seconds of a round
Round = Callable[[], float]


def measure(quick: bool = False) -> dict[str, Any]:
    """Return examples per second of both sides, and their ratios; `quick`: fewer and smaller."""
    size = QUICK if quick else FULL
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "quick": quick}
    with tempfile.TemporaryDirectory(prefix="mcit-bench-") as folder:
        examples = size.batch * size.steps
        root = Path(folder) / "data"
        before = os.environ.get("MCIT_CACHE")
        # nothing of this stays
        os.environ["MCIT_CACHE"] = str(Path(folder) / "cache")
        try:
            write_benchmark(root, Sizes(train=examples, evaluation=examples))
            # one precision holds for a program at a time
            for precision in dict.fromkeys(("no", choose_precision(AUTO))):
                result[precision] = compare(root, size, precision)
        finally:
            os.environ.pop("MCIT_CACHE") if before is None else os.environ.update(MCIT_CACHE=before)
    return result


def compare(root: Path, size: Size, precision: str) -> dict[str, dict[str, float]]:
    """Return rates and their ratio, of training and of scoring."""
    ours = OurSteps(root, size, precision)
    reference = PlainSteps(root, size)
    trained = size.batch * (size.steps * size.epochs - 1)
    scored = size.batch * size.steps
    return {
        "train": _alternate(ours.train, reference.train, trained, size.rounds),
        "eval": _alternate(ours.score, reference.score, scored, size.rounds),
    }


class OurSteps:
    """The first task of a run, as `mcit run` trains and scores it."""

    def __init__(self, root: Path, size: Size, precision: str):
        config = load_config(
            options={"order": TASK, "method": "finetune"},
            assignments=[
                f"training.mixed_precision={precision}",
                f"training.eval_batch_size={size.batch}",
                f"tasks.{TASK}.recipe.batch_size={size.batch}",
                f"tasks.{TASK}.recipe.epochs={size.epochs}",
                f"tasks.{TASK}.recipe.learning_rate={RATE}",
            ],
        )
        self.session = Session(resolve(config, root))
        self.stage = self.session.stage(0)
        self.session.begin(self.stage)

    def train(self) -> float:
        """Return the seconds of all steps but the first."""
        moments: list[float] = []

        def note(taken: int, total: int, optimizer: torch.optim.Optimizer) -> None:
            moments.append(_now())

        self.session.trainer.fit(self.stage, self.session.method, on_step=note)
        return moments[-1] - moments[0]

    def score(self) -> float:
        """Return the seconds of scoring the task."""
        begun = _now()
        self.session.trainer.evaluate(self.stage, self.stage.task)
        return _now() - begun


class PlainSteps:
    """The same model and examples, with transformers alone."""

    def __init__(self, root: Path, size: Size):
        self.size = size
        folder = str(VILT)
        inputs = ViltInputs.from_pretrained(folder, read_config(folder))
        self.processor = ViltProcessor(inputs.images, inputs.tokenizer)
        self.limit = inputs.limit
        with quiet_transformers():
            self.model = ViltModel.from_pretrained(
                folder, use_safetensors=True, local_files_only=True
            )
        self.head = nn.Linear(self.model.config.hidden_size, len(LABELS))
        self.images = root / "flickr30k" / "flickr30k_images"
        self.rows = {split: _read_rows(root, split) for split in ("train", "dev")}

    def train(self) -> float:
        """Return the seconds of all steps but the first."""
        self.model.train()
        weights = [*self.model.parameters(), *self.head.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=RATE)
        moments: list[float] = []
        for _ in range(self.size.epochs):
            for logits, labels in self._answer("train", shuffled=True):
                optimizer.zero_grad()
                F.cross_entropy(logits, labels).backward()
                nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                moments.append(_now())
        return moments[-1] - moments[0]

    @torch.no_grad()
    def score(self) -> float:
        """Return the seconds of scoring the task."""
        self.model.eval()
        begun = _now()
        right = 0
        for logits, labels in self._answer("dev"):
            right += int((logits.argmax(dim=1) == labels).sum())
        return _now() - begun

    def _answer(self, split: str, shuffled: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits and labels of all batches of a split."""
        rows = list(self.rows[split])
        if shuffled:
            Random(0).shuffle(rows)
        for start in range(0, len(rows), self.size.batch):
            part = rows[start : start + self.size.batch]
            pictures = [Image.open(self.images / f"{row['Flickr30K_ID']}.jpg") for row in part]
            batch = self.processor(
                [picture.convert("RGB") for picture in pictures],
                [row["sentence2"] for row in part],
                padding=True,
                truncation=True,
                max_length=self.limit,
                return_tensors="pt",
            )
            labels = torch.tensor([LABELS.index(row["gold_label"]) for row in part])
            yield self.head(self.model(**batch).pooler_output), labels


def _read_rows(root: Path, split: str) -> list[dict[str, Any]]:
    text = (root / "snli-ve" / f"snli_ve_{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _now() -> float:
    """Return seconds; with one thread those of the processor, which waiting does not add to."""
    if torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def _alternate(ours: Round, reference: Round, examples: int, rounds: int) -> dict[str, float]:
    """Return the best of several rounds in turns, after one that does not count."""
    ours()
    reference()
    mine = float("inf")
    theirs = float("inf")
    for _ in range(rounds):
        mine = min(mine, ours())
        theirs = min(theirs, reference())
    return {"speedup": theirs / mine, "ours": examples / mine, "reference": examples / theirs}


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what was measured, the figure and its goal: a run's own precision is what counts."""
    precisions = [name for name in ("no", "bf16") if name in result]
    for kind, label in KINDS.items():
        for precision in precisions:
            shown = "single precision" if precision == "no" else precision
            goal = GOAL if kind == "train" and precision == precisions[-1] else None
            what = f"{label}, {shown}: mcit / ViltProcessor and ViltModel"
            yield what, result[precision][kind]["speedup"], goal


def print_result(result: dict[str, Any]) -> None:
    """Print the rates and the ratios, each with its goal and whether it was met."""
    title = f"mcit bench steps, small ViLT, {result['threads']} threads"
    table = Table(title=title, title_justify="left")
    table.add_column("measured")
    for column in ("ratio", "goal", "met"):
        table.add_column(column, justify="right")
    for label, value, goal in list_figures(result):
        cells = ["", ""]
        if goal is not None:
            direction, limit = goal
            cells = [f"{direction} {limit:g}", "yes" if is_met(value, goal) else "NO"]
        table.add_row(label, f"{value:.2f}", *cells)
    print_whole(table, Console(highlight=False))

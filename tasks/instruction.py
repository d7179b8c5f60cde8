"""Instructions of your own: any file in LLaVA's format, without a line of Python.

    --order instruction:a.json,instruction:b.json --data-root DIR

A file is looked for below the data root, or has an absolute path; images are below the data root,
or below `images`. The task is called like its file, or like the folder of a file that is called
train.json. It is scored on the file next to it that is called a_test.json or a_val.json (test.json
or val.json next to train.json); if there is none, every tenth record is held out and scored.

LLaVA: Liu, Li, Wu and Lee, Visual instruction tuning, NeurIPS 2023,
https://arxiv.org/abs/2304.08485

Score    a text metric, `exact` unless `scored_by` names another
Chance   0, or what `guess` says
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcit.config.options import Kind, option
from mcit.config.parse import parse
from mcit.data.annotated import Row
from mcit.data.instruction import InstructionTask
from mcit.data.problems import BadRecords
from mcit.data.records import Record
from mcit.errors import ConfigError
from mcit.task import Task

_TESTS = ("test", "val")


@dataclass(frozen=True)
class Instruction(InstructionTask):
    """Files: one to learn from and, next to it, one that is scored."""

    file: str = option("", help="the training file; an order names it: instruction:FILE")
    images: str = option("", help="folder of the images, below the data root", kind=Kind.PLACE)
    holdout: int = option(
        10, help=("without a test file, one record in this many is held out and scored")
    )
    guess: float = option(0.0, help="score of guessing, in percent")

    dataset = "instruction"
    on_its_own = False
    page = "your own files"
    source = "give a file in LLaVA's format, and its images below the data root"

    @classmethod
    def sequence(cls, split: str | None, options: Mapping[str, Any], seed: int) -> list[Task]:
        if split is None:
            raise ConfigError(["task 'instruction' needs a file: write instruction:FILE.json"])
        given = {**options, "file": split}
        if given.get("root") is None:
            # without a data root, everything is next to the file
            given["root"] = str(Path(split).expanduser().resolve().parent)
            given["file"] = Path(split).name
        return [parse(cls, given, where="tasks.instruction")]

    def __post_init__(self) -> None:
        problems = []
        if self.holdout < 2:
            problems.append(f"holdout must be 2 or more, found {self.holdout}")
        if not 0 <= self.guess < 100:
            problems.append(f"guess must be a percentage below 100, found {self.guess:g}")
        if problems:
            raise ConfigError(problems)
        path = Path(self.file)
        stem = path.stem
        if stem == "train" and path.parent.name:
            stem = path.parent.name
        object.__setattr__(self, "name", re.sub(r"[^\w.+-]", "_", stem) or self.dataset)

    @property
    def in_order(self) -> str:
        return f"{self.dataset}:{self.file}"

    @property
    def chance(self) -> float:
        return self.guess

    def files(self, split: str) -> tuple[Path, ...]:
        learned = self.path(self.file)
        if split == "train":
            return (learned,)
        return (self._find_test() or learned,)

    def image_place(self, split: str) -> tuple[str, ...]:
        return (self.images,) if self.images else ()

    def table_options(self) -> Mapping[str, Any]:
        if self._find_test() is not None:
            return {}
        return {"holdout": self.holdout}

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        if self._find_test() is not None:
            return self.read_record
        return lambda record: self._read_part(record, split)

    def data_notes(self, processor: Any) -> list[str]:
        notes = super().data_notes(processor)
        if self._find_test() is None:
            tests = " or ".join(path.name for path in self._list_tests())
            notes.append(
                f"{self.name}: there is no {tests}; each {self.holdout}th record of "
                f"{Path(self.file).name} is held out and scored"
            )
        return notes

    def _read_part(self, record: Record, split: str) -> Row | None:
        is_held_out = record.number % self.holdout == 0
        if is_held_out != (split != "train"):
            return None
        return self.read_record(record)

    def _find_test(self) -> Path | None:
        return next((path for path in self._list_tests() if path.is_file()), None)

    def _list_tests(self) -> list[Path]:
        learned = self.path(self.file)
        stem = learned.stem
        if stem == "train":
            return [learned.with_stem(name) for name in _TESTS]
        return [learned.with_stem(f"{stem}_{name}") for name in _TESTS]

"""What the tasks of CoIN, UCIT and MLLM-DCL have in common: where files lie, how they are scored.

Copies of these benchmarks differ in the names of folders and files. A task lists the known ones,
and takes the first that is there; `annotations`, `images`, `train_file` and `test_file` name
others.

CoIN: Chen et al., CoIN: a benchmark of continual instruction tuning for multimodal large language
models, NeurIPS 2024, https://arxiv.org/abs/2403.08350
UCIT: Guo et al., HiDe-LLaVA: hierarchical decoupling for continual instruction tuning of multimodal
large language model, ACL 2025, https://arxiv.org/abs/2503.12941
MLLM-DCL: Zhao et al., MLLM-CL: continual learning for multimodal large language models, 2025,
https://arxiv.org/abs/2506.05453
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from mcit.config.options import Kind, option
from mcit.data.annotated import Row
from mcit.data.instruction import NO_ANSWER, InstructionTask
from mcit.data.problems import BadRecords
from mcit.data.records import Record, read_json, read_records
from mcit.data.text_scores import text_metric
from mcit.errors import DataError
from mcit.task import Recipe

# records whose images decide which folder is meant
_LOOKED_AT = 20


@dataclass(frozen=True)
class BenchmarkTask(InstructionTask):
    """A task of a public benchmark of instructions, with the names that its files are known by."""

    compat: Literal["coin", "ucit", "dcl"] | None = option(
        None, help="score as the public scripts of the benchmark do, mistakes included"
    )
    annotations: str = option(
        "",
        help=(
            "folder of the task's files, below the data root; none: the first known one that exists"
        ),
        kind=Kind.PLACE,
    )
    images: str = option(
        "",
        help=(
            "folder, below the data root, to which image paths are relative; none: a known one "
            "that has the images"
        ),
        kind=Kind.PLACE,
    )
    train_file: str = option("", help="name of the training file; none: a known one")
    test_file: str = option("", help="name of the file to score; none: a known one")

    on_its_own = False
    eval_batch_size = 16
    # folders of the task's files, of images, and the names of files, the most common first
    places: ClassVar[tuple[str, ...]]
    image_places: ClassVar[tuple[str, ...]] = ()
    train_files: ClassVar[tuple[str, ...]] = ("train.json",)
    test_files: ClassVar[tuple[str, ...]] = ("test.json",)
    # files that hold the accepted answers of the test; none: its records do
    answer_files: ClassVar[tuple[str, ...]] = ()
    # the form of answers, if it is not the metric's own; and the script's rule likewise
    form: ClassVar[str | None] = None
    rule: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        # an unknown metric, or a script that has no rule for it, is refused before data are read
        self.metric()

    def metric(self) -> Any:
        rule = self.rule if self.compat is not None else None
        return text_metric(self.scored_by, form=self.form, compat=self.compat, rule=rule)

    @cached_property
    def folder(self) -> Path:
        """Return the folder of the task's files: the one named, or the first that is there."""
        if self.annotations:
            return self.path(self.annotations)
        known = [self.path(place) for place in self.places]
        names = (self.train_file,) if self.train_file else self.train_files
        for folder in known:
            if any((folder / name).is_file() for name in names):
                return folder
        return next((folder for folder in known if folder.is_dir()), known[0])

    def files(self, split: str) -> tuple[Path, ...]:
        if split == "train":
            return (self._find_file(self.train_file, self.train_files),)
        tested = self._find_file(self.test_file, self.test_files)
        answers = self.find_answer_file()
        return (tested,) if answers is None else (answers, tested)

    def _find_file(self, named: str, known: tuple[str, ...]) -> Path:
        if named:
            return self.folder / named
        paths = [self.folder / name for name in known]
        return next((path for path in paths if path.is_file()), paths[0])

    def find_answer_file(self) -> Path | None:
        """Return the file of accepted answers, below the data root or next to the test."""
        for name in self.answer_files:
            for path in (self.path(name), self.folder / Path(name).name):
                if path.is_file():
                    return path
        return None

    def image_place(self, split: str) -> tuple[str, ...]:
        return Path(self._image_folder).parts

    @cached_property
    def _image_folder(self) -> str:
        """Return the folder, below the data root, that the paths of images start from."""
        if self.images:
            return self.images
        there = [place for place in self.image_places if self.path(place).is_dir()]
        if len(there) < 2:
            return (there or self.image_places)[0]
        named = self._list_first_images()
        found = {place: sum(self.path(place, name).is_file() for name in named) for place in there}
        # the first of those that have most
        return max(there, key=found.__getitem__)

    def _list_first_images(self) -> list[str]:
        path = self.files("train")[-1]
        if not path.is_file():
            return []
        records = islice(read_records(path, on_bad=lambda error: None), _LOOKED_AT)
        images = [record.fields.get("image") for record in records]
        return [image for image in images if isinstance(image, str) and image]

    def reader(self, split: str, bad: BadRecords) -> Callable[[Record], Row | None]:
        path = self.find_answer_file()
        if split == "train" or path is None:
            return self.read_record
        answers = self.load_answers(read_json(path), path)
        return lambda record: self.read_record(self._with_answers(record, answers, path))

    def load_answers(self, data: Any, path: Path) -> Mapping[str, list[str]]:
        """Return accepted answers by the key of a record, from the contents of an answer file."""
        raise DataError(f"{path}: task {self.name!r} knows no answer files")

    def answer_key(self, record: Record) -> str:
        """Return what the answers of a record are found by."""
        return str(record.get("question_id", "id", kind=(str, int)))

    def _with_answers(self, record: Record, answers: Mapping[str, list[str]], path: Path) -> Record:
        key = self.answer_key(record)
        if key not in answers:
            raise record.error(f"{path.name} has no answer for {key!r}", NO_ANSWER)
        others = {name: value for name, value in record.fields.items() if name != "answer"}
        return Record(record.path, record.number, {**others, "answers": answers[key]})

    @property
    def source(self) -> str:
        train = " or ".join(self.train_files)
        test = " or ".join(self.test_files)
        images = " or ".join(f"{place}/" for place in self.image_places or self.places[:1])
        return f"put {train} and {test} into {self.places[0]}/, images under {images}"


@dataclass(frozen=True)
class CoinTask(BenchmarkTask):
    """A task of CoIN: files under Instructions_Original/, images under cl_dataset/."""

    new_tokens: int = option(128, help="the most tokens that an answer may have")
    # LoRA of rank 128 on all linear layers of the language model, alpha 256
    recipe: Recipe = Recipe(
        epochs=1,
        batch_size=896,
        learning_rate=2e-4,
        betas=(0.9, 0.999),
        schedule="cosine",
        warmup=0.03,
    )

    page = "https://huggingface.co/datasets/Zacks-Chen/CoIN"
    image_places: ClassVar = ("cl_dataset", "datasets", "playground/data/CoIN/images")
    # CoIN-ASD, the same tasks with part of the answers reworded, has train_x20.json
    train_files: ClassVar = ("train.json", "train_x20.json")


def list_coin_places(*folders: str) -> tuple[str, ...]:
    """Return where the files of a task of CoIN may be."""
    above = (
        "Instructions_Original",
        "Instruction_Original",
        "playground/Instructions_Original",
        "playground/data/CoIN/annotations",
    )
    return tuple(f"{place}/{folder}" for place in above for folder in folders)


@dataclass(frozen=True)
class UcitTask(BenchmarkTask):
    """A task of UCIT: files in UCIT/TASK/, images under UCIT/datasets/."""

    new_tokens: int = option(256, help="the most tokens that an answer may have")
    # LoRA of rank 16, alpha 32
    recipe: Recipe = Recipe(
        epochs=1,
        batch_size=64,
        learning_rate=2e-4,
        betas=(0.9, 0.999),
        schedule="cosine",
        warmup=0.03,
    )

    page = "https://huggingface.co/datasets/MLLM-CL/UCIT"
    image_places: ClassVar = ("UCIT/datasets", "UCIT", "datasets")
    train_files: ClassVar = ("train.json", "train_4w.json", "train_brief_4w.json")
    test_files: ClassVar = ("test.json", "test_3000.json")


def list_ucit_places(*folders: str) -> tuple[str, ...]:
    """Return where the files of a task of UCIT may be: UCIT may itself be the data root."""
    return tuple(f"{above}{folder}" for above in ("UCIT/", "") for folder in folders)


@dataclass(frozen=True)
class CaptionTask(UcitTask):
    """A task of UCIT that asks for captions.

    Accepted captions are those of the file in COCO's format next to the test, where the number of
    an image is the place of its record; without that file, those of the records.
    """

    scored_by: str = option("caption", help="the text metric")

    answer_files: ClassVar = ("val_coco_type_3000.json", "val_coco_type.json")
    chance = 0.0

    def find_answer_file(self) -> Path | None:
        paths = [self.folder / name for name in self.answer_files]
        return next((path for path in paths if path.is_file()), None)

    def answer_key(self, record: Record) -> str:
        return str(record.number)

    def load_answers(self, data: Any, path: Path) -> Mapping[str, list[str]]:
        captions: dict[str, list[str]] = {}
        try:
            for entry in data["annotations"]:
                captions.setdefault(str(entry["image_id"]), []).append(entry["caption"])
        except (KeyError, TypeError) as error:
            raise DataError(f"{path} is not in COCO's format of captions: {error!r}") from None
        return captions


@dataclass(frozen=True)
class DomainTask(BenchmarkTask):
    """A task of MLLM-DCL: everything in Domain_data/TASK/, images as well."""

    new_tokens: int = option(256, help="the most tokens that an answer may have")

    page = "https://github.com/bjzhb666/MLLM-CL"

    def image_place(self, split: str) -> tuple[str, ...]:
        if self.images:
            return Path(self.images).parts
        return self.folder.relative_to(self.path()).parts


def list_domain_places(folder: str) -> tuple[str, ...]:
    """Return where the files of a task of MLLM-DCL may be."""
    return tuple(f"{above}{folder}" for above in ("Domain_data/", "MLLM-CL/", ""))


def make_domain_recipe(epochs: int) -> Recipe:
    """Return the recipe of a task of MLLM-DCL, for LoRA of rank 32, alpha 64."""
    return Recipe(
        epochs=epochs,
        batch_size=64,
        learning_rate=2e-5,
        betas=(0.9, 0.999),
        schedule="cosine",
        warmup=0.03,
    )

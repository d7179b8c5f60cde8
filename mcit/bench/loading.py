"""`mcit bench loading`: how fast images become batches, from files and from the cache.

The images are generated to resemble photographs as they are stored: detail at all scales, JPEG at
quality 90, some of them upright. Beside mcit stands what one would write with `datasets` and
transformers' ViltProcessor, with as many workers. Rates are images per second of the processor,
workers included, which waiting for a busy machine does not add to; an epoch is long, so that what
it costs to start the workers is left out. That all ways end in the same input is checked; the ways
of packing that were not chosen are measured beside the one that was.
"""

from __future__ import annotations

import functools
import io
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader
from transformers import ViltProcessor
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.bench.measuring import Goal, is_met
from mcit.data.annotated import AnnotatedTask
from mcit.data.preparing import collect_pictures, do_work, plan_work
from mcit.data.resizing import Resizing
from mcit.data.shards import pack, unpack
from mcit.models import EMBEDDED
from mcit.models.pretrained import read_config
from mcit.models.vilt_inputs import ViltInputs, unpack_images
from mcit.registry import find_task
from mcit.task import count_bytes

SIZE = (640, 480)
# every so many images, one is upright
UPRIGHT = 4
# times that all images are read, in a short epoch and in a long one; workers start once in each
SHORT = 1
LONG = 3
WORKERS = 2
QUESTION = "a bench"
GOALS: dict[str, Goal] = {
    "processor_speedup": ("at least", 5.0),
    "processor_speedup_cached": ("at least", 5.0),
    "batch_megabytes": ("at most", 70.0),
}
SOURCE = "source"
CACHE = "cache"
PROCESSOR = "processor"
UNPACKED = "unpacked"
LABELS = {
    PROCESSOR: "`datasets` and ViltProcessor, JPEG files",
    SOURCE: "mcit, JPEG files",
    UNPACKED: "mcit, JPEG files, bytes made numbers on the CPU too",
    CACHE: "mcit, the cache of `mcit prepare`",
}


@dataclass(frozen=True)
class Size:
    """How many images are read, how many at a time, and how often."""

    images: int
    batch: int
    rounds: int


FULL = Size(images=128, batch=64, rounds=2)
QUICK = Size(images=16, batch=8, rounds=1)


@dataclass(frozen=True)
class Way:
    """One way to read all images: examples, how they become a batch, and what is done to it."""

    examples: Any
    collate: Callable[[Any], Mapping[str, Any]]
    finish: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def read(self, batch: int, times: int = 1) -> Iterator[Mapping[str, Any]]:
        """Yield all batches so many times, made by worker processes."""
        loader = DataLoader(
            self.examples,
            batch,
            sampler=[*range(len(self.examples))] * times,
            num_workers=WORKERS,
            collate_fn=self.collate,
        )
        for made in loader:
            yield made if self.finish is None else self.finish(made)


def measure(quick: bool = False) -> dict[str, Any]:
    """Return the rates of a task's loader and of the plain one; `quick`: fewer images."""
    size = QUICK if quick else FULL
    before = os.environ.get("MCIT_CACHE")
    with tempfile.TemporaryDirectory(prefix="mcit-bench-") as folder:
        # nothing of this stays
        os.environ["MCIT_CACHE"] = str(Path(folder) / "cache")
        try:
            return _measure(Path(folder) / "data", size)
        finally:
            os.environ.pop("MCIT_CACHE") if before is None else os.environ.update(MCIT_CACHE=before)


def _measure(root: Path, size: Size) -> dict[str, Any]:
    sizes = write_photographs(root, size.images)
    kind: Any = find_task("snli-ve")
    task: AnnotatedTask = kind(root=root)
    processor = load_processor()
    collate = functools.partial(task.collate, processor=processor)
    examples = task.examples("train")
    ways = {
        PROCESSOR: Way(read_with_datasets(root), make_plain_collate(processor)),
        SOURCE: Way(examples, collate),
        UNPACKED: Way(examples, collate, unpack_images),
    }
    start = time.process_time()
    work = plan_work(root, list(collect_pictures(task, "train").values()), Resizing())
    done = do_work(work, jobs=1)
    seconds = time.process_time() - start
    # examples that were made before the cache do not know it
    ways[CACHE] = Way(task.examples("train"), collate)
    first = {name: next(way.read(size.batch)) for name, way in ways.items()}
    _check_same(first)
    spent = _spend_in_turns(ways, size)
    return {
        "threads": torch.get_num_threads(),
        "workers": WORKERS,
        "images": size.images,
        "image_size": list(SIZE),
        "batch_size": size.batch,
        "source_kilobytes": float(np.mean(sizes)) / 1e3,
        "cache_kilobytes": done.bytes / done.pictures / 1e3,
        "prepared_per_second": size.images / seconds,
        "images_per_second": {name: size.images / spent[name] for name in ways},
        "processor_speedup": spent[PROCESSOR] / spent[SOURCE],
        "processor_speedup_unpacked": spent[PROCESSOR] / spent[UNPACKED],
        "processor_speedup_cached": spent[PROCESSOR] / spent[CACHE],
        "loading_speedup": spent[SOURCE] / spent[CACHE],
        "batch_megabytes": count_bytes(first[SOURCE]) / 1e6,
        "processor_batch_megabytes": count_bytes(first[PROCESSOR]) / 1e6,
        "packings": _compare_packings(root, size.rounds),
    }


def load_processor() -> ViltInputs:
    """Return the words of the embedded ViLT with the image settings of ViLT-B/32."""
    folder = str(EMBEDDED / "vilt")
    embedded = ViltInputs.from_pretrained(folder, read_config(folder))
    return ViltInputs(embedded.tokenizer, ViltImageProcessorPil(), embedded.limit)


def read_with_datasets(root: Path) -> datasets.Dataset:
    """Return the examples as `datasets` reads them: rows with an image that it decodes."""
    files = sorted((root / "flickr30k" / "flickr30k_images").iterdir(), key=lambda p: int(p.stem))
    rows = [{"image": str(path), "text": QUESTION, "label": 0} for path in files]
    return datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())


def make_plain_collate(processor: ViltInputs) -> Callable[[Any], Mapping[str, Any]]:
    """Return what makes a batch by transformers' own processor."""
    plain = ViltProcessor(processor.images, processor.tokenizer)

    def collate(rows: Any) -> Mapping[str, Any]:
        made = plain(
            [row["image"] for row in rows],
            [row["text"] for row in rows],
            padding=True,
            truncation=True,
            max_length=processor.limit,
            return_tensors="pt",
        )
        return {**made, "labels": torch.tensor([row["label"] for row in rows])}

    return collate


def _check_same(first: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless all ways make the same input of the first batch."""
    if not torch.equal(first[SOURCE]["pixels"], first[CACHE]["pixels"]):
        raise AssertionError(
            "the cache gives other pixels than the files: this is a bug, please report it"
        )
    ours = first[UNPACKED]
    theirs = first[PROCESSOR]
    apart = (ours["pixel_values"] - theirs["pixel_values"]).abs().max()
    same = torch.equal(ours["pixel_mask"], theirs["pixel_mask"].bool())
    same = same and torch.equal(ours["input_ids"], theirs["input_ids"])
    # values go up to 1
    if not same or apart > torch.finfo(torch.float32).eps:
        raise AssertionError(
            f"the batch is not what ViltProcessor makes (pixels differ by {apart:.2g}): this is a "
            "bug, please report it"
        )


def _spend_in_turns(ways: Mapping[str, Way], size: Size) -> dict[str, float]:
    """Return the seconds of the processor that each takes to read all images, without the start."""
    best: dict[tuple[str, int], float] = {}
    for _ in range(size.rounds):
        for name, way in ways.items():
            for times in (SHORT, LONG):
                spent = _spend(way, size.batch, times)
                best[name, times] = min(spent, best.get((name, times), spent))
    return {name: (best[name, LONG] - best[name, SHORT]) / (LONG - SHORT) for name in ways}


def _spend(way: Way, batch: int, times: int) -> float:
    """Return the seconds of the processor that all batches take, workers included."""
    before = _processor_seconds()
    for _ in way.read(batch, times):
        pass
    return _processor_seconds() - before


def _processor_seconds() -> float:
    seconds = 0.0
    # workers count among the children when they have ended, as they do after their last batch
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def write_photographs(root: Path, count: int) -> list[int]:
    """SNLI-VE in small, on generated images; gives the sizes of their files."""
    rng = np.random.default_rng(0)
    folder = root / "flickr30k" / "flickr30k_images"
    folder.mkdir(parents=True)
    (root / "snli-ve").mkdir()
    records = []
    for number in range(count):
        image = Image.fromarray(make_photograph(rng))
        if number % UPRIGHT == 1:
            image = image.transpose(Image.Transpose.ROTATE_90)
        image.save(folder / f"{number}.jpg", quality=90)
        records.append(
            {"Flickr30K_ID": str(number), "sentence2": QUESTION, "gold_label": "neutral"}
        )
    for split in ("train", "dev"):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (root / "snli-ve" / f"snli_ve_{split}.jsonl").write_text(lines, encoding="utf-8")
    return [path.stat().st_size for path in folder.iterdir()]


def make_photograph(rng: np.random.Generator) -> np.ndarray:
    """Noise whose strength falls with its frequency, as it does in photographs; uint8 [height,
    width, 3]."""
    width, height = SIZE
    picture = np.full((height, width, 3), 128.0)
    scale = 2
    while scale <= width:
        size = (max(2, height * scale // width), scale)
        grey, tint = rng.normal(0, 1, (*size, 1)), rng.normal(0, 0.3, (*size, 3))
        for channel in range(3):
            layer = Image.fromarray((grey[..., 0] + tint[..., channel]).astype(np.float32))
            picture[..., channel] += (
                110 / scale**0.35 * np.asarray(layer.resize(SIZE, Image.Resampling.BICUBIC))
            )
        scale *= 2
    return np.clip(picture, 0, 255).astype(np.uint8)


def print_result(result: dict[str, Any]) -> None:
    """Print two tables: loading, and packing."""
    console = Console(highlight=False)
    width, height = result["image_size"]
    title = f"mcit bench loading, {width}x{height} to ViLT-B/32, {result['workers']} workers"
    table = Table(title=title, title_justify="left")
    for name in ("way", "images/s of the processor", "times the first"):
        table.add_column(name, justify="left" if name == "way" else "right")
    rates = result["images_per_second"]
    for name, label in LABELS.items():
        table.add_row(label, f"{rates[name]:.0f}", f"{rates[name] / rates[PROCESSOR]:.1f}")
    console.print(table)
    for label, value, goal in list_figures(result):
        if goal is None:
            console.print(f"{label}: {value:.2f}")
            continue
        direction, limit = goal
        verdict = "met" if is_met(value, goal) else "missed"
        console.print(f"{label}: {value:.2f} (goal: {direction} {limit:g}, {verdict})")
    table = Table(title="ways to keep a resized image losslessly", title_justify="left")
    for name in ("packing", "kB an image", "ms to write", "ms to read"):
        table.add_column(name, justify="left" if name == "packing" else "right")
    for name, found in result["packings"].items():
        cells = (f"{found['kilobytes']:.0f}", f"{found['write_ms']:.1f}", f"{found['read_ms']:.1f}")
        table.add_row(name, *cells)
    console.print(table)


def list_figures(result: dict[str, Any]) -> Iterator[tuple[str, float, Goal | None]]:
    """Yield what each figure is, its value, and its goal if there is one."""
    batch = f"megabytes of a batch of {result['batch_size']}"
    figures = {
        "processor_speedup": "mcit / `datasets` and ViltProcessor, from JPEG files",
        "processor_speedup_unpacked": "the same, bytes made numbers on the CPU too",
        "processor_speedup_cached": "mcit from the cache / `datasets` and ViltProcessor",
        "loading_speedup": "mcit from the cache / mcit from JPEG files",
        "batch_megabytes": f"{batch}, mcit",
        "processor_batch_megabytes": f"{batch}, ViltProcessor",
    }
    for key, label in figures.items():
        yield label, result[key], GOALS.get(key)


def _compare_packings(root: Path, rounds: int) -> dict[str, dict[str, float]]:
    files = sorted((root / "flickr30k" / "flickr30k_images").iterdir())[:8]
    arrays = [Resizing().read(Image.open(path)) for path in files]
    ways: dict[str, tuple[Callable, Callable]] = {
        "as mcit does": (pack, lambda data, array: unpack(data, *array.shape[:2])),
        "raw": (
            np.ndarray.tobytes,
            lambda data, array: np.frombuffer(data, np.uint8).reshape(array.shape).copy(),
        ),
        "PNG": (_encode_png, lambda data, array: np.array(Image.open(io.BytesIO(data)))),
    }
    result = {}
    for name, (write, read) in ways.items():
        packed = [write(array) for array in arrays]
        pairs = list(zip(packed, arrays, strict=True))
        if not all(np.array_equal(read(data, array), array) for data, array in pairs):
            raise AssertionError(f"{name} is not lossless: this is a bug, please report it")
        result[name] = {
            "kilobytes": float(np.mean([len(data) for data in packed])) / 1e3,
            "write_ms": 1e3
            * _time(lambda write=write: [write(array) for array in arrays], rounds)
            / len(arrays),
            "read_ms": 1e3
            * _time(lambda read=read, pairs=pairs: [read(*pair) for pair in pairs], rounds)
            / len(arrays),
        }
    return result


def _encode_png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _time(work: Callable[..., Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best

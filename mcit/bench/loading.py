"""`mcit bench loading`: how fast images become batches, from files and from the cache.

The images are generated to resemble photographs as they are stored: detail at all scales, JPEG at
quality 90. Both ways end in the same bits, which is checked; the ways of packing that were not
chosen are measured beside the one that was.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from mcit.data.annotated import AnnotatedTask
from mcit.data.preparing import collect_pictures, do_work, plan_work
from mcit.data.resizing import Resizing
from mcit.data.shards import pack, unpack
from mcit.models import EMBEDDED
from mcit.models.pretrained import read_config
from mcit.models.vilt_inputs import ViltInputs
from mcit.registry import find_task

SIZE = (640, 480)
BATCH = 16


def measure(quick: bool = False) -> dict[str, Any]:
    """Images a second through a task's loader, and what packing costs; `quick`: fewer images."""
    count = 16 if quick else 96
    before = os.environ.get("MCIT_CACHE")
    with tempfile.TemporaryDirectory(prefix="mcit-bench-") as folder:
        os.environ["MCIT_CACHE"] = str(Path(folder) / "cache")  # nothing of this stays
        try:
            return _measure(Path(folder) / "data", count, rounds=2 if quick else 5)
        finally:
            os.environ.pop("MCIT_CACHE") if before is None else os.environ.update(MCIT_CACHE=before)


def _measure(root: Path, count: int, rounds: int) -> dict[str, Any]:
    sizes = write_photographs(root, count)
    kind: Any = find_task("snli-ve")
    task: AnnotatedTask = kind(root=root)
    folder = str(EMBEDDED / "vilt")
    embedded = ViltInputs.from_pretrained(folder, read_config(folder))
    processor = ViltInputs(
        embedded.tokenizer, ViltImageProcessorPil(), embedded.limit
    )  # ViLT-B/32's image settings
    source, expected = _read(task, processor, rounds)
    start = time.perf_counter()
    work = plan_work(root, list(collect_pictures(task, "train").values()), Resizing())
    done = do_work(work, jobs=1)
    seconds = time.perf_counter() - start
    cache, found = _read(task, processor, rounds)
    if not all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)):
        raise AssertionError(
            "the cache gives other pixels than the files: this is a bug, please report it"
        )
    return {
        "threads": torch.get_num_threads(),
        "images": count,
        "image_size": list(SIZE),
        "source_kilobytes": np.mean(sizes) / 1e3,
        "cache_kilobytes": done.bytes / done.pictures / 1e3,
        "prepared_per_second": count / seconds,
        "images_per_second": {"source": count / source, "cache": count / cache},
        "loading_speedup": source / cache,
        "packings": _compare_packings(root, rounds),
    }


def write_photographs(root: Path, count: int) -> list[int]:
    """SNLI-VE in small, on generated images; gives the sizes of their files."""
    rng = np.random.default_rng(0)
    folder = root / "flickr30k" / "flickr30k_images"
    folder.mkdir(parents=True)
    (root / "snli-ve").mkdir()
    records = []
    for number in range(count):
        Image.fromarray(make_photograph(rng)).save(folder / f"{number}.jpg", quality=90)
        records.append(
            {"Flickr30K_ID": str(number), "sentence2": "a bench", "gold_label": "neutral"}
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
    """Two tables: loading, and packing."""
    console = Console(highlight=False)
    width, height = result["image_size"]
    table = Table(title=f"mcit bench loading, {width}x{height} to ViLT-B/32", title_justify="left")
    for name in ("read from", "kB an image", "images/s"):
        table.add_column(name, justify="left" if name == "read from" else "right")
    for name, label in (("source", "JPEG files"), ("cache", "the cache of mcit prepare")):
        table.add_row(
            label, f"{result[f'{name}_kilobytes']:.0f}", f"{result['images_per_second'][name]:.0f}"
        )
    console.print(table)
    console.print(
        f"{result['loading_speedup']:.1f} times faster, the same bits; one process prepared "
        f"{result['prepared_per_second']:.0f} images/s"
    )
    table = Table(title="ways to keep a resized image losslessly", title_justify="left")
    for name in ("packing", "kB an image", "ms to write", "ms to read"):
        table.add_column(name, justify="left" if name == "packing" else "right")
    for name, found in result["packings"].items():
        cells = (f"{found['kilobytes']:.0f}", f"{found['write_ms']:.1f}", f"{found['read_ms']:.1f}")
        table.add_row(name, *cells)
    console.print(table)


def _read(task: Any, processor: ViltInputs, rounds: int) -> tuple[float, list[torch.Tensor]]:
    """The best time for all batches of a split, and their pixels."""
    loader = DataLoader(
        task.examples("train"), BATCH, collate_fn=lambda rows: task.collate(rows, processor)
    )
    best, pixels = float("inf"), []
    for _ in range(rounds):
        start = time.perf_counter()
        pixels = [batch["pixels"] for batch in loader]
        best = min(best, time.perf_counter() - start)
    return best, pixels


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

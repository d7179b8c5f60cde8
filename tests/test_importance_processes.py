"""Two processes find what one finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from importance_models import Reader, sentences
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

from mcit.importance import measure_importance

CASES = {
    "plain": {},
    "reversed, labels sampled": {"score": "reversed", "labels": "sampled", "seed": 3},
    "all labels": {"labels": "all"},
    "output norm": {"score": "output_norm"},
    "a budget": {"samples": 5, "seed": 4, "labels": "sampled"},
    "shuffled": {"shuffle": True, "cap": 1e-3},
}


def build(count: int) -> tuple[Reader, TensorDataset]:
    torch.manual_seed(0)
    model = Reader().eval()
    return model, TensorDataset(sentences(count), torch.randint(4, (count,)))


def work(folder: Path) -> None:
    """What each of the two processes does: measure all cases, and write them down with its number."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    tensors, counts = {}, {}
    for count in (7, 1):
        model, dataset = build(count)
        for name, options in CASES.items():
            found = measure_importance(model, DataLoader(dataset, 2, shuffle=True), **options)
            counts[f"{count} {name}"] = found.examples
            tensors.update({f"{count} {name}/{key}": value for key, value in found.values.items()})
    model, dataset = build(8)
    share = [(x, y) for x, y in DataLoader(dataset, 2)][rank::2]
    found = measure_importance(model, share, unit="batch")
    tensors.update({f"batch/{key}": value for key, value in found.values.items()})
    save_file(tensors, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(counts))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found_by_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    code = "import sys, pathlib, test_importance_processes as t; t.work(pathlib.Path(sys.argv[1]))"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        problems = [process.communicate(timeout=120)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], problems
    return [
        (load_file(folder / f"{rank}.safetensors"), json.loads((folder / f"{rank}.json").read_text()))
        for rank in range(2)
    ]


@pytest.fixture
def one_thread():
    """As the two processes have: the number of threads changes the last digits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [7, 1])
def test_two_processes_find_what_one_finds(found_by_two, count, name):
    model, dataset = build(count)
    alone = measure_importance(model, DataLoader(dataset, 3), **CASES[name])
    for tensors, counts in found_by_two:
        assert counts[f"{count} {name}"] == alone.examples
        for key, value in alone.values.items():
            error = float((tensors[f"{count} {name}/{key}"] - value).abs().max())
            assert error <= 1e-6 * max(float(value.max()), 1e-12), key


def test_unit_batch_is_averaged_over_all_batches_of_all_processes(found_by_two):
    model, dataset = build(8)
    alone = measure_importance(model, DataLoader(dataset, 2), unit="batch")
    for tensors, _ in found_by_two:
        for key, value in alone.values.items():
            assert float((tensors[f"batch/{key}"] - value).abs().max()) <= 1e-6 * max(float(value.max()), 1e-12), key

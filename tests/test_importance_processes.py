"""Two processes find what one finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from importance_models import Reader, sentences
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mcit.importance import Importance, measure_importance
from mcit.parallel.global_batch import BatchNorm2d, Dropout, draw_rows

SCORES = ("plain", "reversed", "log_odds", "output_norm")
CASES = {
    **{
        f"{score}, {unit}": {"score": score, "unit": unit}
        for score in SCORES
        for unit in ("example", "batch")
    },
    "labels sampled": {"score": "reversed", "labels": "sampled", "seed": 3},
    "labels sampled, batch": {"labels": "sampled", "seed": 3, "unit": "batch"},
    "all labels": {"labels": "all"},
    "a budget": {"samples": 5, "seed": 4, "labels": "sampled"},
    "a budget of batches": {"samples": 5, "unit": "batch"},
    "shuffled": {"shuffle": True, "cap": 1e-3},
}
# of a global batch: with 7 examples and with 1, the last leaves one process without
SIZE = 3


def build(count: int) -> tuple[Reader, TensorDataset]:
    torch.manual_seed(0)
    model = Reader().eval()
    return model, TensorDataset(sentences(count), torch.randint(4, (count,)))


class Picture(nn.Module):
    """What depends on all rows of a batch, and what is drawn for each."""

    def __init__(self, norm: type[nn.Module] = BatchNorm2d):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, bias=False)
        self.norm = norm(3)
        self.drop = Dropout(0.3)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.tanh(self.norm(self.conv(x))).mean(dim=(2, 3))))


def build_pictures(norm: type[nn.Module] = BatchNorm2d) -> tuple[Picture, DataLoader]:
    torch.manual_seed(1)
    model = Picture(norm)
    dataset = TensorDataset(torch.randn(7, 2, 5, 5), torch.randint(4, (7,)))
    return model, DataLoader(dataset, SIZE, shuffle=True, collate_fn=add_noise)


def add_noise(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    x, y = (torch.stack(column) for column in zip(*examples, strict=True))
    return x + draw_rows(lambda count: torch.rand(count, 2, 5, 5), len(x)), y


def measure_pictures() -> dict[str, Importance | dict[str, Tensor]]:
    """Importance of augmented pictures, by example and by batch, and BatchNorm's buffers."""
    model, loader = build_pictures()
    found = {
        "example": measure_importance(model, loader).values,
        "batch": measure_importance(
            model, loader, unit="batch", mode="train", update_buffers=True
        ).values,
    }
    return {**found, "buffers": {name: buffer.double() for name, buffer in model.named_buffers()}}


def measure_as_they_come(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """Batches that are a process's own: given as lists, or shared out by accelerate."""
    model, dataset = build(7)
    batches = [(x, y) for x, y in DataLoader(dataset, 2)][:3]
    prepared = prepare_data_loader(DataLoader(dataset, 2), num_processes=world, process_index=rank)
    return {
        "lists": measure_importance(model, batches[rank::world], unit="batch").values,
        "lists by example": measure_importance(model, batches[rank::world]).values,
        "prepared": measure_importance(model, prepared, unit="batch").values,
    }


def work(folder: Path) -> None:
    """Measure all cases in one of the two processes, and write them down with its number."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    found: dict[str, dict[str, Tensor]] = {}
    notes: dict[str, object] = {}
    for count in (7, 1):
        model, dataset = build(count)
        for name, options in CASES.items():
            importance = measure_importance(
                model, DataLoader(dataset, SIZE, shuffle=True), **options
            )
            notes[f"{count} {name}"] = importance.examples
            found[f"{count} {name}"] = importance.values
    found |= measure_pictures() | measure_as_they_come(rank, 2)
    try:
        measure_importance(*build_pictures(nn.BatchNorm2d), unit="batch", mode="train")
    except ValueError as error:
        notes["refused"] = str(error)
    tensors = {
        f"{case}/{name}": value.contiguous()
        for case, values in found.items()
        for name, value in values.items()
    }
    save_file(tensors, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(notes))
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
        problems = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], problems
    return [
        (
            load_file(folder / f"{rank}.safetensors"),
            json.loads((folder / f"{rank}.json").read_text()),
        )
        for rank in range(2)
    ]


@pytest.fixture
def one_thread():
    """As the two processes have: the number of threads changes the last digits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_found(tensors: dict[str, Tensor], case: str, truth: dict[str, Tensor]) -> None:
    """Within a millionth of each tensor's largest value."""
    for key, value in truth.items():
        error = float((tensors[f"{case}/{key}"] - value).abs().max())
        assert error <= 1e-6 * max(float(value.max()), 1e-12), (case, key)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [7, 1])
def test_two_processes_find_what_one_finds(found_by_two, count, name):
    model, dataset = build(count)
    alone = measure_importance(model, DataLoader(dataset, SIZE, shuffle=True), **CASES[name])
    for tensors, notes in found_by_two:
        assert notes[f"{count} {name}"] == alone.examples
        assert_found(tensors, f"{count} {name}", alone.values)


@pytest.mark.usefixtures("one_thread")
def test_what_is_drawn_and_batch_statistics_do_not_depend_on_the_number_of_processes(found_by_two):
    alone = measure_pictures()
    assert not torch.equal(alone["buffers"]["norm.running_mean"], torch.zeros(3).double())
    for tensors, _ in found_by_two:
        for case, values in alone.items():
            assert_found(tensors, case, values)


@pytest.mark.usefixtures("one_thread")
def test_batches_of_the_processes_own_are_joined_to_global_batches(found_by_two):
    model, dataset = build(7)
    x, y = dataset.tensors
    joined = measure_importance(model, [(x[:4], y[:4]), (x[4:6], y[4:6])], unit="batch").values
    prepared = measure_importance(model, DataLoader(dataset, 4), unit="batch").values
    examples = measure_importance(model, [(x[:6], y[:6])]).values
    for tensors, _ in found_by_two:
        assert_found(tensors, "lists", joined)
        assert_found(tensors, "prepared", prepared)
        assert_found(tensors, "lists by example", examples)


def test_batch_norm_that_sees_one_process_only_is_refused(found_by_two):
    for _, notes in found_by_two:
        assert notes["refused"].startswith("BatchNorm that normalizes by one process's rows")

"""Sharded by FSDP2 over two processes, or whole in one: the same importance and weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mcit.consolidation import ConsolidationManager
from mcit.importance import Importance, measure_importance
from mcit.parallel.sharded import full
from mcit.path_integral import PathIntegral

ESTIMATORS = {
    **{
        f"{score}, {unit}": {"score": score, "unit": unit}
        for score in ("plain", "reversed", "log_odds", "output_norm")
        for unit in ("example", "batch")
    },
    "all labels, shuffled": {"labels": "all", "shuffle": True, "cap": 0.05},
    "sampled labels": {"labels": "sampled", "samples": 5},
}
RUNS = {
    "sum": {},
    "online": {"decay": 0.5},
    "share": {},
    "latest, proximal": {"merge": "latest"},
    "path integral": {"merge": "online"},
}
STRENGTH = 20.0


def build(outputs: int = 3, shard: bool = False, spare_head: bool = False) -> nn.Sequential:
    """Seven and three rows over two processes: no part is as large as the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, outputs))
    if shard:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import init_device_mesh

        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(
            model, mesh=mesh, ignored_params=set(model[3].parameters()) if spare_head else None
        )
    return model


def data(task: int, outputs: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(task)
    return TensorDataset(
        torch.randn(8, 5, generator=generator), torch.randint(outputs, (8,), generator=generator)
    )


def take_step(model: nn.Module, task: int, rank: int, world: int, outputs: int = 3) -> None:
    """The gradient of the mean over all rows, of which this process sees its own."""
    x, y = data(task, outputs).tensors
    model.zero_grad()
    nn.functional.cross_entropy(model(x[rank::world]), y[rank::world]).backward()
    for parameter in model.parameters():
        # left out of the sharding
        if world > 1 and not hasattr(parameter, "device_mesh"):
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= world


def gather(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": full(tensor.detach()).double() for name, tensor in tensors.items()}


def measure_all(shard: bool) -> dict[str, Tensor]:
    """Importance by every estimator."""
    found = {}
    for name, options in ESTIMATORS.items():
        model = build(shard=shard)
        found |= gather(
            f"importance, {name}",
            measure_importance(model, DataLoader(data(0), 3), **options).values,
        )
    return found


def learn(name: str, shard: bool, rank: int, world: int, folder: Path) -> dict[str, Tensor]:
    """Three tasks with a manager; all that it holds and says, and the file that it writes."""
    options = {"merge": name.split(",")[0], **RUNS[name]}
    model = build(shard=shard)
    path = PathIntegral(model.named_parameters()) if name == "path integral" else None
    manager = ConsolidationManager(model.named_parameters(), STRENGTH, path=path, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if path is not None:
        path.attach(optimizer)
    said = []
    for task in range(3):
        for _ in range(3):
            take_step(model, task, rank, world)
            if name.endswith("proximal"):
                optimizer.step()
                manager.proximal_(0.05)
            else:
                said.append(manager.add_gradient_(measure=True))
                optimizer.step()
            said.append(float(manager.penalty()))
        importance = (
            path.importance()
            if path
            else measure_importance(model, DataLoader(data(task), 8), cap=0.02)
        )
        manager.consolidate(importance, task / (task + 1) if name == "share" and task else None)
        if path:
            path.begin(model.named_parameters())
        found = manager.diagnose(0.05, 0.9)
        said += [
            found.weights,
            found.mean_stiffness,
            found.max_stiffness,
            found.share_capped,
            found.share_near_zero,
        ]
        said += [found.share_unstable, *found.capped_by_tensor.values()]
    manager.save(folder / f"{name}.safetensors")
    if world > 1:
        torch.distributed.barrier()
    again = ConsolidationManager(model.named_parameters())
    again.load(folder / f"{name}.safetensors")
    third = ConsolidationManager(model.named_parameters())
    third.load_state_dict(manager.state_dict())
    said += [float(again.penalty()), float(third.penalty()), float(manager.penalty())]
    return {
        **gather(f"{name}, weights", dict(model.named_parameters())),
        **gather(f"{name}, importance", manager.importance),
        **gather(f"{name}, anchor", manager.anchor),
        **gather(f"{name}, loaded", again.importance),
        f"{name}, said/": torch.tensor(said, dtype=torch.float64),
    }


def grow_spared_head(shard: bool, rank: int, world: int) -> dict[str, Tensor]:
    """A head that is left out of the sharding gains rows, as any tensor may."""
    model = build(shard=shard, spare_head=True)
    manager = ConsolidationManager(model.named_parameters(), STRENGTH)
    manager.consolidate({name: full(p.detach()).abs() for name, p in model.named_parameters()})
    head = nn.Linear(7, 5)
    torch.manual_seed(1)
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
        head.weight[:3] = model[3].weight + 0.1
        head.bias[:3] = model[3].bias + 0.1
    model[3] = head
    manager.track(model.named_parameters())
    take_step(model, 1, rank, world, outputs=5)
    manager.add_gradient_()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {**gather("grown", gradients), "grown/penalty": manager.penalty()}


def work(folder: Path) -> None:
    """What each of the two processes does."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2
    )
    found = {**measure_all(shard=True), **grow_spared_head(True, rank, 2)}
    for name in RUNS:
        found |= learn(name, True, rank, 2, folder)
    save_file(found, folder / f"{rank}.tensors")
    (folder / f"{rank}.json").write_text(json.dumps(collect_refusals(rank, folder)))
    torch.distributed.destroy_process_group()


def collect_refusals(rank: int, folder: Path) -> dict[str, object]:
    """What is refused of a sharded model, and how much its manager holds."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = build(shard=True)
    manager = ConsolidationManager(model.named_parameters())
    importance = {name: torch.ones(p.shape) for name, p in model.named_parameters()}
    manager.consolidate(importance)
    notes: dict[str, object] = {"bytes": manager.bytes_held()}
    Importance(manager.importance).save(folder / "sharded importance.safetensors")
    wrong = {**importance, "0.weight": importance["0.weight"].clone()}
    # which the second process holds
    wrong["0.weight"][-1, -1] = torch.nan
    grown = build(outputs=5, shard=True)
    flat = FullyShardedDataParallel(build(), device_id=torch.device("cpu"))
    for case, attempt in {
        "flattened": lambda: measure_importance(flat, DataLoader(data(0), 3)),
        "not a number": lambda: manager.consolidate(wrong),
        "grown": lambda: manager.track(grown.named_parameters()),
    }.items():
        try:
            attempt()
        except ValueError as error:
            notes[case] = str(error)
    notes["penalty"] = float(manager.penalty())
    return notes


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What two processes found on a sharded model."""
    folder = tmp_path_factory.mktemp("sharded")
    code = "import sys, pathlib, test_sharded as t; t.work(pathlib.Path(sys.argv[1]))"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", code, str(folder)]
    running = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        problems = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], problems
    return folder


def compare(folder: Path, alone: dict[str, Tensor]) -> None:
    """Within a millionth of each tensor's largest value, in both processes."""
    assert alone
    for rank in range(2):
        found = load_file(folder / f"{rank}.tensors")
        for name, truth in alone.items():
            assert found[name].shape == truth.shape, name
            error = float((found[name] - truth).abs().max())
            assert error <= 1e-6 * max(float(truth.abs().max()), 1e-3), (
                f"{name} is off by {error:.3g}"
            )


def test_sharded_importance_is_that_of_the_whole_model(sharded):
    compare(sharded, measure_all(shard=False))


@pytest.mark.parametrize("name", RUNS)
def test_a_sharded_model_learns_what_a_whole_one_learns(sharded, tmp_path, name):
    compare(sharded, learn(name, False, 0, 1, tmp_path))


def test_a_head_left_out_of_the_sharding_may_grow(sharded):
    compare(sharded, grow_spared_head(False, 0, 1))


def test_a_file_of_a_sharded_model_fits_the_whole_one(sharded):
    model = build()
    manager = ConsolidationManager(model.named_parameters())
    manager.load(sharded / "sum.safetensors")
    compare(sharded, gather("sum, importance", manager.importance))
    values = Importance.load(
        sharded / "sharded importance.safetensors", model.named_parameters()
    ).values
    assert all(torch.equal(value, torch.ones_like(value)) for value in values.values())


def test_what_one_process_refuses_all_refuse_and_nothing_has_changed(sharded):
    notes = [json.loads((sharded / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(
        "negative or non-finite values; nothing was changed" in note["not a number"]
        for note in notes
    )
    assert "'0.weight'" in notes[1]["not a number"]
    assert all(
        "it is sharded: its old rows now lie in other processes" in note["grown"] for note in notes
    )
    assert [note["penalty"] for note in notes] == [0.0, 0.0]


def test_parameters_that_fsdp1_has_flattened_are_refused(sharded):
    for rank in range(2):
        assert (
            "importance needs FSDP2"
            in json.loads((sharded / f"{rank}.json").read_text())["flattened"]
        )


def test_each_process_holds_its_own_part_only(sharded):
    held = [json.loads((sharded / f"{rank}.json").read_text())["bytes"] for rank in range(2)]
    assert sum(held) == 8 * sum(parameter.numel() for parameter in build().parameters())
    # a row more of each tensor
    assert abs(held[0] - held[1]) <= 8 * (5 + 7 + 4)

"""One process and two: the same weights, the same scores, and one who writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_run import assert_identical, assert_near, configure, learn, write_world

from mcit.config import to_dict

ORDER = "vqa,nlvr2,snli-ve"  # 17 examples in batches of 8: the last batch leaves one process without an example
# AdamW divides by the size of the gradient, also where that is rounding; steps of SGD are as near as the gradients are
SMOOTH = {
    f"tasks__{name}__recipe__{key}": value
    for name in ORDER.split(",")
    for key, value in (("optimizer", "sgd"), ("learning_rate", 0.01))
}
RUNS = {
    "finetune": {},
    "ewc_dr": {"method__strength": 10.0},
    "si": {"method__strength": 10.0},
    "replay": {"method__fraction": 0.5, "method__frequency": 2},
    "joint": {},
    "mas": {"method__strength": 1.0, "training__accumulate": 3, "method__estimator__samples": 7},
    "ewc": {"method__strength": 10.0, "method__estimator__unit": "batch", "method__penalty": "proximal"},
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """All runs in two processes of one launch, and their configurations."""
    folder = tmp_path_factory.mktemp("processes")
    world = write_world(folder)
    configs = {name: configure(ORDER, name, world, **SMOOTH, **options) for name, options in RUNS.items()}
    configs["adamw"] = configure(ORDER, "finetune", world)
    configs["shapes"] = configure("shapes:3x2", "ewc", method__strength=1.0)
    (folder / "runs.json").write_text(json.dumps({name: to_dict(config) for name, config in configs.items()}))
    # without an MPI, `accelerate launch` starts one process on a CPU whatever the number asked for; torchrun starts two
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(Path(__file__).with_name("tiny_run.py")), str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, configs


def read(folder: Path, name: str, rank: int):
    file = folder / name / f"process-{rank}.safetensors"
    return load_file(file), json.loads(file.with_suffix(".json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_learns(launched, tmp_path, name):
    folder, configs = launched
    alone = learn(configs[name], tmp_path)
    state, rows = read(folder, name, 0)
    assert_near(state, alone.state, 1e-5)
    assert rows == alone.rows


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_with_adamw(launched, tmp_path):
    folder, configs = launched
    alone = learn(configs["adamw"], tmp_path)
    state, rows = read(folder, "adamw", 0)
    for name, truth in alone.state.items():
        if name.endswith(".key.bias"):
            continue  # it cancels in the softmax: its gradient is rounding alone, which AdamW makes a step of
        away = (state[name] - truth).abs().flatten()
        assert float(away.mean()) < 1e-5, name  # rates go up to 2e-3
    assert rows == alone.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RUNS, "adamw", "shapes"])
def test_the_processes_agree_to_the_last_bit(launched, name):
    folder, _ = launched
    (first, first_rows), (second, second_rows) = read(folder, name, 0), read(folder, name, 1)
    assert_identical(first, second)  # BatchNorm's statistics too
    assert first_rows == second_rows


@pytest.mark.slow
def test_only_the_main_process_writes(launched):
    folder, configs = launched
    for name in configs:
        assert not (folder / name / "other").exists()
        assert {"scores.json", "config.yaml", "passport.json", "log.jsonl"} <= {
            path.name for path in (folder / name / "main").iterdir()
        }
    scores = json.loads((folder / "shapes" / "main" / "scores.json").read_text())
    counts = [json.loads(line) for line in (folder / "shapes" / "main" / "log.jsonl").read_text().splitlines()]
    assert len([entry for entry in counts if entry["event"] == "task"]) == len(scores["matrix"]) == 3

"""One process and two: the same weights, the same importance, the same scores, and one who
writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched_runs import collect, precise
from safetensors.torch import load_file
from tiny_llava import ORDER as INSTRUCTIONS
from tiny_llava import write_text_world
from tiny_run import assert_identical, assert_near, configure, learn, write_world

from mcit.config.files import to_yaml
from mcit.config.parse import to_dict
from mcit.registry import METHOD, list_names

ROOT = Path(__file__).parent.parent
# 17 examples in batches of 8: the last batch leaves one process without an example
ORDER = "vqa,vcr"
# AdamW divides by the size of the gradient, also where that is rounding; steps of SGD are as near
# as the gradients are
SMOOTH = {
    f"tasks__{name}__recipe__{key}": value
    for name in ORDER.split(",")
    for key, value in (("optimizer", "sgd"), ("learning_rate", 0.01))
}
WITH_HEADS = {
    "finetune": {},
    "ewc": {"method__strength": 10.0, "method__penalty": "proximal"},
    "ewc_dr": {"method__strength": 10.0},
    "ewc_lo": {"method__strength": 1.0, "method__estimator__labels": "sampled"},
    "online_ewc": {"method__strength": 10.0, "method__estimator__unit": "batch"},
    "mas": {"method__strength": 1.0, "training__accumulate": 3, "method__estimator__samples": 7},
    "si": {"method__strength": 10.0},
    "l2_anchor": {"method__strength": 0.1},
    "lwf": {"method__strength": 3.0},
    "dgg": {"method__alpha": 0.5},
    "ewc_delta": {"method__strength": 10.0, "model__lora__rank": 2},
    "olora": {"method__strength": 0.01, "model__lora__rank": 2},
    "reglora": {"method__strength": 10.0, "model__lora__rank": 2},
    # singular vectors are sensitive to rounding: the first, of layers with large gradients
    "keeplora": {"model__lora__rank": 1, "model__lora__targets": ["value"]},
    "moelora": {"model__lora__rank": 4, "model__lora__experts": 2},
    "replay": {"method__fraction": 0.5, "method__frequency": 2},
    "adapters": {"method__rank": 2},
    "gpm": {"method__threshold": 0.5, "method__vectors": 50},
    "adam_nscl": {},
    "freeze_bottom": {},
    "freeze_encoder": {},
    "joint": {},
    "single": {},
}
# of shapes, augmented, through BatchNorm: 75 images of three classes in batches of 16;
# importance as the EWC-DR release measures it
RELEASE = {"unit": "batch", "mode": "train"}
REFRESHED = {"training__refresh_batchnorm": True}
DISTILLED = {"method__strength": 3.0, **REFRESHED}
# after few steps the features of the old network, in eval mode, are large
PROJECTED = {
    "model__bottleneck": 4,
    "method__hidden": 8,
    "method__strength": 1e-3,
    "tasks__shapes__recipe__learning_rate": 1e-3,
    **REFRESHED,
}
WITH_CLASSES = {
    "finetune": {"training__accumulate": 3, **REFRESHED},
    "ewc": {"method__strength": 0.1},
    "ewc_dr": {
        "method__strength": 0.1,
        "method__merge": "share",
        "method__estimator": {"score": "reversed", **RELEASE},
        **REFRESHED,
    },
    "ewc_lo": {"method__strength": 0.1},
    "online_ewc": {"method__strength": 0.1, "method__estimator": {"score": "plain", **RELEASE}},
    "mas": {"method__strength": 0.1},
    "si": {"method__strength": 0.1},
    "l2_anchor": {"method__strength": 0.1},
    "replay": {"method__fraction": 0.5, "method__frequency": 2},
    "lwf": DISTILLED,
    "gpm": {"method__threshold": 0.5, "method__vectors": 50, **REFRESHED},
    "adam_nscl": {"method__average": False},
    "lwf_mc": {},
    # figures of the documentation are as good as any images
    "muc": {"method__outside": str(ROOT / "docs"), "method__epochs": 2},
    "icarl": {"method__exemplars": 4},
    "der": {"method__size": 10},
    "joint": REFRESHED,
    "freeze_encoder": {"classifier__name": "lda"},
    "pass": {"tasks__shapes__recipe__learning_rate": 1e-3},
    "ssre": {"tasks__shapes__recipe__learning_rate": 1e-3, **REFRESHED},
    "fetril": {},
    "fecam": {},
    "efc": {"tasks__shapes__recipe__learning_rate": 1e-3, "training__accumulate": 2},
    "ldc": DISTILLED,
    "adc": {**DISTILLED, "transport__name": "attack", "transport__candidates": 3},
    "dpcr": DISTILLED,
    "adagauss": {
        **PROJECTED,
        "transport__name": "network",
        "transport__epochs": 1,
        "transport__hidden": 8,
        "transport__draws": 50,
    },
    "gatf": PROJECTED,
}
# one training that several classifiers score
ANSWERED = {"classifier__name": "gaussian,head,svm", "transport__name": "ridge"}
# in words, with answers of different lengths: 24 examples in batches of 23
WITH_WORDS = {
    "finetune": {"training__accumulate": 2},
    "ewc_lo": {"method__strength": 1.0},
    "replay": {"method__fraction": 0.5, "method__frequency": 2},
}
IN_WORDS = {
    "tasks__instruction__recipe__optimizer": "sgd",
    "tasks__instruction__recipe__batch_size": 23,
}
RUNS = [*(f"heads {name}" for name in WITH_HEADS), *(f"classes {name}" for name in WITH_CLASSES)]
RUNS += [f"words {name}" for name in WITH_WORDS]
RUNS += ["classes answered", "classes turned"]


def test_every_method_is_run_on_the_tracks_where_it_makes_sense():
    assert WITH_HEADS.keys() | WITH_CLASSES.keys() == set(list_names(METHOD))


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """All runs in two processes of one launch, and their configurations."""
    folder = tmp_path_factory.mktemp("processes")
    world = write_world(folder)
    configs = {
        f"heads {name}": configure(ORDER, name, world, **SMOOTH, **o)
        for name, o in WITH_HEADS.items()
    }
    configs |= {
        f"classes {name}": configure("shapes:2x3", name, **o) for name, o in WITH_CLASSES.items()
    }
    text_world = write_text_world(folder)
    configs |= {
        f"words {name}": configure(INSTRUCTIONS, name, text_world, **IN_WORDS, **o)
        for name, o in WITH_WORDS.items()
    }
    configs["classes turned"] = configure("shapes:2x3", "finetune", recipe="rotations", **REFRESHED)
    configs["classes answered"] = configure("shapes:2x3", "finetune", **ANSWERED)
    configs["adamw"] = configure("vqa,nlvr2", "finetune", world)
    (folder / "runs.json").write_text(
        json.dumps({name: to_dict(config) for name, config in configs.items()})
    )
    (folder / "command.yaml").write_text(
        to_yaml(configure("nlvr2,snli-ve", "ewc", world, method__strength=1.0))
    )
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / "configs" / "accelerate" / "cpu2.yaml")]
    command += [str(Path(__file__).with_name("launched_runs.py")), str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone.pop("ACCELERATE_USE_CPU", None)
    done = subprocess.run(
        command, env=alone, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, configs


def read(folder: Path, name: str, rank: int):
    file = folder / name / f"process-{rank}.safetensors"
    return load_file(file), json.loads(file.with_suffix(".json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_learns(launched, tmp_path, name):
    folder, configs = launched
    with precise(name):
        alone = learn(configs[name], tmp_path)
    state, rows = read(folder, name, 0)
    assert_near(state, collect(alone), 1e-8 if name.startswith("classes") else 1e-5)
    assert rows == alone.rows


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_with_adamw(launched, tmp_path):
    folder, configs = launched
    alone = learn(configs["adamw"], tmp_path)
    state, rows = read(folder, "adamw", 0)
    for name, truth in alone.state.items():
        # it cancels in the softmax: its gradient is rounding alone, which AdamW makes a step of
        if name.endswith(".key.bias"):
            continue
        away = (state[name] - truth).abs().flatten()
        # rates go up to 2e-3
        assert float(away.mean()) < 1e-5, name
    assert rows == alone.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RUNS, "adamw"])
def test_the_processes_agree_to_the_last_bit(launched, name):
    folder, _ = launched
    first, first_rows = read(folder, name, 0)
    second, second_rows = read(folder, name, 1)
    # BatchNorm's statistics too
    assert_identical(first, second)
    assert first_rows == second_rows


@pytest.mark.slow
def test_only_the_main_process_writes(launched):
    folder, configs = launched
    for name in configs:
        assert not (folder / name / "other").exists()
        assert {"scores.json", "config.yaml", "provenance.json", "log.jsonl"} <= {
            path.name for path in (folder / name / "main").iterdir()
        }
    scores = json.loads((folder / "classes ewc" / "main" / "scores.json").read_text())
    lines = (folder / "classes ewc" / "main" / "log.jsonl").read_text().splitlines()
    tasks = [line for line in lines if json.loads(line)["event"] == "task"]
    assert len(tasks) == len(scores["matrix"]) == 2


@pytest.mark.slow
def test_the_command_runs_in_two_processes_and_one_of_them_prints(launched):
    folder, _ = launched
    assert [(folder / f"code-{rank}").read_text() for rank in range(2)] == ["0", "0"]
    assert "BWT" in (folder / "printed-0").read_text()
    assert not (folder / "printed-1").read_text()
    assert {"scores.json", "report.md", "provenance.json"} <= {
        path.name for path in (folder / "command").iterdir()
    }


@pytest.mark.slow
def test_processes_send_and_hold_what_the_formulas_say(launched):
    rows = {row["what"]: row for row in json.loads((launched[0] / "scaling-0.json").read_text())}
    for what in (
        "steps of a task, all-reduced",
        "importance by example, all-reduced",
        "importance by batch, all-reduced",
        "importance by example, forward passes",
        "importance by batch, forward passes",
        "held by the method, bytes",
        "held with a path integral (SI), bytes",
    ):
        assert rows[what]["counted"] == rows[what]["expected"], rows[what]
    for what, slack in (
        ("steps of a task, broadcast", 0.01),
        ("a checkpoint's learner, bytes", 0.05),
    ):
        assert 1 <= rows[what]["counted"] / rows[what]["expected"] < 1 + slack, rows[what]

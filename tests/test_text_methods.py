"""Methods where tasks answer in words: what they hold of a generative model, and strength 0."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import assert_same_end, start, stop_after
from tiny_llava import write_instructions, write_llava
from tiny_run import Run, assert_identical, learn
from torch.testing import assert_close

from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.export import export_learner, load_exported
from mcit.models.lora_pairs import find_acting

STRONG = {"strength": 1.0}


class Runs:
    """Runs of two tasks on a tiny LLaVA with LoRA, each made once."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_llava(folder / "llava")
        write_instructions(folder / "data", "color", count=9)
        write_instructions(folder / "data", "truth", answer="truth", count=9)
        self.made: dict[str, Run] = {}

    def configure(self, method: str, experts: int = 0, **options) -> RunConfig:
        data = {
            "order": "instruction:color.json,instruction:truth.json",
            "method": {"name": method, **options},
            "data_root": str(self.folder / "data"),
            "model": {
                "name": str(self.folder / "llava"),
                "lora": {"rank": 4, "experts": experts, "targets": ["q_proj", "v_proj"]},
            },
            "training": {"log_every": 1},
            "checkpoint": {"every_steps": 1, "every_minutes": None},
            "tasks": {"instruction": {"recipe": {"batch_size": 4, "learning_rate": 0.01}}},
        }
        return parse(RunConfig, data)

    def __call__(self, method: str, **options) -> Run:
        key = f"{method} {options}"
        if key not in self.made:
            config = self.configure(method, **options)
            self.made[key] = learn(config, self.folder / f"run-{len(self.made)}")
        return self.made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lwf", STRONG),
        ("dgg", {"alpha": 1.0}),
        ("replay", {"fraction": 0.5, "frequency": 1}),
        ("adapters", {"rank": 2}),
        ("joint", {}),
        ("single", {}),
        ("ewc_delta", {**STRONG, "estimator": {"score": "log_odds"}}),
        ("olora", STRONG),
        ("reglora", STRONG),
        ("keeplora", {}),
        ("moelora", {"experts": 2}),
    ],
)
def test_a_method_learns_tasks_in_words_and_leaves_the_base_alone(runs, method, options):
    run = runs(method, **options)
    assert [len(row) for row in run.rows] == [1, 2]
    first, last = run.states
    moved = {name for name in first if name in last and not first[name].equal(last[name])}
    assert all("lora_" in name for name in moved)
    # what is held is of the size of the adapters, not of the model
    base = sum(t.nbytes for name, t in last.items() if "lora_" not in name)
    if method not in ("joint", "moelora"):
        assert 0 < run.method.bytes_held() < base


@pytest.mark.parametrize(("method", "options"), [("lwf", {"strength": 0.0}), ("dgg", {"alpha": 0})])
def test_strength_zero_is_finetuning_bit_for_bit(runs, method, options):
    assert_identical(runs(method, **options).state, runs("finetune").state)


def test_the_teacher_is_the_old_adapter(runs):
    run = runs("lwf", **STRONG)
    assert all("lora_" in name for name in run.method.old.tensors)
    for name, tensor in run.method.old.tensors.items():
        assert tensor.equal(run.states[0][name])
    assert any(not run.state[name].equal(runs("finetune").state[name]) for name in run.state)


def test_every_task_has_its_pair(runs):
    assert find_acting(runs("olora", **STRONG).learner) == ["default", "pair2"]


@pytest.mark.parametrize(("method", "options"), [("olora", STRONG), ("moelora", {"experts": 2})])
def test_pairs_and_experts_are_exported_and_loaded_with_the_same_answers(
    runs, tmp_path, method, options
):
    run = runs(method, **options)
    export_learner(run.learner, tmp_path, "card", {})
    again = load_exported(tmp_path)
    task = run.result.plan.tasks[0]
    batch = task.collate([task.examples("train")[0]], again.processor)
    expected = run.learner.eval()(batch, task.head).logits
    assert_close(again(batch, task.head).logits, expected)
    assert find_acting(again) == find_acting(run.learner)


def test_a_stopped_run_with_pairs_goes_on_as_if_it_had_not_been(runs, tmp_path):
    config = runs.configure("ewc_delta", strength=1.0)
    start(config, tmp_path / "whole")
    # three steps a task
    stop_after(4, config, tmp_path / "stopped")
    start(config, tmp_path / "stopped", resume=True)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")

"""The code of the README does what it says there, word for word."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import mcit
from mcit.methods.freeze_encoder import FreezeEncoder

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PLAIN, ACCELERATE, TRAINER, METHOD = re.findall(
    r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
)


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "README.md", "exec"), names)
    return names


def make_points(seed: int) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64, 6, generator=generator)
    target = (inputs @ torch.randn(6, 3, generator=generator)).argmax(dim=1)
    return DataLoader(TensorDataset(inputs, target), batch_size=16)


def make_sentences(seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, 30, (12, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 2} for row in words]


def make_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    return BertForSequenceClassification(
        BertConfig(vocab_size=30, max_position_embeddings=8, **sizes)
    )


def is_held(manager: mcit.ConsolidationManager, model: nn.Module) -> bool:
    """Whether every weight of the model has importance, and some of it counts."""
    names = {name for name, _ in model.named_parameters()}
    return manager.importance.keys() == names and any(
        bool(value.any()) for value in manager.importance.values()
    )


def test_the_plain_loop_learns_and_holds():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = run(
        PLAIN,
        model=model,
        loader=make_points(1),
        loss_function=F.cross_entropy,
        optimizer=optimizer,
    )
    assert not torch.equal(model.weight, before)
    assert is_held(found["manager"], model)
    assert (
        found["manager"]
        .history[0]
        .startswith("mean over examples of squared gradients: score reversed")
    )


@pytest.mark.parametrize(
    ("make_optimizer", "stable"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0), False),
        (lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.9), True),
        (lambda p: torch.optim.AdamW(p, lr=1e-3), True),
    ],
)
def test_the_plain_loop_goes_on_over_tasks_or_says_that_it_will_not(make_optimizer, stable):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = make_optimizer(model.parameters())
    setup, task = PLAIN.split("for inputs", 1)
    names = {
        "model": model,
        "optimizer": optimizer,
        "loss_function": F.cross_entropy,
        "loader": make_points(1),
    }
    found = run(setup + "\nfor inputs" + task, **names)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in (1, 2, 3):
            for _ in range(10):
                names = {**found, "loader": make_points(seed)}
                run("for inputs" + task.rpartition("manager.consolidate")[0], **names)
            run("manager.consolidate" + task.rpartition("manager.consolidate")[2], **names)
            if any("stiffness" in str(warning.message) for warning in told):
                break
    assert stable == (not any("stiffness" in str(warning.message) for warning in told))
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_the_accelerate_loop_adds_the_gradient_once_per_real_step(monkeypatch):
    added = []
    add = mcit.ConsolidationManager.add_gradient_
    monkeypatch.setattr(
        mcit.ConsolidationManager, "add_gradient_", lambda manager: added.append(add(manager))
    )
    model = make_bert()
    names = {name: getattr(mcit, name) for name in ("ConsolidationManager", "measure_importance")}
    found = run(
        ACCELERATE,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=DataLoader(make_sentences(1), batch_size=3),
        accelerator=Accelerator(gradient_accumulation_steps=2, cpu=True),
        **names,
    )
    assert len(added) == 2  # of 4 batches
    assert is_held(found["manager"], model)


def test_the_trainer_holds_what_the_first_task_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make_bert()
    found = run(
        TRAINER,
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, num_train_epochs=1
        ),
        first_loader=DataLoader(make_sentences(1), batch_size=4),
        second_task=make_sentences(2),
        Trainer=Trainer,
        **{name: getattr(mcit, name) for name in ("ConsolidationManager", "measure_importance")},
    )
    manager = found["manager"]
    assert float(manager.penalty()) > 0  # it has moved while it was held
    again = mcit.ConsolidationManager(model.named_parameters())
    again.load("importance-and-anchor.safetensors")
    assert (again.strength, again.importance.keys()) == (1.0, manager.importance.keys())


def test_the_method_is_the_one_that_ships():
    code = "from dataclasses import dataclass\nfrom mcit.method import Method, Stage\n" + METHOD
    shown = run(code, __name__="shown")["FreezeEncoder"]
    assert shown.name == FreezeEncoder.name
    assert shown.begin_task.__code__.co_code == FreezeEncoder.begin_task.__code__.co_code

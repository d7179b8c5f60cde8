"""Three lines in anybody's loop: plain PyTorch, Accelerate, transformers.Trainer, PEFT, SI."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from mcit import ConsolidationCallback, ConsolidationManager, PathIntegral, measure_importance

STRENGTH = 20.0
CLIP = 0.5


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps its settings for the whole process."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def make_network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def make_task(seed: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Random inputs that a random plane of the task's own sorts into three classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(96, 6, generator=generator, dtype=dtype)
    return TensorDataset(
        inputs, (inputs @ torch.randn(6, 3, generator=generator, dtype=dtype)).argmax(dim=1)
    )


def random_importance(model: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {
        name: torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in trained.items()
    }


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def distance(model: nn.Module, weights: dict[str, Tensor]) -> float:
    parts = [(p.detach() - weights[name]).square().sum() for name, p in model.named_parameters()]
    return float(torch.stack(parts).sum().sqrt())


def pull_(
    model: nn.Module, importance: dict[str, Tensor], anchor: dict[str, Tensor], strength: float
) -> None:
    """The penalty's gradient written out: the reference that shares no code with the manager."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in importance:
                parameter.grad += strength * importance[name] * (parameter - anchor[name])


# --- plain PyTorch


def learn(
    model: nn.Module, task: TensorDataset, manager: ConsolidationManager, epochs: int = 25
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        task, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    for _ in range(epochs):
        for inputs, target in loader:
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            manager.add_gradient_()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def loss_on(model: nn.Module, task: TensorDataset) -> float:
    return float(F.cross_entropy(model(task.tensors[0]), task.tensors[1]))


def test_held_weights_stay_closer_and_the_old_task_is_better_kept():
    first = make_task(1)
    second = make_task(2)
    after = {}
    for strength in (0.0, 100.0):
        model = make_network()
        manager = ConsolidationManager(model.named_parameters(), strength=strength)
        learn(model, first, manager)
        learned = loss_on(model, first)
        kept = copies(model)
        manager.consolidate(measure_importance(model, DataLoader(first, batch_size=32)))
        learn(model, second, manager)
        after[strength] = loss_on(model, first), distance(model, kept), loss_on(model, second)
    # the first task was learned at all
    assert learned < 0.6
    free = after[0.0]
    held = after[100.0]
    assert held[1] < 0.8 * free[1]
    assert learned <= held[0] < learned + 0.5 * (free[0] - learned)
    # and what is held learns the new task less well: no free lunch, and a working penalty
    assert free[2] < held[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.02),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ],
    ids=["sgd", "momentum", "adam", "adamw"],
)
def test_the_injected_gradient_takes_the_path_of_a_penalty_in_the_loss(optimizer, dtype):
    ours = make_network(dtype)
    theirs = make_network(dtype)
    importance = random_importance(ours)
    anchor = copies(ours)
    manager = ConsolidationManager(ours.named_parameters(), strength=STRENGTH)
    manager.consolidate(importance)
    steps = optimizer(ours.parameters()), optimizer(theirs.parameters())
    for inputs, target in DataLoader(make_task(3, dtype), batch_size=8):
        F.cross_entropy(ours(inputs), target).backward()
        manager.add_gradient_()
        loss = F.cross_entropy(theirs(inputs), target)
        for name, parameter in theirs.named_parameters():
            loss = loss + STRENGTH / 2 * (importance[name] * (parameter - anchor[name]) ** 2).sum()
        loss.backward()
        for step in steps:
            step.step()
            step.zero_grad()
    assert distance(ours, anchor) > 0.05
    torch.testing.assert_close(copies(ours), copies(theirs), rtol=1e-6, atol=1e-6)


def test_before_anything_is_consolidated_nothing_changes():
    ours = make_network()
    plain = make_network()
    learn(ours, make_task(1), ConsolidationManager(ours.named_parameters(), strength=1e6), epochs=1)
    learn(plain, make_task(1), ConsolidationManager(plain, strength=0.0), epochs=1)
    torch.testing.assert_close(copies(ours), copies(plain), rtol=0, atol=0)


# --- Accelerate


def test_accelerate_adds_the_penalty_once_per_real_step_and_clips_the_sum():
    model = make_network()
    reference = make_network()
    importance = random_importance(model)
    anchor = copies(model)
    # 5 batches: the last step has one
    data = TensorDataset(*(tensor[:80] for tensor in make_task(3).tensors))
    manager = ConsolidationManager(model.named_parameters(), strength=STRENGTH)
    manager.consolidate(importance)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        DataLoader(data, batch_size=16),
    )
    for _ in range(2):
        for inputs, target in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(F.cross_entropy(prepared(inputs), target))
                if accelerator.sync_gradients:
                    manager.add_gradient_()
                    accelerator.clip_grad_norm_(prepared.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()

    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2, momentum=0.9)
    norms = []
    batches = list(DataLoader(data, batch_size=16))
    for group in 2 * [batches[0:2], batches[2:4], batches[4:5]]:
        for inputs, target in group:
            (F.cross_entropy(reference(inputs), target) / 2).backward()
        pull_(reference, importance, anchor, STRENGTH)
        norms.append(float(nn.utils.clip_grad_norm_(reference.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    # clipping had something to do
    assert max(norms) > CLIP
    torch.testing.assert_close(copies(model), copies(reference), rtol=1e-6, atol=1e-6)


# --- transformers.Trainer


def make_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    return BertForSequenceClassification(config)


def make_sentences(seed: int, count: int = 40) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": (row[0] + seed) % 3} for row in ids]


class Collator:
    """Stacks examples, and keeps the batches so that a loop written by hand sees the same ones."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = {name: torch.stack([example[name] for example in examples]) for name in examples[0]}
        self.batches.append(batch)
        return batch


def sum_losses(outputs, labels: Tensor, num_items_in_batch: Tensor | int) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def make_trainer(
    folder, model: nn.Module, data: list, callbacks=(), **changes
) -> tuple[Trainer, Collator]:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": CLIP,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    collator = Collator()
    trainer = Trainer(
        model,
        TrainingArguments(**{**settings, **changes}),
        data_collator=collator,
        train_dataset=data,
        callbacks=list(callbacks),
        compute_loss_func=sum_losses,
    )
    return trainer, collator


def steps_of(collator: Collator) -> list[list[dict[str, Tensor]]]:
    """Two batches to a step; ten batches an epoch."""
    assert len(collator.batches) == 20
    return [collator.batches[start : start + 2] for start in range(0, 20, 2)]


def accumulate(model: nn.Module, batches: list[dict[str, Tensor]]) -> None:
    count = sum(len(batch["labels"]) for batch in batches)
    for batch in batches:
        logits = model(input_ids=batch["input_ids"]).logits
        (F.cross_entropy(logits, batch["labels"], reduction="sum") / count).backward()


@pytest.mark.parametrize(
    ("name", "optimizer", "rate"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.05), 0.05),
        ("adamw_torch", lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.0), 0.003),
    ],
)
def test_trainer_clips_the_tasks_gradient_and_then_adds_the_penalty(
    tmp_path, name, optimizer, rate
):
    model = make_bert()
    reference = make_bert()
    importance = random_importance(model)
    anchor = copies(model)
    manager = ConsolidationManager(model.named_parameters(), strength=STRENGTH)
    manager.consolidate(importance)
    callbacks = [ConsolidationCallback(manager)]
    trainer, collator = make_trainer(
        tmp_path, model, make_sentences(1), callbacks, optim=name, learning_rate=rate
    )
    trainer.train()

    optimizer = optimizer(reference.parameters())
    norms = []
    pulls = []
    reference.train()
    for batches in steps_of(collator):
        accumulate(reference, batches)
        norms.append(float(nn.utils.clip_grad_norm_(reference.parameters(), CLIP)))
        before = float(nn.utils.get_total_norm([p.grad for p in reference.parameters()]))
        pull_(reference, importance, anchor, STRENGTH)
        pulls.append(
            float(nn.utils.get_total_norm([p.grad for p in reference.parameters()])) - before
        )
        optimizer.step()
        optimizer.zero_grad()
    assert max(norms) > CLIP
    assert max(map(abs, pulls)) > 0.01
    torch.testing.assert_close(copies(model), copies(reference), rtol=1e-6, atol=1e-6)


def test_a_trainer_without_anything_held_is_the_trainer(tmp_path):
    plain = make_bert()
    ours = make_bert()
    make_trainer(tmp_path, plain, make_sentences(1))[0].train()
    manager = ConsolidationManager(ours.named_parameters(), strength=1e6)
    make_trainer(tmp_path, ours, make_sentences(1), [ConsolidationCallback(manager)])[0].train()
    torch.testing.assert_close(copies(ours), copies(plain), rtol=0, atol=0)


# --- PEFT


def make_lora() -> peft.PeftModel:
    torch.manual_seed(1)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    return peft.get_peft_model(make_bert(), config)


def is_adapter(name: str) -> bool:
    return "lora_" in name or "modules_to_save" in name


def test_of_a_peft_model_only_what_trains_is_held_and_the_base_is_untouched(tmp_path):
    moved = {}
    for strength in (0.0, 10.0):
        model = make_lora()
        base = {name: weight for name, weight in copies(model).items() if not is_adapter(name)}
        manager = ConsolidationManager(model.named_parameters(), strength=strength)
        make_trainer(tmp_path, model, make_sentences(1), learning_rate=0.2)[0].train()
        importance = measure_importance(
            model, DataLoader(make_sentences(1), batch_size=8), labels="all"
        )
        manager.consolidate(importance)
        assert manager.diagnose(learning_rate=0.2).warning() is None
        assert set(manager.importance) == {
            name for name, _ in model.named_parameters() if is_adapter(name)
        }
        assert any("modules_to_save" in name for name in manager.importance)
        assert all(value.sum() > 0 for value in manager.importance.values())
        kept = copies(model)
        callbacks = [ConsolidationCallback(manager)]
        make_trainer(tmp_path, model, make_sentences(2), callbacks, learning_rate=0.2)[0].train()
        moved[strength] = distance(model, kept)
        torch.testing.assert_close(
            {n: w for n, w in copies(model).items() if n in base}, base, rtol=0, atol=0
        )
    assert 0 < moved[10.0] < 0.9 * moved[0.0]


def test_importance_of_a_peft_model_equals_one_example_at_a_time(tmp_path):
    model = make_lora()
    make_trainer(tmp_path, model, make_sentences(1), learning_rate=0.2)[0].train()
    data = make_sentences(1, count=12)
    found = measure_importance(model, DataLoader(data, batch_size=5), score="reversed").values
    model.eval()
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    for example in data:
        model.zero_grad()
        logits = model(input_ids=example["input_ids"][None]).logits
        F.cross_entropy(-logits, example["labels"][None]).backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                squares[name] += parameter.grad**2 / len(data)
    assert set(found) == set(squares)
    torch.testing.assert_close(dict(found), squares, rtol=1e-4, atol=1e-9)


# --- synaptic intelligence


def test_the_path_integral_in_a_trainer_sees_the_unmixed_gradient(tmp_path):
    model = make_bert()
    reference = make_bert()
    importance = random_importance(model)
    anchor = copies(model)
    path = PathIntegral(model.named_parameters(), damping=0.05)
    manager = ConsolidationManager(model.named_parameters(), strength=STRENGTH, path=path)
    manager.consolidate(importance)
    callback = ConsolidationCallback(manager)
    trainer, collator = make_trainer(
        tmp_path, model, make_sentences(1), [callback], max_grad_norm=0.0
    )
    trainer.train()

    integral = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    reference.train()
    for batches in steps_of(collator):
        accumulate(reference, batches)
        gradients = {n: p.grad.clone() for n, p in reference.named_parameters()}
        before = copies(reference)
        pull_(reference, importance, anchor, STRENGTH)
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in reference.named_parameters():
            integral[name] -= gradients[name] * (parameter.detach() - before[name])
    torch.testing.assert_close(copies(model), copies(reference), rtol=1e-6, atol=1e-6)
    expected = {
        name: total.clamp_min(0)
        / ((dict(reference.named_parameters())[name] - anchor[name]).detach() ** 2 + 0.05)
        for name, total in integral.items()
    }
    torch.testing.assert_close(dict(path.importance().values), expected, rtol=1e-4, atol=1e-7)
    assert any(value.max() > 1e-3 for value in expected.values())


def test_a_trainer_that_is_done_lets_its_optimizer_go(tmp_path):
    model = make_bert()
    path = PathIntegral(model.named_parameters())
    manager = ConsolidationManager(model.named_parameters(), path=path)
    trainer, _ = make_trainer(tmp_path, model, make_sentences(1), [ConsolidationCallback(manager)])
    trainer.train()
    seen = copy.deepcopy(dict(path.path))
    assert any(part.abs().max() > 0 for part in seen.values())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    path.see_gradient()
    trainer.optimizer.step()
    torch.testing.assert_close(dict(path.path), seen, rtol=0, atol=0)


def test_synaptic_intelligence_goes_on_from_task_to_task_in_trainers(tmp_path):
    model = make_bert()
    path = PathIntegral(model.named_parameters())
    manager = ConsolidationManager(
        model.named_parameters(), strength=1.0, merge="online", path=path
    )
    callback = ConsolidationCallback(manager)
    trainer, _ = make_trainer(tmp_path, model, make_sentences(1), [callback], max_grad_norm=0.0)
    trainer.train()
    first = path.importance()
    manager.consolidate(first)
    path.begin(model.named_parameters())
    make_trainer(tmp_path, model, make_sentences(2), [callback], max_grad_norm=0.0)[0].train()
    second = path.importance()
    manager.consolidate(second)
    for name, held in manager.importance.items():
        torch.testing.assert_close(held, first.values[name] + second.values[name])
    torch.testing.assert_close(dict(manager.anchor), copies(model))
    assert "path integral" in manager.describe()

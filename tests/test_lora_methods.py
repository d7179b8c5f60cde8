"""Methods on LoRA pairs: closed forms against autograd, pairs that add up, and strength 0."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tiny_run import (
    Perceptron,
    assert_identical,
    configure,
    copy_state,
    go_on,
    make_points,
    resolve,
)
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from mcit.config.schema import LoraConfig, TrainingConfig
from mcit.errors import ConfigError
from mcit.estimator import Estimator
from mcit.fresh_pairs import finished_pairs, fresh_pairs
from mcit.method import Stage
from mcit.methods import ewc_delta, keeplora, olora, reglora
from mcit.methods.ewc_delta import EwcDelta
from mcit.methods.finetune import Finetune
from mcit.methods.keeplora import Keeplora
from mcit.methods.moelora import Moelora
from mcit.methods.olora import Olora
from mcit.methods.reglora import Reglora
from mcit.models import lora_pairs
from mcit.models.learner import Learner
from mcit.models.lora_pairs import Pair, find_acting, list_pairs
from mcit.runner.learner_state import LearnerStore
from mcit.session import begin_task
from mcit.task import Head
from mcit.training.trainer import Reader, Trainer

LORA = LoraConfig(rank=2, alpha=3.0, targets=("l1", "l2"))
HEAD = Head("classes", 3, layout="linear")


def make_learner(lora: LoraConfig = LORA) -> Learner:
    torch.manual_seed(0)
    learner = Learner(Perceptron())
    learner.add_adapter("default", lora)
    return learner


def begin(method, lora: LoraConfig = LORA, sizes=(2, 3, 2), **recipe):
    """The first stage over points, begun, on a network with LoRA."""
    AcceleratorState._reset_state(reset_partial_state=False)
    trainer = Trainer(TrainingConfig(log_every=1), Accelerator(cpu=True), seed=1)
    learner = make_learner(lora)
    tasks = make_points(sizes, **recipe)
    stage = Stage(learner, tasks, 0, 1, Reader(trainer, learner, 0))
    trainer.seed_stage(0)
    begin_task(stage, method)
    return stage, trainer


def learn_tasks(method, count: int = 3, log=None, **recipe):
    """The last of `count` stages, all of them learned."""
    stage, trainer = begin(method, **recipe)
    for index in range(count):
        if index:
            stage = go_on(stage, method, trainer)
        trainer.fit(stage, method, log=log)
        method.end_task(stage)
    return stage


def make_pair(outputs: int = 5, inputs: int = 7, rank: int = 2) -> Pair:
    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=draw) for shape in ((outputs, inputs), (rank, inputs))]
    up = torch.randn(outputs, rank, generator=draw)
    return Pair("layer", *(nn.Parameter(w) for w in (*weights, up)), scale=1.5)


def assert_gradients(pair: Pair, loss: torch.Tensor) -> None:
    wanted = torch.autograd.grad(loss, [pair.a, pair.b], allow_unused=True)
    for matrix, expected in zip((pair.a, pair.b), wanted, strict=True):
        found = torch.zeros_like(matrix) if matrix.grad is None else matrix.grad
        expected = torch.zeros_like(matrix) if expected is None else expected
        assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max() + 1))


# Pairs


def test_pairs_of_several_tasks_act_as_their_products_summed_into_the_weights():
    stage = learn_tasks(Finetune(fresh_pairs=True), epochs=4)
    assert find_acting(stage.learner) == ["default", "pair2", "pair3"]
    batch = next(iter(stage.load(stage.task, "train"))).batch
    found = stage.learner(batch, stage.task.head).logits
    weights = {}
    for pairs in [*finished_pairs(stage), fresh_pairs(stage)]:
        for pair in pairs:
            assert float(pair.product().norm()) > 0
            name = pair.name.removeprefix("encoder.").replace("base_layer.", "")
            weights.setdefault(name, pair.weight.detach().clone())
            weights[name] += pair.scale * pair.product()
    merged = Perceptron()
    for name, parameter in merged.named_parameters():
        layer, kind = name.split(".")
        own = getattr(stage.learner.encoder, layer).base_layer
        parameter.data = weights[name] if kind == "weight" else own.bias.data
    expected = stage.learner.heads["classes"](merged(batch))
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_fresh_pair_changes_nothing_and_trains_alone():
    method = Finetune(fresh_pairs=True)
    stage, trainer = begin(method, lora=replace(LORA, dropout=0.5))
    trainer.fit(stage, method)
    batch = next(iter(stage.load(stage.task, "train"))).batch
    before = stage.learner.eval().encoder(batch)
    stage = go_on(stage, method, trainer)
    assert torch.equal(stage.learner.encoder(batch), before)
    trained = {name for name, p in stage.learner.encoder.named_parameters() if p.requires_grad}
    assert trained == {f"{layer}.lora_{m}.pair2.weight" for layer in ("l1", "l2") for m in "AB"}
    # what is finished is the same in every step, though the fresh pair drops inputs
    kept = copy_state(stage.learner)
    trainer.fit(stage, method)
    after = copy_state(stage.learner)
    moved = {name for name in after if not torch.equal(after[name], kept[name])}
    assert {name for name in moved if "encoder" in name} == {f"encoder.{name}" for name in trained}
    assert isinstance(stage.learner.encoder.l1.lora_dropout["default"], nn.Identity)
    assert isinstance(stage.learner.encoder.l1.lora_dropout["pair2"], nn.Dropout)


def test_a_learner_built_again_has_the_pairs_and_lets_the_same_ones_act_and_train():
    learner = make_learner()
    store = LearnerStore(learner)
    learner.grow(HEAD)
    for name in ("pair2", "pair3"):
        learner.begin_pair(name)
        for pair in list_pairs(learner, name):
            nn.init.normal_(pair.b)
    state = store.take()
    # the base is not stored
    assert all("lora_" in name or "heads." in name for name in state.tensors)
    again = make_learner()
    LearnerStore(again).restore(state)
    assert_identical(copy_state(again), copy_state(learner))
    assert find_acting(again) == ["default", "pair2", "pair3"]
    trains = {name for name, p in again.named_parameters() if p.requires_grad}
    assert trains == {name for name, p in learner.named_parameters() if p.requires_grad}
    batch = {"x": torch.randn(4, 6)}
    assert torch.equal(again(batch, HEAD).logits, learner(batch, HEAD).logits)


# Closed forms


@pytest.mark.parametrize("store", ["full", "factored"])
@pytest.mark.parametrize("chunk", [lora_pairs.CHUNK, 14])
def test_the_penalty_on_the_product_has_the_gradient_that_autograd_finds(monkeypatch, store, chunk):
    # two rows at a time, and the fifth by itself
    monkeypatch.setattr(lora_pairs, "CHUNK", chunk)
    pair = make_pair()
    held = ewc_delta.fold(torch.rand(5, 7), store)
    ewc_delta.add_penalty_(pair, held, strength=3.0)
    change = pair.scale * pair.b @ pair.a
    assert_gradients(pair, 3.0 / 2 * (ewc_delta.unfold(held) * change.square()).sum())


def test_importance_of_rank_one_is_stored_exactly_by_its_sums():
    value = torch.outer(torch.rand(5), torch.rand(7))
    assert_close(ewc_delta.unfold(ewc_delta.fold(value, "factored")), value)


@pytest.mark.parametrize("shrink", [0.0, 0.3])
def test_the_overlap_with_earlier_pairs_has_the_gradient_that_autograd_finds(shrink):
    pair = make_pair()
    earlier = [make_pair(rank=3), make_pair()]
    found = olora.add_penalty_(pair, earlier, strength=3.0, shrink=shrink)
    overlap = sum((before.a.detach() @ pair.a.T).abs().sum() for before in earlier)
    assert_close(found, overlap.detach())
    assert_gradients(pair, 3.0 * overlap + shrink * (pair.a.norm() + pair.b.norm()))


def test_marked_entries_have_the_gradient_that_autograd_finds():
    pair = make_pair()
    marks = reglora.mark_largest(torch.randn(5, 7), fraction=0.2)
    found = reglora.add_penalty_(pair, marks, strength=3.0)
    marked = reglora.unpack(marks, 35).view(5, 7)
    penalty = 3.0 * (pair.b @ pair.a)[marked].abs().mean()
    assert_close(found, penalty.detach())
    assert_gradients(pair, penalty)


def test_bits_are_those_of_the_largest_entries_and_eight_are_a_byte():
    product = torch.randn(5, 7)
    marks = reglora.mark_largest(product, fraction=0.2)
    assert marks.dtype == torch.uint8
    assert len(marks) == 5
    largest = product.abs() >= product.abs().flatten().sort().values[-7]
    assert torch.equal(reglora.unpack(marks, 35).view(5, 7), largest)


def test_importance_of_the_product_is_that_of_a_change_of_the_weight_written_out():
    """One example at a time, by autograd, with the change as a parameter of its own."""
    stage, trainer = begin(Finetune(fresh_pairs=True), epochs=3)
    trainer.fit(stage, Finetune())
    stage = go_on(stage, Finetune(fresh_pairs=True), trainer)
    for pair in fresh_pairs(stage):
        nn.init.normal_(pair.b)
    estimator = Estimator(score="plain")
    found = ewc_delta.measure_products(stage, estimator)
    assert set(found.paths.values()) == {"rule"}
    learner = copy.deepcopy(stage.learner).eval()
    squares = {pair.name: torch.zeros_like(pair.weight) for pair in fresh_pairs(stage)}
    count = 0
    for part in stage.load(stage.task, "plain"):
        for place in range(len(part.batch["labels"])):
            row = {key: value[place : place + 1] for key, value in part.batch.items()}
            changes = {name: torch.zeros_like(s, requires_grad=True) for name, s in squares.items()}
            weights = dict(learner.named_parameters())
            moved = {name: weights[name].detach() + change for name, change in changes.items()}
            logits = functional_call(learner, moved, (row, stage.task.head)).logits
            score = F.cross_entropy(logits, stage.task.target(row))
            gradients = torch.autograd.grad(score, list(changes.values()))
            for total, gradient in zip(squares.values(), gradients, strict=True):
                total += gradient.square()
            count += 1
    for name, total in squares.items():
        expected = total / count
        assert_close(found.values[name], expected, rtol=1e-5, atol=1e-6 * float(expected.max()))
    assert not [name for name, p in stage.learner.named_parameters() if p.grad is not None]


# Over tasks

PAIRED = {
    "ewc_delta": lambda strength: EwcDelta(strength=strength),
    "olora": lambda strength: Olora(strength=strength),
    "reglora": lambda strength: Reglora(strength=strength, fraction=0.5),
}


@pytest.mark.parametrize("name", PAIRED)
def test_strength_zero_is_finetuning_with_fresh_pairs_bit_for_bit(name):
    plain = learn_tasks(Finetune(fresh_pairs=True))
    assert_identical(copy_state(learn_tasks(PAIRED[name](0.0)).learner), copy_state(plain.learner))


def find_change(stage) -> float:
    return sum(float(pair.product().norm()) for pair in fresh_pairs(stage))


@pytest.mark.parametrize(("name", "strength"), [("ewc_delta", 100.0), ("reglora", 3.0)])
def test_strength_keeps_the_change_of_later_tasks_small(name, strength):
    log: list = []
    recipe = {"count": 2, "learning_rate": 0.05, "epochs": 6}
    held = learn_tasks(PAIRED[name](strength), log=log.append, **recipe)
    free = learn_tasks(PAIRED[name](0.0), **recipe)
    assert find_change(held) < 0.9 * find_change(free)
    assert any(entry.get("penalty", 0) > 0 for entry in log)


def test_strength_makes_later_pairs_read_other_directions():
    def overlap(strength: float) -> float:
        stage = learn_tasks(Olora(strength=strength), count=2, learning_rate=0.01, epochs=4)
        pairs = zip(fresh_pairs(stage), finished_pairs(stage)[0], strict=True)
        return sum(float((new.a @ old.a.T).detach().abs().sum()) for new, old in pairs)

    assert overlap(1.0) < 0.5 * overlap(0.0)


def test_importance_decays_and_adds_up():
    method = EwcDelta(strength=0.0, decay=0.5)
    stage, trainer = begin(method)
    measured = []
    for index in range(2):
        if index:
            stage = go_on(stage, method, trainer)
        trainer.fit(stage, method)
        measured.append(method.end_task(stage).importance.values)
    for name, (held,) in method.importance.items():
        assert_close(held, 0.5 * measured[0][name] + measured[1][name])


@pytest.mark.parametrize("name", [*PAIRED, "keeplora"])
def test_what_is_held_is_restored_and_counted(name):
    method = Keeplora() if name == "keeplora" else PAIRED[name](1.0)
    stage = learn_tasks(method, count=2)
    again = type(method)() if name == "keeplora" else PAIRED[name](1.0)
    again.restore(stage, method.state_dict())
    assert str(again.state_dict()) == str(method.state_dict())
    assert again.bytes_held() == method.bytes_held()
    pairs = sum(pair.bytes_held() for pair in finished_pairs(stage)[0])
    inputs = {"l1": 7 * 6, "l2": 5 * 7}
    if name == "ewc_delta":
        assert method.bytes_held() == pairs + 4 * sum(inputs.values())
    if name == "reglora":
        assert method.bytes_held() == pairs + sum(-(-size // 8) for size in inputs.values())
    if name == "olora":
        assert method.bytes_held() == pairs


def test_two_methods_on_pairs_share_one_fresh_pair():
    first, second = Olora(strength=0.1), Reglora(strength=1.0)
    stage, trainer = begin(first)
    trainer.fit(stage, first)
    stage = replace(stage, index=1)
    for method in (first, second):
        begin_task(stage, method)
    assert find_acting(stage.learner) == ["default", "pair2"]


# KeepLoRA


def test_leading_directions_cover_the_share_of_energy_that_is_asked_for():
    left, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(8, 6, dtype=torch.float64))
    values = torch.tensor([4.0, 2.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    matrix = left @ values.diag() @ right.T
    # energies 16, 4, 1, 1, 1, 1 of 24
    rows = keeplora.lead(matrix, matrix, 0.8)
    assert len(rows) == 2
    assert_close(rows @ rows.T, torch.eye(2, dtype=torch.float64))
    assert_close((rows @ right).abs()[:, :2], torch.eye(2, dtype=torch.float64), atol=1e-9, rtol=0)
    residual = keeplora.remove(matrix, rows[:1])
    # what the residual lacks is covered already
    assert len(keeplora.lead(residual, matrix, 0.8)) == 1
    assert len(keeplora.lead(keeplora.remove(matrix, right.T), matrix, 1.0)) == 0


def test_the_gradient_is_the_mean_over_batches():
    stage, _ = begin(Finetune(), batch_size=1000)
    found = keeplora.measure_gradients(stage, 1.0)
    weights = {pair.name: pair.weight.requires_grad_(True) for pair in fresh_pairs(stage)}
    batch = next(iter(stage.load(stage.task, "train"))).batch
    loss = stage.task.loss(stage.learner(batch, stage.task.head).logits, batch)
    expected = torch.autograd.grad(loss, list(weights.values()))
    for name, gradient in zip(weights, expected, strict=True):
        assert_close(found[name], gradient)


def test_a_pair_reads_no_direction_that_is_kept_and_only_b_learns():
    method = Keeplora(general=0.3, share=0.5)
    stage, trainer = begin(method)
    kept = {name: len(rows) for name, rows in method.directions.items()}
    for index in range(2):
        if index:
            stage = go_on(stage, method, trainer)
        before = {pair.name: pair.a.detach().clone() for pair in fresh_pairs(stage)}
        for pair in fresh_pairs(stage):
            known = method.directions[pair.name]
            assert float((pair.a @ known.T).abs().max()) < 1e-5
            assert_close(known @ known.T, torch.eye(len(known)), atol=1e-5, rtol=0)
        trainer.fit(stage, method)
        method.end_task(stage)
        for pair in fresh_pairs(stage):
            assert torch.equal(pair.a, before[pair.name])
            assert float(pair.b.detach().norm()) > 0
    assert all(len(rows) > kept[name] for name, rows in method.directions.items())


# Experts


def test_experts_are_mixed_by_a_softmax_for_every_token():
    learner = make_learner(replace(LORA, rank=4, experts=2, targets=("l1",)))
    layer = learner.encoder.l1
    nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(3, 6)
    gates = (x @ layer.lora_router["default"].weight.T).softmax(dim=-1)
    expected = layer.base_layer(x)
    for expert in range(2):
        rows = slice(2 * expert, 2 * expert + 2)
        down = layer.lora_A["default"].weight[rows]
        up = layer.lora_B["default"].weight[:, rows]
        expected = expected + 3 / 4 * gates[:, expert : expert + 1] * (x @ down.T @ up.T)
    assert_close(layer(x), expected)


def test_experts_and_routers_learn_and_are_stored():
    lora = replace(LORA, rank=4, experts=2)
    stage, trainer = begin(Moelora(), lora=lora)
    before = copy_state(stage.learner)
    trainer.fit(stage, Moelora())
    after = copy_state(stage.learner)
    learned = {
        name for name in after if "lora_" in name and not torch.equal(after[name], before[name])
    }
    assert learned == {name for name in after if "lora_" in name}
    state = LearnerStore(stage.learner).take()
    again = make_learner(lora)
    LearnerStore(again).restore(state)
    assert_identical(copy_state(again), after)


# Refusals


@pytest.mark.parametrize("name", [*PAIRED, "keeplora"])
def test_a_method_on_pairs_without_lora_is_refused_with_what_to_add(name):
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is 0: add --set model\.lora\.rank=8"):
        resolve(configure("vqa,vcr", name, world={}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("moelora", {"model__lora__rank": 8}, r"add --set model\.lora\.rank=16 --set model\.lora"),
        ("finetune", {"method__fresh_pairs": True}, r"add --set model\.lora\.rank=8"),
        (
            "olora",
            {"method__strength": 1.0, "model__lora__rank": 8, "model__lora__experts": 2},
            r"model\.lora\.experts=2 mixes for every token: leave it out",
        ),
        ("ewc_delta", {"method__strength": 1.0, "method__decay": 2.0}, r"method\.decay must lie"),
        ("reglora", {"method__strength": 1.0, "method__fraction": 0.0}, r"method\.fraction must"),
        ("olora", {"method__strength": 1.0, "method__shrink": -1.0}, r"method\.shrink must be"),
        ("keeplora", {"method__share": 0.0}, r"method\.share must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_by_name(name, options, message):
    with pytest.raises(ConfigError, match=message):
        resolve(configure("vqa,vcr", name, world={}, **options))


def test_the_rank_is_divided_evenly():
    with pytest.raises(ConfigError, match="found rank 4 and 3 experts"):
        LoraConfig(rank=4, experts=3)

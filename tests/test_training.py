"""The inner loop: rates, optimizers, batches, accumulation, precision, scoring, and the release's
own numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from tiny_run import (
    Points,
    assert_identical,
    assert_near,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    moved,
    write_world,
)
from torch import nn
from torch.testing import assert_close

from mcit.config.parse import parse
from mcit.config.schema import TrainingConfig
from mcit.consolidating import TaskForward
from mcit.errors import ConfigError, DivergedError
from mcit.importance import measure_importance
from mcit.method import Method
from mcit.methods.ewc import Ewc
from mcit.methods.ewc_dr import EwcDr
from mcit.methods.finetune import Finetune
from mcit.methods.joint import Joint
from mcit.parallel.global_batch import rows_of_process
from mcit.parallel.launch import make_accelerator
from mcit.session import begin_task
from mcit.task import Recipe
from mcit.training import batches
from mcit.training import trainer as trainer_module
from mcit.training.optimization import build_optimizer, learning_rate
from mcit.training.trainer import Reader, Trainer

FIXTURE = Path(__file__).parent / "fixtures" / "oracle"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


# Rates and optimizers


def test_linear_rates_rise_from_zero_to_the_peak_and_fall_to_zero():
    recipe = Recipe(epochs=1, batch_size=1, learning_rate=3.0, warmup=0.25)
    found = [learning_rate(recipe, step / 8, epoch=0) for step in range(8)]
    assert_close(found, [0.0, 1.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5])
    assert learning_rate(replace(recipe, warmup=0.0), 0.0, 0) == 3.0


def test_stepped_rates_fall_at_their_milestones_and_constant_ones_never():
    recipe = Recipe(
        epochs=6, batch_size=1, learning_rate=2.0, schedule="steps", milestones=(2, 5), factor=0.1
    )
    assert_close(
        [learning_rate(recipe, 0.9, epoch) for epoch in range(6)], [2.0, 2.0, 0.2, 0.2, 0.2, 0.02]
    )
    assert learning_rate(replace(recipe, schedule="constant"), 0.9, 5) == 2.0


def test_cosine_rates_fall_from_the_peak_to_zero_as_torch_s_do():
    recipe = Recipe(epochs=1, batch_size=1, learning_rate=3.0, schedule="cosine", warmup=0.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for step in range(8):
        assert learning_rate(recipe, step / 8, 0) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    warm = replace(recipe, warmup=0.5)
    found = [learning_rate(warm, step / 8, 0) for step in range(8)]
    assert_close(found[:5], [0.0, 0.75, 1.5, 2.25, 3.0])
    assert_close(found[4:], [learning_rate(recipe, step / 4, 0) for step in range(4)])


class Rates(Finetune):
    """Remembers the rate and the weights of every step."""

    def __init__(self):
        self.rates, self.weights = [], []

    def on_gradients_ready(self, stage, step):
        self.weights.append(copy_state(stage.learner))

    def after_step(self, stage, step):
        self.rates.append(step.learning_rate)


def test_a_fit_follows_the_recipe_s_schedule_step_by_step():
    tasks = make_points([2], epochs=3, learning_rate=0.5, schedule="linear", warmup=1 / 3)
    stage, trainer = begin_points(tasks, method := Rates())
    # 18 points in batches of 8, 8 and 2, three times
    assert trainer.fit(stage, method) == 9
    assert_close(method.rates, [0.0, 0.5 / 3, 1 / 3, 0.5, 2.5 / 6, 2 / 6, 1.5 / 6, 1 / 6, 0.5 / 6])
    # a rate of 0 moves nothing
    assert_identical(method.weights[0], method.weights[1])
    assert moved(method.weights[1], method.weights[2])


def test_adamw_decays_matrices_only_and_sgd_and_adam_everything():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(1, 1, 3))
    network[0].weight.requires_grad_(False)
    recipe = Recipe(
        epochs=1, batch_size=1, learning_rate=0.1, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-5
    )
    adamw = build_optimizer(recipe, network)
    decayed = {
        id(p) for group in adamw.param_groups if group["weight_decay"] for p in group["params"]
    }
    spared = {
        id(p) for group in adamw.param_groups if not group["weight_decay"] for p in group["params"]
    }
    assert decayed == {id(network[2].weight)}
    assert spared == {
        id(p) for p in (network[0].bias, network[1].weight, network[1].bias, network[2].bias)
    }
    assert all(
        group["betas"] == (0.8, 0.9) and group["eps"] == 1e-5 for group in adamw.param_groups
    )
    (group,) = build_optimizer(replace(recipe, optimizer="sgd", momentum=0.7), network).param_groups
    assert {id(p) for p in group["params"]} == decayed | spared
    assert (group["weight_decay"], group["momentum"]) == (0.3, 0.7)
    adam = build_optimizer(replace(recipe, optimizer="adam"), network)
    (group,) = adam.param_groups
    # the decay goes through the moments, as PASS and SSRE have it
    assert not isinstance(adam, torch.optim.AdamW)
    assert {id(p) for p in group["params"]} == decayed | spared
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.3, (0.8, 0.9), 1e-5)
    with pytest.raises(ValueError, match="nothing is left to train"):
        build_optimizer(recipe, network.requires_grad_(False))


def test_every_task_has_a_new_optimizer_that_knows_the_active_head_only(
    world, tmp_path, monkeypatch
):
    made = []

    def build(recipe, learner):
        optimizer = build_optimizer(recipe, learner)
        made.append((optimizer, {id(p): name for name, p in learner.named_parameters()}))
        return optimizer

    monkeypatch.setattr(trainer_module, "build_optimizer", build)
    learn(configure("snli-ve,nlvr2", "finetune", world), tmp_path)
    assert len({id(optimizer) for optimizer, _ in made}) == 2
    for (optimizer, names), head in zip(made, ["heads.snli-ve.", "heads.nlvr2."], strict=True):
        touched = {names[id(p)] for p in optimizer.state}
        assert {name for name in names.values() if name.startswith("encoder.")} <= touched
        heads = {name.rsplit("layers", 1)[0] for name in touched if name.startswith("heads.")}
        assert heads == {head}
        # this task's steps, no others
        assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}


# Batches


def divide_among(order, batch_size, world, accumulate):
    """Per process and step, the parts it reads: pairs of example indices and a weight."""
    found = []
    for rank in range(world):
        steps = [[]]
        for part in batches.divide(order, batch_size, accumulate):
            rows = rows_of_process(len(part.indices), rank, world)
            indices = [part.indices[place] for place in rows.places]
            steps[-1].append((indices, part.weight(rows, world)))
            if part.last:
                steps.append([])
        assert steps.pop() == []
        found.append(steps)
    return found


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("count", "batch_size"), [(17, 8), (16, 8), (5, 8), (1, 4), (23, 5)])
def test_global_batches_are_the_same_for_any_number_of_processes_and_parts(
    count, batch_size, world, accumulate
):
    order = torch.randperm(count).tolist()
    processes = divide_among(order, batch_size, world, accumulate)
    whole = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    assert all(len(steps) == len(whole) for steps in processes)
    for number, batch in enumerate(whole):
        assert all(len(steps[number]) <= accumulate for steps in processes)
        parts = [part for steps in processes for part in steps[number] if part[1]]
        assert sorted(i for indices, _ in parts for i in indices) == sorted(batch)
        # what processes average and a process adds up is the mean over the global batch
        counted = {i: weight / len(indices) / world for indices, weight in parts for i in indices}
        assert_close(counted, {i: 1 / len(batch) for i in batch})


class Places(Finetune):
    """Remembers which examples were learned from."""

    def __init__(self):
        self.places = []

    def extra_loss(self, stage, batch, output):
        self.places.append(batch["places"].tolist())


def test_an_epoch_learns_from_every_example_once_in_an_order_of_its_own():
    stage, trainer = begin_points(make_points([3], epochs=2), method := Places())
    trainer.fit(stage, method)
    assert [len(batch) for batch in method.places] == [8, 8, 8, 3] * 2
    first, second = (
        [place for batch in half for place in batch]
        for half in (method.places[:4], method.places[4:])
    )
    assert sorted(first) == sorted(second) == list(range(27))
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize(("draws", "read"), [(True, 4), (False, 2)])
def test_a_resumed_epoch_reads_again_only_what_workers_draw(monkeypatch, draws, read):
    (task,) = make_points([3], epochs=1)
    monkeypatch.setattr(type(task), "draws", draws)
    counts = []

    class Counting(batches.SplitLoader):
        def __init__(self, dataset, indices, *rest, **options):
            counts.append(len(indices))
            super().__init__(dataset, indices, *rest, **options)

    monkeypatch.setattr(batches, "SplitLoader", Counting)
    source = batches.Source(task, task.examples("train"), 0)
    schedule = batches.Schedule([source], lambda epoch, purpose: 1, workers=1)

    def read_steps(skip):
        steps = [list(step.micro_batches) for step in schedule.steps(None, skip)]
        return [part.batch["places"].tolist() for step in steps for part in step]

    assert read_steps(2) == read_steps(0)[2:]
    assert counts == [read, 4]


def read_places(stage, split):
    return [part.batch["places"].tolist() for part in stage.load(stage.task, split)]


def test_importance_reads_the_training_split_shuffled_and_whole():
    # sorted by class, two batches a class
    stage, _ = begin_points(make_points([3], each=16), Finetune())
    once = read_places(stage, "train")
    assert read_places(stage, "train") == once
    assert sorted(place for batch in once for place in batch) == list(range(48))
    assert all(len({place // 16 for place in batch}) > 1 for batch in once)


@pytest.mark.parametrize("split", ["plain", "eval"])
def test_other_splits_are_read_in_the_order_of_the_file(split):
    stage, _ = begin_points(make_points([3], each=16), Finetune())
    read = [place for batch in read_places(stage, split) for place in batch]
    assert read == list(range(48))


def test_importance_by_example_does_not_depend_on_the_order():
    stage, _ = begin_points(make_points([3]), Finetune())
    forward = TaskForward(stage.task)
    shuffled = measure_importance(stage.learner, stage.load(stage.task, "train"), forward=forward)
    in_order = measure_importance(stage.learner, stage.load(stage.task, "eval"), forward=forward)
    assert_near(shuffled.values, in_order.values, 1e-5)


@pytest.mark.parametrize("settings", [{"accumulate": 4}, {"mixed_precision": "bf16"}])
def test_importance_is_measured_in_the_parts_and_the_precision_of_training(settings):
    method = Ewc(strength=1.0)
    found = {}
    for name, training in (("plain", {}), ("other", settings)):
        stage, _ = begin_points(make_points([3, 2], each=16), method, **training)
        seen = []
        layer = next(m for m in stage.learner.modules() if isinstance(m, nn.Linear))
        layer.register_forward_hook(lambda _, inputs, output, seen=seen: seen.append(output))
        found[name] = method.measure(stage)
    sizes = {len(output) for output in seen}
    recipe = stage.task.recipe
    if "accumulate" in settings:
        # two in the audit
        assert sizes == {2, recipe.batch_size // 4}
        assert_near(found["other"].values, found["plain"].values, 1e-5)
    else:
        assert {output.dtype for output in seen} == {torch.bfloat16}
        assert_near(found["other"].values, found["plain"].values, 0.1)
    assert set(found["other"].paths.values()) == {"rule"}


def test_runs_of_one_program_have_each_the_precision_they_ask_for(world, tmp_path):
    single = learn(
        configure("vqa", "finetune", world, training__mixed_precision="no"), tmp_path / "1"
    )
    learn(configure("vqa", "finetune", world, training__mixed_precision="bf16"), tmp_path / "16")
    again = learn(configure("vqa", "finetune", world), tmp_path / "again")
    assert_identical(again.state, single.state)


def test_a_run_does_not_go_on_in_the_precision_of_a_later_one():
    stage, trainer = begin_points(make_points([3, 2]), Finetune(), mixed_precision="bf16")
    make_accelerator("no", cpu=True)
    for use in (trainer.fit, trainer.evaluate):
        other = Finetune() if use == trainer.fit else stage.task
        with pytest.raises(RuntimeError, match=r"has precision 'bf16', and another .* set 'no'"):
            use(stage, other)


# Steps


@pytest.mark.parametrize("accumulate", [2, 4])
def test_a_batch_in_parts_gives_the_weights_of_the_whole_batch(world, tmp_path, accumulate):
    smooth = {f"tasks__{name}__recipe__optimizer": "sgd" for name in ("vqa", "nlvr2")}
    smooth |= {f"tasks__{name}__recipe__learning_rate": 0.01 for name in ("vqa", "nlvr2")}
    whole = learn(configure("vqa,nlvr2", "finetune", world, **smooth), tmp_path / "whole")
    parts = learn(
        configure("vqa,nlvr2", "finetune", world, training__accumulate=accumulate, **smooth),
        tmp_path / "p",
    )
    assert_near(parts.state, whole.state, 1e-5)
    assert parts.rows == whole.rows
    assert moved(whole.states[0], whole.state)


@dataclass
class Push(Method):
    """Adds a constant to every gradient where a penalty would."""

    push: float = 0.0
    name = "push"

    def on_gradients_ready(self, stage, step):
        for parameter in stage.learner.parameters():
            parameter.grad += self.push


@pytest.mark.parametrize("push", [0.0, 100.0])
def test_clipping_bounds_the_step_penalty_included(push):
    # one batch
    tasks = make_points([2], each=4, momentum=0.0, learning_rate=0.5)
    for clip in (None, 1e-3):
        stage, trainer = begin_points(tasks, method := Push(push), clip_norm=clip)
        before = copy_state(stage.learner)
        trainer.fit(stage, method)
        after = copy_state(stage.learner)
        length = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
        if clip is None:
            assert length > 0.5 * 1e-2
            assert (length > 100) == bool(push)
        else:
            assert_close(length, torch.tensor(0.5 * clip), rtol=1e-3, atol=0)


def test_half_precision_is_near_full_precision_and_leaves_the_learner_as_it_was(world, tmp_path):
    full = learn(configure("nlvr2,vcr", "ewc", world, method__strength=1.0), tmp_path / "full")
    half = learn(
        configure(
            "nlvr2,vcr", "ewc", world, method__strength=1.0, training__mixed_precision="bf16"
        ),
        tmp_path / "half",
    )
    assert all(tensor.dtype == torch.float32 for tensor in half.state.values())
    # it did run in another precision
    assert moved(full.state, half.state)
    for name, truth in full.state.items():
        # 6 steps of AdamW at up to 2e-3
        assert float((half.state[name] - truth).abs().max()) < 0.02, name
    task = half.result.plan.tasks[0]
    load = Reader(Trainer(TrainingConfig(), Accelerator(cpu=True), 1), half.learner, 0)
    part = next(iter(load(task, "eval")))
    assert half.learner(part.batch, task.head).logits.dtype == torch.float32
    assert "autocast" not in repr(half.learner.forward)


# Scores


def test_scoring_counts_every_example_once_over_all_classes_seen():
    tasks = make_points([2, 3], each=7)
    stage, trainer = begin_points(tasks, method := Finetune(), eval_batch_size=4)
    trainer.fit(stage, method)
    stage = go_on(stage, method, trainer)
    trainer.fit(stage, method)
    for task in tasks:
        score = trainer.evaluate(stage, task)
        x, y, _ = task.examples("eval").tensors
        with torch.no_grad():
            logits = stage.learner({"x": x}, task.head).logits
        assert logits.shape == (len(y), 5)
        assert score.examples == len(y)
        assert score.score == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))


# What can go wrong


@pytest.mark.parametrize("fate", ["loss", "last step", "gradient"])
def test_divergence_is_named_with_its_place(fate):
    class Breaks(Finetune):
        def on_gradients_ready(self, stage, step):
            if fate == "gradient" and step.number == 1:
                stage.learner.encoder.l1.weight.grad.fill_(torch.inf)

        def after_step(self, stage, step):
            if (fate, step.number) in (("loss", 1), ("last step", 2)):
                with torch.no_grad():
                    stage.learner.encoder.l1.weight.fill_(torch.nan)

    tasks = make_points([2], learning_rate=0.125)
    stage, trainer = begin_points(tasks, method := Breaks(), clip_norm=1.0)
    with pytest.raises(DivergedError) as caught:
        trainer.fit(stage, method)
    assert "points[0-1]" in str(caught.value)
    if fate == "loss":
        assert "loss is nan at step 2 of 3" in str(caught.value)
        assert "learning rate 0.125" in str(caught.value)
    elif fate == "gradient":
        assert "gradient is " in str(caught.value)
        assert "at step 1 of 3" in str(caught.value)
    else:
        assert "encoder.l1.weight" in str(caught.value)


def test_a_diverged_extra_batch_is_seen_too():
    class Poison(Finetune):
        def extra_batch(self, stage, step):
            batch = next(iter(stage.load(stage.task, "train"))).batch
            return stage.task, {**batch, "x": batch["x"] * torch.nan}

    stage, trainer = begin_points(make_points([2]), method := Poison())
    with pytest.raises(DivergedError, match="loss is nan at step 0"):
        trainer.fit(stage, method)


def test_tasks_that_need_different_optimizers_are_not_learned_together():
    class Both(Joint):
        def tasks_to_fit(self, stage):
            return list(stage.tasks)

    first, second = make_points([2, 2])
    tasks = [first, replace(second, recipe=replace(second.recipe, weight_decay=0.5))]
    stage, trainer = begin_points(tasks, method := Both())
    with pytest.raises(ConfigError, match=r"the same weight_decay, found 0\.0, 0\.5"):
        trainer.fit(stage, method)


# Parity with the EWC-DR release


@pytest.fixture
def file_order(monkeypatch):
    """Every epoch is read in the order of the file, as the fixture was made."""
    for module in (batches, trainer_module):
        monkeypatch.setattr(module, "shuffle", lambda count, seed: list(range(count)))


NAMES = {"convnet.l1": "encoder.l1", "convnet.l2": "encoder.l2", "fc": "heads.classes.layers.0"}


def read_part(tensors, prefix):
    """A part of the fixture under the learner's names."""
    part = {
        key[len(prefix) + 1 :]: value
        for key, value in tensors.items()
        if key.startswith(prefix + "/")
    }
    for theirs, ours in NAMES.items():
        part = {key.replace(f"{theirs}.", f"{ours}."): value for key, value in part.items()}
    return part


@torch.no_grad()
def set_weights(learner, weights, known=0):
    """All weights, or those of the head's rows from `known` on."""
    for name, parameter in learner.named_parameters():
        if not known:
            parameter.copy_(weights[name])
        elif name.startswith("heads."):
            parameter[known:] = weights[name][known:]


def test_the_release_s_incremental_run_is_reproduced_by_task_method_and_trainer(file_order):
    about = json.loads((FIXTURE / "fixtures.json").read_text())["cases"]["inc_mlp_dr"]
    tensors = load_file(FIXTURE / "inc_mlp_dr.safetensors")
    recipe = Recipe(
        epochs=1,
        batch_size=about["batch_size"],
        learning_rate=about["lr"],
        weight_decay=about["weight_decay"],
        optimizer="sgd",
        momentum=about["momentum"],
        schedule="steps",
    )
    parts = [(task["known"], task["total"]) for task in about["tasks"]] + [(7, 9)]
    x, y = tensors["input/x"], tensors["input/y"]
    tasks = [
        Points(x, y, *part, recipe if part[0] else replace(recipe, epochs=0)) for part in parts
    ]
    estimator = {"unit": "batch", "mode": "train", "cap": about["omegamax"]}
    method = parse(EwcDr, {"strength": about["lamda"], "merge": "share", "estimator": estimator})
    stage, trainer = begin_points(tasks, method)

    def assert_as_released(found, part):
        assert_near(found, read_part(tensors, part), 1e-4, floor=0)

    for number, (known, _) in enumerate(parts[:3]):
        if number:
            stage = go_on(stage, method, trainer)
        set_weights(stage.learner, read_part(tensors, f"task{number}/theta_start"), known)
        assert_as_released(copy_state(stage.learner), f"task{number}/theta_start")
        # 18 points in batches of 8
        assert trainer.fit(stage, method) == (3 if number else 0)
        assert_as_released(copy_state(stage.learner), f"task{number}/theta_end")
        outcome = method.end_task(stage)
        assert_as_released(outcome.importance.values, f"task{number}/omega_fresh")
        assert_as_released(method.manager.importance, f"task{number}/omega_merged")
        assert_as_released(method.manager.anchor, f"task{number}/theta_end")
    stage = go_on(stage, method, trainer)
    set_weights(stage.learner, read_part(tensors, "final_perturbed_theta"))
    penalty = float(method.manager.penalty())
    assert penalty == pytest.approx(10000 * about["final_penalty_unscaled"], rel=1e-4)
    method.manager.add_gradient_()
    pulls = {
        name: parameter.grad / about["lamda"]
        for name, parameter in stage.learner.named_parameters()
    }
    assert_as_released(pulls, "final_penalty_grad")
    assert not pulls["heads.classes.layers.0.weight"][7:].any()


def warn_of(strength):
    """The warnings of EWC at the start of a second task that SGD learns."""
    method = Ewc(strength=strength)
    stage, trainer = begin_points(make_points([2, 2], learning_rate=0.1), method)
    trainer.fit(stage, method)
    method.end_task(stage)
    return begin_task(replace(stage, index=1), method)


def test_a_penalty_too_stiff_for_sgd_is_warned_of():
    assert not warn_of(1e-6)
    (warning,) = warn_of(1e9)
    # 2 (1 + momentum) / learning rate
    assert "38" in warning
    assert "proximal" in warning

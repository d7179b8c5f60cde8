"""The methods over whole sequences: what moves, what stays bit for bit, what is held and by how
much."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
import torch
from tiny_run import (
    TRAIN,
    Run,
    assert_identical,
    assert_near,
    begin_points,
    configure,
    copy_state,
    go_on,
    learn,
    make_points,
    moved,
    resolve,
    write_world,
)
from torch.testing import assert_close

from mcit.consolidating import ConsolidatingMethod
from mcit.errors import ConfigError
from mcit.methods.ewc import Ewc
from mcit.methods.finetune import Finetune
from mcit.methods.joint import Joint
from mcit.methods.l2_anchor import L2Anchor
from mcit.methods.si import Si

# soft labels first, then a head with dropout, which draws random numbers; then pairs of images
ORDER = "vqa,vcr,nlvr2"
SHAPES = "shapes:3x2"


class Runs:
    """Runs of this file, each made once."""

    def __init__(self, folder):
        self.folder, self.world, self.made = folder, write_world(folder), {}

    def __call__(self, order: str, method: str, **options) -> Run:
        key = json.dumps([order, method, options])
        if key not in self.made:
            world = None if order.startswith("shapes") else self.world
            config = configure(order, method, world, **options)
            self.made[key] = learn(config, self.folder / f"run-{len(self.made)}")
        return self.made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def part(state, prefix):
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


# Strength 0, seeds


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ewc", {}),
        ("ewc", {"method__penalty": "proximal"}),
        ("online_ewc", {"method__penalty": "proximal"}),
        ("ewc_dr", {"method__estimator__unit": "batch", "method__estimator__mode": "train"}),
        ("ewc_lo", {"method__estimator__labels": "sampled"}),
        ("mas", {"method__estimator__samples": 5, "method__estimator__shuffle": True}),
        ("si", {}),
        ("si", {"method__penalty": "proximal"}),
        ("l2_anchor", {"method__penalty": "proximal"}),
    ],
)
def test_strength_zero_is_finetuning_bit_for_bit(runs, method, options):
    plain = runs(ORDER, "finetune")
    held = runs(ORDER, method, method__strength=0.0, **options)
    # it did measure
    assert held.method.manager.importance
    for found, expected in zip(held.states, plain.states, strict=True):
        assert_identical(found, expected)
    assert held.rows == plain.rows


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ewc", {}),
        (
            "ewc_dr",
            {
                "method__estimator__unit": "batch",
                "method__estimator__mode": "train",
                "method__merge": "share",
            },
        ),
        ("si", {"method__penalty": "proximal"}),
    ],
)
def test_strength_zero_is_finetuning_bit_for_bit_where_one_head_grows(runs, method, options):
    plain = runs(SHAPES, "finetune")
    held = runs(SHAPES, method, method__strength=0.0, **options)
    assert "heads.classes.layers.0.weight" in held.method.manager.importance
    for found, expected in zip(held.states, plain.states, strict=True):
        # BatchNorm's statistics too
        assert_identical(found, expected)
    assert held.rows == plain.rows


@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
@pytest.mark.parametrize("method", ["ewc", "si", "l2_anchor"])
def test_strength_holds_the_encoder_near_its_anchor(runs, method, penalty):
    plain = runs(ORDER, "finetune")
    held = runs(
        ORDER,
        method,
        method__strength=1e6 if method == "l2_anchor" else 1e8,
        method__penalty=penalty,
    )
    # nothing is held in the first task
    assert_identical(held.states[0], plain.states[0])
    name = "encoder.vilt.pooler.dense.weight"
    away = [float((run.state[name] - run.states[0][name]).norm()) for run in (held, plain)]
    assert away[0] < away[1]


def test_a_seed_decides_everything(runs, tmp_path):
    for order in (ORDER, SHAPES):
        options = {"method__strength": 1.0, "method__estimator__samples": 5}
        once = runs(order, "ewc", **options)
        world = None if order == SHAPES else runs.world
        again = learn(
            configure(order, "ewc", world, **options), tmp_path / order.replace(":", "-") / "again"
        )
        assert_identical(again.state, once.state)
        assert again.rows == once.rows
        other = learn(
            configure(order, "ewc", world, seed=2, **options),
            tmp_path / order.replace(":", "-") / "other",
        )
        assert moved(once.state, other.state)


# Heads


def test_only_the_active_head_trains(runs):
    run = runs(ORDER, "finetune")
    heads = ["heads.vqa.", "heads.vcr.", "heads.nlvr2."]
    for index in (1, 2):
        before, after = run.states[index - 1], run.states[index]
        changed = moved(before, after)
        assert not any(name.startswith(head) for name in changed for head in heads[:index])
        assert any(name.startswith("encoder.") for name in changed)
    assert len([name for name in run.state if name.startswith(tuple(heads))]) == 6 + 2 + 6


def fit_two(method, **recipe):
    """The learner's state at the start of the second task and at its end, and the number of steps
    between."""
    tasks = make_points([2, 3, 2], momentum=0.0, **recipe)
    stage, trainer = begin_points(tasks, method)
    trainer.fit(stage, method)
    method.end_task(stage)
    stage = go_on(stage, method, trainer)
    before = copy_state(stage.learner)
    steps = trainer.fit(stage, method)
    return before, copy_state(stage.learner), steps


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_old_rows_of_a_grown_head_move_by_decay_alone_and_new_rows_learn(decay):
    before, after, steps = fit_two(Finetune(), weight_decay=decay, learning_rate=0.1)
    for name in ("heads.classes.layers.0.weight", "heads.classes.layers.0.bias"):
        assert len(after[name]) == 5
        assert_close(after[name][:2], before[name][:2] * (1 - 0.1 * decay) ** steps)
        assert (after[name][2:] != before[name][2:]).any(dim=-1).all()
    if not decay:
        assert torch.equal(
            after["heads.classes.layers.0.weight"][:2], before["heads.classes.layers.0.weight"][:2]
        )


def test_the_penalty_pulls_old_rows_back_and_leaves_new_rows_alone():
    strength, decay, rate = 3.0, 0.1, 0.1
    name = "heads.classes.layers.0.weight"
    before, after, steps = fit_two(
        L2Anchor(strength=strength), weight_decay=decay, learning_rate=rate
    )
    _, plain, _ = fit_two(Finetune(), weight_decay=decay, learning_rate=rate)
    anchor = before[name][:2]
    expected = anchor.clone()
    for _ in range(steps):
        expected = expected - rate * (decay * expected + strength * (expected - anchor))
    assert_close(after[name][:2], expected)
    assert not torch.equal(after[name][:2], plain[name][:2])
    assert (after[name][2:] != before[name][2:]).all()


# What is measured


def test_l2_anchor_holds_every_shared_weight_alike(runs):
    manager = runs(
        ORDER, "l2_anchor", method__strength=0.0, method__penalty="proximal"
    ).method.manager
    assert all(bool((value == 1).all()) for value in manager.importance.values())
    # no head is shared
    shared = part(runs(ORDER, "finetune").state, "encoder.")
    assert manager.importance.keys() == shared.keys()


def test_ewc_sums_what_online_ewc_decays(runs):
    plain = runs(ORDER, "finetune")
    sums = runs(ORDER, "ewc", method__strength=0.0).method.manager
    online = runs(
        ORDER, "online_ewc", method__strength=0.0, method__penalty="proximal"
    ).method.manager
    latest = runs(ORDER, "ewc", method__strength=0.0, method__merge="latest").method.manager
    # the weights are those of finetuning in all three
    second = latest.importance
    first = {name: sums.importance[name] - second[name] for name in second}
    assert all(
        bool((value >= -1e-6 * sums.importance[name].max()).all()) for name, value in first.items()
    )
    assert_near(
        online.importance,
        {name: 0.9 * first[name] + second[name] for name in second},
        1e-5,
        floor=0,
    )
    assert_identical(online.anchor, part(plain.states[1], "encoder."))
    weights = [part(state, "encoder.") for state in plain.states]
    expected = {}
    for name, total in sums.importance.items():
        blend = (first[name] * weights[0][name] + second[name] * weights[1][name]) / total
        expected[name] = torch.where(total > 0, blend, weights[1][name])
    assert_near(sums.anchor, expected, 1e-4)


@dataclass
class Watched(Si):
    """SI, with the numbers that a hand needs."""

    def __post_init__(self):
        self.gradients, self.weights, self.after = [], [], []

    def on_gradients_ready(self, stage, step):
        self.gradients.append(
            {name: p.grad.double() for name, p in stage.learner.named_parameters()}
        )
        self.weights.append(
            {name: p.detach().double() for name, p in stage.learner.named_parameters()}
        )
        super().on_gradients_ready(stage, step)

    def after_step(self, stage, step):
        self.after.append(
            {name: p.detach().double() for name, p in stage.learner.named_parameters()}
        )
        super().after_step(stage, step)


def integrate(method, steps, end):
    """max(0, -sum gradient * step) / (motion^2 + damping), in float64."""
    found = {}
    for name, start in method.weights[steps[0]].items():
        path = sum(
            method.gradients[i][name] * (method.weights[i][name] - method.after[i][name])
            for i in steps
        )
        found[name] = (
            path.clamp(min=0) / ((end[name].double() - start) ** 2 + method.damping)
        ).float()
    return found


@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
def test_si_is_the_path_integral_of_the_task_gradient(penalty):
    method = Watched(strength=5.0, penalty=penalty, damping=0.2)
    stage, trainer = begin_points(make_points([2, 2, 2], learning_rate=0.1), method)
    assert trainer.fit(stage, method) == 3
    method.end_task(stage)
    first = integrate(method, range(3), copy_state(stage.learner))
    assert_near(method.manager.importance, first, 1e-5, floor=1e-9)
    stage = go_on(stage, method, trainer)
    # now with a pull, which is no part of the task's gradient
    trainer.fit(stage, method)
    method.end_task(stage)
    end = copy_state(stage.learner)
    expected = integrate(method, range(3, 6), end)
    for name, value in first.items():
        expected[name][: len(value)] += value
    assert_near(method.manager.importance, expected, 1e-5, floor=1e-9)
    assert_identical(method.manager.anchor, end)


# Controls


def test_adapters_forget_nothing_and_leave_the_encoder_alone(runs):
    run = runs(ORDER, "adapters", method__rank=4)
    for task in range(3):
        assert len({row[task] for row in run.rows[task:]}) == 1
    pretrained = runs(ORDER, "freeze_encoder").states[0]
    for name, truth in part(pretrained, "encoder.").items():
        places = [
            name,
            name.replace(".query.", ".query.base_layer."),
            name.replace(".value.", ".value.base_layer."),
        ]
        (found,) = {place: run.state[place] for place in places if place in run.state}.values()
        assert torch.equal(found, truth), name
    own = {
        key: [name for name in run.state if f"lora_A.{key}." in name]
        for key in ("vqa", "vcr", "nlvr2")
    }
    # query and value of two layers
    assert all(len(names) == 4 for names in own.values())
    for name in own["vqa"]:
        assert torch.equal(run.state[name], run.states[0][name])
    # zero at the start: it has learned
    grown = [name for name in run.state if "lora_B.nlvr2" in name]
    assert all(bool(run.state[name].any()) for name in grown)


def test_freeze_encoder_trains_heads_only(runs):
    run = runs(ORDER, "freeze_encoder")
    for state in run.states[1:]:
        assert_identical(part(state, "encoder."), part(run.states[0], "encoder."))
    assert run.rows[2][:2] == [run.rows[0][0], run.rows[1][1]]
    finetuned = runs(ORDER, "finetune")
    assert moved(part(run.state, "encoder."), part(finetuned.state, "encoder."))


def test_freeze_bottom_trains_the_top(runs):
    run = runs(ORDER, "freeze_bottom", method__layers=0.5)
    pretrained = runs(ORDER, "freeze_encoder").state
    changed = moved(part(pretrained, "encoder."), part(run.state, "encoder."))
    bottom = ("encoder.vilt.embeddings.", "encoder.vilt.encoder.layer.0.")
    assert not [name for name in changed if name.startswith(bottom)]
    top = {name for name in part(pretrained, "encoder.") if not name.startswith(bottom)}
    assert changed == top


def test_single_learns_every_task_from_the_pretrained_weights(runs):
    run = runs("vqa,nlvr2", "single")
    # seeds go by place in the order: the same task in the same place
    other = runs("snli-ve,nlvr2", "single")
    assert run.rows[1][0] == run.rows[0][0]
    assert run.rows[1][1] == other.rows[1][1]
    assert_identical(part(run.state, "encoder."), part(other.state, "encoder."))
    assert_identical(part(run.state, "heads.nlvr2."), part(other.state, "heads.nlvr2."))
    alone = runs("vqa,vcr,nlvr2", "finetune")
    assert_identical(part(run.states[0], "encoder."), part(alone.states[0], "encoder."))
    assert moved(part(run.state, "encoder."), part(alone.state, "encoder."))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("single", "use 'joint'"),
        ("adapters", "must know the task at test time"),
        ("freeze_bottom", "needs pretrained weights; 'resnet18' starts at random"),
    ],
)
def test_methods_that_cannot_learn_classes_from_scratch_are_refused_before_anything_is_built(
    method, words
):
    with pytest.raises(ConfigError, match=words):
        resolve(configure(SHAPES, method))


def test_joint_learns_all_tasks_at_once(runs):
    run = runs(ORDER, "joint", training__log_every=1)
    # three tasks, three batches each
    assert run.result.cost["steps"] == 3 * 3
    assert_identical(run.states[2], run.states[0])
    for task in range(3):
        assert len({row[task] for row in run.rows[task:]}) == 1
    pretrained = runs(ORDER, "freeze_encoder").states[0]
    assert moved(part(pretrained, "encoder."), part(run.state, "encoder."))
    log = (run.result.output / "log.jsonl").read_text().splitlines()
    learned = [entry["task"] for entry in map(json.loads, log) if entry["event"] == "step"]
    assert set(learned) == {"vqa", "vcr", "nlvr2"}


def test_joint_has_one_softmax_over_all_classes(runs):
    run = runs(SHAPES, "joint")
    # the recipe that was asked for, on all classes
    assert run.result.cost["steps"] == math.ceil(6 * 25 / 16)
    assert len(run.state["heads.classes.layers.0.bias"]) == 6
    assert_identical(run.states[2], run.states[0])
    tasks = make_points([2, 2], epochs=3)
    stage, _ = begin_points(tasks, Finetune())
    # without `all_seen`, each by itself
    assert Joint().tasks_to_fit(stage) == tasks


# Replay


def test_replay_takes_a_step_on_an_earlier_task_every_so_often(runs):
    run = runs(ORDER, "replay", method__fraction=0.3, method__frequency=2, training__log_every=1)
    buffers = run.method.buffers
    assert {index: len(kept) for index, kept in buffers.items()} == dict.fromkeys(
        range(3), round(0.3 * TRAIN)
    )
    assert all(sorted(set(kept)) == kept and max(kept) < TRAIN for kept in buffers.values())
    assert buffers[0] != buffers[1]
    entries = list(map(json.loads, (run.result.output / "log.jsonl").read_text().splitlines()))
    steps = [
        (entry["task"], entry["step"], "replayed" in entry)
        for entry in entries
        if entry["event"] == "step"
    ]
    assert [step for *step, replayed in steps if replayed] == [["vcr", 1], ["nlvr2", 1]]
    assert len(steps) == 9


def test_replay_moves_the_heads_of_replayed_tasks_and_of_no_others(runs):
    run = runs(ORDER, "replay", method__fraction=0.3, method__frequency=2, training__log_every=1)
    assert moved(part(run.states[0], "heads.vqa."), part(run.states[1], "heads.vqa."))
    changed = {
        name.split(".")[1]
        for name in moved(part(run.states[1], "heads."), part(run.states[2], "heads."))
    }
    # one replayed batch in the third task: no head decays in silence
    assert len(changed) == 1


def test_replay_that_never_comes_is_finetuning(runs):
    run = runs(ORDER, "replay", method__frequency=1000)
    assert_identical(run.state, runs(ORDER, "finetune").state)


@pytest.mark.parametrize(
    "options", [{"method__frequency": 0}, {"method__fraction": 0.0}, {"method__fraction": 1.5}]
)
def test_replay_refuses_a_buffer_that_cannot_be(runs, options):
    with pytest.raises(ConfigError, match="method"):
        runs(ORDER, "replay", **options)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ewc", {"method__strength": -1.0}),
        ("online_ewc", {"method__decay": 1.5}),
        ("si", {"method__damping": 0.0}),
        ("freeze_bottom", {"method__layers": -1}),
        ("adapters", {"method__rank": 0}),
        ("freeze_bottom", {"method__layers": 2.5}),
        ("ewc", {"method__decay": 0.5}),
        ("si", {"method__estimator__cap": 1.0}),
        ("mas", {"method__estimator__labels": "predicted"}),
        ("ewc", {"method__estimator__reversal": "literal"}),
        ("ewc_lo", {"method__estimator__norm": "squared_l2"}),
    ],
)
def test_options_that_make_no_sense_or_no_difference_are_refused_before_the_run(
    runs, method, options
):
    with pytest.raises(ConfigError, match="method"):
        runs(ORDER, method, **options)


# LoRA


@pytest.mark.parametrize("method", ["finetune", "ewc_dr", "si", "replay"])
def test_low_rank_adapters_on_the_backbone_compose_with_every_method(runs, method):
    options = {
        "ewc_dr": {"method__strength": 10.0},
        "si": {"method__strength": 10.0},
        "replay": {"method__fraction": 0.3, "method__frequency": 2},
    }.get(method, {})
    run = runs("snli-ve,vcr,nlvr2", method, model__lora__rank=4, **options)
    changed = moved(part(run.states[0], "encoder."), part(run.state, "encoder."))
    lora = {name for name in run.state if "lora_" in name}
    assert changed == lora
    assert len(lora) == 8
    if isinstance(run.method, ConsolidatingMethod):
        assert run.method.manager.importance.keys() == lora
        assert part(run.method.manager.parameters, "encoder.").keys() == lora


def test_statistics_are_numbers_where_the_task_has_no_gradient():
    method = Ewc(strength=2.0)
    stage, trainer = begin_points(make_points([2, 1, 1]), method)
    entries = []
    trainer.fit(stage, method, log=entries.append)
    method.end_task(stage)
    stage = go_on(stage, method, trainer)
    # one class alone has no gradient: the ratio of pull to gradient is not a number
    trainer.fit(stage, method, log=entries.append)
    json.dumps(entries, allow_nan=False)

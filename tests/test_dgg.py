"""Dynamic gradient guidance: a pull of the right length, at the right steps."""

from __future__ import annotations

import pytest
import torch
from tiny_run import assert_identical, begin_points, copy_state, go_on, make_points
from torch import nn
from torch.testing import assert_close

from mcit.errors import ConfigError
from mcit.methods.dgg import Dgg, add_pull_, is_switched_on
from mcit.methods.finetune import Finetune


def make_parameters(scale: float):
    generator = torch.Generator().manual_seed(0)
    parameters, anchor = {}, {}
    for name, shape in (("a", (3, 4)), ("b", (5,))):
        parameters[name] = nn.Parameter(torch.randn(shape, generator=generator))
        parameters[name].grad = torch.randn(shape, generator=generator)
        anchor[name] = parameters[name].detach() - scale * torch.randn(shape, generator=generator)
    return parameters, anchor


def flatten(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_pull_leads_to_the_anchor_and_is_never_longer_than_the_tasks_gradient(scale):
    parameters, anchor = make_parameters(scale)
    task = flatten(p.grad for p in parameters.values())
    pull = flatten(parameters.values()) - flatten(anchor.values())
    ratio = add_pull_(parameters, anchor)
    if pull.norm() > task.norm():
        pull = pull * task.norm() / pull.norm()
    assert_close(flatten(p.grad for p in parameters.values()), task + pull)
    assert_close(ratio, float(pull.norm() / task.norm()), rtol=1e-5, atol=0)


def test_the_switch_is_on_as_often_as_asked_and_differs_between_tasks():
    stage, _ = begin_points(make_points([2, 2]), Finetune())
    first = [is_switched_on(stage, step, 0.2) for step in range(4000)]
    assert abs(sum(first) / 4000 - 0.2) < 0.02
    stage.index = 1
    second = [is_switched_on(stage, step, 0.2) for step in range(4000)]
    assert first != second
    assert not any(is_switched_on(stage, step, 0.0) for step in range(100))
    assert all(is_switched_on(stage, step, 1.0) for step in range(100))


def learn_two(method):
    stage, trainer = begin_points(make_points([2, 3], epochs=4), method, log_every=1000)
    trainer.fit(stage, method)
    method.end_task(stage)
    stage = go_on(stage, method, trainer)
    before = copy_state(stage.learner)
    trainer.fit(stage, method)
    return before, copy_state(stage.learner)


def test_alpha_zero_is_finetuning_bit_for_bit():
    assert_identical(learn_two(Dgg(alpha=0.0))[1], learn_two(Finetune())[1])


def test_weights_stay_nearer_to_the_last_tasks_the_more_often_they_are_pulled():
    def drift(alpha: float) -> float:
        before, after = learn_two(Dgg(alpha=alpha))
        return float((after["encoder.l1.weight"] - before["encoder.l1.weight"]).norm())

    drifts = [drift(alpha) for alpha in (0.0, 0.3, 1.0)]
    assert drifts == sorted(drifts, reverse=True)


def test_the_anchor_is_what_is_held_and_restored():
    method = Dgg(alpha=0.5)
    stage, trainer = begin_points(make_points([2, 3]), method)
    assert not method.state_dict()
    stage = go_on(stage, method, trainer)
    # one head that no later task widens is not held
    assert method.anchor.keys() == {n for n in copy_state(stage.learner) if "encoder." in n}
    assert method.bytes_held() == sum(4 * tensor.numel() for tensor in method.anchor.values())
    expected = {name: tensor.clone() for name, tensor in method.anchor.items()}
    trainer.fit(stage, method)
    again = Dgg(alpha=0.5)
    again.restore(stage, method.state_dict())
    assert_identical(again.anchor, expected)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_probability_lies_between_0_and_1(alpha):
    with pytest.raises(ConfigError, match=r"method\.alpha is a probability from 0 to 1"):
        Dgg(alpha=alpha)

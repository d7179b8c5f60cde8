"""What merge rules promise for any importance, any weights and any order."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.testing import assert_close

from mcit.consolidation import ConsolidationManager

SIZE = 3
importances = arrays(np.float64, SIZE, elements=st.one_of(st.just(0.0), st.floats(1e-6, 1e6)))
weights = arrays(np.float64, SIZE, elements=st.floats(-100, 100))
tasks = st.lists(st.tuples(importances, weights), min_size=1, max_size=4)
shares = st.floats(0, 1)
quick = settings(max_examples=60, deadline=None)


def run(
    sequence, merge: str, share: float | None = None, decay: float = 1.0
) -> ConsolidationManager:
    parameter = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    manager = ConsolidationManager([("w", parameter)], merge=merge, decay=decay)
    for importance, weight in sequence:
        parameter.data = torch.from_numpy(weight.copy())
        manager.consolidate(
            {"w": torch.from_numpy(importance.copy())},
            old_share=share if manager.importance else None,
        )
    return manager


def gradient_at(manager: ConsolidationManager, place: np.ndarray) -> Tensor:
    parameter = manager.parameters["w"]
    parameter.data = torch.from_numpy(place.copy())
    parameter.grad = None
    manager.add_gradient_()
    return parameter.grad


@quick
@given(tasks, weights)
def test_a_sum_is_the_sum_of_all_pulls(sequence, place):
    found = gradient_at(run(sequence, "sum"), place)
    expected = sum(importance * (place - weight) for importance, weight in sequence)
    # the anchor is rounded to the last place of the largest weight, and pulled by all importance
    largest = max(np.abs(weight).max() for _, weight in sequence) + np.abs(place).max()
    scale = sum(importance for importance, _ in sequence).max() * largest + 1e-12
    assert np.abs(found.numpy() - expected).max() <= 1e-12 * scale


@quick
@given(st.lists(st.tuples(importances, weights), min_size=2, max_size=3), weights)
def test_a_sum_does_not_depend_on_the_order_of_tasks(sequence, place):
    found = [gradient_at(run(order, "sum"), place) for order in itertools.permutations(sequence)]
    scale = sum(float(importance.max()) for importance, _ in sequence) * 200 + 1e-12
    for other in found[1:]:
        assert float((found[0] - other).abs().max()) <= 1e-12 * scale


@quick
@given(tasks)
def test_an_anchor_of_a_sum_lies_among_the_weights_it_holds(sequence):
    manager = run(sequence, "sum")
    for place in range(SIZE):
        needed = [weight[place] for importance, weight in sequence if importance[place] > 0]
        if needed:
            assert min(needed) - 1e-9 <= float(manager.anchor["w"][place]) <= max(needed) + 1e-9


@quick
@given(tasks)
def test_online_without_decay_keeps_the_sum_of_importance_and_the_latest_weights(sequence):
    manager = run(sequence, "online", decay=1.0)
    assert_close(
        manager.importance["w"], torch.from_numpy(sum(importance for importance, _ in sequence))
    )
    assert torch.equal(manager.anchor["w"], torch.from_numpy(sequence[-1][1]))
    assert_close(manager.importance["w"], run(sequence, "sum").importance["w"])


@quick
@given(tasks, st.floats(0, 1))
def test_online_decays_geometrically(sequence, decay):
    expected = sum(
        decay ** (len(sequence) - 1 - t) * importance for t, (importance, _) in enumerate(sequence)
    )
    assert_close(
        run(sequence, "online", decay=decay).importance["w"], torch.from_numpy(np.asarray(expected))
    )


@quick
@given(tasks)
def test_the_latest_forgets_all_before(sequence):
    manager = run(sequence, "latest")
    last = run(sequence[-1:], "latest")
    assert torch.equal(manager.importance["w"], last.importance["w"])
    assert torch.equal(manager.anchor["w"], last.anchor["w"])


@quick
@given(tasks, shares)
def test_a_share_blends_and_its_limits_are_the_old_and_the_new(sequence, share):
    assert torch.equal(
        run(sequence, "share", 0.0).importance["w"], torch.from_numpy(sequence[-1][0])
    )
    assert torch.equal(
        run(sequence, "share", 1.0).importance["w"], torch.from_numpy(sequence[0][0])
    )
    blended = run(sequence, "share", share).importance["w"].numpy()
    every = np.stack([importance for importance, _ in sequence])
    assert (blended <= every.max(0) * (1 + 1e-12)).all()
    assert (blended >= every.min(0) * (1 - 1e-12)).all()


@quick
@given(tasks, shares, st.sampled_from(["sum", "online", "share", "latest"]))
def test_importance_is_never_negative_and_anchors_are_finite(sequence, share, merge):
    manager = run(sequence, merge, share if merge == "share" else None, decay=share)
    assert bool((manager.importance["w"] >= 0).all())
    assert bool(manager.importance["w"].isfinite().all())
    assert bool(manager.anchor["w"].isfinite().all())
    assert float(manager.penalty()) >= 0


@quick
@given(tasks, weights, st.floats(1e-4, 1e4))
def test_a_proximal_step_never_leaves_the_way_to_the_anchor(sequence, place, learning_rate):
    manager = run(sequence, "sum")
    parameter = manager.parameters["w"]
    anchor = manager.anchor["w"].clone()
    parameter.data = torch.from_numpy(place.copy())
    before = (parameter.detach() - anchor).abs()
    manager.proximal_(learning_rate)
    after = (parameter.detach() - anchor).abs()
    assert bool((after <= before * (1 + 1e-12) + 1e-12).all())


@quick
@given(st.integers(0, 3), importances, weights, weights)
def test_rows_gained_are_free_whatever_was_held(gained, importance, weight, place):
    manager = run([(importance, weight)], "sum")
    wide = nn.Parameter(
        torch.cat([torch.from_numpy(place), torch.full((gained,), 7.0, dtype=torch.float64)])
    )
    manager.track([("w", wide)])
    manager.add_gradient_()
    assert_close(
        wide.grad[:SIZE], torch.from_numpy(importance * (place - weight)), atol=1e-6, rtol=1e-9
    )
    assert not wide.grad[SIZE:].any()

"""A batch that processes share: what is drawn for it, and who holds which rows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mcit.parallel.loading
from mcit.parallel.global_batch import (
    BatchNorm2d,
    Dropout,
    Rows,
    draw_rows,
    global_batch_rows,
    rows_of_process,
)
from mcit.parallel.loading import SplitLoader


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7])
def test_every_row_is_counted_once_and_every_process_holds_one(total, world):
    shares = [rows_of_process(total, rank, world) for rank in range(world)]
    counted = [place for rows in shares if rows.counted for place in rows.places]
    assert sorted(counted) == list(range(total))
    assert all(len(rows.places) >= 1 and rows.total == total for rows in shares)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_is_drawn_for_a_row_does_not_depend_on_who_holds_it(world):
    torch.manual_seed(0)
    alone, after = torch.rand(7, 2), torch.rand(3)
    for rank in range(world):
        torch.manual_seed(0)
        rows = rows_of_process(7, rank, world)
        with global_batch_rows(rows):
            found = draw_rows(lambda count: torch.rand(count, 2), len(rows.places))
        assert torch.equal(found, alone[list(rows.places)])
        assert torch.equal(torch.rand(3), after)  # the generator has moved on as far


def test_rows_that_are_not_known_or_not_shared_are_drawn_as_they_come():
    for rows in (None, Rows((), 0, counted=False)):
        torch.manual_seed(0)
        with global_batch_rows(rows):
            found = draw_rows(torch.rand, 3)
        torch.manual_seed(0)
        assert torch.equal(found, torch.rand(3))


def test_draws_for_other_rows_than_those_held_are_an_error():
    with (
        global_batch_rows(rows_of_process(7, 1, 2)),
        pytest.raises(
            RuntimeError, match=r"numbers are drawn for 4 examples, but this process holds 3"
        ),
    ):
        draw_rows(torch.rand, 4)


def test_holding_ends_with_its_block_also_after_an_error():
    with pytest.raises(KeyError), global_batch_rows(rows_of_process(7, 1, 2)):
        raise KeyError
    assert len(draw_rows(torch.rand, 5)) == 5


def test_dropout_alone_is_torch_s_own_to_the_last_bit():
    x = torch.randn(5, 4, 7)
    torch.manual_seed(1)
    expected = nn.Dropout(0.3)(x)
    torch.manual_seed(1)
    assert torch.equal(Dropout(0.3)(x), expected)
    assert torch.equal(Dropout(0.3).eval()(x), x)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_alone_is_torch_s_own(training):
    ours, theirs, x = BatchNorm2d(3), nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5)
    with global_batch_rows(rows_of_process(4, 0, 1)):
        found = ours.train(training)(x)
    assert torch.equal(found, theirs.train(training)(x))
    assert_close(ours.state_dict(), theirs.state_dict())
    assert copy.deepcopy(ours)(x).shape == x.shape


class Singly:
    """Examples that can only be fetched one by one."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor(float(index))


def test_parts_are_loaded_and_collated_while_their_rows_are_declared(monkeypatch):
    def collate(examples):
        return torch.stack(examples) + draw_rows(torch.rand, len(examples))

    loader = SplitLoader(Singly(), [range(4), range(4, 6)], collate)
    torch.manual_seed(2)
    alone = [part.batch for part in loader]
    for rank in range(2):
        monkeypatch.setattr(mcit.parallel.loading, "process_rank", lambda rank=rank: (rank, 2))
        torch.manual_seed(2)
        for whole, part in zip(alone, loader, strict=True):
            assert torch.equal(part.batch, whole[list(part.rows.places)])

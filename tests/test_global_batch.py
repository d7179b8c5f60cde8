"""A batch that processes share: what is drawn for it, and who holds which rows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mcit.parallel.global_batch import BatchNorm2d, Dropout, Rows, draw_rows, holding, share_rows
from mcit.parallel.shares import load_parts


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 7])
def test_every_row_is_counted_once_and_every_process_holds_one(total, world):
    shares = [share_rows(total, rank, world) for rank in range(world)]
    counted = [place for rows in shares if rows.counted for place in rows.places]
    assert sorted(counted) == list(range(total))
    assert all(len(rows.places) >= 1 and rows.total == total for rows in shares)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_is_drawn_for_a_row_does_not_depend_on_who_holds_it(world):
    torch.manual_seed(0)
    alone, after = torch.rand(7, 2), torch.rand(3)
    for rank in range(world):
        torch.manual_seed(0)
        rows = share_rows(7, rank, world)
        with holding(rows):
            found = draw_rows(lambda count: torch.rand(count, 2), len(rows.places))
        assert torch.equal(found, alone[list(rows.places)])
        assert torch.equal(torch.rand(3), after)  # the generator has moved on as far


def test_rows_that_are_not_known_or_not_shared_are_drawn_as_they_come():
    for rows in (None, Rows(None, None, counted=False)):
        torch.manual_seed(0)
        with holding(rows):
            found = draw_rows(torch.rand, 3)
        torch.manual_seed(0)
        assert torch.equal(found, torch.rand(3))


def test_draws_for_other_rows_than_those_held_are_an_error():
    with (
        holding(share_rows(7, 1, 2)),
        pytest.raises(RuntimeError, match=r"4 examples are drawn for .* holds 3"),
    ):
        draw_rows(torch.rand, 4)


def test_holding_ends_with_its_block_also_after_an_error():
    with pytest.raises(KeyError), holding(share_rows(7, 1, 2)):
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
    with holding(share_rows(4, 0, 1)):
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


def test_parts_are_fetched_and_collated_while_their_rows_are_held():
    def collate(examples):
        return torch.stack(examples) + draw_rows(torch.rand, len(examples))

    batches = [range(4), range(4, 6)]
    torch.manual_seed(2)
    alone = list(
        load_parts(Singly(), [(batch, share_rows(len(batch), 0, 1)) for batch in batches], collate)
    )
    for rank in range(2):
        shares = [(batch, share_rows(len(batch), rank, 2)) for batch in batches]
        parts = [([batch[place] for place in rows.places], rows) for batch, rows in shares]
        torch.manual_seed(2)
        for whole, found, (_, rows) in zip(
            alone, load_parts(Singly(), parts, collate), parts, strict=True
        ):
            assert torch.equal(found, whole[list(rows.places)])

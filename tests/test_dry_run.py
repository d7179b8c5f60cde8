"""What a dry run says of time and memory; no test asserts a time of this machine."""

from __future__ import annotations

import gc

import pytest

from mcit.commands import dry_run
from mcit.commands.dry_run import PassClock
from mcit.memory import begin_peak, can_begin_anew, read_peak
from mcit.parallel.loading import SplitLoader

MEGABYTES_64 = 64 * 2**20
# the system counts pages in lots
SLACK = 16 * 2**20


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test moves on by itself."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(dry_run.time, "perf_counter", lambda: Clock.now)
    return Clock


def test_the_first_batch_of_a_pass_is_counted_once_and_the_next_stands_for_the_others(clock):
    passes = PassClock()
    clock.now += 6.0  # with an audit of the network
    passes.after_batch(0, 8)
    clock.now += 1.0
    passes.after_batch(1, 8)
    clock.now += 0.5  # what was measured is merged
    # nine more batches of a second each
    assert passes.estimate(80) == pytest.approx(6.0 + 0.5 + 9 * 1.0)
    assert passes.estimate(8) == pytest.approx(6.0 + 0.5)


def test_several_passes_have_each_a_first_batch(clock):
    passes = PassClock()
    for first, other in ((2.0, 1.0), (5.0, 3.0)):
        clock.now += first
        passes.after_batch(0, 4)
        clock.now += other
        passes.after_batch(1, 4)
    # 40 examples in all: 8 of them in first batches, 32 at four seconds for eight
    assert passes.estimate(40) == pytest.approx(7.0 + 16.0)


def test_a_single_batch_stands_for_all(clock):
    passes = PassClock()
    clock.now += 2.0
    passes.after_batch(0, 4)
    assert passes.estimate(12) == pytest.approx(6.0)
    assert passes.estimate(0) == pytest.approx(2.0)


def test_work_that_reads_nothing_takes_what_it_took(clock):
    passes = PassClock()
    clock.now += 2.0
    assert passes.estimate(0) == pytest.approx(2.0)


def test_a_loader_tells_of_every_batch_after_the_work_on_it():
    told = []
    loader = SplitLoader(
        range(7), [[0, 1, 2], [3, 4, 5], [6]], list, watch=lambda *batch: told.append(batch)
    )
    before = []
    for part in loader:
        assert part.batch
        before.append(len(told))
    assert before == [0, 1, 2]
    assert told == [(0, 3), (1, 3), (2, 1)]
    told.clear()
    assert len(list(loader.in_order(4))) == 2
    assert told == [(0, 3), (1, 1)]


@pytest.mark.skipif(not can_begin_anew(), reason="this system has one peak for a process's life")
def test_a_peak_begins_anew():
    gc.collect()
    begin_peak()
    before = read_peak()
    held = b"1" * MEGABYTES_64
    high = read_peak()
    assert high >= before + len(held) - SLACK
    del held
    assert read_peak() >= high - SLACK
    begin_peak()
    assert read_peak() <= high - MEGABYTES_64 + SLACK

"""Checkpoints: whole or not at all, the same bits back, and damage that is seen and named."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import shutil
from typing import Any

import pytest
import torch
from killing import Clock, Killed
from torch.testing import assert_close

from mcit import checkpoint
from mcit.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedError,
    Draft,
    LearnerState,
    Phase,
    Position,
    list_checkpoints,
    pack,
    prune_checkpoints,
    read_checkpoint,
    read_position,
    read_state,
    remove_checkpoints,
    unpack,
    write_checkpoint,
)


def make(value: float = 1.0, **tensors: torch.Tensor) -> Checkpoint:
    """A small checkpoint; `value` is found again under `before`."""
    weights = tensors or {"weight": torch.full((4, 3), value)}
    return Checkpoint(
        position=Position(0, "vqa", Phase.FIT, step=3, steps=9),
        learner=LearnerState({}, weights, frozen=[], training=True),
        method={},
        random=[],
        before=value,
    )


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    bits = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (found, expected)]
    assert bits[0].equal(bits[1])


# What is written is what is read


def test_tensors_come_back_bit_for_bit(tmp_path):
    shared = torch.arange(6.0)
    tensors = {
        "odd": torch.tensor([-0.0, torch.nan, torch.inf, 1e-45]),
        "half": torch.randn(3, 2).bfloat16(),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5),
        "turned": torch.randn(3, 4).t(),
        "whole": shared,
        "part": shared[2:4],
    }
    write_checkpoint(tmp_path / "a", make(**tensors))
    found = read_checkpoint(tmp_path / "a").learner.tensors
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_same_bits(found[name], tensor)


FULL = Checkpoint(
    position=Position(2, "nlvr2", Phase.FITTED, step=7, steps=8),
    learner=LearnerState(
        structure={"heads": [{"name": "vqa", "outputs": 5}]},
        tensors={"encoder.weight": torch.arange(3.0)},
        frozen=["encoder.bias"],
        training=False,
        base="abc",
    ),
    method={"anchor": {"w": torch.ones(2)}, "tasks": 2},
    answering={"statistics": {"means": torch.ones(2, 3)}},
    random=[{"torch": "00ff"}, {"torch": "ff00"}],
    optimizer={0: {"exp_avg": torch.full((2,), 0.5), "step": 4}},
    scaler={"scale": 65536.0},
    result={"matrix": {"rows": [[50.0], [40.0, 60.0]]}},
    experiment={"seed": 1},
    data={"vqa": {"annotations": {"content": "12", "times": "34"}}},
    launch={"processes": 2, "precision": "no"},
    origin={"torch": "2.6"},
    before=12.5,
    provenance={"mcit": "0.2.0"},
    log={"bytes": 10, "sha256": "ab"},
    importance_files={"01-vqa.safetensors": "cd"},
    extra={"importance": {"values": torch.zeros(3)}},
)
FIELDS = [field.name for field in dataclasses.fields(Checkpoint)]


def test_the_full_checkpoint_of_these_tests_has_no_field_at_its_default():
    for field in dataclasses.fields(Checkpoint):
        assert getattr(FULL, field.name), field.name


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_survives_being_written_and_read(tmp_path, name):
    write_checkpoint(tmp_path / "a", FULL)
    expected = getattr(FULL, name)
    found = getattr(read_checkpoint(tmp_path / "a"), name)
    assert type(found) is type(expected)
    assert_same_values(found, expected)


def assert_same_values(found: Any, expected: Any) -> None:
    """The same nested values; tensors to the last bit."""
    if dataclasses.is_dataclass(expected):
        found = vars(found)
        expected = vars(expected)
    if isinstance(expected, torch.Tensor):
        assert_same_bits(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same_values(found[key], value)
    else:
        assert found == expected


def test_a_checkpoint_is_read_without_its_tensors_too(tmp_path):
    write_checkpoint(tmp_path / "a", FULL)
    found = read_state(tmp_path / "a")
    assert found.position == FULL.position
    assert found.result == FULL.result
    assert found.learner.tensors == {"encoder.weight": None}
    assert found.method == {"anchor": {"w": None}, "tasks": 2}


def test_nested_states_come_back_as_they_were():
    state = {
        0: {"step": torch.tensor(2.0), "buffer": None},
        7: {"x": [1, torch.ones(2)], "x/1": torch.zeros(2)},
        "name": {"": 1.5, "a/b": "c"},
    }
    tensors = {}
    packed = json.loads(json.dumps(pack(state, tensors)))
    found = unpack(packed, tensors)
    assert list(found) == [0, 7, "name"]
    assert found["name"] == state["name"]
    assert_close(found[0]["step"], torch.tensor(2.0))
    assert_close(found[7]["x"][1], torch.ones(2))
    assert_close(found[7]["x/1"], torch.zeros(2))
    assert found[0]["buffer"] is None


def test_a_state_of_other_things_is_refused():
    with pytest.raises(TypeError, match=r"/generator is a Generator"):
        pack({"generator": torch.Generator()}, {})


# Whole or not at all


def test_a_kill_at_any_moment_of_writing_leaves_the_old_or_the_new(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    write_checkpoint(tmp_path / "00-fit-00000001", make(1.0))
    clock.wind(None)
    write_checkpoint(tmp_path / "00-fit-00000002", make(2.0))
    total = clock.ticks
    assert total >= 5  # three files, two folders, one renaming
    for tick in range(1, total + 1):
        folder = tmp_path / str(tick)
        shutil.copytree(tmp_path / "00-fit-00000001", folder / "00-fit-00000001")
        clock.wind(tick)
        with pytest.raises(Killed):
            write_checkpoint(folder / "00-fit-00000002", make(2.0))
        found = list_checkpoints(folder)
        values = [read_checkpoint(path).before for path in found]
        assert values in ([1.0], [2.0, 1.0])
        clock.wind(None)
        write_checkpoint(folder / "00-fit-00000002", make(2.0))
        prune_checkpoints(folder, keep=2)
        assert sorted(path.name for path in folder.iterdir()) == [
            "00-fit-00000001",
            "00-fit-00000002",
        ]


@pytest.mark.parametrize("way", ["size limit", "disk full"])
def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch, way):
    write_checkpoint(tmp_path / "00-fitted", make(1.0))
    large = make(weight=torch.zeros(1 << 16))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if way == "disk full":

        def fail(handle):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(checkpoint.os, "fsync", fail)
    try:
        if way == "size limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
        with pytest.raises(
            CheckpointError, match=r"00-done could not be written: .*continue with --resume"
        ) as caught:
            write_checkpoint(tmp_path / "00-done", large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert way == "size limit" or "No space left on device" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["00-fitted"]
    assert read_checkpoint(tmp_path / "00-fitted").before == 1.0


def test_of_two_that_write_the_same_the_first_stays(tmp_path):
    write_checkpoint(tmp_path / "entry", make(1.0))
    write_checkpoint(tmp_path / "entry", make(2.0), keep_existing=True)
    assert read_checkpoint(tmp_path / "entry").before == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def hold(value: float, importance: float) -> Checkpoint:
    """A checkpoint of a method that holds something."""
    state = {"importance": {"weight": torch.full((4, 3), importance)}}
    return dataclasses.replace(make(value), method=state)


def test_a_file_of_the_same_tensors_is_shared_and_outlives_the_checkpoint_before(tmp_path):
    first, second, third = (tmp_path / name for name in ("00-fit-00000001", "00-fitted", "00-done"))
    files = Draft(first, hold(1.0, 5.0)).write()
    files = Draft(second, hold(2.0, 5.0), files).write()
    assert (second / "method.safetensors").samefile(first / "method.safetensors")
    assert not (second / "learner.safetensors").samefile(first / "learner.safetensors")
    Draft(third, hold(3.0, 6.0), files).write()
    assert (third / "method.safetensors").stat().st_nlink == 1
    prune_checkpoints(tmp_path, keep=2)
    for path, value, importance in ((second, 2.0, 5.0), (third, 3.0, 6.0)):
        found = read_checkpoint(path)
        assert found.before == value
        assert_close(found.learner.tensors["weight"], torch.full((4, 3), value))
        assert_close(found.method["importance"]["weight"], torch.full((4, 3), importance))


def test_other_names_of_the_same_values_are_another_file(tmp_path):
    files = Draft(tmp_path / "00-fitted", hold(1.0, 5.0)).write()
    other = {"anchor": {"weight": torch.full((4, 3), 5.0)}}
    Draft(tmp_path / "00-done", dataclasses.replace(make(), method=other), files).write()
    assert list(read_checkpoint(tmp_path / "00-done").method) == ["anchor"]


def test_without_hard_links_every_file_is_written(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    files = Draft(tmp_path / "00-fitted", hold(1.0, 5.0)).write()
    monkeypatch.setattr(checkpoint.os, "link", refuse)
    Draft(tmp_path / "00-done", hold(1.0, 5.0), files).write()
    prune_checkpoints(tmp_path, keep=1)
    found = read_checkpoint(tmp_path / "00-done").method["importance"]["weight"]
    assert_close(found, torch.full((4, 3), 5.0))


def test_a_copy_is_written_as_it_was_taken(tmp_path):
    weight = torch.arange(12.0).view(4, 3)
    strided = torch.arange(12.0).view(3, 4).t()
    tied = weight.view(-1)
    draft = Draft(tmp_path / "a", make(weight=weight, strided=strided, tied=tied), copy=True)
    weight.zero_()
    strided.zero_()
    draft.write()
    found = read_checkpoint(tmp_path / "a").learner.tensors
    assert_close(found["weight"], torch.arange(12.0).view(4, 3))
    assert_close(found["tied"], torch.arange(12.0))
    assert_close(found["strided"], torch.arange(12.0).view(3, 4).t())


def test_files_have_the_mode_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        write_checkpoint(tmp_path / "a", hold(1.0, 5.0))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()}
    assert set(modes.values()) == {0o640}
    assert "learner.safetensors" in modes


# Damage


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def unlist(path, name):
    """Take the line of a file out of the list of digests."""
    lines = (path / "SHA256SUMS").read_text().splitlines(keepends=True)
    (path / "SHA256SUMS").write_text(
        "".join(line for line in lines if not line.endswith(f"  {name}\n"))
    )


def change_unlisted(path):
    flip(path / "learner.safetensors")
    unlist(path, "learner.safetensors")


def remove_unlisted(path):
    (path / "learner.safetensors").unlink()
    unlist(path, "learner.safetensors")


def list_twice(path):
    with (path / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  learner.safetensors\n")


def put_pipe(path):
    (path / "SHA256SUMS").unlink()
    os.mkfifo(path / "SHA256SUMS")


DAMAGES = {
    "a flipped bit of the weights": (
        lambda p: flip(p / "learner.safetensors"),
        "learner.safetensors has changed since it was",
    ),
    "a flipped bit of the state": (
        lambda p: flip(p / "state.json"),
        "state.json has changed since it was",
    ),
    "a cut file": (
        lambda p: os.truncate(p / "learner.safetensors", 20),
        "learner.safetensors has changed since it was",
    ),
    "a missing file": (
        lambda p: (p / "learner.safetensors").unlink(),
        "learner.safetensors is missing",
    ),
    "missing digests": (lambda p: (p / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
    "empty digests": (lambda p: os.truncate(p / "SHA256SUMS", 0), "does not name state.json"),
    "changed weights without a digest": (change_unlisted, "does not name learner.safetensors"),
    "a file that is gone with its digest": (remove_unlisted, "does not name learner.safetensors"),
    "a file with two digests": (list_twice, "names learner.safetensors twice"),
    "a stray file": (
        lambda p: (p / "junk.safetensors").write_bytes(b"junk"),
        "does not name junk.safetensors",
    ),
    "a stray folder": (lambda p: (p / "old").mkdir(), "does not name old"),
    "a pipe in place of the digests": (put_pipe, "SHA256SUMS is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_seen_and_named(tmp_path, kind):
    damage, words = DAMAGES[kind]
    write_checkpoint(tmp_path / "00-done", make())
    damage(tmp_path / "00-done")
    with pytest.raises(DamagedError, match=f"00-done is damaged: .*{words}"):
        read_checkpoint(tmp_path / "00-done")


def test_a_checkpoint_of_another_format_is_refused_by_name_and_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", "mcit checkpoint 1")
    write_checkpoint(tmp_path / "00-done", make())
    monkeypatch.undo()
    words = (
        r"00-done has the format 'mcit checkpoint 1', and this version of mcit reads "
        r"'mcit checkpoint 2': resume with the version that wrote it"
    )
    for read in (read_checkpoint, read_state):
        with pytest.raises(CheckpointError, match=words) as caught:
            read(tmp_path / "00-done")
        assert not isinstance(caught.value, DamagedError)


# Names


def test_names_sort_by_task_phase_and_step(tmp_path):
    places = [
        (0, Phase.FIT, 2),
        (0, Phase.FIT, 10),
        (0, Phase.FITTED, 0),
        (0, Phase.DONE, 0),
        (1, Phase.FIT, 1),
        (10, Phase.FITTED, 0),
    ]
    names = [Position(stage, "vqa", phase, step).name for stage, phase, step in places]
    for name in (*names, "notes", "00-fit", "00-done-00000001", ".00-done-12345678.tmp"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == names[::-1]
    assert [read_position(tmp_path / name) for name in names] == [place[:2] for place in places]
    prune_checkpoints(tmp_path, keep=2)
    others = {"notes", "00-fit", "00-done-00000001"}
    assert {path.name for path in tmp_path.iterdir()} == {*names[-2:], *others}
    remove_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == others
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("position", "following", "words"),
    [
        (Position(1, "vcr", Phase.FIT, 150, 400), 1, "after 150 of 400 steps of vcr (task 2 of 4)"),
        (
            Position(1, "vcr", Phase.FITTED),
            1,
            "after all steps, before the scores, of vcr (task 2 of 4)",
        ),
        (Position(1, "vcr", Phase.DONE), 2, "after vcr (task 2 of 4)"),
    ],
)
def test_a_position_says_where_it_is_and_what_comes_next(position, following, words):
    assert position.next_stage == following
    assert position.describe(4) == words

"""Whatever happens to the files of a run, resuming it ends with the same bits or with one clear
message."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import assert_same_importance, read_scores, read_weights
from tiny_run import assert_identical
from torch import Tensor

from mcit.cli import main
from mcit.embedded.shapes import draw_shapes
from mcit.training.trainer import Trainer

OPTIONS = ["run", "--order", "shapes:2x2", "--method", "ewc", "--preset", "exact", "--quiet"]
for _change in (
    "method.strength=10",
    "model.width=4",
    "tasks.shapes.classes=4",
    "tasks.shapes.recipe.batch_size=16",
    "tasks.shapes.first_epochs=1",
    "tasks.shapes.later_epochs=1",
    "checkpoint.every_steps=1",
):
    OPTIONS += ["--set", _change]
IMAGES = {"train": 25, "eval": 10}  # of each class: four steps a task
NEWEST, OLDER, LAST = (
    "checkpoints/01-fit-00000003",
    "checkpoints/01-fit-00000002",
    "checkpoints/01-done",
)
# taken in any case
LOCKS = (".lock", ".lock.pid")
IMPORTANCE = "importance/01-shapes[0-1].safetensors"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run that was stopped in its second task, the same run finished, and both with another
    seed."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch, folder)
        for seed, prefix in ((1, ""), (2, "other-")):
            options = [*OPTIONS, "--seed", str(seed), "--stage-cache", str(folder / "stages")]
            assert main([*options, "--output", str(folder / f"{prefix}finished")]) == 0
            patch.setattr(Trainer, "_take_step", stop_in_step(7))
            assert main([*options[:-2], "--output", str(folder / f"{prefix}stopped")]) == 75
            patch.undo()
            make_quick(patch, folder)
    return folder


@pytest.fixture(autouse=True)
def quick(runs, monkeypatch):
    make_quick(monkeypatch, runs)


def make_quick(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """A few images, drawn once, and no figures, which have tests of their own."""
    patch.setenv("MCIT_CACHE", str(folder / "cache"))
    patch.setattr("mcit.tasks.shapes.draw_shapes", draw_few)
    patch.setattr("mcit.reports.figures.write_figures", lambda *options: [])


@functools.cache
def draw_few(split: str) -> tuple[Tensor, Tensor]:
    pixels, labels = draw_shapes(split)
    chosen = [(labels == label).nonzero().squeeze(1)[: IMAGES[split]] for label in labels.unique()]
    return pixels[torch.cat(chosen)], labels[torch.cat(chosen)]


def stop_in_step(number: int) -> Callable[..., None]:
    """A step of the trainer that is interrupted by a signal, where it is the one of this number."""
    take_step, left = Trainer._take_step, [number]

    def take_or_stop(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGTERM)
        take_step(*arguments)

    return take_or_stop


# What can happen to a file


def empty(path: Path, other: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path, other: Path) -> None:
    """The lowest bit of a byte in the middle: 4 becomes 5, and a space an exclamation mark."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def fill_with_bytes(path: Path, other: Path) -> None:
    path.write_bytes(bytes(range(256)) * 3)


def hold_a_list(path: Path, other: Path) -> None:
    path.write_text("[]\n")


def hold_an_empty_object(path: Path, other: Path) -> None:
    path.write_text("{}\n")


def remove(path: Path, other: Path) -> None:
    path.unlink()


def become_a_folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_dangling_link(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def be_of_another_run(path: Path, other: Path) -> None:
    shutil.copy(other, path)


DAMAGES = [
    empty,
    cut,
    flip,
    fill_with_bytes,
    hold_a_list,
    hold_an_empty_object,
    remove,
    become_a_folder,
    become_a_pipe,
    become_a_dangling_link,
    be_of_another_run,
]
every_damage = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)


class Damaged:
    """A copy of a run, damaged, and what becomes of it."""

    def __init__(self, runs: Path, kind: str, place: Path, capsys: pytest.CaptureFixture):
        self.runs, self.kind, self.folder, self.capsys = runs, kind, place / "run", capsys
        shutil.copytree(runs / kind, self.folder)

    def damage(self, name: str, damage: Callable[[Path, Path], None]) -> None:
        damage(self.folder / name, self.runs / f"other-{self.kind}" / name)

    def resume(self) -> str:
        """Resume the run, which must go well; return all that was printed."""
        self.capsys.readouterr()
        assert main(["run", "--resume", "--quiet", "--output", str(self.folder)]) == 0
        printed = self.capsys.readouterr()
        return printed.out + printed.err

    def refuse(self, *more: str) -> str:
        """Try to resume the run, which is refused and changes nothing; return the message."""
        self.capsys.readouterr()
        before = self.list_files()
        assert main(["run", "--resume", "--quiet", "--output", str(self.folder), *more]) == 2
        assert self.list_files() == before
        message = self.capsys.readouterr().err
        assert message.startswith("mcit: ")
        return message

    def list_files(self) -> dict[Path, int]:
        files = [
            path for path in self.folder.rglob("*") if path.is_file() and path.name not in LOCKS
        ]
        return {path: path.stat().st_mtime_ns for path in files}

    def assert_same_scores(self) -> None:
        assert read_scores(self.folder) == read_scores(self.runs / "finished")

    def assert_same(self) -> None:
        """Scores, weights and importance to the last bit."""
        self.assert_same_scores()
        assert_identical(read_weights(self.folder), read_weights(self.runs / "finished"))
        assert_same_importance(self.folder, self.runs / "finished")


@pytest.fixture
def stopped(runs, tmp_path, capsys) -> Damaged:
    return Damaged(runs, "stopped", tmp_path, capsys)


@pytest.fixture
def finished(runs, tmp_path, capsys) -> Damaged:
    return Damaged(runs, "finished", tmp_path, capsys)


def read_provenance(folder: Path) -> dict[str, Any]:
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return {key: value for key, value in provenance.items() if key != "resumed"}


# A run that was stopped


def test_a_run_that_nothing_happened_to_goes_on_without_a_warning(stopped):
    assert "warning" not in stopped.resume()
    stopped.assert_same()


@every_damage
@pytest.mark.parametrize("name", ["scores.json", "provenance.json", "log.jsonl"])
def test_what_a_checkpoint_knows_too_does_not_stop_a_resumption(stopped, name, damage):
    stopped.damage(name, damage)
    printed = stopped.resume()
    # while a run is under way its scores may be ahead of its checkpoint, so that any will do
    if (name, damage) not in [
        ("scores.json", d) for d in (flip, hold_an_empty_object, be_of_another_run)
    ]:
        assert f"{stopped.folder / name} " in printed
        assert "written again" in printed or "a new one begins" in printed
    stopped.assert_same()
    assert read_provenance(stopped.folder) == read_provenance(stopped.runs / "stopped")


def flip_another_method(path: Path, other: Path) -> None:
    """A flipped bit in the strength of a method that the run does not use."""
    before, found, after = path.read_text(encoding="utf-8").partition("  mas:\n    strength: ")
    assert found
    path.write_text(before + found + chr(ord(after[0]) ^ 1) + after[1:], encoding="utf-8")


def test_a_flipped_bit_in_the_options_of_another_method_leads_to_the_same_end(stopped):
    stopped.damage("config.yaml", flip_another_method)
    stopped.resume()
    stopped.assert_same()


@pytest.mark.parametrize(
    "damage", [each for each in DAMAGES if each is not flip], ids=lambda damage: damage.__name__
)
def test_a_damaged_configuration_is_refused(stopped, damage):
    stopped.damage("config.yaml", damage)
    message = stopped.refuse()
    assert any(
        words in message for words in ("config.yaml", "differs from it", "no tasks are given")
    ), message


@pytest.mark.parametrize("damage", [remove, become_a_folder, become_a_pipe, become_a_dangling_link])
def test_a_configuration_that_is_gone_is_written_again_where_it_is_given(stopped, damage):
    stopped.damage("config.yaml", damage)
    assert main([*OPTIONS, "--resume", "--output", str(stopped.folder)]) == 0
    stopped.assert_same()
    before = (stopped.runs / "stopped" / "config.yaml").read_text(encoding="utf-8")
    after = (stopped.folder / "config.yaml").read_text(encoding="utf-8")
    assert after.replace(str(stopped.folder), "X") == before.replace(
        str(stopped.runs / "stopped"), "X"
    )


@every_damage
@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        "SHA256SUMS",
        "learner.safetensors",
        "method.safetensors",
        "optimizer.safetensors",
    ],
)
def test_a_damaged_checkpoint_is_said_and_the_one_before_leads_to_the_same_end(
    stopped, name, damage
):
    stopped.damage(f"{NEWEST}/{name}", damage)
    printed = stopped.resume()
    assert f"warning: checkpoint {stopped.folder / NEWEST} is damaged: " in printed
    assert "resumed after 2 of 4 steps" in printed
    stopped.assert_same()


@pytest.mark.parametrize(
    "damage", [flip, remove, become_a_pipe], ids=lambda damage: damage.__name__
)
def test_a_damaged_checkpoint_that_is_not_the_newest_does_not_matter(stopped, damage):
    stopped.damage(f"{OLDER}/learner.safetensors", damage)
    assert "resumed after 3 of 4 steps" in stopped.resume()
    stopped.assert_same()


@pytest.mark.parametrize("damage", DAMAGES[:4], ids=lambda damage: damage.__name__)
def test_a_run_without_a_whole_checkpoint_is_refused(stopped, damage):
    for checkpoint in (NEWEST, OLDER):
        stopped.damage(f"{checkpoint}/learner.safetensors", damage)
    message = stopped.refuse()
    assert (
        f"every checkpoint in {stopped.folder / 'checkpoints'} is damaged; start again with "
        "--overwrite" in message
    )


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling link"])
@pytest.mark.parametrize("name", [NEWEST, LAST])
def test_something_else_with_the_name_of_a_checkpoint_is_refused(stopped, name, kind):
    path = stopped.folder / name
    shutil.rmtree(path, ignore_errors=True)
    if kind == "file":
        path.write_text("")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    assert f"{path} is in the way: the run writes a folder of that name" in stopped.refuse()


def test_an_empty_folder_with_the_name_of_a_checkpoint_does_not_matter(stopped):
    (stopped.folder / "checkpoints" / "07-done").mkdir()
    assert "07-done is damaged" in stopped.resume()
    stopped.assert_same()


def test_the_checkpoint_of_another_run_is_refused(stopped):
    shutil.rmtree(stopped.folder / NEWEST)
    shutil.copytree(stopped.runs / "other-stopped" / NEWEST, stopped.folder / NEWEST)
    assert "seed: 2 -> 1" in stopped.refuse()


def test_a_checkpoint_that_was_removed_is_not_needed_if_another_is_left(stopped):
    shutil.rmtree(stopped.folder / NEWEST)
    assert "resumed after 2 of 4 steps" in stopped.resume()
    stopped.assert_same()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_run_without_checkpoints_begins_again_or_is_refused(stopped, what):
    shutil.rmtree(stopped.folder / "checkpoints")
    if what == "file":
        (stopped.folder / "checkpoints").write_text("")
        assert "checkpoints is in the way" in stopped.refuse()
    else:
        assert "starting from the beginning" in stopped.resume()
        stopped.assert_same()


@pytest.mark.parametrize(
    "damage",
    [
        empty,
        cut,
        flip,
        fill_with_bytes,
        remove,
        become_a_pipe,
        become_a_dangling_link,
        be_of_another_run,
    ],
    ids=lambda damage: damage.__name__,
)
@pytest.mark.parametrize("kind", ["stopped", "finished"])
def test_damaged_importance_is_said_and_changes_no_result(runs, tmp_path, capsys, kind, damage):
    run = Damaged(runs, kind, tmp_path, capsys)
    run.damage(IMPORTANCE, damage)
    printed = run.resume()
    problem = "is damaged" if (run.folder / IMPORTANCE).is_file() else "is missing"
    assert f"warning: {run.folder / IMPORTANCE} {problem}; its contents are lost" in printed
    run.assert_same_scores()
    assert_identical(read_weights(run.folder), read_weights(runs / "finished"))


STRAYS = [
    "notes.txt",
    "scores.json.tmp",
    "checkpoints/notes.txt",
    "checkpoints/.01-fit-00000004-12345678.tmp/learner.safetensors",
    "importance/.tmpAbCdEf",
    f"{IMPORTANCE}.tmp",
    "tables/matrix.md",
    f"{OLDER}/junk.safetensors",
]


@pytest.mark.parametrize("name", STRAYS)
def test_stray_files_change_nothing_and_drafts_are_removed(stopped, name):
    path = stopped.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("stray")
    stopped.resume()
    stopped.assert_same()
    assert path.exists() == (name in ("notes.txt", "checkpoints/notes.txt", "tables/matrix.md"))


def test_a_stray_file_in_the_newest_checkpoint_is_damage(stopped):
    (stopped.folder / NEWEST / "junk.safetensors").write_bytes(b"junk")
    assert "SHA256SUMS does not name junk.safetensors; trying the one before" in stopped.resume()
    stopped.assert_same()


@pytest.mark.parametrize("damage", [become_a_folder, become_a_pipe, become_a_dangling_link])
def test_a_lock_that_is_no_file_is_refused(stopped, damage):
    stopped.damage(".lock", damage)
    assert ".lock is in the way: this must be the" in stopped.refuse()


# A run that is finished


@every_damage
@pytest.mark.parametrize("name", ["scores.json", "provenance.json"])
def test_files_of_a_finished_run_are_compared_with_its_checkpoint_and_written_again(
    finished, name, damage
):
    finished.damage(name, damage)
    printed = finished.resume()
    assert f"{finished.folder / name} " in printed
    assert "written again" in printed
    finished.assert_same()
    assert read_provenance(finished.folder) == read_provenance(finished.runs / "finished")
    assert "nothing is left to do" in finished.resume()


@every_damage
def test_a_damaged_log_of_a_finished_run_is_said_and_changes_nothing(finished, damage):
    finished.damage("log.jsonl", damage)
    before = finished.list_files()
    printed = finished.resume()
    assert (
        f"warning: {finished.folder / 'log.jsonl'} is missing or damaged; its contents are lost"
        in printed
    )
    assert "nothing is left to do" in printed
    assert finished.list_files() == before


def test_an_edited_score_of_a_finished_run_is_noticed(finished):
    scores = json.loads((finished.folder / "scores.json").read_text(encoding="utf-8"))
    scores["matrix"][1][0] += 0.5
    (finished.folder / "scores.json").write_text(json.dumps(scores), encoding="utf-8")
    assert (
        "scores.json does not agree with the checkpoint; it is written again" in finished.resume()
    )
    finished.assert_same()


@every_damage
@pytest.mark.parametrize("name", ["state.json", "SHA256SUMS", "learner.safetensors"])
def test_a_damaged_last_checkpoint_is_said_and_the_scores_stay(finished, name, damage):
    finished.damage(f"{LAST}/{name}", damage)
    printed = finished.resume()
    assert f"warning: checkpoint {finished.folder / LAST} is damaged: " in printed
    assert "nothing is left to do" in printed
    finished.assert_same_scores()


def test_a_finished_run_without_scores_and_without_a_whole_checkpoint_is_refused(finished):
    finished.damage("scores.json", cut)
    finished.damage(f"{LAST}/learner.safetensors", flip)
    assert "is damaged; start again with --overwrite" in finished.refuse()


def test_a_finished_run_whose_checkpoints_were_removed_is_finished(finished):
    shutil.rmtree(finished.folder / "checkpoints")
    assert "nothing is left to do" in finished.resume()
    finished.assert_same_scores()


def test_a_finished_run_without_checkpoints_is_not_taken_for_another(finished):
    shutil.rmtree(finished.folder / "checkpoints")
    assert "seed: 1 -> 7" in finished.refuse("--seed", "7")


@pytest.mark.parametrize(
    "damage", [remove, become_a_dangling_link], ids=lambda damage: damage.__name__
)
def test_a_report_that_is_gone_is_written_again(finished, damage):
    finished.damage("report.html", damage)
    assert "is finished, but for its report" in finished.resume()
    assert (finished.folder / "report.html").is_file()


@pytest.mark.parametrize(
    "damage", [empty, cut, fill_with_bytes, hold_a_list, hold_an_empty_object, remove]
)
def test_a_report_of_damaged_scores_is_refused(finished, damage):
    finished.damage("scores.json", damage)
    finished.capsys.readouterr()
    assert (
        main(["report", str(finished.folder), "--output", str(finished.folder.parent / "report")])
        == 2
    )
    assert finished.capsys.readouterr().err.startswith("mcit: ")


# The stage cache


@pytest.mark.parametrize(
    "damage",
    [cut, flip, remove, become_a_pipe, be_of_another_run],
    ids=lambda damage: damage.__name__,
)
def test_damaged_stages_are_learned_again(runs, tmp_path, capsys, damage):
    stages = tmp_path / "stages"
    shutil.copytree(runs / "stages", stages)
    entries = sorted(stages.iterdir())
    for entry, following in zip(entries, [*entries[1:], entries[0]], strict=True):
        damage(entry / "learner.safetensors", following / "learner.safetensors")
    run = Damaged(runs, "finished", tmp_path, capsys)
    shutil.rmtree(run.folder)
    assert main([*OPTIONS, "--output", str(run.folder), "--stage-cache", str(stages)]) == 0
    assert "is damaged" in capsys.readouterr().out
    run.assert_same()

"""Recipes: an axis of their own, which methods do not choose; rotation labels are part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from report_runs import make_config, make_run
from tiny_run import assert_identical, configure, learn, resolve
from torch.testing import assert_close

from mcit.config.files import list_recipes, load_config, read_recipe
from mcit.config.identity import keep_kinds
from mcit.config.options import Kind
from mcit.data.class_incremental import ClassIncrementalTask
from mcit.data.rotations import TURNED, label_rotations, rotate_batch
from mcit.errors import ConfigError
from mcit.method import Method, Stage
from mcit.parallel.global_batch import Rows, draw_rows, global_batch_rows
from mcit.registry import METHOD, find_method, find_task, has_option, list_names
from mcit.reports.caveats import find_caveats
from mcit.reports.groups import group_runs
from mcit.reports.tables import compare_groups
from mcit.task import Output

NEW_OPTIONS = {"later_rate", "augmentation", "cutout", "rotations"}


def test_the_release_is_what_runs_without_a_recipe():
    fields = ClassIncrementalTask.__dataclass_fields__
    options = read_recipe("release")
    assert options == {name: fields[name].default for name in options}
    assert load_config(options={"order": "shapes:5x4"}).recipe == "release"
    # runs recorded before there were recipes are the same experiment
    kept = keep_kinds(resolve(configure("shapes:2x3")).tasks[0], Kind.RESULT)
    assert not kept.keys() & NEW_OPTIONS


def test_a_recipe_changes_every_task_and_what_the_user_sets_comes_on_top():
    first, later = resolve(configure("shapes:2x3", recipe="augmented")).tasks
    assert (first.augmentation, first.recipe.schedule, first.recipe.warmup) == ("auto", "cosine", 0)
    assert_close(later.recipe.learning_rate, first.recipe.learning_rate * 0.1)
    assert first.recipe.epochs == 1
    own = {"tasks__shapes__augmentation": "trivial", "tasks__shapes__later_rate": 0.5}
    first, later = resolve(configure("shapes:2x3", recipe="augmented", **own)).tasks
    assert (first.augmentation, later.recipe.schedule) == ("trivial", "cosine")
    assert later.recipe.learning_rate == first.recipe.learning_rate * 0.5
    assert first.rotations is False
    assert resolve(configure("shapes:2x3", recipe="rotations")).tasks[0].extra_head is not None


@pytest.mark.parametrize("name", list_recipes())
@pytest.mark.parametrize("task", ["cifar100", "tiny-imagenet", "imagenet-subset", "shapes"])
def test_every_recipe_suits_every_data_set(name, task):
    options = read_recipe(name)
    first, later = find_task(task).sequence("2x2", {"classes": 4, **options}, seed=1)
    plain, _ = find_task(task).sequence("2x2", {"classes": 4}, seed=1)
    assert first.recipe.epochs == plain.recipe.epochs
    assert first.recipe.batch_size == plain.recipe.batch_size
    expected = first.recipe.learning_rate * options.get("later_rate", 1.0)
    assert later.recipe.learning_rate == pytest.approx(expected)


def test_a_recipe_can_be_a_file_of_the_user_s(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("cutout: 8\n")
    assert resolve(configure("shapes:2x3", recipe=str(file))).tasks[0].cutout == 8
    assert set(list_recipes()) == {"release", "augmented", "rotations", "adam"}
    assert all(list_recipes().values())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"recipe": "augmentd"}, "unknown recipe 'augmentd'; did you mean 'augmented'"),
        ({"recipe": "augmented", "order": "vqa,nlvr2"}, "is for class-incremental orders"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(load_config(options={"order": "shapes:5x4", **options}))


def test_images_are_changed_in_training_only():
    plain = resolve(configure("shapes:2x3")).tasks[0]
    changed = replace(plain, augmentation="auto", cutout=8)
    rows = range(20)
    for split, same in (("plain", True), ("eval", True), ("train", False)):
        found = []
        for task in (plain, changed):
            torch.manual_seed(3)
            found.append(task.examples(split).__getitems__(rows).pixels.float())
        assert torch.equal(*found) is same, split
        assert all(pixels.min() >= 0 and pixels.max() <= 255 for pixels in found)


# Rotation labels


def test_a_class_head_and_a_rotation_head_under_one_softmax_are_a_head_of_four_rows_per_class():
    classes = 3
    labels = torch.tensor([2, 0])
    batch = rotate_batch({"pixel_values": torch.randn(2, 3, 4, 4), "labels": labels})
    wanted = label_rotations(batch["labels"], batch[TURNED], classes)
    # as PASS orders them: the four turns of a class after each other
    logits = torch.randn(8, 4 * classes)
    expected = F.cross_entropy(logits, 4 * batch["labels"] + batch[TURNED])
    order = [4 * c for c in range(classes)]
    order += [4 * c + turns for c in range(classes) for turns in (1, 2, 3)]
    assert_close(F.cross_entropy(logits[:, order], wanted), expected)


OWN_LOSS = [name for name in list_names(METHOD) if find_method(name).loss is not Method.loss]


@pytest.mark.parametrize("name", OWN_LOSS)
def test_a_loss_of_a_method_s_own_teaches_rotations_too(name):
    options = {"strength": 1.0} if has_option(METHOD, name, "strength") else {}
    method = find_method(name)(**options)
    task = resolve(configure("shapes:2x3", recipe="rotations")).tasks[0]
    stage = Stage(learner=None, tasks=[task], index=0, seed=1, load=None)
    images = {"pixel_values": torch.zeros(2, 3, 4, 4), "labels": torch.tensor([2, 0])}
    batch = task.expand(images)
    logits = torch.zeros(8, 12, requires_grad=True)
    method.loss(stage, task, batch, Output(torch.ones(8, 5), logits)).backward()
    # every row wants more of one output and less of the others
    wanted = F.one_hot(label_rotations(batch["labels"], batch[TURNED], 3), 12).bool()
    assert torch.equal(logits.grad < 0, wanted)


def test_rows_of_an_example_share_its_place_in_the_draws_of_all_processes():
    torch.manual_seed(0)
    whole = torch.rand(12)
    torch.manual_seed(0)
    with global_batch_rows(Rows((0, 2), 3)):
        assert torch.equal(draw_rows(torch.rand, 8), torch.cat([whole[:4], whole[8:]]))
        with pytest.raises(RuntimeError, match="numbers are drawn for 7 examples"):
            draw_rows(torch.rand, 7)


def test_rotations_are_learned_in_the_first_task_by_a_head_that_is_dropped(tmp_path):
    options = {"tasks__shapes__classes": 4, "training__refresh_batchnorm": True}
    run = learn(configure("shapes:2x2", recipe="rotations", **options), tmp_path / "turned")
    for state in run.states:
        assert not any("rotations" in name for name in state)
    trivial = {"tasks__shapes__augmentation": "trivial", "tasks__shapes__later_rate": 0.1}
    plain = learn(configure("shapes:2x2", **trivial, **options), tmp_path / "plain")
    assert run.states[0].keys() == plain.states[0].keys()
    assert not torch.equal(
        run.states[0]["heads.classes.layers.0.weight"],
        plain.states[0]["heads.classes.layers.0.weight"],
    )
    assert run.result.to_dict()["recipe"] == "rotations"


def test_joint_learning_has_the_rotations_of_all_classes(tmp_path):
    options = {"tasks__shapes__classes": 4, "recipe": "rotations"}
    run = learn(configure("shapes:2x2", "joint", **options), tmp_path)
    assert_identical(run.states[0], run.states[1])


# Reports


def test_rows_of_different_recipes_are_named_and_flagged():
    rows = [[80.0], [60.0, 90.0]]
    parts = {"tasks": ["s[0-1]", "s[2-3]"], "chance": [50.0, 25.0], "track": "efcil"}
    runs = []
    for method, recipe in (("lwf", "release"), ("pass", "augmented"), ("lwf", "augmented")):
        config = {**make_config(method, ["s:2x2"]), "recipe": recipe}
        runs.append(make_run(method, rows, config=config, recipe=recipe, **parts))
    groups = group_runs(runs)
    names = ["lwf (recipe=release)", "pass (recipe=augmented)", "lwf (recipe=augmented)"]
    assert [group.name for group in groups] == names
    flagged = [str(caveat) for caveat in find_caveats(groups) if "recipe differs" in caveat.text]
    assert len(flagged) == 1
    notes = " ".join(note.text for note in compare_groups(groups, "comparison").notes)
    assert "Rows have different recipes (release, augmented)" in notes
    alike = compare_groups(group_runs(runs[1:]), "comparison")
    assert "Recipe: augmented." in [note.text for note in alike.notes]

"""The tasks of a class-incremental sequence, on generated images and on small files in the official
forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.testing import assert_close
from torch.utils.data import ConcatDataset, DataLoader, Subset

from mcit.config.files import read_yaml
from mcit.config.parse import parse
from mcit.config.schema import RunConfig
from mcit.data.class_incremental import FIRST_RECIPE, LATER_RECIPE, ImagePool, stretch_recipe
from mcit.data.image_folders import StoredImages
from mcit.data.splits import order_classes
from mcit.embedded.shapes import CLASS_NAMES, draw_shapes
from mcit.errors import ConfigError, DataError
from mcit.registry import find_task
from mcit.task import ClassSpan, Head, Recipe, Track

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "efcil"
Cifar100, TinyImageNet, ImageNetSubset, Shapes = map(
    find_task, ["cifar100", "tiny_imagenet", "imagenet_subset", "shapes"]
)


def write_classes(root: Path, labels: list[int], per_class: int = 3) -> None:
    """CIFAR-100 as numbered folders; every pixel of an image is its label."""
    for part in ("train", "test"):
        for label in labels:
            folder = root / part / str(label)
            folder.mkdir(parents=True)
            for row in range(per_class if part == "train" else 1):
                Image.new("RGB", (32, 32), (label, label, label)).save(folder / f"{row}.png")


@pytest.fixture(scope="module")
def shapes() -> list:
    return Shapes.sequence("12+4x2", {}, seed=1)


def test_a_sequence_covers_the_classes_in_parts(shapes):
    assert [task.name for task in shapes][:2] == ["shapes[0-11]", "shapes[12-13]"]
    assert [task.span for task in shapes] == [
        ClassSpan(0, 12),
        ClassSpan(12, 14),
        ClassSpan(14, 16),
        ClassSpan(16, 18),
        ClassSpan(18, 20),
    ]
    assert {task.track for task in shapes} == {Track.CLASSES}
    assert shapes[1].head == Head("classes", outputs=14, kind="class", layout="linear")
    assert [round(task.chance, 3) for task in shapes] == [8.333, 7.143, 6.25, 5.556, 5.0]


def test_every_image_is_in_exactly_one_task(shapes):
    for split, per_class in (("train", 200), ("plain", 200), ("eval", 50), ("test", 50)):
        rows = torch.cat([task.examples(split).rows for task in shapes])
        assert rows.sort().values.tolist() == list(range(20 * per_class))
        for task in shapes:
            counts = task.examples(split).labels.bincount(minlength=20).tolist()
            expected = [0] * 20
            for label in range(task.span.known, task.span.total):
                expected[label] = per_class
            assert counts == expected


def test_the_images_are_read_once_for_all_tasks(shapes):
    assert shapes[0].examples("train").images is shapes[4].examples("train").images


def test_labels_count_the_classes_in_the_order_of_learning(tmp_path):
    order = order_classes(100, 1993)
    write_classes(tmp_path, order[:6])
    tasks = Cifar100.sequence("2+2x2", {"root": str(tmp_path), "classes": 6}, seed=1)
    for task in tasks:
        task.check()
        for split in ("plain", "eval"):
            batch = task.examples(split).__getitems__(range(len(task.examples(split))))
            shades = batch.pixels[:, 0, 0, 0].tolist()  # the data set's labels
            assert [order[label] for label in batch.labels.tolist()] == shades
            assert set(batch.labels.tolist()) == set(range(task.span.known, task.span.total))


def test_a_sample_of_the_data_set_serves_only_the_classes_it_has(tmp_path):
    write_classes(tmp_path, order_classes(100, 1993)[:6])
    with pytest.raises(
        DataError, match=r"holds 6 classes .* set tasks.cifar100.classes to learn fewer"
    ):
        Cifar100.sequence("10x10", {"root": str(tmp_path)}, seed=1)[0].check()
    with pytest.raises(DataError, match="lacks"):  # another order, other classes
        Cifar100.sequence(
            "2x3", {"root": str(tmp_path), "classes": 6, "class_order_seed": 0}, seed=1
        )[0].check()


def test_the_class_order_has_a_seed_of_its_own():
    options = {"class_order_seed": None}
    assert Shapes.sequence("5x4", {}, seed=7)[0].part.order == order_classes(20, 1993)
    assert Shapes.sequence("5x4", options, seed=7)[0].part.order == order_classes(20, 7)


def test_a_batch_is_the_same_loaded_at_once_or_one_by_one(shapes):
    task = shapes[1]
    examples = task.examples("eval")
    at_once = task.collate(examples.__getitems__([3, 1, 60]), None)
    one_by_one = task.collate([examples[3], examples[1], examples[60]], None)
    for key in ("pixel_values", "labels"):
        assert_close(at_once[key], one_by_one[key])


def test_a_loader_takes_parts_and_unions_of_tasks(shapes):
    parts = ConcatDataset([task.examples("train") for task in shapes[1:3]])
    joined = next(
        iter(DataLoader(parts, batch_size=800, collate_fn=lambda e: shapes[0].collate(e, None)))
    )
    assert set(joined["labels"].tolist()) == {12, 13, 14, 15}
    part = Subset(shapes[0].examples("eval"), [0, 2])
    batch = next(
        iter(DataLoader(part, batch_size=2, collate_fn=lambda e: shapes[0].collate(e, None)))
    )
    assert batch["pixel_values"].shape == (2, 3, 32, 32)


def load_batch(task, split: str, count: int) -> torch.Tensor:
    return task.collate(task.examples(split).__getitems__(range(count)))["pixel_values"]


def test_training_images_vary_with_the_generator_and_others_do_not(shapes):
    batches = {}
    for split in ("train", "plain", "eval"):
        for seed in (1, 2):
            torch.manual_seed(seed)
            batches[split, seed] = load_batch(shapes[0], split, 16)
    torch.manual_seed(1)
    assert torch.equal(load_batch(shapes[0], "train", 16), batches["train", 1])
    assert not torch.equal(batches["train", 1], batches["train", 2])
    assert torch.equal(batches["plain", 1], batches["plain", 2])
    assert torch.equal(batches["eval", 1], batches["eval", 2])


def test_plain_images_are_the_training_images_in_file_order_as_they_are_scored(shapes):
    task = shapes[1]
    plain = task.examples("plain")
    assert torch.equal(plain.rows, plain.rows.sort().values)
    assert torch.equal(plain.rows, task.examples("train").rows)
    assert torch.equal(plain.labels, task.examples("train").labels)
    pixels, _ = draw_shapes("train")
    assert torch.equal(plain.__getitems__(range(9)).pixels, pixels[plain.rows[:9]])


def test_only_training_images_that_are_loaded_draw_from_the_generator(shapes):
    before = torch.get_rng_state()
    for split in ("plain", "eval"):
        load_batch(shapes[0], split, 16)
    shapes[0].check()
    shapes[0].collate(shapes[0].examples("eval").__getitems__([0]))
    assert torch.equal(torch.get_rng_state(), before)
    load_batch(shapes[0], "train", 16)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_first_loss_is_over_all_classes_and_later_ones_over_the_new(shapes):
    torch.manual_seed(0)
    first, later = shapes[0], shapes[1]
    logits, labels = torch.randn(8, 12), torch.randint(0, 12, (8,))
    assert_close(first.loss(logits, {"labels": labels}), F.cross_entropy(logits, labels))
    logits, labels = torch.randn(8, 14, requires_grad=True), torch.randint(12, 14, (8,))
    loss = later.loss(logits, {"labels": labels})
    chosen, other = (
        logits.gather(1, labels[:, None])[:, 0],
        logits.gather(1, (25 - labels)[:, None])[:, 0],
    )
    assert_close(
        loss, torch.log1p(torch.exp(other - chosen)).mean()
    )  # two classes: logistic regression
    loss.backward()
    assert (logits.grad[:, :12] == 0).all()


def test_importance_and_scores_look_at_all_classes_seen(shapes):
    task = shapes[1]
    batch = {"labels": torch.tensor([12, 13, 13])}
    logits = torch.zeros(3, 14)
    logits[0, 12], logits[1, 13], logits[2, 4] = 1, 1, 1  # the last is taken for an old class
    assert_close(task.target(batch), batch["labels"])
    inputs = task.metric_inputs(logits, batch)
    assert inputs["predictions"].tolist() == [12, 13, 4]
    metric = task.metric()
    metric.add_batch(**inputs)
    assert metric.compute()["score"] == pytest.approx(200 / 3)


def test_all_classes_seen_make_one_task(shapes):
    seen = shapes[2].all_seen()
    assert (seen.name, seen.head) == ("shapes[0-15]", shapes[2].head)
    assert len(seen.examples("eval")) == sum(len(task.examples("eval")) for task in shapes[:3])
    assert seen.recipe == shapes[0].recipe


def test_recipes_are_the_release_s():
    first, later = (task.recipe for task in Cifar100.sequence("50+10x5", {}, seed=1)[:2])
    assert (first.epochs, first.milestones, first.weight_decay) == (200, (60, 120, 170), 5e-4)
    assert (later.epochs, later.milestones, later.weight_decay) == (180, (70, 120, 150), 2e-4)
    for recipe in (first, later):
        assert (recipe.optimizer, recipe.learning_rate, recipe.momentum) == ("sgd", 0.1, 0.9)
        assert (recipe.batch_size, recipe.schedule, recipe.factor) == (128, "steps", 0.1)


def test_fewer_epochs_keep_the_milestones_at_their_fractions():
    assert stretch_recipe(FIRST_RECIPE, 16).milestones == (5, 10, 14)  # of 4.8, 9.6, 13.6
    assert stretch_recipe(LATER_RECIPE, 12).milestones == (5, 8, 10)  # of 4.67, 8, 10
    assert (
        min(stretch_recipe(FIRST_RECIPE, 1).milestones) == 1
    )  # a decay before the first epoch would be a lower rate
    scaled = Cifar100.sequence("10x10", {"schedule_scale": 0.1}, seed=1)
    assert [(task.recipe.epochs, task.recipe.milestones) for task in scaled[:2]] == [
        (20, (6, 12, 17)),
        (18, (7, 12, 15)),
    ]
    given = Cifar100.sequence("10x10", {"first_epochs": 16, "later_epochs": 12}, seed=1)
    assert [task.recipe for task in given[:2]] == [
        stretch_recipe(FIRST_RECIPE, 16),
        stretch_recipe(LATER_RECIPE, 12),
    ]


def test_a_recipe_may_be_changed_in_part_or_replaced():
    first, later = (
        t.recipe
        for t in Shapes.sequence("2x10", {"recipe": {"learning_rate": 0.02, "epochs": 20}}, seed=1)
    )
    assert (first.learning_rate, first.epochs, first.milestones) == (0.02, 20, (12, 17))
    assert (later.weight_decay, later.epochs) == (5e-4, 20)
    own = Recipe(epochs=3, batch_size=8, learning_rate=1.0)
    assert all(task.recipe is own for task in Shapes.sequence("2x10", {"recipe": own}, seed=1))
    changed = replace(Shapes.sequence("2x10", {}, seed=1)[1], recipe=own)
    assert (changed.name, changed.recipe) == ("shapes[10-19]", own)
    with pytest.raises(
        ConfigError, match=r"unknown key 'tasks.shapes.recipe.epoch'; did you mean 'epochs'\?"
    ):
        Shapes.sequence("2x10", {"recipe": {"epoch": 3}}, seed=1)


@pytest.mark.parametrize(
    ("task", "split", "stem"),
    [
        (Cifar100, "10x10", "cifar"),
        (Cifar100, "50+10x5", "cifar"),
        (Shapes, "12+4x2", "podnet"),
        (TinyImageNet, "10x20", "imagenet"),
        (TinyImageNet, "100+10x10", "podnet"),
        (ImageNetSubset, "5x20", "imagenet"),
        (ImageNetSubset, "40+20x3", "podnet"),
    ],
)
def test_the_stem_follows_data_set_and_split(task, split, stem):
    defaults = [part.network_defaults() for part in task.sequence(split, {}, seed=1)]
    width = 16 if task is Shapes else 64
    assert all(found == {"stem": stem, "width": width} for found in defaults)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 101}, "tasks.cifar100: 'classes' must be 1..100 of cifar100, found 101"),
        ({"first_epochs": 0}, "'first_epochs' must be positive"),
        ({"class_order_seed": -1}, "'class_order_seed' must be 0"),
        ({"class_seed": 3}, "unknown key 'tasks.cifar100.class_seed'"),
        ({"part": None}, "'tasks.cifar100.part' is not an option"),
        ({"classes": 20}, "'cifar100:10x10' stands for 100 classes where cifar100 has 20"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Cifar100.sequence("10x10", options, seed=1)


def test_tiny_imagenet_is_tested_on_the_middle_of_its_images():
    task = TinyImageNet()
    pixels = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    assert_close(task.eval_transform(pixels), pixels[:, :, 4:60, 4:60])
    assert task.augment(pixels).shape == (4, 3, 64, 64)


def test_imagenet_is_decoded_in_workers(tmp_path):
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for number in range(100):
            folder = tmp_path / part / f"n{number:08}"
            folder.mkdir(parents=True)
            pixels = random.integers(0, 256, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "a.JPEG", "JPEG")
    task = ImageNetSubset.sequence("50x2", {"root": str(tmp_path)}, seed=1)[3]
    task.check()
    for split in ("train", "eval"):
        loader = DataLoader(
            task.examples(split), batch_size=2, num_workers=1, collate_fn=task.collate
        )
        (batch,) = list(loader)
        assert batch["pixel_values"].shape == (2, 3, 224, 224)
        assert batch["labels"].tolist() == [6, 7]


def test_the_drawings_are_always_the_same_and_never_shared():
    pixels, labels = draw_shapes("train")
    again, _ = draw_shapes("train")
    other, _ = draw_shapes("eval")
    assert pixels.shape == (4000, 3, 32, 32)
    assert len(CLASS_NAMES) == 20
    assert labels.bincount().tolist() == [200] * 20
    assert torch.equal(pixels, again)
    distinct = {image.numpy().tobytes() for image in torch.cat([pixels, other])}
    assert len(distinct) == 5000


def test_the_drawings_are_not_told_apart_by_their_mean_color():
    """Nearest class mean is the simplest classifier there is; it should beat guessing and be far
    from done."""
    (train, labels), (test, expected) = draw_shapes("train"), draw_shapes("eval")
    flat = train.float().flatten(1)
    means = torch.stack([flat[labels == label].mean(0) for label in range(20)])
    found = torch.cdist(test.float().flatten(1), means).argmin(1)
    accuracy = (found == expected).float().mean().item()
    assert 0.06 < accuracy < 0.4


SETTINGS = sorted(CONFIGS.glob("*.yaml"))


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_every_setting_is_a_configuration_that_fits_its_data_set(path):
    config = parse(RunConfig, read_yaml(path))
    ((name, split),) = [entry.split(":") for entry in config.order]
    tasks = find_task(name).sequence(split, config.tasks.get(name, {}), config.seed)
    assert config.model.name == "resnet18"
    kind, length = path.stem.rsplit("-", 2)[-2:]
    if "mini" not in path.stem:
        assert path.stem.startswith(name.replace("_", "-"))
        assert len(tasks) == int(length) + (kind == "bigstart")
        assert tasks[0].part.is_equal == (kind == "equal")
        assert tasks[-1].span.total == tasks[0].class_count
        assert config.model.width == 64


def test_the_settings_of_the_tables_are_all_there():
    tables = {f"{d}-{k}-{t}" for d in ("cifar100", "tiny-imagenet", "imagenet-subset") for k in ("bigstart", "equal")
              for t in (5, 10, 20)}  # fmt: skip
    assert {path.stem for path in SETTINGS} == tables | {"cifar100-mini", "cifar100-mini-bigstart"}


@pytest.mark.parametrize(
    ("name", "sizes"), [("cifar100-mini", [4] * 5), ("cifar100-mini-bigstart", [12, 2, 2, 2, 2])]
)
def test_the_small_settings_are_the_protocol_in_small(name, sizes):
    config = parse(RunConfig, read_yaml(CONFIGS / f"{name}.yaml"))
    tasks = Cifar100.sequence(
        config.order[0].partition(":")[2], config.tasks["cifar100"], config.seed
    )
    assert [task.span.total - task.span.known for task in tasks] == sizes
    assert [task.recipe.epochs for task in tasks] == [16, 12, 12, 12, 12]
    assert (tasks[0].recipe.milestones, tasks[1].recipe.milestones) == ((5, 10, 14), (5, 8, 10))
    assert tasks[0].part.order == order_classes(100, 1993)[:20]
    assert (config.model.width, config.seed) == (16, 1)


def test_a_sequence_takes_the_images_it_is_given():
    pixels = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    order = order_classes(20, 1993)
    images = StoredImages(pixels, torch.tensor([order[0], order[3], order[7]]))
    tasks = Shapes.sequence("5x4", {}, 1, pool=ImagePool(train=images))
    assert tasks[0].examples("train").images is images
    assert [len(task.examples("train")) for task in tasks] == [2, 1, 0, 0, 0]
    assert [len(task.examples("eval")) for task in tasks] == [200] * 5


def test_two_sequences_share_nothing():
    one, other = (Shapes.sequence("5x4", {}, 1)[0] for _ in range(2))
    assert one.examples("eval").images is not other.examples("eval").images


def test_a_fingerprint_changes_with_any_pixel_label_or_class_order():
    def fingerprint(change=lambda pixels, labels: None, **options):
        pixels, labels = draw_shapes("train")
        change(pixels, labels)
        pool = ImagePool(train=StoredImages(pixels, labels))
        return Shapes.sequence("5x4", options, 1, pool=pool)[1].fingerprint()

    known = fingerprint()
    assert fingerprint() == known
    assert fingerprint(lambda pixels, labels: pixels[7, 0, 3].add_(1)) != known
    assert fingerprint(lambda pixels, labels: labels[3].add_(1)) != known
    assert fingerprint(class_order_seed=5) != known


def test_images_of_ones_own_are_read_as_those_that_are_scored(shapes):
    examples = shapes[1].examples("eval")
    pixels = examples.__getitems__([0, 7]).pixels
    images = [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pixels]
    batch = shapes[1].read_inputs(images, [], None)
    assert_close(batch["pixel_values"], load_batch(shapes[1], "eval", 8)[[0, 7]])
    with pytest.raises(ConfigError, match="images must be of one size, found 32x32, 5x7"):
        shapes[1].read_inputs([images[0], Image.new("RGB", (5, 7))], [], None)


def test_images_of_any_size_are_read_for_imagenet():
    images = [Image.new("L", (300, 400), 51), Image.new("RGB", (500, 260), (51, 51, 51))]
    batch = ImageNetSubset().read_inputs(images, [], None)
    assert batch["pixel_values"].shape == (2, 3, 224, 224)
    assert_close(batch["pixel_values"][0, 0, 0, 0], torch.tensor((0.2 - 0.485) / 0.229))


def test_outputs_are_called_by_the_classes_in_the_order_of_learning(shapes):
    order = order_classes(20, 1993)
    assert shapes[1].output_names() == [CLASS_NAMES[label] for label in order[:14]]
    assert Cifar100.sequence("10x10", {}, 1)[0].output_names()[:2] == ["road", "palm_tree"]
    assert TinyImageNet().output_names() is None

"""The embedded benchmark: official formats, right labels, text that tells nothing, the same bytes
for the same seed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from mcit.data.boxes import speak
from mcit.embedded.benchmark import SPLITS, Sizes, ensure_benchmark, write_benchmark
from mcit.embedded.nlvr2 import show, wish_number, wish_object
from mcit.embedded.render import PAINT, SIDE, box_of, corner_of, draw, encode
from mcit.embedded.scenes import COLORS, CORNERS, SHAPES, Item, Scene, draw_item, fill_scene
from mcit.embedded.snli_ve import LABELS
from mcit.embedded.snli_ve import MAKERS as HYPOTHESES
from mcit.embedded.vqav2 import KINDS, annotate

TRAIN, EVALUATION = 1000, 600


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    write_benchmark(folder, Sizes(TRAIN, EVALUATION), seed=7)
    return folder


def digest(root: Path) -> str:
    """Return a digest of the names and bytes of every file below a folder."""
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            whole.update(path.relative_to(root).as_posix().encode() + b"\0")
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_vqa(root: Path, split: str) -> list[tuple[str, str]]:
    folder = root / "vqav2"
    questions = json.loads(
        (folder / f"v2_OpenEnded_mscoco_{split}2014_questions.json").read_text("utf-8")
    )["questions"]
    annotations = json.loads(
        (folder / f"v2_mscoco_{split}2014_annotations.json").read_text("utf-8")
    )["annotations"]
    assert [q["question_id"] for q in questions] == [a["question_id"] for a in annotations]
    return [
        (q["question"], a["multiple_choice_answer"])
        for q, a in zip(questions, annotations, strict=True)
    ]


def read_labeled(root: Path, task: str, split: str) -> list[tuple[str, str]]:
    """Text and label of every example of a task that has one text per example."""
    if task == "vqav2":
        return read_vqa(root, split)
    if task == "nlvr2":
        return [
            (r["sentence"], r["label"])
            for r in read_lines(root / "nlvr2" / "data" / f"{split}.json")
        ]
    return [
        (r["sentence2"], r["gold_label"])
        for r in read_lines(root / "snli-ve" / f"snli_ve_{split}.jsonl")
    ]


def guess_from_text(train: list[tuple[str, str]], evaluation: list[tuple[str, str]]) -> float:
    """Percent right of naive Bayes over words and pairs of words, and of the majority per sentence:
    the better one."""

    def parts(text: str) -> list[str]:
        words = text.lower().split()
        return words + [f"{a} {b}" for a, b in pairwise(words)]

    labels = Counter(label for _, label in train)
    seen: dict[str, Counter] = defaultdict(Counter)
    whole: dict[str, Counter] = defaultdict(Counter)
    for text, label in train:
        seen[label].update(set(parts(text)))
        whole[text][label] += 1

    def bayes(text: str) -> str:
        def weigh(label: str) -> float:
            return np.log(labels[label]) + sum(
                np.log((seen[label][part] + 0.5) / (labels[label] + 1)) for part in parts(text)
            )

        return max(labels, key=weigh)

    def recall(text: str) -> str:
        return whole[text].most_common(1)[0][0] if text in whole else labels.most_common(1)[0][0]

    return max(
        100 * float(np.mean([guess(text) == label for text, label in evaluation]))
        for guess in (bayes, recall)
    )


# ---- scenes and pictures


def test_an_object_is_painted_in_its_color_where_its_cell_is():
    for row in range(4):
        for column in range(4):
            item = Item("square", "blue", "large", (row, column))
            picture = draw(Scene((item,), background=0))
            x, y = 12 * column + 6, 12 * row + 6
            assert tuple(picture[y, x]) == PAINT["blue"]
            lit = np.argwhere(picture.any(axis=2))
            x1, y1, x2, y2 = box_of(item)
            assert (lit.min(axis=0) > (y1, x1)).all()
            assert (lit.max(axis=0) < (y2, x2)).all()


def test_boxes_lie_inside_the_image_and_touch_no_object():
    rng = Random(3)
    for _ in range(300):
        item = draw_item(rng)
        x1, y1, x2, y2 = box_of(item)
        assert 0 <= x1 < corner_of(item)[0] < x2 < SIDE
        assert 0 <= y1 < corner_of(item)[1] < y2 < SIDE


def test_jpeg_keeps_the_colors_apart(tmp_path):
    rng = Random(5)
    for _ in range(50):
        item = draw_item(rng, size="small", shape="square")
        (tmp_path / "scene.jpg").write_bytes(encode(draw(Scene((item,))), ".jpg"))
        x, y = corner_of(item)
        pixel = np.asarray(Image.open(tmp_path / "scene.jpg").convert("RGB"), dtype=float)[
            y + 3, x + 3
        ]
        distance = {
            color: np.abs(np.asarray(paint) * item.shade - pixel).sum()
            for color, paint in PAINT.items()
        }
        assert min(distance, key=distance.get) == item.color


def test_no_two_objects_share_a_cell():
    rng = Random(11)
    for _ in range(200):
        scene = fill_scene(rng, [draw_item(rng)], (3, 6))
        assert len({item.cell for item in scene.items}) == len(scene.items)


# ---- the four tasks


def test_vqa_answers_are_what_the_scene_shows():
    rng = Random(13)
    for _ in range(100):
        for ask in KINDS:
            question = ask(rng)
            words = question.text.rstrip("?").split()
            if ask.__name__ == "ask_color":
                assert {item.color for item in question.scene.find(shape=words[-1])} == {
                    question.answer
                }
            elif ask.__name__ == "ask_shape":
                assert [item.shape for item in question.scene.find(color=words[3])] == [
                    question.answer
                ]
            elif ask.__name__ == "ask_number":
                color = {"color": words[2]} if "objects" in words else {}
                shape = (
                    {}
                    if color
                    else {
                        "shape": {"people": "person", "crosses": "cross"}.get(
                            words[2], words[2][:-1]
                        )
                    }
                )
                assert question.scene.count(**color, **shape) == int(question.answer)
            elif ask.__name__ == "ask_existence":
                assert bool(question.scene.count(color=words[3], shape=words[4])) == (
                    question.answer == "yes"
                )
            elif ask.__name__ == "ask_place":
                assert [i.corner for i in question.scene.find(color=words[3], shape=words[4])] == [
                    question.answer
                ]
            else:
                (other,) = question.scene.find(color=words[-2])
                axis, sign = {"left": (1, -1), "right": (1, 1), "above": (0, -1), "below": (0, 1)}[
                    words[2]
                ]
                near = [
                    i.shape
                    for i in question.scene.items
                    if (i.cell[axis] - other.cell[axis]) * sign > 0
                ]
                assert near == [question.answer]


def test_annotators_disagree_at_times_and_the_majority_is_right():
    rng, unanimous = Random(17), 0
    for _ in range(500):
        question = rng.choice(list(KINDS))(rng)
        answers = annotate(rng, question)
        assert len(answers) == 10
        unanimous += len(set(answers)) == 1
        assert Counter(answers).most_common(1)[0][1] >= 4
        assert (
            sum(
                a not in (question.answer, f"a {question.answer}") and not a.isalpha()
                for a in answers
            )
            <= 6
        )
    assert 100 < unanimous < 400


def test_vqa_has_some_two_dozen_answers_none_of_them_rare(root):
    answers = Counter(answer for split in ("train", "val") for _, answer in read_vqa(root, split))
    assert set(answers) == {*COLORS, *SHAPES, *CORNERS, "yes", "no", "0", "1", "2", "3", "4"}
    assert min(answers.values()) >= 9


def test_every_nlvr2_sentence_is_true_of_one_pair_and_false_of_another(root):
    groups = defaultdict(list)
    for record in read_lines(root / "nlvr2" / "data" / "dev.json"):
        split, group, pair, place = record["identifier"].split("-")
        groups[group, place].append((record["sentence"], record["label"]))
        for side in (0, 1):
            assert (
                root / "nlvr2" / "images" / split / f"{split}-{group}-{pair}-img{side}.png"
            ).is_file()
    assert len(groups) == EVALUATION / 2
    assert all(len({text for text, _ in group}) == 1 for group in groups.values())
    assert all(
        sorted(label for _, label in group) == ["False", "True"] for group in groups.values()
    )


def test_nlvr2_scenes_grant_every_wish():
    rng = Random(43)
    for _ in range(300):
        color, first, second = rng.choice(COLORS), *rng.sample(SHAPES, 2)
        present, number = rng.random() < 0.5, rng.randint(0, 4)
        scene = show(rng, [wish_object(rng, color, first, present), wish_number(second, number)])
        assert bool(scene.count(color=color, shape=first)) == present
        assert scene.count(color=color) >= 1 or scene.count(shape=first) >= 1
        assert scene.count(shape=second) == number


def test_every_snli_ve_hypothesis_gets_each_label_once(root):
    labels = defaultdict(list)
    for place, record in enumerate(read_lines(root / "snli-ve" / "snli_ve_dev.jsonl")):
        labels[place // 3].append((record["sentence2"], record["gold_label"]))
        assert (root / "flickr30k" / "flickr30k_images" / f"{record['Flickr30K_ID']}.jpg").is_file()
    for group in labels.values():
        assert len({text for text, _ in group}) == 1
        assert sorted(label for _, label in group) == ["contradiction", "entailment", "neutral"]


def test_the_number_of_objects_tells_no_label():
    rng = Random(41)
    for suppose in HYPOTHESES:
        counts = {
            label: np.mean([len(suppose(rng)[1](label).items) for _ in range(300)])
            for label in LABELS
        }
        assert max(counts.values()) - min(counts.values()) < 0.4
    for present in (True, False):
        assert len(wish_object(rng, "red", "cross", present).want()) == 2


def test_vcr_records_are_complete_and_their_tags_have_boxes(root):
    for record in read_lines(root / "vcr" / "annotation" / "val.jsonl")[:300]:
        metadata = json.loads(
            (root / "vcr" / "vcr1images" / record["metadata_fn"]).read_text("utf-8")
        )
        assert metadata["names"] == record["objects"]
        assert len(metadata["boxes"]) == len(metadata["segms"]) == len(record["objects"])
        with Image.open(root / "vcr" / "vcr1images" / record["img_fn"]) as image:
            assert image.size == (metadata["width"], metadata["height"])
        choices = record["answer_choices"]
        assert (
            len({json.dumps(choice) for choice in choices})
            == len({json.dumps(c) for c in record["rationale_choices"]})
            == 4
        )
        tags = [
            index
            for words in (record["question"], *choices)
            for word in words
            if isinstance(word, list)
            for index in word
        ]
        assert tags
        assert all(0 <= index < len(record["objects"]) for index in tags)
        spoken = [speak(choice, record["objects"]) for choice in choices]
        assert len(set(spoken)) == 4, "two choices would read the same"


def test_the_color_inside_a_vcr_box_decides_the_answer(root):
    """An independent reading of the files: the paint nearest to the pixels in the tagged box is the
    right answer."""
    right = []
    for record in read_lines(root / "vcr" / "annotation" / "val.jsonl"):
        if record["question"][:2] != ["What", "color"]:
            continue
        metadata = json.loads(
            (root / "vcr" / "vcr1images" / record["metadata_fn"]).read_text("utf-8")
        )
        x1, y1, x2, y2, _ = metadata["boxes"][record["question"][3][0]]
        pixels = np.asarray(Image.open(root / "vcr" / "vcr1images" / record["img_fn"]), dtype=float)
        inside = pixels[int(y1) + 1 : int(y2), int(x1) + 1 : int(x2)].reshape(-1, 3)
        hue = inside[inside.max(axis=1) > 120].mean(axis=0)
        distance = [
            np.abs(np.asarray(PAINT[choice[0]]) * 0.92 - hue).sum()
            for choice in record["answer_choices"]
        ]
        right.append(int(np.argmin(distance)) == record["answer_label"])
    assert np.mean(right) > 0.97


@pytest.mark.parametrize(
    ("task", "splits", "limit"),
    [
        ("vqav2", ("train", "val"), 27),
        ("nlvr2", ("train", "dev"), 50),
        ("snli-ve", ("train", "dev"), 33.4),
    ],
)
def test_text_alone_stays_near_the_majority(root, task, splits, limit):
    """Exactly at chance for NLVR2 and SNLI-VE, where every sentence comes with every label."""
    train, evaluation = (read_labeled(root, task, split) for split in splits)
    assert guess_from_text(train, evaluation) <= limit


def test_vcr_choices_alone_stay_near_chance(root):
    """A choice is scored by how often its words, beside those of the question, belonged to the
    right answer."""
    train, evaluation = (
        read_lines(root / "vcr" / "annotation" / f"{split}.jsonl") for split in ("train", "val")
    )
    good, all_ = Counter(), Counter()

    def parts(record: dict, choice: list) -> list[str]:
        question, answer = (
            speak(record["question"], record["objects"]),
            speak(choice, record["objects"]),
        )
        return [
            answer,
            f"{question} {answer}",
            *answer.split(),
            *(f"{question} {word}" for word in answer.split()),
        ]

    for record in train:
        for place, choice in enumerate(record["answer_choices"]):
            found = parts(record, choice)
            all_.update(found)
            if place == record["answer_label"]:
                good.update(found)

    def weigh(record: dict, choice: list) -> float:
        return sum(np.log((good[part] + 1) / (all_[part] + 4)) for part in parts(record, choice))

    hits = [
        int(np.argmax([weigh(record, choice) for choice in record["answer_choices"]]))
        == record["answer_label"]
        for record in evaluation
    ]
    assert 100 * np.mean(hits) <= 30
    places = Counter(record["answer_label"] for record in evaluation)
    assert max(places.values()) <= 0.3 * len(evaluation)


def test_evaluation_scenes_are_not_those_of_training(root):
    folders = {
        "vqav2": ("ms-coco/images/COCO_train*", "ms-coco/images/COCO_val*"),
        "nlvr2": ("nlvr2/images/train/*", "nlvr2/images/dev/*"),
        "snli-ve": ("flickr30k/flickr30k_images/1*", "flickr30k/flickr30k_images/2*"),
        "vcr": ("vcr/vcr1images/embedded_train/*.jpg", "vcr/vcr1images/embedded_val/*.jpg"),
    }
    assert set(folders) == set(SPLITS)
    for train, evaluation in folders.values():
        first, second = (
            {path.read_bytes() for path in root.glob(pattern)} for pattern in (train, evaluation)
        )
        assert len(first) >= TRAIN * 0.49  # at most two questions about an image
        assert not first & second


# ---- the cache


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        write_benchmark(tmp_path / name, Sizes(40, 12), seed)
    assert digest(tmp_path / "one") == digest(tmp_path / "two") != digest(tmp_path / "three")


def test_the_benchmark_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path))
    first = ensure_benchmark(sizes=Sizes(20, 6))
    (first / "mark").touch()
    assert ensure_benchmark(sizes=Sizes(20, 6)) == first
    assert (first / "mark").exists()
    assert ensure_benchmark(sizes=Sizes(22, 6)) != first
    assert not list(tmp_path.glob("*.part"))


def test_two_processes_at_once_agree(tmp_path):
    code = (
        "import sys; from mcit.embedded.benchmark import *; "
        "print(ensure_benchmark(sys.argv[1], Sizes(60, 12)))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    printed = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert printed[0] == printed[1]
    (folder,) = tmp_path.iterdir()
    write_benchmark(tmp_path / "again", Sizes(60, 12))
    assert digest(folder) == digest(tmp_path / "again")


def test_an_interrupted_run_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(
        __import__("mcit.embedded.benchmark", fromlist=["WRITERS"]).WRITERS, "vcr", fail
    )
    with pytest.raises(KeyboardInterrupt):
        ensure_benchmark(tmp_path, Sizes(10, 3))
    assert not list(tmp_path.iterdir())

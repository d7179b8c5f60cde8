"""Small files of CoIN, UCIT and MLLM-DCL in the formats and under the names that copies have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

WORDING = "Answer the question using a single word or phrase."
ANSWERS = {
    "scienceqa": "B",
    "textvqa": "stop",
    "imagenet-text": "tench",
    "gqa": "left",
    "vizwiz": "Unanswerable",
    "vqav2-text": "yes",
    "ocrvqa": "Yuval Harari",
    "imagenet-r": "goldfish",
    "arxivqa": "C",
    "vizwiz-caption": "A hand holds a can of soup.",
    "iconqa": "1",
    "clevr-math": "4",
    "flickr30k": "Two men talk in a yard.",
    "rs": "residential",
    "med": "no",
    "ad": "Going ahead.",
    "sci": "A",
    "fin": "yes",
}
BOX = "[0.1, 0.2, 0.55, 0.95]"
TEN = ["stop"] * 6 + ["stop sign"] * 4
CAPTIONS = [["A can of soup.", "A hand with a can."], ["A red tin."], ["Soup."]]
COUNT = 3


def write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def write_image(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 9), (200, 30, 30)).save(path)


def write_task(
    task: str,
    folder: Path,
    images: Path,
    prefix: str,
    train: str = "train.json",
    test: str = "test.json",
    answered: bool = True,
) -> None:
    """Write the files of a task, whose images are called PREFIX0.jpg and so on below `images`."""
    learned = []
    tested = []
    answer = ANSWERS.get(task, BOX)
    for number in range(COUNT):
        image = f"{prefix}{number}.jpg"
        write_image(images, image)
        asked = f"What is in image {number}?\n{WORDING}"
        human = {"from": "human", "value": f"<image>\n{asked}"}
        record = {"image": f"./{image}", "conversations": [human, {"from": "gpt", "value": answer}]}
        # some files of CoIN have a question_id here
        key = "question_id" if number == 0 else "id"
        learned.append({key: f"train-{number}", **record})
        question: dict[str, Any] = {"question_id": f"q{number}", "image": f"./{image}"}
        question["text"] = asked
        if task == "grounding":
            question |= {"answer_bbox": answer, "size": [640, 480]}
        elif answered:
            question["answer"] = answer
        tested.append(question)
    if task == "scienceqa":
        # a question about no image
        turns = [{"from": "human", "value": "Which?\nA. x\nB. y"}, {"from": "gpt", "value": "B"}]
        learned.append({"id": "text", "conversations": turns})
    write_json(folder / train, learned)
    write_json(folder / test, tested)


def write_coin(root: Path, above: str = "Instructions_Original", **names: str) -> None:
    folders = {
        "scienceqa": "ScienceQA",
        "textvqa": "TextVQA",
        "imagenet-text": "ImageNet",
        "gqa": "GQA",
        "vizwiz": "VizWiz",
        "grounding": "Grounding",
        "vqav2-text": "VQAv2",
        "ocrvqa": "OCRVQA",
    }
    for task, folder in folders.items():
        given = dict(names)
        if task in ("vizwiz", "vqav2-text"):
            given = {"test": "val.json", **names}
        # the answers of ScienceQA and GQA are in their official files alone
        answered = task not in ("scienceqa", "gqa")
        place = root / above / folder
        write_task(task, place, root / "cl_dataset", f"{folder}/", answered=answered, **given)
    data = [{"question_id": f"q{number}", "answers": TEN} for number in range(COUNT)]
    write_json(root / "cl_dataset/TextVQA/TextVQA_0.5.1_val.json", {"data": data})
    problems = {f"q{number}": {"choices": ["x", "y"], "answer": 1} for number in range(COUNT)}
    write_json(root / "cl_dataset/ScienceQA/problems.json", problems)
    questions = {f"q{number}": {"answer": "left"} for number in range(COUNT)}
    write_json(root / "cl_dataset/GQA/testdev_balanced_questions.json", questions)


def write_ucit(root: Path, hide: bool = False) -> None:
    """Write UCIT as MCITlib names its files, or as HiDe does."""
    folders = {
        "imagenet-r": "ImageNet-R",
        "arxivqa": "ArxivQA",
        "vizwiz-caption": "VizWiz-caption",
        "iconqa": "IconQA",
        "clevr-math": "CLEVR" if hide else "CLEVR-Math",
        "flickr30k": "Flickr30k",
    }
    for task, folder in folders.items():
        names = {}
        prefix = f"{folder}/images/"
        images = root / "UCIT/datasets"
        if hide:
            train = "train_brief_4w.json" if task == "flickr30k" else "train_4w.json"
            names = {"train": train, "test": "test_3000.json"}
        else:
            # paths of images that start from UCIT
            prefix = f"datasets/{prefix}"
            images = root / "UCIT"
        write_task(task, root / "UCIT" / folder, images, prefix, **names)
        if task in ("vizwiz-caption", "flickr30k"):
            entries = [
                {"id": 10 * number + place, "image_id": number, "caption": caption}
                for number, captions in enumerate(CAPTIONS, start=1)
                for place, caption in enumerate(captions)
            ]
            coco = {"images": [{"id": number} for number in (1, 2, 3)], "annotations": entries}
            write_json(root / "UCIT" / folder / "val_coco_type_3000.json", coco)


def write_dcl(root: Path, above: str = "Domain_data") -> None:
    for task, folder in {"rs": "RS", "med": "Med", "ad": "AD", "sci": "Sci", "fin": "Fin"}.items():
        place = root / above / folder
        write_task(task, place, place, "images/")

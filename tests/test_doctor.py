"""`mcit doctor`: what is there, what is not, and a next step that helps."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tiny_official import make_cell, write_image, write_json, write_lines

from mcit.cli import main
from mcit.data.splits import order_classes
from mcit.doctor.examination import examine
from mcit.doctor.findings import Finding, Problem, exit_code
from mcit.embedded.benchmark import Sizes, write_benchmark
from mcit.registry import TASK, find_task, list_names

VQA = {"vqa": {"minimum": 1}}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_benchmark(root, Sizes(train=40, evaluation=4))
    (root / "embedded.json").unlink()
    return root


@pytest.fixture
def root(benchmark, tmp_path) -> Path:
    shutil.copytree(benchmark, tmp_path / "data")
    return tmp_path / "data"


def look(root: Path, name: str, deep: bool = False) -> Finding:
    (finding,) = examine(
        root, [name], {key: value for key, value in VQA.items() if key == name}, deep
    )
    return finding


def only_problem(finding: Finding):
    (problem,) = finding.problems
    return problem


def follow(finding: Finding, root: Path, name: str) -> Finding:
    """Do what the doctor says until there is nothing left that can be done here."""
    for _ in range(5):
        if finding.status != "fixable":
            break
        subprocess.run(finding.problems[0].remedy, shell=True, check=True)
        finding = look(root, name)
    return finding


# --- what is ready


def test_a_part_of_the_data_is_reported_as_such_and_ready(root, capsys):
    argv = [
        "doctor",
        "--data-root",
        str(root),
        "--order",
        "vqa,nlvr2,snli-ve,vcr",
        "--set",
        "tasks.vqa.minimum=1",
    ]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    for words in (
        "40 of 443,757",
        "4 of 6,982",
        "40 of 529,527",
        "4 of 26,534",
        "answers in the vocabulary",
    ):
        assert words in printed
    assert f"mcit prepare --order vqa,nlvr2,snli-ve,vcr --data-root {root}" in printed
    assert f"mcit run --order vqa,nlvr2,snli-ve,vcr --data-root {root}" in printed
    assert "missing" not in printed


def test_json_says_the_same(root, capsys):
    assert (
        main(["doctor", "--data-root", str(root), "--order", "nlvr2,vcr,shapes:5x4", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["data_root"]) == (0, str(root))
    nlvr2, vcr, shapes = found["tasks"]
    assert [task["status"] for task in found["tasks"]] == ["ready"] * 3
    assert nlvr2["splits"]["train"] == {
        "name": "train",
        "examples": 40,
        "official": 86373,
        "files": 40,
        "absent": 0,
    }
    assert vcr["splits"]["eval"]["files"] == 4  # two images and their metadata
    assert shapes["notes"] == ["checked with Task.check() (generated data or a task of your own)"]


def test_an_empty_folder_lacks_every_task_that_needs_data(tmp_path, capsys):
    assert main(["doctor", "--data-root", str(tmp_path), "--json"]) == 3
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [task["task"] for task in tasks][:4] == ["vqa", "nlvr2", "snli-ve", "vcr"]
    asked = {name for name in list_names(TASK) if find_task(name).on_its_own}
    assert {task["task"] for task in tasks} == asked - {"shapes"}
    for task in tasks:
        assert task["status"] == "missing"
        assert "http" in task["problems"][0]["remedy"]
    homes = {task["task"]: task["problems"][0]["remedy"].rpartition(" ")[2] for task in tasks[4:]}
    assert homes["tiny_imagenet"] == f"{tmp_path}/tiny-imagenet-200"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 0),
        (["ready"], 0),
        (["ready", "fixable"], 1),
        (["fixable", "missing", "ready"], 3),
        (["missing"], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst(statuses, code):
    findings = [Finding(str(number)) for number in range(len(statuses))]
    for finding, status in zip(findings, statuses, strict=True):
        if status != "ready":
            finding.add(Problem("something", "a remedy", status))
    assert [finding.status for finding in findings] == statuses
    assert exit_code(findings) == code


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--data-root", "nowhere"], "--data-root 'nowhere' is not a directory"),
        (["--data-root", ".", "--order", "nlvr"], "unknown task 'nlvr'; did you mean 'nlvr2'?"),
        (
            ["--data-root", ".", "--order", "cifar100:3x3"],
            "stands for 9 classes where cifar100 has 100",
        ),
        (
            ["--data-root", ".", "--order", "vqa", "--set", "tasks.vqa.minimun=1"],
            "did you mean 'minimum'?",
        ),
    ],
)
def test_a_question_that_cannot_be_understood_has_code_2(
    capsys, tmp_path, monkeypatch, argv, words
):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *argv]) == 2
    assert words in capsys.readouterr().err


# --- what can be fixed here: the command that is printed does it


ANSWERS = "v2_mscoco_val2014_annotations.json"
MOVES = {
    "capitals": ("nlvr2", "nlvr2", "NLVR2"),
    "an underscore": ("snli-ve", "snli-ve", "snli_ve"),
    "a missing hyphen": ("vqa", "ms-coco", "mscoco"),
    "a folder one level too high": ("snli-ve", "flickr30k/flickr30k_images", "flickr30k_images"),
    "a file in the root": ("snli-ve", "snli-ve/snli_ve_dev.jsonl", "snli_ve_dev.jsonl"),
    "a file in another folder": ("vqa", f"vqav2/{ANSWERS}", f"ms-coco/{ANSWERS}"),
    "a folder that names less": ("vqa", "vqav2", "vqa"),
    "COCO's own folder": ("vqa", "ms-coco/images", "ms-coco/train2014"),
    "a folder without an s": ("vcr", "vcr/vcr1images", "vcr/vcr1image"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MOVES)
def test_what_is_misplaced_is_found_and_the_command_puts_it_right(root, kind):
    name, right, wrong = MOVES[kind]
    (root / right).rename(root / wrong)
    finding = look(root, name)
    assert finding.status == "fixable"
    assert "mv " in finding.problems[0].remedy
    assert follow(finding, root, name).status == "ready"


def test_another_data_set_is_not_taken_for_a_slip(root, tmp_path):
    (root / "cifar10").mkdir()
    (root / "vqav2" / ANSWERS).unlink()  # train's own is near it
    assert "mv " not in only_problem(look(root, "cifar100")).remedy
    assert "mv " not in only_problem(look(root, "vqa")).remedy


@pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")
def test_an_archive_is_to_be_unpacked_and_the_command_does_it(root):
    inside = root / "vcr" / "vcr1images"
    with zipfile.ZipFile(
        root / "vcr1images.zip", "w"
    ) as archive:  # it holds the folder itself, as the official one
        for path in sorted(inside.rglob("*")):
            archive.write(path, path.relative_to(root / "vcr"))
    shutil.rmtree(inside)
    finding = look(root, "vcr")
    assert only_problem(finding).text == "not unpacked yet: vcr1images.zip"
    assert follow(finding, root, "vcr").status == "ready"


def test_a_tar_file_beside_an_incomplete_folder_is_unpacked_too(root):
    images = root / "flickr30k" / "flickr30k_images"
    with tarfile.open(root / "flickr30k" / "flickr30k-images.tar.gz", "w:gz") as archive:
        archive.add(images, "flickr30k-images")
    for path in sorted(images.iterdir())[::2]:
        path.unlink()
    finding = look(root, "snli-ve")
    assert "not unpacked yet: flickr30k/flickr30k-images.tar.gz" in finding.problems[0].text
    assert follow(finding, root, "snli-ve").status == "ready"


def test_a_broken_archive_is_to_be_fetched_again(root):
    shutil.rmtree(root / "nlvr2" / "images" / "dev")
    (root / "dev_img.zip").write_bytes(b"PK\x03\x04 half of it")
    problem = only_problem(look(root, "nlvr2"))
    assert problem.status == "missing"
    assert "dev_img.zip is not a complete archive" in problem.text


def test_a_name_with_a_space_is_quoted(root, tmp_path):
    shutil.move(root, tmp_path / "my data")
    root = tmp_path / "my data"
    (root / "nlvr2").rename(root / "NLVR 2")
    assert follow(look(root, "nlvr2"), root, "nlvr2").status == "ready"


# --- records and images


def test_wrong_records_are_counted_by_reason_and_can_be_left_out(root):
    path = root / "snli-ve" / "snli_ve_train.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[3]["gold_label"] = "maybe"
    records[5]["pairID"] = records[4]["pairID"]
    write_lines(path, records)
    finding = look(root, "snli-ve")
    problem = only_problem(finding)
    assert (finding.status, finding.splits["train"].examples) == ("fixable", 38)
    assert problem.text.startswith("2 of 40 records are wrong: 1 'gold_label' must be one of")
    assert "1 duplicate id" in problem.text
    assert "--on-bad-record skip" in problem.remedy


def test_a_file_cut_short_is_to_be_fetched_again(root):
    path = root / "vqav2" / "v2_mscoco_train2014_annotations.json"
    path.write_text(path.read_text()[:-300])
    finding = look(root, "vqa")
    assert finding.status == "missing"
    assert "not valid JSON" in only_problem(finding).text
    assert "https://visualqa.org" in only_problem(finding).remedy
    assert finding.splits["eval"].examples == 4


def test_a_file_of_lines_cut_short_is_to_be_fetched_again_too(root):
    path = root / "snli-ve" / "snli_ve_train.jsonl"
    path.write_text(path.read_text()[:3000])
    finding = look(root, "snli-ve")
    assert finding.status == "missing"
    assert "it is cut short" in only_problem(finding).text


def test_absent_images_are_counted_and_one_is_named(root):
    images = sorted((root / "ms-coco" / "images").iterdir())
    for path in images[:10]:
        path.unlink()
    finding = look(root, "vqa")
    assert finding.status == "missing"
    assert finding.splits["train"].absent + finding.splits["eval"].absent == 10
    assert (
        "lacks 10 of 40 files that train2014 names, the first is image 1"
        in finding.problems[0].text
    )
    assert (
        "are called" not in finding.problems[0].text
    )  # the others are there under these very names


def test_a_few_absent_images_can_be_left_out(root, monkeypatch):
    monkeypatch.setattr("mcit.doctor.annotated._FEW", 0.05)
    sorted((root / "flickr30k" / "flickr30k_images").iterdir())[0].unlink()
    finding = look(root, "snli-ve")
    assert finding.status == "fixable"
    assert "--on-bad-record skip" in only_problem(finding).remedy


def test_images_unpacked_without_their_folders_are_recognised(root):
    folder = root / "vcr" / "vcr1images"
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.rename(folder / path.name)
    assert "but outside its folder: unpack with folders" in look(root, "vcr").problems[0].text


def test_other_names_than_the_records_have_are_shown(root):
    images = root / "flickr30k" / "flickr30k_images"
    for path in list(images.iterdir()):
        path.rename(images / f"flickr_{path.name}")
    assert "files there are called 'flickr_" in look(root, "snli-ve").problems[0].text


def test_a_broken_image_outside_the_sample_is_found_by_a_deep_look(root, monkeypatch):
    monkeypatch.setattr("mcit.doctor.annotated._SAMPLE", 2)  # the first and the last row
    broken = (
        root
        / "vcr"
        / "vcr1images"
        / json.loads((root / "vcr/annotation/train.jsonl").open().readlines()[20])["img_fn"]
    )
    broken.write_bytes(broken.read_bytes()[:200])
    assert look(root, "vcr").status == "ready"
    finding = look(root, "vcr", deep=True)
    assert finding.status == "fixable"
    assert "train.jsonl, record 21" in only_problem(finding).text
    assert broken.name in only_problem(finding).text


def test_an_example_that_is_in_both_splits_is_found(root):
    for kind in ("OpenEnded_mscoco_{}_questions", "mscoco_{}_annotations"):
        whole = root / "vqav2" / f"v2_{kind}.json".format("train2014")
        shutil.copy(whole, root / "vqav2" / f"v2_{kind}.json".format("val2014"))
    assert "40 examples are in both train2014 and val2014" in [
        problem.text for problem in look(root, "vqa").problems
    ]


def test_a_vocabulary_that_would_be_empty_comes_with_the_setting_that_helps(root):
    (finding,) = examine(root, ["vqa"], {"vqa": {"minimum": 500}})
    assert (finding.status, only_problem(finding).remedy) == (
        "fixable",
        "lower tasks.vqa.minimum: --set tasks.vqa.minimum=1",
    )


def test_the_image_cache_is_looked_at_too(root, capsys):
    main(["prepare", "--data-root", str(root), "--order", "snli-ve", "--jobs", "1"])
    finding = look(root, "snli-ve")
    assert finding.notes == ["image cache 384-32-bicubic: 44 of 44 images"]
    assert finding.prepared
    write_image(sorted((root / "flickr30k" / "flickr30k_images").iterdir())[0])
    finding = look(root, "snli-ve")
    assert (
        "44 of 44 images (1 changed since, 0 damaged files): run `mcit prepare" in finding.notes[0]
    )
    assert not finding.prepared


# --- class-incremental data sets


def write_cifar(root: Path, labels: list[int], broken: int = 0) -> None:
    root.mkdir(exist_ok=True)
    for part in ("train", "test"):
        cells = [
            {"bytes": b"broken" if row < broken else make_cell()} for row in range(2 * len(labels))
        ]
        table = pyarrow.table({"img": cells, "fine_label": sorted(labels * 2)})
        pyarrow.parquet.write_table(table, root / f"{part}.parquet")


def test_some_classes_of_cifar100_are_ready_with_the_setting_they_need(tmp_path, capsys):
    write_cifar(tmp_path / "cifar100", order_classes(100, 1993)[:20])
    assert main(["doctor", "--data-root", str(tmp_path), "--order", "cifar100"]) == 0
    printed = capsys.readouterr().out
    assert "40 of 50,000" in printed
    assert f"--order cifar100:5x4 --data-root {tmp_path} --set tasks.cifar100.classes=20" in printed


def test_classes_that_the_order_does_not_begin_with_are_no_start(tmp_path):
    write_cifar(tmp_path, order_classes(100, 1993)[1:5])
    problem = only_problem(look(tmp_path, "cifar100"))
    assert (
        "4 of 100 classes are there, and the first class in the order of seed 1993 is not"
        in problem.text
    )


def test_broken_small_images_are_counted_by_a_deep_look(tmp_path):
    write_cifar(tmp_path, order_classes(100, 1993)[:10], broken=3)
    problem = look(tmp_path, "cifar100", deep=True).problems[0]
    assert problem.status == "fixable"
    assert "train: 3 of 20 records are wrong: 3 image unreadable" in problem.text


def test_a_folder_of_classes_with_a_slip_in_its_name_can_be_renamed(tmp_path):
    for part in ("train", "val"):
        for number in range(100):
            write_image(
                tmp_path / "imagenet_subsets" / part / f"n{number:08}" / "a.png", size=(9, 9)
            )
    finding = look(tmp_path, "imagenet_subset")
    assert only_problem(finding).text == "imagenet_subset is missing, and imagenet_subsets is there"
    finding = follow(finding, tmp_path, "imagenet_subset")
    assert (finding.status, finding.splits["train"].examples) == ("ready", 100)
    assert finding.splits["eval"].describe() == "100 of 5,000"


def test_too_few_class_folders_are_said(tmp_path):
    for part in ("train", "val"):
        write_image(tmp_path / "tiny-imagenet-200" / part / "n1" / "images" / "a.JPEG")
    problem = only_problem(look(tmp_path, "tiny_imagenet"))
    assert "holds 1 class folders where Tiny-ImageNet has 200" in problem.text


def test_a_vocabulary_file_is_judged_by_its_content(root):
    path = write_json(root / "answers.json", {"answers": ["yes", "no"]})
    (finding,) = examine(root, ["vqa"], {"vqa": {"vocabulary": str(path)}})
    assert (finding.status, finding.notes) == ("ready", [f"2 answers in the vocabulary {path}"])
    write_json(path, {"answers": ["yes", "yes"]})
    (finding,) = examine(root, ["vqa"], {"vqa": {"vocabulary": str(path)}})
    assert "lists 1 answers more than once" in " ".join(
        problem.text + problem.remedy for problem in finding.problems
    )

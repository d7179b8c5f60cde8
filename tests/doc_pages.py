"""Pages of the documentation as tests run them: their blocks, and their commands in small."""

from __future__ import annotations

import glob
import importlib
import re
import runpy
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from tiny_run import RECIPE, VISION_LANGUAGE

import mcit.api
from mcit.arguments import Parser
from mcit.cli import main
from mcit.commands import sweep
from mcit.data.cifar import CLASS_NAMES
from mcit.registry import own_folders

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = (*sorted(DOCS.glob("*.md")), README)

BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# what .ci/run does in an environment of its own
# what sets up an environment, and what runs these tests
INSTALL = re.compile(
    r"python -m venv .*|\. \.venv/bin/activate|pip install -e .*|mkdocs .*"
    r"|ruff (check|format) .*|python -m pytest"
)
# options of a sweep, with a value each, that need a cluster
CLUSTER = ("--executor", "--address", "--cpus-per-run", "--gpus-per-run", "--slurm", "--jobs")
SMALL_SHAPES = {
    "tasks.shapes.classes": 2,
    "tasks.shapes.first_epochs": 1,
    "tasks.shapes.later_epochs": 1,
}
SMALL_CIFAR = {"tasks.cifar100.schedule_scale": 0.01, "tasks.cifar100.recipe.batch_size": 16}


@dataclass(frozen=True)
class Block:
    """A fenced block, and the heading that it stands under."""

    language: str
    title: str
    text: str
    heading: str

    @property
    def is_session(self) -> bool:
        """Whether it is a session of the interpreter, which doctest checks."""
        return self.text.lstrip().startswith(">>>")


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in BLOCK.finditer(text):
        outside = BLOCK.sub("", text[: match.start()])
        heading = HEADING.findall(outside)[-1]
        lines = match["text"].splitlines()
        body = "\n".join(line.removeprefix(match["indent"]) for line in lines) + "\n"
        blocks.append(Block(match["language"], match["title"] or "", body, heading))
    return blocks


class Desk:
    """A folder to work in, where `DIR` is a small copy of the official data."""

    def __init__(self, folder: Path, world: Mapping[str, str], monkeypatch: Any):
        self.folder = folder
        self.vilt = world["model.name"]
        self.data = folder / "DIR"
        self.monkeypatch = monkeypatch
        shutil.copytree(world["data_root"], self.data)
        write_cifar(self.data / "cifar100")
        (folder / "my-vilt").symlink_to(self.vilt)

    def write_files(self, blocks: Sequence[Block]) -> None:
        """Write the blocks that have a title to the files they name."""
        for block in blocks:
            if block.title:
                path = self.folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")

    def run_commands(self, text: str) -> None:
        """Run the lines of a shell block, in small."""
        for line in text.replace("\\\n", " ").splitlines():
            for command in line.partition("#")[0].split("&&"):
                if command.strip():
                    self.run_command(command.strip())

    def run_command(self, command: str) -> None:
        """Run one command in this process."""
        if INSTALL.fullmatch(command):
            return
        program, *words = _drop_assignments(shlex.split(command))
        if program == "export":
            key, _, value = words[0].partition("=")
            self.monkeypatch.setenv(key, value)
            # as a new process would find them
            for kind in ("tasks", "methods", "classifiers", "transports"):
                importlib.import_module(f"mcit.{kind}").__path__ += own_folders(kind)
        elif program == "python":
            assert len(words) == 1, f"what would run {command!r}?"
            runpy.run_path(words[0])
        elif program == "accelerate":
            self.run_mcit(["run", *read_launch(words)], command)
        else:
            assert program == "mcit", f"what would run {command!r}?"
            self.run_mcit(words, command)

    def run_mcit(self, words: Sequence[str], command: str) -> None:
        """Run an mcit command on small data and networks; sweeps only plan their runs."""
        expanded = [name for word in words for name in sorted(glob.glob(word)) or [word]]
        name, *rest = expanded
        # `doctor` says by its code what is missing
        accepted = (0, 1, 3) if name == "doctor" else (0,)
        if name in ("run", "sweep"):
            rest = self.shrink(rest)
        if name == "sweep":
            rest = plan_here(rest)
        if name == "sweep" and "--dry-run" not in rest:
            rest.append("--dry-run")
        if name == "reproduce":
            rest = [word for word in rest if word != "--run"]
        assert main([name, *rest]) in accepted, command

    def shrink(self, words: list[str]) -> list[str]:
        """Return the words of a run with settings for small data and a small network."""
        order = ",".join(_values(words, "--order"))
        config = "".join(_values(words, "--config"))
        given = {setting.partition("=")[0] for setting in _values(words, "--set")}
        words = [word.replace("shapes:5x4", "shapes:2x1") for word in words]
        if config.startswith("efcil/") and "--dry-run" not in words:
            # the data have few of the classes' images, and the run would take minutes
            words.append("--dry-run")
        if "DIR" not in words and set(order.split(",")) & set(VISION_LANGUAGE):
            # the embedded benchmark in smaller; its configuration has the strengths
            words += ["--data-root", str(self.data), "--config", "embedded"]
        for key, value in self.settings(order or config).items():
            if key not in given:
                words += ["--set", f"{key}={value}"]
        if "model.name" in given:
            words = _drop_setting(words, "model.width=8")
        return words

    def settings(self, order: str) -> dict[str, Any]:
        """Return the settings of a small run by key."""
        if "shapes" in order:
            return {"model.width": 8, **SMALL_SHAPES}
        if "cifar100" in order:
            return {"model.width": 8, **SMALL_CIFAR}
        if order != "climb" and not set(order.split(",")) & set(VISION_LANGUAGE):
            return {}
        settings = {"model.name": self.vilt, "tasks.vqa.minimum": 1, "tasks.vqa.answers": "null"}
        for task in VISION_LANGUAGE:
            settings |= {f"tasks.{task}.recipe.{key}": value for key, value in RECIPE.items()}
        return {**settings, "training.workers": 0}

    def run_python(self, order: str, *args: Any, **options: Any) -> Any:
        """Do what `mcit.run` does, in small."""
        settings = {**self.settings(order), **options.pop("settings", {})}
        if "vqa" in order:
            settings["tasks.vqa.answers"] = None
            options |= {"data_root": str(self.data), "config": "embedded"}
        small = order.replace("shapes:5x4", "shapes:2x1")
        return _RUN(small, *args, settings=settings, progress=False, **options)


_RUN = mcit.api.run


def read_launch(words: Sequence[str]) -> list[str]:
    """Return the options of the script that `accelerate launch` starts; its files must exist."""
    assert words[0] == "launch"
    rest = list(words[1:])
    if rest[0] == "--config_file":
        assert (ROOT / rest[1]).is_file()
        rest = rest[2:]
    assert rest[0] == "scripts/run_sequence.py"
    assert (ROOT / rest[0]).is_file()
    return rest[1:]


def write_cifar(folder: Path) -> None:
    """Write two images of every class of CIFAR-100 for training, and one for testing."""
    for split, count in (("train", 2), ("test", 1)):
        for label, name in enumerate(CLASS_NAMES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (32, 32), (label, 2 * label, 40 * number))
                image.save(folder / split / name / f"{number}.png")


def plan_here(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep without those about a cluster, once they are known to be right."""
    parser = Parser()
    sweep.add_options(parser)
    parser.parse_args(words)
    kept = []
    left_out = False
    for word in words:
        if word in CLUSTER:
            left_out = True
        elif left_out:
            left_out = False
        else:
            kept.append(word)
    return kept


def _drop_assignments(words: list[str]) -> list[str]:
    """Return a command without variables set before it, such as OMP_NUM_THREADS=1."""
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    return words


def _values(words: Sequence[str], option: str) -> list[str]:
    places = [place for place, word in enumerate(words) if word == option]
    return [words[place + 1] for place in places]


def _drop_setting(words: list[str], setting: str) -> list[str]:
    if setting not in words:
        return words
    place = words.index(setting)
    return words[: place - 1] + words[place + 1 :]

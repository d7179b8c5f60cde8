"""A name is a file; a name without a file is told from those that have one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mcit.methods
import mcit.tasks
from mcit import registry
from mcit.method import Method
from mcit.registry import UnknownName, find_method, find_task, method_names, task_names
from mcit.task import Task

ROOT = Path(__file__).parent.parent


def files(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


@pytest.fixture
def new_method(tmp_path, monkeypatch):
    """Writes a file that the registry sees beside the methods that ship."""
    monkeypatch.setattr(mcit.methods, "__path__", [*mcit.methods.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        header = "from dataclasses import dataclass\nfrom mcit.method import Method\nfrom mcit.methods.ewc import Ewc\n"
        (tmp_path / f"{name}.py").write_text(header + text)
        monkeypatch.delitem(__import__("sys").modules, f"mcit.methods.{name}", raising=False)

    return write


def test_every_file_is_a_name_and_every_name_a_file():
    assert {name.replace("-", "_") for name in task_names()} == files(ROOT / "tasks")
    assert set(method_names()) == files(ROOT / "mcit" / "methods")
    assert "snli-ve" in task_names()
    assert not [name for name in [*task_names(), *method_names()] if name.startswith("_")]


@pytest.mark.parametrize("name", task_names())
def test_every_task_file_defines_one_task(name):
    cls = find_task(name)
    assert issubclass(cls, Task)
    assert getattr(cls, "dataset", None) == name or cls.name == name


@pytest.mark.parametrize("name", method_names())
def test_every_method_file_defines_one_method_of_its_name(name):
    cls = find_method(name)
    assert issubclass(cls, Method)
    assert cls.name == name
    assert cls().describe()


def test_a_task_is_found_with_hyphen_and_with_underscore():
    assert find_task("snli-ve") is find_task("snli_ve")
    assert find_task("snli-ve").name == "snli-ve"


@pytest.mark.parametrize(
    ("find", "name", "words"),
    [
        (find_task, "nlvr", "unknown task 'nlvr'; did you mean 'nlvr2'? (tasks: cifar100, "),
        (find_task, "snli_vee", "did you mean 'snli-ve'?"),
        (find_task, "VQA", "did you mean 'vqa'?"),
        (find_task, "tiny-imagenet", "did you mean 'tiny_imagenet'?"),
        (find_task, "speech", "unknown task 'speech' (tasks: "),
        (find_task, "", "unknown task ''"),
        (find_task, "__init__", "unknown task '__init__'"),
        (find_task, "../vqa", "unknown task '../vqa'"),
        (find_method, "ewc-dr", "unknown method 'ewc-dr'; did you mean 'ewc_dr'? (methods: adapters, "),
        (find_method, "_consolidating", "unknown method '_consolidating'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(find, name, words):
    with pytest.raises(UnknownName) as caught:
        find(name)
    assert words in str(caught.value)


def test_a_new_file_is_a_new_method(new_method):
    new_method("gentle", "@dataclass\nclass Gentle(Method):\n    name = 'gentle'\n    touch: float = 0.5\n")
    assert "gentle" in method_names()
    assert find_method("gentle")().touch == 0.5


def test_what_a_file_merely_imports_does_not_count(new_method):
    new_method("softer", "@dataclass\nclass Softer(Ewc):\n    name = 'softer'\n")
    assert find_method("softer").__name__ == "Softer"


def test_a_second_name_for_the_same_class_does_not_count(new_method):
    new_method("alias", "@dataclass\nclass One(Method):\n    name = 'alias'\n\nSame = One\n")
    assert find_method("alias").__name__ == "One"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class One(Method):\n    pass\n\nclass Two(Ewc):\n    pass\n", "One, Two"),
        ("class Other:\n    pass\n", "none"),
    ],
)
def test_a_file_with_two_classes_or_none_is_refused_by_name(new_method, text, found):
    new_method("strange", text)
    with pytest.raises(TypeError, match=rf"strange\.py must define exactly one Method class, found {found}$"):
        find_method("strange")


def test_an_error_inside_a_file_is_not_taken_for_an_unknown_name(new_method):
    new_method("broken", "import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        registry.find_method("broken")

"""A name is a file; a name without a file is told from those that have one."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from pathlib import Path

import pytest

import mcit.methods
import mcit.tasks
from mcit import registry
from mcit.cli import main
from mcit.config.files import find_name_problems, load_config
from mcit.config.parse import Selection
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError, McitError
from mcit.method import Method
from mcit.registry import METHOD, TASK, UnknownName, find_method, find_task, list_names
from mcit.runner.plan import resolve
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
    assert {name.replace("-", "_") for name in list_names(TASK)} == files(ROOT / "tasks")
    assert set(list_names(METHOD)) == files(ROOT / "mcit" / "methods")
    assert "snli-ve" in list_names(TASK)
    assert not [name for name in [*list_names(TASK), *list_names(METHOD)] if name.startswith("_")]


@pytest.mark.parametrize("name", list_names(TASK))
def test_every_task_file_defines_one_task(name):
    cls = find_task(name)
    assert issubclass(cls, Task)
    assert getattr(cls, "dataset", None) == name or cls.name == name


@pytest.mark.parametrize("name", list_names(METHOD))
def test_every_method_file_defines_one_method_of_its_name(name):
    cls = find_method(name)
    assert issubclass(cls, Method)
    assert cls.name == name
    settings = {"strength": 1.0} if "strength" in {field.name for field in fields(cls)} else {}
    assert cls(**settings).describe()


def test_a_name_is_found_with_hyphen_and_with_underscore():
    assert find_task("snli-ve") is find_task("snli_ve")
    assert find_task("snli-ve").name == "snli-ve"
    assert find_method("ewc-dr") is find_method("ewc_dr")


def test_two_spellings_of_the_names_are_one_experiment():
    options = {"strength": 1.0}
    plans = [
        resolve(RunConfig(order=("vqa", task), method=Selection(method, options)))
        for task, method in (("snli-ve", "ewc_dr"), ("snli_ve", "ewc-dr"))
    ]
    assert plans[0].experiment() == plans[1].experiment()
    assert plans[1].config.order == ("vqa", "snli-ve")
    assert plans[1].config.method.name == "ewc_dr"


@pytest.mark.parametrize(
    ("find", "name", "words"),
    [
        (find_task, "nlvr", "unknown task 'nlvr'; did you mean 'nlvr2'? (tasks: "),
        (find_task, "snli_vee", "did you mean 'snli-ve'?"),
        (find_task, "VQA", "did you mean 'vqa'?"),
        (find_task, "tiny-imagenets", "did you mean 'tiny_imagenet'?"),
        (find_task, "speech", "unknown task 'speech' (tasks: "),
        (find_task, "", "unknown task ''"),
        (find_task, "__init__", "unknown task '__init__'"),
        (find_task, "../vqa", "unknown task '../vqa'"),
        (
            find_method,
            "ewc-rd",
            "unknown method 'ewc-rd'; did you mean 'ewc_dr'? (methods: ",
        ),
        (find_method, "_consolidating", "unknown method '_consolidating'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(find, name, words):
    with pytest.raises(UnknownName) as caught:
        find(name)
    assert words in str(caught.value)


def test_a_new_file_is_a_new_method(new_method):
    new_method(
        "gentle", "@dataclass\nclass Gentle(Method):\n    name = 'gentle'\n    touch: float = 0.5\n"
    )
    assert "gentle" in list_names(METHOD)
    assert find_method("gentle")().touch == 0.5


def test_what_a_file_merely_imports_does_not_count(new_method):
    new_method("softer", "@dataclass\nclass Softer(Ewc):\n    name = 'softer'\n")
    assert find_method("softer").__name__ == "Softer"


def test_a_second_name_for_the_same_class_does_not_count(new_method):
    new_method("alias", "@dataclass\nclass One(Method):\n    name = 'alias'\n\nSame = One\n")
    assert find_method("alias").__name__ == "One"


def test_the_alias_of_a_type_is_not_taken_for_a_class(new_method):
    new_method(
        "typed",
        "Table = dict[str, list[int]]\n\n@dataclass\nclass One(Method):\n    name = 'typed'\n",
    )
    assert find_method("typed").__name__ == "One"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class One(Method):\n    pass\n\nclass Two(Ewc):\n    pass\n", "One, Two"),
        ("class Other:\n    pass\n", "none"),
    ],
)
def test_a_file_with_two_classes_or_none_is_refused_by_name(new_method, text, found):
    new_method("strange", text)
    with pytest.raises(
        TypeError, match=rf"strange\.py must define exactly one Method class, found {found}$"
    ):
        find_method("strange")


def test_an_error_inside_a_file_is_not_taken_for_an_unknown_name(new_method):
    new_method("broken", "import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        registry.find_method("broken")


# --- what files say without being run


def list_options(find, name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(find(name)) if field.init]


@pytest.mark.parametrize("name", list_names(METHOD))
def test_the_options_of_a_method_are_read_from_its_file(name):
    options = dict.fromkeys(list_options(find_method, name), 1)
    assert find_name_problems(RunConfig(("vqa",), Selection(name, options))) == []
    (problem,) = find_name_problems(RunConfig(("vqa",), Selection(name, {**options, "no_such": 1})))
    assert "method.no_such" in problem
    assert (
        f"(keys: {', '.join(options)})" in problem or f"method {name!r} has no options" in problem
    )


@pytest.mark.parametrize("name", list_names(TASK))
def test_the_options_of_a_task_are_read_from_its_file(name):
    options = dict.fromkeys(list_options(find_task, name), 1)
    assert find_name_problems(RunConfig(tasks={name: options})) == []
    (problem,) = find_name_problems(RunConfig(tasks={name: {"no_such": 1}}))
    assert problem == f"unknown key 'tasks.{name}.no_such' (keys: {', '.join(options)})"


def test_a_file_whose_options_are_not_told_by_itself_is_not_judged(new_method):
    new_method("odd", "import enum\nclass Odd(Method, enum.Enum):\n    pass\n")
    assert find_name_problems(RunConfig(("vqa",), Selection("odd", {"anything": 1}))) == []


def test_the_options_of_an_own_method_are_checked_too(new_method):
    new_method("mild", "@dataclass\nclass Mild(Ewc):\n    name = 'mild'\n    touch: float = 0.5\n")
    assert (
        find_name_problems(RunConfig(("vqa",), Selection("mild", {"touch": 1, "strength": 2})))
        == []
    )
    (problem,) = find_name_problems(RunConfig(("vqa",), Selection("mild", {"tuch": 1})))
    assert "unknown key 'method.tuch'; did you mean 'touch'?" in problem


def test_an_own_task_that_makes_its_own_sequence_may_take_other_options(tmp_path, monkeypatch):
    monkeypatch.setattr(mcit.tasks, "__path__", [*mcit.tasks.__path__, str(tmp_path)])
    text = (
        "from mcit.data.class_incremental import ClassIncrementalTask\nclass "
        "Mine(ClassIncrementalTask):\n"
    )
    (tmp_path / "mine.py").write_text(f"{text}    dataset = 'mine'\n")
    assert len(find_name_problems(RunConfig(tasks={"mine": {"rows": 1}}))) == 1
    (tmp_path / "mine.py").write_text(
        f"{text}    def sequence(cls, split, options, seed):\n        pass\n"
    )
    assert find_name_problems(RunConfig(tasks={"mine": {"rows": 1}})) == []


# --- own files with a slip: one message, no traceback


@pytest.fixture
def refuse(capsys, tmp_path, monkeypatch):
    """Gives the message of a run that must be refused, and that writes nothing."""
    monkeypatch.chdir(tmp_path)

    def run(method: str) -> str:
        before = sorted(tmp_path.iterdir())
        assert main(["run", "--order", "shapes:5x4", "--method", method]) == 2
        said = capsys.readouterr()
        # nothing but the line that says what is loading
        assert said.out.count("\n") <= 1
        assert "Traceback" not in said.err
        # the interpreter may keep what it compiled
        after = [path for path in tmp_path.iterdir() if path.name != "__pycache__"]
        assert sorted(after) == before
        return said.err

    return run


def test_a_slip_in_an_own_file_is_told_with_file_and_line(new_method, refuse, tmp_path):
    new_method("slip", "class Slip(Method)\n    name = 'slip'\n")
    assert (
        refuse("slip")
        == f"mcit: {tmp_path}/slip.py, line 4: expected ':' at `class Slip(Method)`; fix the file\n"
    )


def test_a_slip_that_only_shows_on_import_is_told_with_file_and_line(new_method, refuse, tmp_path):
    new_method("late", "class Late(Method):\n    name = 'late'\n    return 3\n")
    assert f"{tmp_path}/late.py, line 6: 'return' outside function" in refuse("late")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class Other:\n    pass\n", "none"),
        ("class One(Method): pass\nclass Two(Method): pass\n", "One, Two"),
    ],
)
def test_an_own_file_without_its_one_class_is_one_message(
    new_method, refuse, tmp_path, text, found
):
    new_method("strange", text)
    expected = f"mcit: {tmp_path}/strange.py must define exactly one Method class, found {found}\n"
    assert refuse("strange") == expected


def test_a_class_that_is_not_called_as_its_file_is_refused(new_method, refuse, tmp_path):
    new_method("gentle", "@dataclass\nclass Gentle(Method):\n    name = 'gentel'\n")
    message = refuse("gentle")
    assert f"{tmp_path}/gentle.py: class Gentle is called 'gentel'" in message
    assert "write name = 'gentle' in it, or rename the file" in message


def test_a_class_that_inherits_the_name_of_another_is_refused(new_method, refuse):
    new_method("softest", "@dataclass\nclass Softest(Ewc):\n    pass\n")
    assert "class Softest is called 'ewc'" in refuse("softest")


def test_an_own_file_called_like_one_that_ships_stops_only_what_uses_it(
    new_method, refuse, tmp_path, capsys
):
    new_method("ewc", "@dataclass\nclass Mine(Method):\n    name = 'ewc'\n")
    message = refuse("ewc")
    shipped = ROOT / "mcit" / "methods" / "ewc.py"
    assert (
        f"method 'ewc' is in two files, {shipped} and {tmp_path}/ewc.py: a name is one file"
        in message
    )
    assert "rename yours" in message
    other = load_config(options={"order": "shapes:5x4", "method": "mas"})
    assert "ewc" in other.methods  # the preset has options for it
    assert find_name_problems(other) == []
    assert resolve(other).method.name == "mas"
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert f"cannot be used: method 'ewc' is in two files, {shipped} and" in listed
    assert "Plain finetuning" in listed


def test_a_method_of_that_name_cannot_be_found_either(new_method):
    new_method("ewc", "@dataclass\nclass Mine(Method):\n    name = 'ewc'\n")
    with pytest.raises(ConfigError, match="is in two files"):
        find_method("ewc")


def test_a_method_without_a_description_is_not_said_to_protect_nothing(new_method):
    new_method("mute", "@dataclass\nclass Mute(Method):\n    name = 'mute'\n")
    assert find_method("mute")().describe() == "no description"
    assert find_method("finetune")().describe() == "no protection"


def test_a_file_without_a_docstring_is_listed_as_such(new_method, capsys):
    new_method("plain", "@dataclass\nclass Plain(Method):\n    name = 'plain'\n")
    assert main(["list"]) == 0
    assert (
        "  plain           no description: its file has no docstring\n" in capsys.readouterr().out
    )


def test_what_is_wrong_with_a_file_is_the_users_to_fix(new_method):
    new_method("strange", "class Other:\n    pass\n")
    with pytest.raises(McitError, match="exactly one Method class"):
        find_method("strange")

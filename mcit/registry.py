"""A name is a file: find a task or a method, or say which exist.

Files that ship are in `tasks/` and `mcit/methods/`; the user's own, in folders of the same names that MCIT_PATH lists.
Names, options and summaries are read from the files without running them, so that a typo is told at once.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mcit
from mcit.config import ConfigError, RunConfig, suggest
from mcit.errors import McitError
from mcit.parsing import describe_unknown_key
from mcit.sources import (
    BadFile,
    Field,
    Place,
    defines,
    explain_syntax,
    find_heirs,
    list_ancestors,
    read_fields,
    read_summary,
)


class UnknownName(McitError, LookupError):
    """A task or method that no file provides."""

    def __str__(self) -> str:
        return str(self.args[0])


class NameClash(ConfigError):
    """A name that two files have, the user's and one that ships; it stops only what uses the name."""


@dataclass(frozen=True)
class Kind:
    """What a name stands for: the package of its file, and the class in `mcit/task.py` or `mcit/method.py` it is."""

    word: str
    package: str
    contract: str

    @property
    def place(self) -> Place:
        """Return where the contract is defined."""
        return Place(Path(mcit.__file__).with_name(f"{self.word}.py"), self.contract)

    def load_contract(self) -> type:
        """Return the class that all classes of this kind inherit from."""
        return getattr(importlib.import_module(f"mcit.{self.word}"), self.contract)

    def list_folders(self) -> list[Path]:
        """Return the folders of the files: that of those which ship, then the user's own."""
        return [
            Path(folder) for folder in dict.fromkeys(importlib.import_module(self.package).__path__)
        ]


TASK = Kind("task", "mcit.tasks", "Task")
METHOD = Kind("method", "mcit.methods", "Method")


def task_names() -> list[str]:
    """Return the names of the files in `tasks/`, as the command line has them (`snli_ve.py` is `snli-ve`)."""
    return list(_list_files(TASK))


def method_names() -> list[str]:
    """Return the names of the files in `mcit/methods/`."""
    return list(_list_files(METHOD))


def find_task(name: str) -> type:
    """Return the task class in the file of that name."""
    return _find(TASK, name)


def find_method(name: str) -> type:
    """Return the method class in the file of that name."""
    return _find(METHOD, name)


def summarize(kind: Kind) -> dict[str, str]:
    """Return what each task or method does in a line, the first of its file's docstring."""
    found = {}
    for name, files in _list_files(kind).items():
        if len(files) > 1:
            found[name] = f"cannot be used: {_describe_clash(kind, name, files)}"
        else:
            found[name] = read_summary(files[0]) or "no description: its file has no docstring"
    return found


def has_option(method: str, option: str) -> bool | None:
    """Whether a method has an option of that name; None where its file alone does not tell, or there is none."""
    fields = None if check_name(METHOD, method) else _read_options(METHOD, method)
    return None if fields is None else option in fields


def find_name_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with the names of tasks, methods and their options; nothing is imported for it."""
    problems = [
        problem for item in config.order for problem in check_name(TASK, item.partition(":")[0])
    ]
    for kind, sections in ((TASK, config.tasks), (METHOD, config.methods)):
        for name, options in sections.items():
            # a preset has options for many; a clash of names matters for those that are used
            if not _clashes(kind, name):
                problems += check_name(kind, name) or _check_options(
                    kind, name, options, f"{kind.word}s.{name}"
                )
    name, options = config.method.name, config.method.options
    problems += check_name(METHOD, name) or _check_options(METHOD, name, options, "method")
    return list(dict.fromkeys(problems))


def check_name(kind: Kind, name: str) -> list[str]:
    """Return what is wrong with a name, if anything."""
    known = _list_files(kind)
    files = known.get(_spell(kind, name))
    if files is None:
        listed = ", ".join(known) or "none"
        return [f"unknown {kind.word} {name!r}{suggest(name, known)} ({kind.word}s: {listed})"]
    if len(files) > 1:
        return [_describe_clash(kind, name, files)]
    return []


def _find(kind: Kind, name: str) -> type:
    files = _list_files(kind).get(_spell(kind, name))
    problems = check_name(kind, name)
    if files is None:
        raise UnknownName(problems[0])
    if problems:
        raise NameClash(problems)
    try:
        module = importlib.import_module(f"{kind.package}.{_stem(files[0])}")
    except SyntaxError as error:
        raise explain_syntax(error) from None
    cls = _class_of(module, kind.load_contract())
    _check_own_name(cls, kind, _spell(kind, name), files[0])
    return cls


def _class_of(module: ModuleType, contract: type) -> type:
    # a dictionary, since a class that has a second name in its file is still one
    found = list(
        dict.fromkeys(
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and issubclass(value, contract)
            and value.__module__ == module.__name__
        )
    )
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise BadFile(
            f"{module.__file__} must define exactly one {contract.__name__} class, found {names}"
        )
    return found[0]


def _check_own_name(cls: type, kind: Kind, name: str, file: Path) -> None:
    """Refuse a class that calls itself otherwise than its file: tables and commands would name it differently."""
    # a data set that is split into tasks has a name for all of them
    own = getattr(cls, "dataset", None) or getattr(cls, "name", None)
    if isinstance(own, str) and own != name:
        raise BadFile(
            f"{file}: class {cls.__name__} is called {own!r}, but a {kind.word} is called by its file: "
            f"write name = {name!r} in it, or rename the file"
        )


def _read_options(kind: Kind, name: str) -> Mapping[str, Field] | None:
    """Return the options of a task or method, or None where its file alone does not tell."""
    (file,) = _list_files(kind)[_spell(kind, name)]
    heirs = find_heirs(file, kind.place)
    if len(heirs) != 1:
        return None
    ours = {Path(mcit.__file__).parent, kind.list_folders()[0]}
    own = [
        place for place in (heirs[0], *list_ancestors(heirs[0])) if not ours & {*place.path.parents}
    ]
    # a task of the user's that makes its own sequence may take options that are not fields
    if any(defines(place, "sequence") for place in own):
        return None
    return read_fields(heirs[0])


def _check_options(kind: Kind, name: str, options: Mapping[str, Any], where: str) -> list[str]:
    fields = _read_options(kind, name)
    if fields is None:
        return []
    if not fields:
        return [
            f"{kind.word} {name!r} has no options, found '{where}.{key}'; leave it out"
            for key in options
        ]
    return _check_keys(fields, options, where)


def _check_keys(fields: Mapping[str, Field], options: Mapping[str, Any], where: str) -> list[str]:
    problems = []
    for key, value in options.items():
        if key not in fields:
            problems.append(describe_unknown_key(where, key, fields))
            continue
        section = fields[key].section
        inner = read_fields(section) if section is not None and isinstance(value, Mapping) else None
        if inner is not None:
            problems += _check_keys(inner, value, f"{where}.{key}")
    return problems


def _list_files(kind: Kind) -> dict[str, list[Path]]:
    """Return the files of every name, in order; several where the user's own is called like one that ships."""
    found: dict[str, list[Path]] = {}
    for folder in kind.list_folders():
        for item in pkgutil.iter_modules([str(folder)]):
            file = f"{item.name}/__init__.py" if item.ispkg else f"{item.name}.py"
            if not item.name.startswith("_"):
                found.setdefault(_spell(kind, item.name), []).append(folder / file)
    return dict(sorted(found.items()))


def _clashes(kind: Kind, name: str) -> bool:
    return len(_list_files(kind).get(_spell(kind, name), [])) > 1


def _describe_clash(kind: Kind, name: str, files: list[Path]) -> str:
    listed = " and ".join(str(file) for file in files)
    return f"{kind.word} {name!r} is in two files, {listed}: a name is one file, rename yours"


def _stem(file: Path) -> str:
    return file.parent.name if file.name == "__init__.py" else file.stem


def _spell(kind: Kind, name: str) -> str:
    # Files carry the underscore Python needs; CLiMB's own keys and the literature write a hyphen for SNLI-VE.
    return {"snli_ve": "snli-ve"}.get(name, name) if kind is TASK else name

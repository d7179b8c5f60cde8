"""A name is a file: find a task or a method, or say which exist.

Files that ship are in `tasks/` and `mcit/methods/`; the user's own are in folders of the same names
below those that MCIT_PATH lists. Names, options and summaries are read from the files without
running them, so that a typo is reported at once. Hyphens and underscores are the same in a name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any

import mcit
from mcit.errors import ConfigError, McitError
from mcit.sources import (
    BadFile,
    Field,
    Place,
    defines,
    explain_syntax,
    find_heirs,
    list_ancestors,
    read_attribute,
    read_fields,
    read_summary,
)
from mcit.spelling import describe_unknown_key, suggest

if TYPE_CHECKING:
    from mcit.classifier import Classifier
    from mcit.method import Method
    from mcit.task import Task
    from mcit.transport import Transport


# by section, keys that stand for others: a plan replaces them (mcit/runner/plan.py)
REPLACED = {"estimator": ("like", "lambda")}


class UnknownName(McitError, LookupError):
    """A task or method that no file provides."""

    def __str__(self) -> str:
        return str(self.args[0])


class NameClash(ConfigError):
    """A name that two files have, the user's and one that ships; only its use is refused."""


@dataclass(frozen=True)
class Category:
    """What a name stands for: the package of its file, and the class it inherits from.

    The contract is the class of that name in `mcit/WORD.py`.
    """

    word: str
    package: str
    contract: str
    # whether names that are joined by + stand for a combination
    joins: bool = False

    @property
    def place(self) -> Place:
        """Return where the contract is defined."""
        return Place(Path(mcit.__file__).with_name(f"{self.word}.py"), self.contract)

    def load_contract(self) -> type:
        """Return the class that all classes of this category inherit from."""
        return getattr(importlib.import_module(f"mcit.{self.word}"), self.contract)

    def list_folders(self) -> list[Path]:
        """Return the folders of the files: the one that ships, then the user's own."""
        folders = importlib.import_module(self.package).__path__
        return [Path(folder) for folder in dict.fromkeys(folders)]


TASK = Category("task", "mcit.tasks", "Task")
METHOD = Category("method", "mcit.methods", "Method", joins=True)
CLASSIFIER = Category("classifier", "mcit.classifiers", "Classifier")
TRANSPORT = Category("transport", "mcit.transports", "Transport")
CATEGORIES = (TASK, METHOD, CLASSIFIER, TRANSPORT)


def own_folders(name: str) -> list[str]:
    """Return the user's own folders of that name, below those that MCIT_PATH lists."""
    listed = [folder for folder in os.environ.get("MCIT_PATH", "").split(os.pathsep) if folder]
    folders = [Path(folder).expanduser() for folder in listed]
    known = [category.package.rpartition(".")[2] for category in CATEGORIES]
    problems = []
    for folder in folders:
        if not any((folder / kind).is_dir() for kind in known):
            kinds = " or ".join(known)
            problems.append(f"MCIT_PATH lists {str(folder)!r}, which has no folder {kinds}")
    if problems:
        raise ConfigError(problems)
    return [str((folder / name).resolve()) for folder in folders if (folder / name).is_dir()]


def list_names(category: Category) -> list[str]:
    """Return the names of a category as the command line has them."""
    return [_display(category, stem, files) for stem, files in _list_files(category).items()]


def summarize(category: Category) -> dict[str, str]:
    """Return a line on each name: the first of its file's docstring."""
    summaries = {}
    for stem, files in _list_files(category).items():
        name = _display(category, stem, files)
        if len(files) > 1:
            summaries[name] = f"cannot be used: {_describe_clash(category, name, files)}"
        else:
            summary = read_summary(files[0])
            summaries[name] = summary or "no description: its file has no docstring"
    return summaries


def split_joined(category: Category, name: str) -> list[str]:
    """Return the names that a name is made of: `lwf+ewc_lo` are two methods."""
    if not category.joins:
        return [name]
    return [part.strip() for part in name.split("+")]


def find_class(category: Category, name: str) -> type:
    """Return the class in the file of that name, or that of a combination."""
    problems = check_name(category, name)
    parts = split_joined(category, name)
    if len(parts) > 1:
        if problems:
            raise UnknownName(problems[0])
        compose = importlib.import_module("mcit.composite").compose
        return compose([find_class(category, part) for part in parts])
    files = _list_files(category).get(_normalize(name))
    if files is None:
        raise UnknownName(problems[0])
    if problems:
        raise NameClash(problems)
    file = files[0]
    stem = file.parent.name if file.name == "__init__.py" else file.stem
    try:
        module = importlib.import_module(f"{category.package}.{stem}")
    except SyntaxError as error:
        raise explain_syntax(error) from None
    cls = _class_of(module, category.load_contract())
    _check_own_name(cls, category, name, file)
    return cls


def find_task(name: str) -> type[Task]:
    """Return the task class of that name."""
    return find_class(TASK, name)


def find_method(name: str) -> type[Method]:
    """Return the method class of that name."""
    return find_class(METHOD, name)


def find_classifier(name: str) -> type[Classifier]:
    """Return the classifier class of that name."""
    return find_class(CLASSIFIER, name)


def find_transport(name: str) -> type[Transport]:
    """Return the transport class of that name."""
    return find_class(TRANSPORT, name)


def check_name(category: Category, name: str) -> list[str]:
    """Return what is wrong with a name, if anything."""
    parts = split_joined(category, name)
    if len(parts) > 1:
        return _check_joined(category, name, parts)
    files = _list_files(category).get(_normalize(name))
    word = category.word
    if files is None:
        known = list_names(category)
        listed = ", ".join(known) or "none"
        return [f"unknown {word} {name!r}{suggest(name, known)} ({word}s: {listed})"]
    if len(files) > 1:
        return [_describe_clash(category, name, files)]
    return []


def check_options(
    category: Category, name: str, options: Mapping[str, Any], where: str
) -> list[str]:
    """Return what is wrong with a name and the keys of its options; nothing is imported for it."""
    problems = check_name(category, name)
    if problems:
        return problems
    parts = split_joined(category, name)
    if len(parts) > 1:
        return _check_joined_options(category, parts, options, where)
    fields = _read_options(category, name)
    if fields is None:
        return []
    if not fields:
        return [
            f"{category.word} {name!r} has no options, found '{where}.{key}'; leave it out"
            for key in options
        ]
    return _check_keys(fields, options, where)


def is_ambiguous(category: Category, name: str) -> bool:
    """Whether two files have this name."""
    return len(_list_files(category).get(_normalize(name), [])) > 1


def has_option(category: Category, name: str, option: str) -> bool | None:
    """Whether a class has an option of that name; None if its file alone does not say."""
    if check_name(category, name):
        return None
    if len(split_joined(category, name)) > 1:
        # a combination has sections, and in them its parts' options
        return False
    fields = _read_options(category, name)
    if fields is None:
        return None
    return option in fields


def peek_attribute(category: Category, name: str, attribute: str) -> ast.expr | None:
    """Return the value of a class attribute as it is written, inherited ones included.

    Return None if the file alone does not say, or does not exist.
    """
    files = _list_files(category).get(_normalize(name), [])
    if len(files) != 1:
        return None
    heirs = find_heirs(files[0], category.place)
    if len(heirs) != 1:
        return None
    return read_attribute(heirs[0], attribute)


def _check_joined(category: Category, name: str, parts: Sequence[str]) -> list[str]:
    """Return what is wrong with the names of a combination."""
    if not all(parts):
        return [f"{category.word} {name!r} has an empty name; remove the extra +"]
    known = [_normalize(part) for part in parts]
    problems = []
    for part in dict.fromkeys(parts):
        problems += check_name(category, part)
        if known.count(_normalize(part)) > 1:
            problems.append(f"{category.word} {name!r} names {part!r} twice; once is enough")
    return list(dict.fromkeys(problems))


def _check_joined_options(
    category: Category, parts: Sequence[str], options: Mapping[str, Any], where: str
) -> list[str]:
    """Return what is wrong with the options of a combination, which go by its parts' names."""
    sections = {_normalize(part): part for part in parts}
    problems = []
    for key, value in options.items():
        part = sections.get(_normalize(key))
        if part is None:
            listed = ", ".join(f"{where}.{name}.{key}" for name in sections)
            problems.append(
                f"{where}.{key}: a combination's options go by its parts' names; set {listed}"
            )
        elif isinstance(value, Mapping):
            problems += check_options(category, part, value, f"{where}.{key}")
        else:
            problems.append(f"{where}.{key} must be a section of options, found {value!r}")
    return problems


def _class_of(module: ModuleType, contract: type) -> type:
    found = {}
    for value in vars(module).values():
        # Python 3.10 takes an alias such as dict[str, int] for a class
        if not inspect.isclass(value) or isinstance(value, GenericAlias):
            continue
        if not issubclass(value, contract):
            continue
        if value.__module__ == module.__name__:
            # by the class itself, since one may have a second name in its file
            found[value] = value.__name__
    if len(found) != 1:
        names = ", ".join(found.values()) or "none"
        raise BadFile(
            f"{module.__file__} must define exactly one {contract.__name__} class, found {names}"
        )
    return next(iter(found))


def _check_own_name(cls: type, category: Category, name: str, file: Path) -> None:
    """Raise if a class calls itself otherwise than its file: tables and commands would disagree."""
    # a data set that is split into tasks has a name for all of them
    own = getattr(cls, "dataset", None) or getattr(cls, "name", None)
    if isinstance(own, str) and _normalize(own) != _normalize(name):
        raise BadFile(
            f"{file}: class {cls.__name__} is called {own!r}, but a {category.word} is called by "
            f"its file: write name = {name!r} in it, or rename the file"
        )


def _read_options(category: Category, name: str) -> Mapping[str, Field] | None:
    """Return the options of a class, or None if its file alone does not say."""
    (file,) = _list_files(category)[_normalize(name)]
    heirs = find_heirs(file, category.place)
    if len(heirs) != 1:
        return None
    ours = {Path(mcit.__file__).parent, category.list_folders()[0]}
    lineage = [heirs[0], *list_ancestors(heirs[0])]
    own = [place for place in lineage if not ours & {*place.path.parents}]
    # a task of the user's that makes its own sequence may take options that are not fields
    if any(defines(place, "sequence") for place in own):
        return None
    return read_fields(heirs[0])


def _check_keys(fields: Mapping[str, Field], options: Mapping[str, Any], where: str) -> list[str]:
    problems = []
    replaced = REPLACED.get(where.rpartition(".")[2], ())
    for key, value in options.items():
        if key in replaced:
            continue
        if key not in fields:
            problems.append(describe_unknown_key(where, key, fields))
            continue
        section = fields[key].section
        if section is None or not isinstance(value, Mapping):
            continue
        inner = read_fields(section)
        if inner is not None:
            problems += _check_keys(inner, value, f"{where}.{key}")
    return problems


def _list_files(category: Category) -> dict[str, list[Path]]:
    """Return the files of every name; several if the user's own is called like one that ships."""
    found: dict[str, list[Path]] = {}
    for folder in category.list_folders():
        for item in pkgutil.iter_modules([str(folder)]):
            if item.name.startswith("_"):
                continue
            file = f"{item.name}/__init__.py" if item.ispkg else f"{item.name}.py"
            found.setdefault(item.name, []).append(folder / file)
    return dict(sorted(found.items()))


def _display(category: Category, stem: str, files: list[Path]) -> str:
    """Return the name as the class itself spells it, such as `snli-ve` of the file snli_ve.py."""
    if len(files) > 1:
        return stem
    for attribute in ("dataset", "name"):
        written = peek_attribute(category, stem, attribute)
        if isinstance(written, ast.Constant) and isinstance(written.value, str):
            return written.value
    return stem


def _describe_clash(category: Category, name: str, files: list[Path]) -> str:
    listed = " and ".join(str(file) for file in files)
    return f"{category.word} {name!r} is in two files, {listed}: a name is one file, rename yours"


def _normalize(name: str) -> str:
    return name.replace("-", "_")

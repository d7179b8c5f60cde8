"""A name is a file: find a task or a method, or say which exist.

Files that ship are in `tasks/` and `mcit/methods/`; the user's own, in folders of the same names that MCIT_PATH lists.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

from mcit.config import ConfigError, suggest


class UnknownName(LookupError):
    """A task or method that no file provides."""

    def __str__(self) -> str:
        return str(self.args[0])


def task_names() -> list[str]:
    """Names of the files in `tasks/`, as they are written on the command line (`snli_ve.py` is `snli-ve`)."""
    return [_spoken(name) for name in _files("mcit.tasks")]


def method_names() -> list[str]:
    """Names of the files in `mcit/methods/`."""
    return _files("mcit.methods")


def find_task(name: str) -> type:
    """The task class in the file of that name."""
    from mcit.task import Task

    return _find("task", "mcit.tasks", name, task_names(), Task)


def find_method(name: str) -> type:
    """The method class in the file of that name."""
    from mcit.method import Method

    return _find("method", "mcit.methods", name, method_names(), Method)


def _find(kind: str, package: str, name: str, known: list[str], contract: type) -> type:
    if name not in known and _spoken(name) not in known:
        listed = ", ".join(known) or "none"
        raise UnknownName(f"unknown {kind} {name!r}{suggest(name, known)} ({kind}s: {listed})")
    module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
    return _class_of(module, contract)


def _class_of(module: ModuleType, contract: type) -> type:
    # a dictionary, since a class that has a second name in its file is still one
    found = list(
        dict.fromkeys(
            value
            for value in vars(module).values()
            if inspect.isclass(value) and issubclass(value, contract) and value.__module__ == module.__name__
        )
    )
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise TypeError(f"{module.__file__} must define exactly one {contract.__name__} class, found {names}")
    return found[0]


def _files(package: str) -> list[str]:
    found: dict[str, str] = {}
    for folder in dict.fromkeys(importlib.import_module(package).__path__):
        for item in pkgutil.iter_modules([folder]):
            first = found.setdefault(item.name, folder)
            if first != folder and not item.name.startswith("_"):
                raise ConfigError([f"{item.name}.py is in {first} and in {folder}: a name is one file, rename yours"])
    return sorted(name for name in found if not name.startswith("_"))


def _spoken(name: str) -> str:
    # Files carry the underscore Python needs; CLiMB's own keys and the literature write a hyphen for SNLI-VE.
    return {"snli_ve": "snli-ve"}.get(name, name)

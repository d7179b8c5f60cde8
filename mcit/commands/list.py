"""`mcit list`: what can be named on the command line, and the options of one of them."""

from __future__ import annotations

import argparse
import inspect
import sys
from typing import Any

from mcit.arguments import some_text
from mcit.commands.run import import_metrics
from mcit.config.files import list_recipes
from mcit.config.options import OptionInfo, list_options
from mcit.errors import ConfigError
from mcit.registry import CATEGORIES, TASK, check_name, find_class, list_names, summarize

HELP = (
    "list tasks, methods, classifiers, transports and recipes; given the name of one of the "
    "first four, describe it, its paper and its options"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit list`."""
    parser.add_argument(
        "name",
        nargs="?",
        type=some_text,
        help="a task, method, classifier or transport to describe",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print all names, read from the files without importing them, or one name's options."""
    if arguments.name is not None:
        print_options(arguments.name)
        return 0
    for category in CATEGORIES:
        summaries = summarize(category)
        width = max(map(len, summaries), default=0)
        print(f"{category.word}s:")
        for name, summary in summaries.items():
            print(f"  {name:{width}}  {summary}")
    print("recipes:")
    recipes = list_recipes()
    width = max(map(len, recipes))
    for name, summary in recipes.items():
        print(f"  {name:{width}}  {summary}")
    print("\n`mcit list NAME` prints what a name stands for, its paper, and all of its options")
    return 0


def print_options(name: str) -> None:
    """Print the docstring of a name's file and every option with default and help."""
    found = [category for category in CATEGORIES if not check_name(category, name)]
    if not found:
        known = [known for category in CATEGORIES for known in list_names(category)]
        from mcit.spelling import suggest

        raise ConfigError([f"unknown name {name!r}{suggest(name, known)} (`mcit list` prints all)"])
    if TASK in found:
        # a task has a metric
        import_metrics()
    for category in found:
        cls = find_class(category, name)
        print(f"{category.word} {name}\n")
        print(inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.__doc__ or ""))
        options = list(list_options(cls))
        if not options:
            print("\nno options")
            continue
        section = f"{category.word}s.{name}" if category is TASK else category.word
        print(f"\noptions, set by --set {section}.OPTION=VALUE:")
        for option in options:
            print(f"  {_describe(option)}")


def _describe(option: OptionInfo) -> str:
    head = f"{option.name} ({option.type}"
    if option.required:
        head += ", required)"
    else:
        head += f", default {_show(option.default)})"
    if not option.help:
        return head
    return f"{head}\n      {option.help}"


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(_show(item) for item in value) or "none"
    return str(value)

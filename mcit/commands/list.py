"""`mcit list`: what can be named on the command line."""

from __future__ import annotations

import argparse

HELP = "list tasks and methods"


def add_options(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    from mcit.registry import method_names, task_names

    print("tasks:  ", ", ".join(task_names()))
    print("methods:", ", ".join(method_names()))
    return 0

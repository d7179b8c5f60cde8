"""`mcit list`: what can be named on the command line."""

from __future__ import annotations

import argparse

from mcit.registry import METHOD, TASK, summarize

HELP = "list tasks and methods, with a line on what each does"


def add_options(parser: argparse.ArgumentParser) -> None:
    """`mcit list` has no options."""


def run(arguments: argparse.Namespace) -> int:
    """Print the names and the first lines of their files; nothing is imported for it."""
    for heading, kind in (("tasks", TASK), ("methods", METHOD)):
        summaries = summarize(kind)
        width = max(map(len, summaries), default=0)
        print(f"{heading}:")
        for name, summary in summaries.items():
            print(f"  {name:{width}}  {summary}")
    return 0

"""`mcit doctor`: are the data there, whole and readable?"""

from __future__ import annotations

import argparse
from pathlib import Path

from mcit.arguments import some_text, split_list
from mcit.config import ConfigError, RunConfig, override, parse
from mcit.registry import find_name_problems

HELP = "check data: layout, counts, records, images; what is missing, and what to do next"
DESCRIPTION = """
Look at the data of each task and say whether it is ready, fixable (with what is here: a folder to rename, an archive to
unpack, records to leave out) or missing (something must be downloaded), and what to do next. A part of a data set is
reported as such and is no failure. Exit code: 0 all tasks named are ready, 1 some are fixable, 3 some are missing,
2 the command line is wrong. Annotations are parsed once and kept; the next look takes seconds.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "--data-root",
        required=True,
        type=some_text,
        metavar="DIR",
        help="folder of the official data",
    )
    parser.add_argument(
        "--order",
        type=split_list,
        default=[],
        help="tasks to look at, comma-separated (default: all that need data)",
    )
    parser.add_argument(
        "--deep", action="store_true", help="open every image, in parallel (default: a sample)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. tasks.vcr.drawn=true"
    )


def run(arguments: argparse.Namespace) -> int:
    root, options = read_root(arguments.data_root), read_task_options(arguments.set)
    check_tasks(arguments.order, options)
    from mcit.doctor import examine, exit_code
    from mcit.doctor.report import format_json, print_findings

    findings = examine(root, arguments.order, options, arguments.deep)
    if arguments.json:
        print(format_json(root, findings))
    else:
        print_findings(root, findings)
    return exit_code(findings)


def read_root(name: str) -> Path:
    """The data root, which must be a folder."""
    root = Path(name).expanduser()
    if not root.is_dir():
        raise ConfigError(
            [f"--data-root {name!r} is no folder; give the one that holds the official data"]
        )
    return root


def read_task_options(assignments: list[str]) -> dict[str, dict]:
    """Options of tasks by their names, from `tasks.vcr.drawn=true` and the like."""
    given = override({}, assignments)
    others = sorted(set(given) - {"tasks"})
    if others:
        raise ConfigError(
            [
                f"only options of tasks matter here, such as tasks.vcr.drawn=true; found {others[0]!r}"
            ]
        )
    tasks = given.get("tasks") or {}
    wrong = [name for name, options in tasks.items() if not isinstance(options, dict)]
    if wrong:
        raise ConfigError(
            [f"'tasks.{wrong[0]}' must be a section, as in tasks.{wrong[0]}.minimum=1"]
        )
    return tasks


def check_tasks(order: list[str], options: dict[str, dict]) -> None:
    """Raise what is wrong with the names of tasks and of their options, before torch is imported."""
    problems = find_name_problems(parse(RunConfig, {"order": order, "tasks": options}))
    if problems:
        raise ConfigError(problems)

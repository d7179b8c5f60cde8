"""`mcit doctor`: are the data there, whole and readable?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mcit.arguments import some_text, split_list
from mcit.config.files import find_config, find_name_problems, read_yaml
from mcit.config.parse import layer, override, parse
from mcit.config.schema import RunConfig
from mcit.errors import ConfigError

HELP = "check the data of tasks, and say what is missing and what to do next"
DESCRIPTION = """
Examine the data of each task and say whether it is ready, fixable (with what is here: a folder to
rename, an archive to unpack, records to leave out) or missing (something must be downloaded), and
what to do next. A part of a data set is reported as such and is not a failure. Exit code: 0 all
tasks named are ready, 1 some are fixable, 3 some are missing, 2 the command line is wrong.
Annotations are parsed once and kept, so that the next call takes seconds.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_data_options(parser, example="tasks.vcr.drawn=true")
    parser.add_argument(
        "--order",
        type=split_list,
        default=[],
        help="tasks to examine, comma-separated (default: those of --config; without it, of CLiMB "
        "and of the class-incremental track)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="examine the tasks of a configuration, such as ucit, with its options",
    )
    parser.add_argument(
        "--deep", action="store_true", help="open every image, in parallel (default: a sample)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def add_data_options(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the options that say where data are and how tasks read them."""
    parser.add_argument(
        "--data-root",
        required=True,
        type=some_text,
        metavar="DIR",
        help="folder of the official data",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"set an option of a task, such as {example}",
    )


def run(arguments: argparse.Namespace) -> int:
    root = read_root(arguments.data_root)
    options = read_task_options(arguments.set)
    order = arguments.order
    if arguments.config is not None:
        config = read_yaml(find_config(arguments.config))
        order = order or list(config.get("order", ()))
        options = layer(config.get("tasks") or {}, options)
    check_tasks(order, options)
    from mcit.doctor.examination import examine
    from mcit.doctor.findings import exit_code
    from mcit.doctor.report import format_json, print_findings

    findings = examine(root, order, options, arguments.deep)
    if arguments.json:
        print(format_json(root, findings))
    else:
        print_findings(root, findings, arguments.config)
    return exit_code(findings)


def read_root(name: str) -> Path:
    """Return the data root, which must be a folder."""
    root = Path(name).expanduser()
    if not root.is_dir():
        raise ConfigError(
            [f"--data-root {name!r} is not a directory; give the one that holds the official data"]
        )
    return root


def read_task_options(assignments: list[str]) -> dict[str, dict[str, Any]]:
    """Return options of tasks by their names, from `tasks.vcr.drawn=true` and the like."""
    given = override({}, assignments)
    others = sorted(set(given) - {"tasks"})
    if others:
        raise ConfigError(
            [
                "only options of tasks matter here, such as tasks.vcr.drawn=true; "
                f"found {others[0]!r}"
            ]
        )
    tasks = given.get("tasks") or {}
    for name, options in tasks.items():
        if not isinstance(options, dict):
            raise ConfigError([f"'tasks.{name}' must be a section, as in tasks.{name}.root=DIR"])
    return tasks


def check_tasks(order: list[str], options: dict[str, dict[str, Any]]) -> None:
    """Raise what is wrong with names of tasks and of their options, before torch is imported."""
    problems = find_name_problems(parse(RunConfig, {"order": order, "tasks": options}))
    if problems:
        raise ConfigError(problems)

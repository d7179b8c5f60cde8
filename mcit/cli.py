"""The command line: which command, and what becomes of its errors."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

import mcit
from mcit.config import ConfigError

# files in mcit/commands/, in the order of the help
COMMANDS = ("run", "report", "explore", "sweep", "reproduce", "doctor", "prepare", "bench", "list")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a problem the user can mend is one message and exit code 2."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(given)
    arguments.given = shlex.join(["mcit", *given])
    if not hasattr(arguments, "command"):
        _parser().print_help()
        return 0
    from mcit.registry import UnknownName
    from mcit.task import DataError

    try:
        return arguments.command(arguments) or 0
    except (ConfigError, DataError, UnknownName, OSError, FloatingPointError) as error:
        print(f"mcit: {_say(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mcit: interrupted", file=sys.stderr)
        return 130


def _say(error: Exception) -> str:
    """What an error says; one out of a loader's worker comes wrapped in that worker's traceback."""
    text = str(error)
    return text.rpartition(f"{type(error).__name__}: ")[2].strip() if "Original Traceback" in text else text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mcit", description=mcit.__doc__)
    parser.add_argument("--version", action="version", version=f"mcit {mcit.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"mcit.commands.{name}")
        options = commands.add_parser(name, help=command.HELP)
        command.add_options(options)
        options.set_defaults(command=command.run)
    return parser

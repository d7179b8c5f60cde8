"""The command line: which command, and what becomes of its errors."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import mcit
from mcit.arguments import Parser
from mcit.errors import McitError
from mcit.printable import printable

# files in mcit/commands/, in the order of the help
COMMANDS = (
    "run",
    "report",
    "explore",
    "export",
    "sweep",
    "study",
    "reproduce",
    "doctor",
    "prepare",
    "bench",
    "list",
)
REFUSED = 2
INTERRUPTED = 130
# as a shell counts a process that SIGPIPE ended
CLOSED_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a problem that the user can fix is one message and exit code 2."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = _make_parser()
    arguments = parser.parse_args(given)
    if arguments.command is None:
        parser.print_help()
        return 0
    arguments.given = shlex.join(["mcit", *given])
    try:
        code = arguments.command(arguments) or 0
        # here and not at the end of the process, when a closed pipe could not be handled any more
        sys.stdout.flush()
    except McitError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"mcit: {printable(_read_message(error))}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        # whoever reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except KeyboardInterrupt:
        print("mcit: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _read_message(error: Exception) -> str:
    """Return the message of an error; one from a loader's worker is wrapped in a traceback."""
    text = str(error)
    if "Original Traceback" not in text:
        return text
    return text.rpartition(f"{type(error).__name__}: ")[2].strip()


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="mcit", description=mcit.__doc__)
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"mcit {mcit.__version__}")
    _add_debug(parser, default=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"mcit.commands.{name}")
        options = commands.add_parser(name, help=command.HELP)
        command.add_options(options)
        # without a default of its own it leaves alone what stood before the command
        _add_debug(options, default=argparse.SUPPRESS)
        options.set_defaults(command=command.run)
    return parser


def _add_debug(parser: argparse.ArgumentParser, default: bool | str) -> None:
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of every error"
    )

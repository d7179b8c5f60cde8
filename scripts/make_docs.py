"""Write the pages of docs/ that are made from the program itself.

python scripts/make_docs.py    cli, configuration, methods, classifiers, tasks,
                               and the table on the page fisher
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401 - finds mcit in this checkout

from mcit.arguments import Parser
from mcit.cli import COMMANDS
from mcit.config.options import Kind, OptionInfo, list_options
from mcit.config.schema import RunConfig
from mcit.estimator import PEERS
from mcit.registry import CLASSIFIER, METHOD, TASK, TRANSPORT, Category, find_class, list_names

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Made by scripts/make_docs.py: change the program, not this page. -->"
KINDS = {
    Kind.RESULT: "result",
    Kind.ROUNDING: "last digits",
    Kind.SPEED: "speed",
    Kind.PLACE: "place",
}
PEERS_BEGIN = "<!-- peers: made by scripts/make_docs.py -->"
PEERS_END = "<!-- end of peers -->"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, make in PAGES.items():
        (DOCS / f"{name}.md").write_text(make(), encoding="utf-8")
        print(f"docs/{name}.md")


# --- parts of pages


def write_fisher() -> str:
    """Return the page of what other codes compute, with the table of their settings."""
    page = (DOCS / "fisher.md").read_text(encoding="utf-8")
    before, opening, rest = page.partition(PEERS_BEGIN)
    _, ending, after = rest.partition(PEERS_END)
    if not opening or not ending:
        raise ValueError(f"docs/fisher.md must have the lines {PEERS_BEGIN} and {PEERS_END}")
    table = "\n".join(_tabulate_peers())
    return f"{before}{opening}\n\n{table}\n\n{ending}{after}"


def _tabulate_peers() -> Iterator[str]:
    """Yield a table of the settings that compute what other code bases do."""
    heads = ("code", "function", "what it computes", "setting", "their importance / ours")
    yield "| " + " | ".join((*heads, "our strength for λ = 1")) + " |"
    yield "|---" * len(heads) + "|--:|"
    named = ""
    for name, setting in PEERS.items():
        # a code base is named in the first of its rows
        code = "" if setting.link == named else f"[{setting.code}]({setting.link})"
        named = setting.link
        cells = [code, setting.function, setting.computes, f"`{name}`", setting.ratio.formula]
        yield "| " + " | ".join([*cells, f"{setting.strength_per_lambda:g}"]) + " |"


# --- reference pages


def write_cli() -> str:
    """Return the page of the command line."""
    lines = [
        "# Command line",
        MADE,
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    modules = {name: import_module(f"mcit.commands.{name}") for name in COMMANDS}
    for name, module in modules.items():
        lines.append(f"| [`mcit {name}`](#mcit-{name}) | {_cell(module.HELP)} |")
    lines += [
        "",
        "`accelerate launch scripts/run_sequence.py` takes the options of `mcit run`.",
        "",
        "A problem that is yours to fix is one message and exit code 2, before anything is "
        "written; "
        "`--debug` shows the traceback too. An interrupted run is saved and exits with code 75.",
    ]
    for name, module in modules.items():
        lines += ["", f"## mcit {name}", "", *_describe_command(name, module.add_options)]
    return _join(lines)


def _describe_command(
    name: str, add_options: Callable[[argparse.ArgumentParser], None]
) -> Iterator[str]:
    parser = Parser(prog=f"mcit {name}")
    add_options(parser)
    if parser.description:
        yield " ".join(parser.description.split())
        yield ""
    yield "| option | meaning |"
    yield "|---|---|"
    for action in parser._actions:
        if action.dest == "help":
            continue
        yield f"| {_describe_action(action)} | {_cell(action.help or '')} |"
    if parser.epilog:
        # commands are indented, sentences are not
        for paragraph in parser.epilog.strip("\n").split("\n\n"):
            yield ""
            if paragraph.startswith("  "):
                yield from ["```text", inspect.cleandoc(paragraph), "```"]
            else:
                yield " ".join(paragraph.split())


def _describe_action(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{_cell(str(action.metavar or value))}`"
    name = action.option_strings[-1]
    if action.nargs == 0:
        return f"`{name}`"
    return f"`{name} {_cell(value)}`"


def write_configuration() -> str:
    """Return the page of all keys of a configuration."""
    lines = [
        "# Configuration",
        MADE,
        "",
        "A configuration is a YAML file (`--config FILE`, or a name in `configs/`). Every key "
        "can be set on the "
        "command line too, `--set training.workers=4`, and in Python, "
        '`mcit.run(..., settings={"training.workers": 4})`. Later wins: '
        "defaults, preset, `--config`, options, "
        "`--set`. `mcit run --print-config` prints the result.",
        "",
        "*Changes* says what another value changes: the result, only its last digits, only "
        "speed, or only where files "
        "are. Runs that differ in nothing but speed and place are the same experiment, and may "
        "be resumed with "
        "another value.",
        "",
        *_tabulate_options(_list_keys(), with_kind=True),
        "",
        "Options of methods, under `method` or `methods.NAME`: [methods](methods.md). Options "
        "of tasks, under "
        "`tasks.NAME`: [tasks](tasks.md).",
    ]
    return _join(lines)


def _list_keys() -> Iterator[OptionInfo]:
    for option in list_options(RunConfig):
        # the options of a method are on another page
        if option.name == "method.name":
            text = "how earlier tasks are protected; its options stand next to it"
            yield dataclasses.replace(option, help=text)
        elif option.name != "method.options":
            yield option


def write_methods() -> str:
    """Return the page of all methods."""
    intro = (
        "Every method, its paper, and its options. `mcit list NAME` prints the same. Options "
        "are set by "
        "`--set method.OPTION=VALUE`, or in a configuration under `methods.NAME`. The fields "
        "of `estimator` are "
        "explained under [what importance means](importance.md)."
    )
    return _write_category("Methods", intro, METHOD)


def write_tasks() -> str:
    """Return the page of all tasks."""
    intro = (
        "Every task, its source, and its options. `mcit list NAME` prints the same. Options "
        "are set by "
        "`--set tasks.NAME.OPTION=VALUE`. Where the files go: [data sets](data.md)."
    )
    return _write_category("Tasks", intro, TASK)


def write_classifiers() -> str:
    """Return the page of all classifiers and transports."""
    intro = (
        "In class-incremental runs three questions are separate: what holds the network "
        "(`--method`), what answers from its features (`--classifier`), and how statistics of old "
        "classes follow a network that moves (`--transport`). Any of the first goes with any of "
        "the others. Several classifiers are scored on one training: `--classifier "
        "head,nearest_mean,lda`. Options are set by `--set classifier.OPTION=VALUE`, or by `--set "
        "classifiers.NAME.OPTION=VALUE` where several are named; those of the transport by `--set "
        "transport.OPTION=VALUE`. `mcit list NAME` prints the same."
    )
    lines = ["# Classifiers and transports", MADE, "", intro, "", "## Classifiers"]
    lines += _describe_names(CLASSIFIER, "###")
    lines += ["", "## Transports"]
    lines += _describe_names(TRANSPORT, "###")
    return _join(lines)


def _write_category(title: str, intro: str, category: Category) -> str:
    return _join([f"# {title}", MADE, "", intro, *_describe_names(category, "##")])


def _describe_names(category: Category, level: str) -> list[str]:
    lines: list[str] = []
    for name in list_names(category):
        cls = find_class(category, name)
        lines += ["", f"{level} {name}", ""]
        lines += _describe_source(sys.modules[cls.__module__].__doc__ or "")
        options = [
            option for option in list_options(cls) if not option.name.startswith("estimator.")
        ]
        if len(options) < len(list(list_options(cls))):
            lines.append(f"Estimator: {_describe_estimator(cls)}.")
            lines.append("")
        lines += _tabulate_options(options) if options else ["No options."]
    return lines


def _describe_estimator(cls: Any) -> str:
    return f"`{cls.estimator.describe()}`"


def _describe_source(text: str) -> Iterator[str]:
    """Yield a module's docstring as Markdown; paragraphs in columns keep their columns."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if re.search(r"\S {3,}\S", paragraph) or paragraph.startswith(("grad ", "loss ")):
            yield from ["```text", paragraph, "```", ""]
        else:
            joined = " ".join(paragraph.split())
            yield re.sub(r"(https?://[^\s,;)]*[^\s,;).])", r"<\1>", joined)
            yield ""


def _tabulate_options(options: Any, with_kind: bool = False) -> list[str]:
    head = "| option | type | default | meaning |"
    rule = "|---|---|---|---|"
    lines = [f"{head} changes |", f"{rule}---|"] if with_kind else [head, rule]
    for option in options:
        cells = [
            f"`{option.name}`",
            _cell(option.type),
            _cell(_show_default(option)),
            _cell(option.help),
        ]
        if with_kind:
            cells.append(KINDS[option.kind])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _show_default(option: OptionInfo) -> str:
    value = option.default
    if option.required:
        return "**required**"
    if value is None or value == () or value == {} or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`"
    return f"`{getattr(value, 'name', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


def _join(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


PAGES = {
    "cli": write_cli,
    "configuration": write_configuration,
    "methods": write_methods,
    "classifiers": write_classifiers,
    "tasks": write_tasks,
    "fisher": write_fisher,
}

if __name__ == "__main__":
    main()

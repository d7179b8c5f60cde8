"""The command line: argv -> RunConfig -> run -> report."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mcit
from mcit.config import ConfigError, RunConfig, layer, override, parse, read_yaml, suggest

CONFIGS = "configs"
WRITTEN = ("scores.json", "report.md", "config.yaml", "passport.json", "log.jsonl")


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
        print(f"mcit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mcit: interrupted", file=sys.stderr)
        return 130


def run_sequence(arguments: argparse.Namespace) -> int:
    """`mcit run`: learn a sequence of tasks and print its table."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from mcit import dry_run, sequence

    config = read_config(arguments)
    plan = prepare(config)
    if arguments.dry_run:
        dry_run.show(plan)
        return 0
    from accelerate import PartialState

    main_process = PartialState().is_main_process
    output = choose_output(plan, arguments.overwrite) if main_process else Path(os.devnull).parent
    result = sequence.run(plan, output, progress=not arguments.quiet)
    if main_process:
        finish(result, arguments.given)
    return 0


def prepare(config: RunConfig) -> Any:
    """Find tasks, method and data, or say all that is wrong; makes the embedded benchmark where it is used."""
    from mcit import sequence

    problems = []
    if config.data_root is not None and not Path(config.data_root).is_dir():
        problems.append(f"--data-root {config.data_root!r} is no folder; give the one that holds the official data")
    try:
        plan = sequence.resolve(config)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if plan.embedded:
        from mcit.embedded import ensure_benchmark

        print("no --data-root: this run uses the embedded benchmark (generated scenes, a small ViLT)", flush=True)
        plan = sequence.resolve(config, ensure_benchmark())
    sequence.check_data(plan)
    return plan


def finish(result: Any, command: str) -> None:
    """Print the table and write the report, which names the command that made it."""
    from mcit.reports.tables import print_table, write_markdown

    scores = result.to_dict()
    (result.output / "report.md").write_text(write_markdown(scores, command), encoding="utf-8")
    print_table(scores)
    print(f"written to {result.output}: {', '.join(WRITTEN)}")


def read_config(arguments: argparse.Namespace) -> RunConfig:
    """The configuration file, then the options of the command line, then `--set`."""
    data = read_yaml(find_config(arguments.config)) if arguments.config else {}
    if arguments.order:
        data["order"] = arguments.order
    if arguments.method:
        options = data.get("method")
        same = isinstance(options, dict) and options.get("name") == arguments.method
        data["method"] = options if same else arguments.method
    for name in ("data_root", "seed", "single", "output"):
        if getattr(arguments, name) is not None:
            data[name] = getattr(arguments, name)
    problems: list[str] = []
    for assignment in arguments.set:
        try:
            data = override(data, [assignment])
        except ConfigError as error:
            problems += error.problems
    try:
        config = parse(RunConfig, data)
        if config.data_root is None and any(item in VISION_LANGUAGE for item in config.order):
            config = parse(RunConfig, layer(read_yaml(find_config("embedded")), data))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError([*problems, *_unknown_names(data)])
    return config


def _unknown_names(data: dict[str, Any]) -> list[str]:
    """What is wrong with the names of tasks and method, in data that are no configuration yet."""
    from mcit.registry import UnknownName, find_method, find_task

    order, method = data.get("order"), data.get("method")
    items = order.split(",") if isinstance(order, str) else order if isinstance(order, list) else []
    named = [(find_task, str(item).partition(":")[0].strip()) for item in items]
    method = method.get("name") if isinstance(method, dict) else method
    named += [(find_method, method)] if isinstance(method, str) else []
    problems = []
    for find, name in named:
        try:
            find(name)
        except UnknownName as error:
            problems.append(str(error))
    return problems


def find_config(name: str) -> Path:
    """A file, or a name in `configs/` such as `climb` or `efcil/cifar100-mini`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.exists():
        return path
    import mcit.configs

    name = name.removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
    known = {str(file.relative_to(folder))[:-5]: file for folder in mcit.configs.__path__ for file in _yaml_in(folder)}
    if name in known:
        return known[name]
    if path.is_file():
        return path
    listed = ", ".join(sorted(known))
    raise ConfigError([f"no configuration file {str(path)!r}{suggest(name, known)} (names in {CONFIGS}/: {listed})"])


def _yaml_in(folder: str) -> list[Path]:
    return sorted(Path(folder).rglob("*.yaml"))


def choose_output(plan: Any, overwrite: bool) -> Path:
    """A folder of its own for every run; one that is given must not hold a run yet, unless it may be overwritten."""
    config = plan.config
    if config.output is not None:
        output = Path(config.output)
        if output.exists() and not output.is_dir():
            raise ConfigError([f"{output} is a file; --output names the folder of the run"])
        earlier = [output / name for name in WRITTEN if (output / name).exists()]
        if earlier and not overwrite:
            raise ConfigError([f"{output} already holds a run; choose another --output, or say --overwrite"])
        for path in earlier:  # the scores of one run must not lie beside the passport of another
            path.unlink()
        return output
    stem = "-".join(item.replace(":", "-") for item in config.order)
    base = Path("runs") / f"{stem}-{config.method.name}-seed{config.seed}"
    number, output = 1, base
    while output.exists():
        number += 1
        output = base.with_name(f"{base.name}-{number}")
    return output


def run_bench(arguments: argparse.Namespace) -> int:
    """`mcit bench`: measure speed on this machine."""
    from mcit.bench import consolidation

    consolidation.main(as_json=arguments.json, quick=arguments.quick)
    return 0


def list_names(arguments: argparse.Namespace) -> int:
    """`mcit list`: what can be named on the command line."""
    from mcit.registry import method_names, task_names

    print("tasks:  ", ", ".join(task_names()))
    print("methods:", ", ".join(method_names()))
    return 0


VISION_LANGUAGE = ("vqa", "nlvr2", "snli-ve", "snli_ve", "vcr")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mcit", description=mcit.__doc__)
    parser.add_argument("--version", action="version", version=f"mcit {mcit.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    run = commands.add_parser("run", help="learn a sequence of tasks and print its forgetting-transfer table")
    add_run_options(run)
    bench = commands.add_parser("bench", help="measure speed on this machine")
    bench.add_argument("what", choices=["consolidation"], help="what to measure")
    bench.add_argument("--json", action="store_true", help="print JSON only")
    bench.add_argument("--quick", action="store_true", help="smaller models, for a first look")
    bench.set_defaults(command=run_bench)
    listing = commands.add_parser("list", help="list tasks and methods")
    listing.set_defaults(command=list_names)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options of `mcit run` and of scripts/run_sequence.py."""
    parser.add_argument("--order", help="tasks in order, comma-separated: vqa,nlvr2,snli-ve,vcr or shapes:5x4")
    parser.add_argument("--method", help="how earlier tasks are protected: ewc_dr, finetune, ... (see `mcit list`)")
    parser.add_argument("--config", help="a YAML file, or a name in configs/ such as climb")
    parser.add_argument("--data-root", dest="data_root", help="folder of the official data; without it, embedded data")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--single", metavar="RUN", help="folder of a run of method single, for knowledge transfer")
    parser.add_argument("--output", help="folder of the run (default: a new one in runs/)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. method.strength=1e4")
    parser.add_argument("--dry-run", action="store_true", help="check everything, run one batch of each task, and stop")
    parser.add_argument("--overwrite", action="store_true", help="let --output replace an earlier run")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(command=run_sequence)

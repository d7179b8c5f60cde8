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
from mcit.config import ConfigError, RunConfig, override, parse, read_yaml

CONFIGS = "configs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a problem the user can mend is one message and exit code 2."""
    arguments = _parser().parse_args(argv)
    if not hasattr(arguments, "command"):
        _parser().print_help()
        return 0
    from mcit.registry import UnknownName
    from mcit.task import DataError

    try:
        return arguments.command(arguments) or 0
    except (ConfigError, DataError, UnknownName, FileNotFoundError, FloatingPointError) as error:
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
        finish(result)
    return 0


def prepare(config: RunConfig) -> Any:
    """Find tasks, method and data, or say all that is wrong; makes the embedded benchmark where it is used."""
    from mcit import sequence

    names = [item.partition(":")[0] for item in config.order]
    root = None
    if config.data_root is None and any(name in VISION_LANGUAGE for name in names):
        from mcit.embedded import ensure_benchmark

        print("no --data-root: this run uses the embedded benchmark (generated scenes, a small ViLT)", flush=True)
        root = ensure_benchmark()
    plan = sequence.resolve(config, root)
    sequence.check_data(plan)
    return plan


def finish(result: Any) -> None:
    """Print the table and write the report."""
    from mcit.reports.tables import print_table, write_markdown

    scores = result.to_dict()
    command = shlex.join(["mcit", *sys.argv[1:]])
    (result.output / "report.md").write_text(write_markdown(scores, command), encoding="utf-8")
    print_table(scores)
    print(f"written to {result.output}: scores.json, report.md, config.yaml, passport.json, log.jsonl")


def read_config(arguments: argparse.Namespace) -> RunConfig:
    """The configuration file, then the options of the command line, then `--set`."""
    embedded = not arguments.config and not arguments.data_root
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
    names = [item.partition(":")[0].strip() for item in (arguments.order or "").split(",")]
    if embedded and any(name in VISION_LANGUAGE for name in names):
        data = {**read_yaml(find_config("embedded")), **data}
    return parse(RunConfig, override(data, arguments.set))


def find_config(name: str) -> Path:
    """A file, or a name in `configs/` such as `climb` or `efcil/cifar100-mini`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.exists():
        return path
    import mcit.configs

    for folder in mcit.configs.__path__:
        candidate = Path(folder) / f"{name.removeprefix(f'{CONFIGS}/').removesuffix('.yaml')}.yaml"
        if candidate.is_file():
            return candidate
    return path if path.suffix else path.with_suffix(".yaml")


def choose_output(plan: Any, overwrite: bool) -> Path:
    """A folder of its own for every run; one that is given must be new or empty, unless it may be overwritten."""
    config = plan.config
    if config.output is not None:
        output = Path(config.output)
        if (output / "scores.json").exists() and not overwrite:
            raise ConfigError([f"{output} already holds a run; choose another --output, or say --overwrite"])
        (output / "log.jsonl").unlink(missing_ok=True)
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

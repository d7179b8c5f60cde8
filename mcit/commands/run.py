"""`mcit run`: learn a sequence of tasks and print its table."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcit.arguments import some_text, whole_number
from mcit.config import (
    NO_TASKS,
    ConfigError,
    RunConfig,
    cache_root,
    layer,
    override,
    parse,
    read_yaml,
    suggest,
)
from mcit.errors import FolderError
from mcit.folders import find_folder_problem
from mcit.registry import METHOD, TASK, check_name, find_name_problems

HELP = "learn a sequence of tasks and print its forgetting-transfer table"
CONFIGS = "configs"
WRITTEN = ("scores.json", "report.md", "report.html", "config.yaml", "passport.json", "log.jsonl")
LAST = "report.html"  # what a run writes at the very end
VISION_LANGUAGE = ("vqa", "nlvr2", "snli-ve", "snli_ve", "vcr")
FLAVOURS = (
    "release",
    "exact",
)  # files in configs/flavours/; class-incremental orders have the first unless told


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `mcit run` and of scripts/run_sequence.py."""
    parser.add_argument(
        "--order", help="tasks in order, comma-separated: vqa,nlvr2,snli-ve,vcr or shapes:5x4"
    )
    parser.add_argument(
        "--method",
        type=some_text,
        help="how earlier tasks are protected: ewc_dr, finetune, ... (see `mcit list`; default: finetune)",
    )
    parser.add_argument(
        "--config",
        type=some_text,
        help="a YAML file, or a name in configs/ such as climb (default: none)",
    )
    parser.add_argument(
        "--flavour",
        choices=FLAVOURS,
        help="of class-incremental methods: as the EWC-DR release computes (the default), or as the equations say",
    )
    parser.add_argument(
        "--data-root",
        dest="data_root",
        type=some_text,
        metavar="DIR",
        help="folder of the official data (default: the embedded data)",
    )
    parser.add_argument(
        "--on-bad-record",
        choices=("fail", "skip"),
        help="stop at wrong records (the default), or leave them out",
    )
    parser.add_argument(
        "--seed", type=whole_number, help="of all that is drawn at random (default: 1)"
    )
    parser.add_argument(
        "--single",
        type=some_text,
        metavar="RUN",
        help="folder of a run of method single, for knowledge transfer (default: none)",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder of the run (default: a new one in runs/)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. method.strength=1e4"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, try a batch and the end of each task, and stop",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="let --output replace an earlier run"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run of this command, or of --output, where it was left",
    )
    parser.add_argument(
        "--stage-cache",
        type=some_text,
        metavar="DIR",
        help="share stages with other runs that begin alike (default: none are shared)",
    )
    parser.add_argument(
        "--tracker",
        type=some_text,
        help="also log to tensorboard, wandb or another that accelerate knows (default: to none)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(arguments: argparse.Namespace) -> int:
    """Check everything, learn the tasks in order, and report."""
    written = find_config_of_run(arguments) if arguments.resume else None
    try:
        config = read_config(arguments)
        problems = find_early_problems(config, arguments.stage_cache)
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        if written is None:
            raise
        # nobody typed these words: the file that they stand in must be named
        raise ConfigError([f"{written}: {problem}" for problem in error.problems]) from None
    # from here on torch is needed, which takes seconds to import: a typo is told before
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from mcit import sequence
    from mcit.parallel.launch import end_launcher, find_missing, join_processes
    from mcit.runner import dry_run
    from mcit.runner.interruption import CODE, Interrupted, Interruption, explain_resumption

    processes = join_processes()
    main_process = processes.is_main_process
    missing = find_missing(os.environ)
    if missing:
        print(f"warning: {missing}", flush=True)
    with (
        processes.main_process_first()
    ):  # it fills the caches, where the others find what they need
        plan = prepare(config, say if main_process else mute)
    from mcit.parallel.processes import share
    from mcit.runner.run_folder import check_room, choose_output, is_abandoned, read_command

    place = (
        choose_output(plan.config, arguments.overwrite, arguments.resume) if main_process else None
    )
    output, resume = share(place)
    if arguments.dry_run:
        if main_process:
            check_room(output, plan.config, resume, arguments.overwrite)
            dry_run.show(plan)
        dry_run.rehearse(plan)
        if main_process:
            print(
                "one step and the end of every task were tried; nothing was kept and nothing was written"
            )
        return 0
    if resume and share(sequence.is_settled(plan, output, say) if main_process else None):
        if main_process:
            show_finished(output, arguments.given)
        return 0
    if main_process:
        check_room(output, plan.config, resume, arguments.overwrite, mute)
    try:
        with Interruption(leave_launcher).listening() as interruption:
            sequence.run(
                plan,
                output,
                progress=not arguments.quiet,
                resume=resume,
                overwrite=arguments.overwrite,
                cache=Path(arguments.stage_cache) if arguments.stage_cache else None,
                interruption=interruption,
            )
    except Interrupted:
        if main_process or is_abandoned(output):
            print(explain_resumption(output, processes.num_processes), file=sys.stderr)
        end_launcher()
        return CODE
    except RuntimeError:
        # this is also how processes learn that one of them was killed; one of those left says how to go on
        if processes.num_processes == 1 or not (main_process or is_abandoned(output)):
            raise
        traceback.print_exc()
        what = "stopped by the error above, as when another process is killed"
        print(explain_resumption(output, processes.num_processes, what), file=sys.stderr)
        return 1
    if main_process:
        finish(output, read_command(output, arguments.given) if resume else arguments.given)
    return 0


def leave_launcher() -> None:
    """End a launcher that would print its own traceback at Ctrl-C, and say what goes on without it."""
    from mcit.parallel.launch import end_launcher

    if end_launcher():
        # called while anything may be printing, where print could fail
        os.write(
            2,
            f"mcit: accelerate launch ends; process {os.getpid()} finishes its step and saves\n".encode(),
        )


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def mute(line: str) -> None:
    """Print nothing: for all processes but the first."""


def find_early_problems(config: RunConfig, stage_cache: str | None = None) -> list[str]:
    """Return what is wrong with the names and folders of a run, as far as that is known without torch."""
    problems = find_name_problems(config)
    if not config.order:
        problems.append(NO_TASKS)
    if config.data_root is not None and not Path(config.data_root).is_dir():
        problems.append(describe_data_root(config.data_root))
    for option, folder in (("--output", config.output), ("--stage-cache", stage_cache)):
        problem = None if folder is None else find_folder_problem(Path(folder), option)
        if problem is not None:
            problems.append(problem)
    return problems


def describe_data_root(folder: str) -> str:
    """Return what is wrong with a data root that is no folder."""
    return f"--data-root {folder!r} is no folder; give the one that holds the official data"


def prepare(config: RunConfig, say: Callable[[str], None] = say) -> Any:
    """Find tasks, method and data, or say all that is wrong; makes the embedded benchmark where it is used."""
    from mcit import sequence
    from mcit.parallel.launch import find_precision_problems
    from mcit.runner.tracking import find_tracker_problems

    # without a place for caches a run would stop where it first needs one
    cache_root()
    problems = find_precision_problems(config.training.mixed_precision)
    if config.data_root is not None and not Path(config.data_root).is_dir():
        problems.append(describe_data_root(config.data_root))
    problems += find_tracker_problems(config.tracker)
    try:
        plan = sequence.resolve(config)
    except ConfigError as error:
        problems += error.problems
    try:
        sequence.read_single(config.single)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if plan.embedded:
        say(describe_embedded(plan))
        plan = sequence.resolve(config, make_benchmark())
    sequence.check_data(plan)
    # only now that nothing is wrong: it would stand before the error
    if config.flavour is not None:
        say(f"flavour {config.flavour}: {config.method.name}, {plan.method.describe()}")
    return plan


def make_benchmark() -> Path:
    """Return the root of the embedded benchmark, which is written at the first time."""
    from mcit.embedded import ensure_benchmark

    try:
        return ensure_benchmark()
    except OSError as error:
        raise FolderError(
            f"the embedded benchmark cannot be written: {error.strerror}; the cache is in {cache_root()}: make room "
            "there, or set MCIT_CACHE to another folder"
        ) from error


def describe_embedded(plan: Any) -> str:
    """Which tasks are learned from the embedded benchmark: all, or those without a root of their own."""
    from mcit.runner.plan import find_embedded

    names = [task.name for task in find_embedded(plan.tasks)]
    who = f"{names[0]} uses" if len(names) == 1 else f"{', '.join(names)} use"
    if len(names) == len(plan.tasks):
        who = "this run uses"
    return f"no --data-root: {who} the embedded benchmark (generated scenes, a small ViLT)"


def finish(output: Path, command: str) -> None:
    """Write the report, which names the command that made it, and print its table."""
    from mcit.reports.report import write_report
    from mcit.reports.runs import read_run
    from mcit.runner.run_folder import IMPORTANCE

    write_report([read_run(output)], output, command)
    show_table(output)
    folders = [f"{name}/" for name in ("tables", "figures", IMPORTANCE) if (output / name).is_dir()]
    print(f"written to {output}: {', '.join([*WRITTEN, *folders])}")


def show_finished(output: Path, command: str) -> None:
    """Print the table of a run that has nothing left to learn; its report too may have been cut off."""
    from mcit.runner.run_folder import read_command

    if (output / LAST).is_file():
        print(f"{output} is finished; nothing is left to do")
        show_table(output)
    else:
        print(f"{output} is finished, but for its report")
        finish(output, read_command(output, command))


def show_table(output: Path) -> None:
    """Print the scores of a run."""
    from mcit.reports.runs import read_run
    from mcit.reports.tables import print_table

    print_table(read_run(output).scores)


def find_config_of_run(arguments: argparse.Namespace) -> Path | None:
    """With `--resume --output RUN` and no order, use the run's own configuration; return its file."""
    if arguments.overwrite:
        raise ConfigError(
            ["--resume goes on with a run and --overwrite gives it up; say one of them"]
        )
    if arguments.output and not arguments.order and not arguments.config:
        from mcit.runner.run_folder import holds_run

        written = Path(arguments.output) / "config.yaml"
        if not written.is_file() and holds_run(Path(arguments.output)):
            raise ConfigError(
                [
                    f"{written} is missing; give the options that the run was begun with, and --resume"
                ]
            )
        if not written.is_file():
            raise ConfigError(
                [f"{arguments.output} holds no run to go on with; give the --order of a new one"]
            )
        arguments.config = str(written)
        return written
    return None


def read_config(arguments: argparse.Namespace) -> RunConfig:
    """The configuration file, then the options of the command line, then `--set`; underneath, what is usual."""
    file = read_yaml(find_config(arguments.config)) if arguments.config else {}
    data, problems = _add_options(file, arguments)
    if file.get("flavour") in FLAVOURS and data.get("flavour") != file["flavour"]:
        # a resolved file holds its flavour's settings, which must not pass for the user's own in another
        data, problems = _add_options(_leave_out(file, read_flavour(file["flavour"])), arguments)
    try:
        config = complete(data)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError([*problems, *_unknown_names(data)])
    return config


def complete(data: dict[str, Any]) -> RunConfig:
    """`data` over what is usual: the embedded benchmark's recipes, or the flavour of a class-incremental order."""
    config = parse(RunConfig, data)
    if any(":" in item for item in config.order):  # only class-incremental data sets take a split
        flavour = config.flavour or FLAVOURS[0]
        return parse(RunConfig, {**layer(read_flavour(flavour), data), "flavour": flavour})
    if config.flavour is not None and config.order:
        raise ConfigError(
            [
                f"flavour {config.flavour!r} is for class-incremental orders such as shapes:5x4: its strengths belong "
                f"to their recipes, and no release has it for {', '.join(config.order)}; set method options instead"
            ]
        )
    if config.data_root is None and any(item in VISION_LANGUAGE for item in config.order):
        return parse(RunConfig, layer(read_yaml(find_config("embedded")), data))
    return config


def read_flavour(name: str) -> dict[str, Any]:
    """The settings of a flavour."""
    return read_yaml(find_config(f"flavours/{name}"))


def _leave_out(data: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """`data` without the values that are those of `settings`."""
    kept = {}
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            kept[key] = _leave_out(value, settings[key])
        elif key not in settings or value != settings[key]:
            kept[key] = value
    return kept


def _add_options(
    data: dict[str, Any], arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    """A file's data with the options of the command line on top, and what is wrong with these."""
    data = dict(data)
    if arguments.order is not None:
        data["order"] = arguments.order
    if arguments.method is not None:
        options = data.get("method")
        same = isinstance(options, dict) and options.get("name") == arguments.method
        data["method"] = options if same else arguments.method
    for name in ("flavour", "data_root", "on_bad_record", "seed", "single", "tracker", "output"):
        if getattr(arguments, name) is not None:
            data[name] = getattr(arguments, name)
    problems: list[str] = []
    for assignment in arguments.set:
        try:
            data = override(data, [assignment])
        except ConfigError as error:
            problems += error.problems
    method = data.get("method")
    if isinstance(method, dict) and "name" not in method:
        # options were set and no method was named: they are for the one that is usual
        data["method"] = {"name": RunConfig().method.name, **method}
    return data, problems


def _unknown_names(data: dict[str, Any]) -> list[str]:
    """What is wrong with the names of tasks and method, in data that are no configuration yet."""
    order, method = data.get("order"), data.get("method")
    items = order.split(",") if isinstance(order, str) else order
    if not isinstance(items, list):
        items = []
    named = [(TASK, str(item).partition(":")[0].strip()) for item in items]
    if isinstance(method, dict):
        method = method.get("name")
    if isinstance(method, str):
        named.append((METHOD, method))
    # an empty item has been told already
    return [problem for kind, name in named if name for problem in check_name(kind, name)]


def find_config(name: str) -> Path:
    """A file, or a name in `configs/` such as `climb` or `efcil/cifar100-mini`."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.exists():
        return path
    import mcit.configs

    name = name.removeprefix(f"{CONFIGS}/").removesuffix(".yaml")
    known = {
        str(file.relative_to(folder))[:-5]: file
        for folder in mcit.configs.__path__
        for file in _yaml_in(folder)
    }
    if name in known:
        return known[name]
    if path.is_file():
        return path
    listed = ", ".join(sorted(known))
    raise ConfigError(
        [
            f"no configuration file {str(path)!r}{suggest(name, known)} (names in {CONFIGS}/: {listed})"
        ]
    )


def _yaml_in(folder: str) -> list[Path]:
    """The configurations of runs; those in `accelerate/` are for `accelerate launch --config_file`."""
    return sorted(path for path in Path(folder).rglob("*.yaml") if path.parent.name != "accelerate")

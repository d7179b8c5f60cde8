"""`mcit run`: learn a sequence of tasks and print its table."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import mcit
from mcit.arguments import some_text, whole_number
from mcit.config.files import find_early_problems, load_config, to_yaml
from mcit.config.schema import PRESETS, RunConfig
from mcit.errors import ConfigError

HELP = "learn tasks one after the other, and print scores and forgetting"
# the file that a run writes at the very end
LAST = "report.html"
WRITTEN = ("scores.json", "report.md", LAST, "config.yaml", "provenance.json", "log.jsonl")
# options of the command line that are keys of the configuration
KEYS = (
    "order",
    "method",
    "classifier",
    "transport",
    "preset",
    "recipe",
    "data_root",
    "on_bad_record",
    "seed",
    "single",
    "tracker",
    "output",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit run` and of scripts/run_sequence.py."""
    parser.add_argument(
        "--order", help="tasks in order, comma-separated: vqa,nlvr2,snli-ve,vcr or shapes:5x4"
    )
    parser.add_argument(
        "--method",
        type=some_text,
        help="how earlier tasks are protected: ewc_dr, finetune, ... (see `mcit list`; "
        "default: finetune)",
    )
    parser.add_argument(
        "--classifier",
        type=some_text,
        metavar="NAMES",
        help=(
            "for class-incremental runs: what answers from features, such as lda, or several "
            "after one training, such as head,nearest_mean,lda (default: that of the method, "
            "mostly head)"
        ),
    )
    parser.add_argument(
        "--transport",
        type=some_text,
        help=(
            "how class statistics follow the network: none, ridge, ... (default: that of the "
            "method, mostly none)"
        ),
    )
    parser.add_argument(
        "--config", type=some_text, help="a YAML file, or a name in configs/ such as climb"
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        help="for class-incremental runs: `release` follows the EWC-DR code (default), `exact` "
        "its equations",
    )
    parser.add_argument(
        "--recipe",
        type=some_text,
        help="for class-incremental runs: how every method learns a task: release (default), "
        "augmented, rotations (see `mcit list`), or a YAML file of task options",
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
        help="stop at a bad record (default), or leave bad records out and count them",
    )
    parser.add_argument("--seed", type=whole_number, help="seed of all random numbers (default: 1)")
    parser.add_argument(
        "--single",
        type=some_text,
        metavar="RUN",
        help="folder of a run of the method `single`, needed for knowledge transfer",
    )
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder of the run (default: a new one in runs/)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any option, such as method.strength=1e4; may be repeated",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration, and stop"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, try a few steps and the end of each task, and stop",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="discard the run that --output holds"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the interrupted run in --output, or the latest matching one in runs/",
    )
    parser.add_argument(
        "--stage-cache",
        type=some_text,
        metavar="DIR",
        help="reuse tasks that another run learned in the same way, and keep those of this run",
    )
    parser.add_argument(
        "--tracker",
        type=some_text,
        help="also log to tensorboard, wandb or another tracker known to accelerate",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def import_metrics() -> None:
    """Import `evaluate` without its pipelines, which nothing here uses: they take four seconds.

    It leaves them out where transformers is missing, which is therefore hidden for that moment. In
    this program only: somebody's own program may want them.
    """
    if "evaluate" in sys.modules or "transformers" in sys.modules:
        return
    # looks for transformers as well, and must find it
    import datasets  # noqa: F401

    sys.modules["transformers"] = None  # type: ignore[assignment]
    try:
        import evaluate  # noqa: F401
    finally:
        del sys.modules["transformers"]


def run(arguments: argparse.Namespace) -> int:
    """Check everything, learn the tasks in order, and report."""
    config = read_config(arguments)
    if arguments.print_config:
        return print_config(config)
    # from here on torch is needed, which takes seconds to import: a typo is reported before
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if os.environ.get("RANK", "0") == "0":
        say(describe_start(config))
    import_metrics()
    from mcit.parallel.launch import find_missing, join_processes
    from mcit.parallel.processes import broadcast
    from mcit.runner.preparing import prepare_plan
    from mcit.runner.run_folder import check_room, choose_output
    from mcit.session import is_settled

    processes = join_processes()
    main_process = processes.is_main_process
    missing = find_missing(os.environ)
    if missing is not None:
        print(f"warning: {missing}", flush=True)
    # the main process fills the caches, where the others find what they need
    with processes.main_process_first():
        plan = prepare_plan(config, say if main_process else say_nothing)
    place = None
    if main_process:
        place = choose_output(plan, arguments.overwrite, arguments.resume)
    output, resume = broadcast(place)
    if arguments.dry_run:
        from mcit.commands.dry_run import rehearse

        if main_process:
            check_room(output, plan, resume, arguments.overwrite)
        rehearse(plan, main_process)
        return 0
    if main_process:
        check_room(output, plan, resume, arguments.overwrite, say_nothing)
    settled = resume and main_process and is_settled(plan, output, say)
    if broadcast(settled):
        if main_process:
            show_finished(output, arguments.given)
        return 0
    return learn(plan, output, resume, arguments)


def learn(plan: Any, output: Path, resume: bool, arguments: argparse.Namespace) -> int:
    """Learn the tasks, and write the report; return the exit code."""
    from mcit.parallel.launch import end_launcher, join_processes
    from mcit.runner.interruption import CODE, Interrupted, Interruption, explain_resumption
    from mcit.runner.run_folder import is_abandoned, read_command
    from mcit.sequence import run as run_sequence

    processes = join_processes()
    # an ending run still listens: a launcher's signal must not cut off what it says last
    with Interruption(leave_launcher).listening() as interruption:
        try:
            run_sequence(
                plan,
                output,
                progress=not arguments.quiet,
                resume=resume,
                overwrite=arguments.overwrite,
                cache=Path(arguments.stage_cache) if arguments.stage_cache else None,
                interruption=interruption,
            )
        except Interrupted:
            if processes.is_main_process or is_abandoned(output):
                print(explain_resumption(output, processes.num_processes), file=sys.stderr)
            end_launcher()
            return CODE
        except RuntimeError:
            # this is also how processes learn that one was killed; one of those left explains
            interruption.asked = True
            alone = processes.num_processes == 1
            if alone or not (processes.is_main_process or is_abandoned(output)):
                raise
            traceback.print_exc()
            what = "stopped by the error above, as when another process is killed"
            print(explain_resumption(output, processes.num_processes, what), file=sys.stderr)
            return 1
    if processes.is_main_process:
        command = arguments.given
        if resume:
            command = read_command(output, command)
        write_report_and_print(output, command)
    return 0


def describe_start(config: RunConfig) -> str:
    """Return a line on what is about to happen, known before anything slow is done."""
    order = ", ".join(config.order)
    return f"mcit {mcit.__version__}: {order} with {config.method.name}; loading PyTorch ..."


def read_config(arguments: argparse.Namespace) -> RunConfig:
    """Return the configuration of the command line; raise all that is wrong without torch."""
    written = find_config_of_run(arguments) if arguments.resume else None
    options = {key: getattr(arguments, key) for key in KEYS}
    try:
        config = load_config(written or arguments.config, options, arguments.set)
        problems = find_early_problems(config, arguments.stage_cache)
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        if written is None:
            raise
        # nobody typed these words: the file that holds them must be named
        raise ConfigError([f"{written}: {problem}" for problem in error.problems]) from None
    return config


def find_config_of_run(arguments: argparse.Namespace) -> Path | None:
    """Return the configuration of the run in --output, if neither an order nor a file is given."""
    if arguments.overwrite:
        raise ConfigError(["--resume continues a run, --overwrite discards it: pass only one"])
    if not arguments.output or arguments.order or arguments.config:
        return None
    from mcit.runner.run_folder import CONFIG, holds_run

    folder = Path(arguments.output)
    written = folder / CONFIG
    if written.is_file():
        return written
    if holds_run(folder):
        raise ConfigError(
            [f"{written} is missing; pass the options that the run was started with, and --resume"]
        )
    raise ConfigError([f"nothing to resume in {folder}; pass --order to start a run"])


def print_config(config: RunConfig) -> int:
    """Print the configuration with everything that it names resolved."""
    from dataclasses import replace

    from mcit.config.identity import keep_kinds
    from mcit.config.options import Kind
    from mcit.config.parse import Selection, to_dict
    from mcit.runner.plan import resolve

    plan = resolve(config)
    options = to_dict(plan.method)
    method = Selection(config.method.name, options)
    tasks: dict[str, Any] = {}
    for task in plan.tasks:
        name = task.dataset or task.name
        # without what the split decides
        tasks.setdefault(name, keep_kinds(task, *Kind))
    config = replace(plan.config, method=method, methods={}, tasks=tasks)
    answering = plan.answering
    if answering.needs:
        transport = Selection(answering.transport.name, to_dict(answering.transport))
        config = replace(
            config,
            classifier=Selection(",".join(answering.classifiers)),
            classifiers={name: to_dict(each) for name, each in answering.classifiers.items()},
            transport=transport,
        )
    print(to_yaml(config), end="")
    return 0


def leave_launcher() -> None:
    """End a launcher that would print its own traceback at Ctrl-C, and say what continues."""
    from mcit.parallel.launch import end_launcher

    if end_launcher():
        # called while anything may be printing, when print could fail
        line = f"mcit: accelerate launch ends; process {os.getpid()} finishes its step and saves\n"
        os.write(2, line.encode())


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def say_nothing(line: str) -> None:
    """Print nothing, in all processes but the first."""


def write_report_and_print(output: Path, command: str) -> None:
    """Write the report, which names the command that made it, and print its table."""
    from mcit.reports.extras import MissingExtraError
    from mcit.reports.report import write_report
    from mcit.reports.runs import read_run
    from mcit.runner.run_folder import FOLDERS

    missing = None
    try:
        write_report([read_run(output)], output, command)
    except MissingExtraError as error:
        # the scores are there: nothing is lost, and `mcit report` makes the rest later
        missing = error
    show_table(output)
    files = [name for name in WRITTEN if (output / name).is_file()]
    folders = [f"{name}/" for name in FOLDERS if (output / name).is_dir()]
    print(f"written to {output}: {', '.join([*files, *folders])}")
    if missing is not None:
        print(f"no report was written: {missing}, then mcit report {output}")


def show_finished(output: Path, command: str) -> None:
    """Print the table of a finished run; its report too may have been cut off."""
    from mcit.runner.run_folder import read_command

    if (output / LAST).is_file():
        print(f"{output} is finished; nothing is left to do")
        show_table(output)
    else:
        print(f"{output} is finished, but for its report")
        write_report_and_print(output, read_command(output, command))


def show_table(output: Path) -> None:
    """Print the scores of a run, and recorded runs of the same benchmark next to them."""
    from mcit.reports.formats import print_tables
    from mcit.reports.runs import read_run
    from mcit.reports.tables import print_table
    from mcit.reproduce.baselines import compare_with_recorded

    run = read_run(output)
    print_table(run.scores)
    comparison = compare_with_recorded(run)
    if comparison is not None:
        print_tables([comparison])

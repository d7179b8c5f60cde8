"""`mcit study`: a planned comparison of methods, its raw scores, and what they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mcit.arguments import some_text
from mcit.commands.running import (
    add_running_options,
    check_gpus,
    explain_interruption,
    find_missing,
    find_running_problems,
    make_runs,
)
from mcit.errors import ConfigError
from mcit.files import make_folder, write_text
from mcit.reports.extras import check_extra
from mcit.studies.plan import Point, StudyPlan, read_plan
from mcit.sweeps.grid import RunOptions

if TYPE_CHECKING:
    from mcit.studies.records import Record
    from mcit.sweeps.jobs import Job
    from mcit.sweeps.running import Failure

HELP = "compare methods at their best strengths and at equal stiffness, by a plan"
EPILOG = """
  mcit study study-shapes                     tables and figure, from the recorded raw scores
  mcit study study-shapes --dry-run           number of runs and cost
  mcit study study-shapes --run --jobs 2      run what is missing, and record it

A plan is a YAML file; its raw scores stand beside it, one line of JSON per run. Strengths are
chosen on the development seeds and reported on others. The same command continues a study.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mcit study`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("plan", type=some_text, help="a YAML file, or a name in configs/")
    parser.add_argument(
        "--output",
        type=some_text,
        metavar="DIR",
        help="folder of runs, tables and figure (default: runs/PLAN)",
    )
    parser.add_argument(
        "--raw",
        type=some_text,
        metavar="FILE",
        help="file of raw scores (default: the plan's name, ending in .jsonl)",
    )
    parser.add_argument("--data-root", type=some_text, metavar="DIR", help="as in `mcit run`")
    parser.add_argument("--run", action="store_true", help="start the runs that are missing")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the number of runs and their cost, and stop"
    )
    add_running_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the plan, make the runs that are asked for, and write what all records say."""
    plan = read_plan(arguments.plan)
    problems = find_running_problems(arguments)
    if arguments.run and arguments.dry_run:
        problems.append("--run makes runs and --dry-run none: leave one of them out")
    if problems:
        raise ConfigError(problems)
    check_extra()
    from mcit.studies.records import read_records

    raw = Path(arguments.raw) if arguments.raw else plan.raw
    records = read_records(raw, plan)
    print_plan(plan, records)
    if arguments.dry_run:
        return 0
    output = Path(arguments.output or f"runs/{plan.path.stem}")
    failed: list[Failure] = []
    if arguments.run:
        check_gpus(arguments.gpus)
        try:
            failed = make_all(plan, records, raw, output, arguments)
        except KeyboardInterrupt:
            return explain_interruption(arguments)
    write_study(plan, records, output, command=arguments.given)
    return 1 if failed else 0


def print_plan(plan: StudyPlan, records: dict[Point, Record]) -> None:
    """Print how many runs each part has, how many are recorded, and what the others cost."""
    from mcit.studies.tables import Study

    study = Study.of(plan, records)
    listed = {
        "development": plan.list_development(),
        "best": plan.list_best(study.chosen),
        "levels": plan.list_levels(),
    }
    counts = plan.count()
    done = {part: sum(point in records for point in points) for part, points in listed.items()}
    print(plan.title)
    for part, count in counts.items():
        print(f"  {part:12} {count:4} runs, {done[part]} recorded")
    missing = sum(counts.values()) - sum(done.values())
    timed = [record.seconds for record in records.values() if record.seconds is not None]
    seconds = sum(timed) / len(timed) if timed else 60 * plan.minutes
    source = f"as {len(timed)} recorded runs took" if timed else "as the plan says"
    hours = missing * seconds / 3600
    print(
        f"{sum(counts.values())} runs, {missing} missing: about {hours:.1f} hours one after the "
        f"other, at {seconds / 60:.1f} minutes a run, {source}"
    )


def make_all(
    plan: StudyPlan,
    records: dict[Point, Record],
    raw: Path,
    output: Path,
    arguments: argparse.Namespace,
) -> list[Failure]:
    """Make the missing runs of all parts, and record each once it is done; return failures."""
    from mcit.studies.tables import Study

    failed = make_points(plan, plan.list_development(), records, raw, output, arguments)
    points = [*plan.list_best(Study.of(plan, records).chosen), *plan.list_levels()]
    return failed + make_points(plan, points, records, raw, output, arguments)


def make_points(
    plan: StudyPlan,
    points: Sequence[Point],
    records: dict[Point, Record],
    raw: Path,
    output: Path,
    arguments: argparse.Namespace,
) -> list[Failure]:
    """Make the runs of points that have no record, and record them; return those that failed."""
    missing = [point for point in points if point not in records]
    if not missing:
        return []
    make_folder(raw.parent, "--raw")
    places = {plan_job(plan, point, output, arguments.data_root): point for point in missing}

    def record(job: Job) -> None:
        record_run(plan, places[job], job, records, raw)

    unfinished = set(find_missing(list(places)))
    for job in places:
        if job not in unfinished:
            record(job)
    return make_runs(list(places), arguments, record)


def plan_job(plan: StudyPlan, point: Point, output: Path, data_root: str | None) -> Job:
    """Return the job of a point."""
    from mcit.sweeps.jobs import make_job

    given = {**plan.given(point), "data_root": data_root}
    options = RunOptions(plan.config, given, tuple(plan.assignments(point)))
    return make_job(output / point.name, options, point.strength)


def record_run(
    plan: StudyPlan, point: Point, job: Job, records: dict[Point, Record], raw: Path
) -> None:
    """Add a run that is complete to the records and to their file."""
    from mcit.reports.runs import read_run
    from mcit.studies.records import make_record, write_records

    records[point] = make_record(read_run(job.folder), point, plan)
    write_records(raw, records)


def write_study(
    plan: StudyPlan, records: dict[Point, Record], output: Path, *, command: str
) -> None:
    """Print the tables and write them with the figure; command: the one that was typed."""
    from mcit.reports.formats import escape_markdown, format_markdown_table, print_tables
    from mcit.studies.figure import write_figure
    from mcit.studies.tables import Study, make_tables

    study = Study.of(plan, records)
    tables = make_tables(study)
    if not tables:
        print("no part has enough records for a table yet; --run makes the runs")
        return
    print_tables(tables)
    make_folder(output, "--output")
    figure = write_figure(study, output)
    lines = [f"# {escape_markdown(plan.title)}", ""]
    for table in tables:
        lines += [f"## {escape_markdown(table.title)}", "", format_markdown_table(table)]
    if figure is not None:
        lines += [f"![{figure.title}]({figure.svg.name})", "", f"*{figure.caption}*", ""]
    lines += [f"Made by `{command}`.", ""]
    write_text(output / "study.md", "\n".join(lines))
    print(f"written to {output}: study.md")


def reproduce(name: str, arguments: argparse.Namespace) -> int:
    """Show what is recorded of a study; with --run, make it anew and compare; return the code."""
    from mcit.studies.records import find_disagreements, read_records

    plan = read_plan(name)
    recorded = read_records(plan.raw, plan)
    print_plan(plan, recorded)
    output = Path(arguments.output or f"runs/reproduce-{plan.path.stem}")
    raw = output / plan.raw.name
    found = read_records(raw, plan)
    failed: list[Failure] = []
    if arguments.run:
        failed = make_all(plan, found, raw, output, arguments)
    write_study(plan, recorded, output, command=arguments.given)
    agree, differ = find_disagreements(recorded, found)
    print(f"of {len(found)} runs made here, {len(agree)} agree and {len(differ)} differ")
    for point in differ:
        print(f"  differs: {point}")
    return 1 if failed or differ else 0

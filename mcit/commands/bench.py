"""`mcit bench`: measure speed on this machine."""

from __future__ import annotations

import argparse
import json
from importlib import import_module

HELP = "measure speed on this machine"
# files in mcit/bench/
BENCHES = ("classifiers", "consolidation", "efcil", "generative", "loading", "start", "steps")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=BENCHES, help="what to measure")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quick", action="store_true", help="smaller models, for a first look")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print tables or JSON."""
    bench = import_module(f"mcit.bench.{arguments.what}")
    result = bench.measure(arguments.quick)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        bench.print_result(result)
    return 0

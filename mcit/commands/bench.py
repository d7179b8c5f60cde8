"""`mcit bench`: measure speed on this machine."""

from __future__ import annotations

import argparse
from importlib import import_module

HELP = "measure speed on this machine"
BENCHES = ("consolidation", "efcil", "loading")  # files in mcit/bench/


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=BENCHES, help="what to measure")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quick", action="store_true", help="smaller models, for a first look")


def run(arguments: argparse.Namespace) -> int:
    import_module(f"mcit.bench.{arguments.what}").main(as_json=arguments.json, quick=arguments.quick)
    return 0

"""Learn a sequence of tasks and print its table.

accelerate launch scripts/run_sequence.py --order vqa,nlvr2,snli-ve,vcr --method ewc_dr
"""

import sys

import _checkout  # noqa: F401 - finds mcit in this checkout

from mcit.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))

"""Tests run side by side, one process per core, each with one thread, and so do the programs that they launch: the last
digits of a sum depend on the number of threads."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

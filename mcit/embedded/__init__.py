"""The offline benchmark: small scenes, four tasks about them in the official file formats, a small pretrained ViLT."""

from __future__ import annotations

from pathlib import Path

from mcit.embedded.benchmark import Sizes, ensure_benchmark, write_benchmark

VILT = Path(__file__).parent / "vilt"  # the small ViLT, a folder in Hugging Face format

__all__ = ["VILT", "Sizes", "ensure_benchmark", "write_benchmark"]

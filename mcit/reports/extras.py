"""The libraries that reports need and the core of mcit does without."""

from __future__ import annotations

from importlib.util import find_spec

from mcit.errors import McitError

LIBRARIES = ("matplotlib", "scipy")


class MissingExtraError(McitError):
    """A library of the extra `report` that is not installed."""


def check_extra() -> None:
    """Raise a MissingExtraError if matplotlib or scipy is not installed; nothing is imported."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f'reports need {names}, which {verb} not installed: run pip install "mcit[report]"'
        )

"""Statistics stay as they were measured, although the network moves on.

mu_c and Sigma_c as they were when class c was learned. Exact for an encoder that is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.class_statistics import ClassStatistics
from mcit.transport import Drift, Transport


@dataclass
class NoTransport(Transport):
    """Nothing is carried over."""

    name = "none"
    compares = False

    def move(self, statistics: ClassStatistics, drift: Drift) -> ClassStatistics:
        return statistics

    def describe(self) -> str:
        return "as stored"

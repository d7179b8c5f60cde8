"""The head that was trained with the network, or what the method itself answers with.

score = W f + b. With one head that widens it favors the classes it saw last: what class-incremental
tables compare is mostly that.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcit.classifier import Classifier


@dataclass
class HeadClassifier(Classifier):
    """The learner's own head; nothing is computed."""

    name = "head"

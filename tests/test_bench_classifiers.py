"""Every classifier is measured, with what it is compared with; no test asserts a time."""

from __future__ import annotations

import math

from mcit.answering import HEAD
from mcit.bench import classifiers
from mcit.bench.classifiers import CLOSED_FORMS, Size
from mcit.registry import CLASSIFIER, list_names


def test_every_classifier_has_its_ratios_and_every_method_its_bytes(capsys):
    result = classifiers.measure(size=Size(4, 6, width=4, batch=4, steps=2, rounds=1))
    names = set(list_names(CLASSIFIER)) - {HEAD}
    assert result["fit_over_epoch"].keys() == result["scoring_over_head"].keys() == names
    for key in ("fit_over_epoch", "scoring_over_head"):
        assert all(math.isfinite(value) and value > 0 for value in result[key].values())
    # counts of 8 bytes, means and covariances of 32 features in single precision
    means = 4 * (8 + 4 * 32)
    assert result["bytes_held"]["ldc"] == means
    assert result["bytes_held"]["fecam"] == means + 4 * 4 * (32 * 32 + 1)
    assert "finetune" not in result["bytes_held"]
    assert list(result["projection_over_step"]) == ["0.1", "0.5", "0.95"]
    assert all(ratio > 0 for ratio in result["projection_over_step"].values())
    classifiers.print_result({**result, "scoring_over_head": dict.fromkeys(names, 2.0)})
    printed = capsys.readouterr().out
    assert "Goals missed on this run" in printed
    assert "at most 0.1" in printed


def test_the_closed_forms_are_classifiers():
    assert set(CLOSED_FORMS) < set(list_names(CLASSIFIER))
    assert (classifiers.FULL.classes, 8 * classifiers.FULL.width) == (100, 512)

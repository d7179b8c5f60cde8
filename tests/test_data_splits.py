"""Class orders and splits against lists that the literature's own code produced."""

from __future__ import annotations

import numpy as np
import pytest

from mcit.data.splits import order_classes, parse_split
from mcit.errors import ConfigError

# made with np.random.seed(seed); np.random.permutation(classes)
# fmt: off
ORDER_100_SEED_1993 = [
    68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38, 58, 70, 77, 1, 85, 19, 17, 50, 28,
    53, 13, 81, 45, 82, 6, 59, 83, 16, 15, 44, 91, 41, 72, 60, 79, 52, 20, 10, 31, 54, 37, 95, 14, 71, 96, 98, 97,
    2, 64, 66, 42, 22, 35, 86, 24, 34, 87, 21, 99, 0, 88, 27, 18, 94, 11, 12, 47, 25, 30, 46, 62, 69, 36, 61, 7, 63,
    75, 5, 32, 4, 51, 48, 73, 93, 39, 67, 29, 49, 57, 33,
]
ORDER_100_SEED_0 = [
    26, 86, 2, 55, 75, 93, 16, 73, 54, 95, 53, 92, 78, 13, 7, 30, 22, 24, 33, 8, 43, 62, 3, 71, 45, 48, 6, 99, 82,
    76, 60, 80, 90, 68, 51, 27, 18, 56, 63, 74, 1, 61, 42, 41, 4, 15, 17, 40, 38, 5, 91, 59, 0, 34, 28, 50, 11, 35,
    23, 52, 10, 31, 66, 57, 79, 85, 32, 84, 14, 89, 19, 29, 49, 97, 98, 69, 20, 94, 72, 77, 25, 37, 81, 46, 39, 65,
    58, 12, 88, 70, 87, 36, 21, 83, 9, 96, 67, 64, 47, 44,
]
ORDER_200_SEED_1993 = [
    168, 136, 51, 9, 183, 101, 171, 99, 42, 159, 191, 70, 16, 188, 27, 10, 175, 26, 68, 187, 98, 6, 85, 35, 112, 43,
    100, 0, 103, 181, 88, 59, 4, 2, 116, 174, 94, 80, 106, 1, 147, 17, 141, 131, 72, 23, 173, 54, 197, 118, 87, 32,
    79, 104, 91, 19, 135, 107, 178, 36, 11, 199, 142, 8, 122, 3, 28, 57, 153, 172, 190, 56, 49, 44, 97, 62, 151,
    169, 194, 55, 192, 12, 189, 78, 66, 180, 15, 137, 109, 134, 92, 119, 126, 52, 170, 40, 148, 65, 144, 64, 138,
    45, 77, 89, 154, 90, 71, 193, 74, 30, 113, 143, 96, 84, 67, 50, 186, 156, 69, 21, 18, 111, 108, 58, 125, 157,
    150, 110, 182, 129, 166, 83, 81, 60, 13, 165, 14, 176, 63, 117, 5, 22, 145, 121, 38, 41, 82, 127, 114, 20, 31,
    53, 37, 163, 196, 130, 152, 162, 86, 76, 24, 34, 184, 149, 33, 128, 198, 155, 146, 167, 139, 120, 140, 102, 47,
    25, 158, 123, 46, 164, 61, 7, 115, 75, 133, 160, 105, 132, 179, 124, 48, 73, 93, 39, 95, 195, 29, 177, 185, 161,
]
# fmt: on


@pytest.mark.parametrize(
    ("classes", "seed", "expected"),
    [
        (100, 1993, ORDER_100_SEED_1993),
        (100, 0, ORDER_100_SEED_0),
        (200, 1993, ORDER_200_SEED_1993),
    ],
)
def test_the_class_order_is_the_release_s(classes, seed, expected):
    assert order_classes(classes, seed) == expected


def test_the_class_order_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    order_classes(100, 1993)
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize(
    ("split", "classes", "sizes"),
    [
        ("50+5x10", 100, [50] + [10] * 5),
        ("50+10x5", 100, [50] + [5] * 10),
        ("40+20x3", 100, [40] + [3] * 20),
        ("5x20", 100, [20] * 5),
        ("10x10", 100, [10] * 10),
        ("20x5", 100, [5] * 20),
        ("100+20x5", 200, [100] + [5] * 20),
        ("5x40", 200, [40] * 5),
        ("5x4", 20, [4] * 5),
        ("12+4x2", 20, [12, 2, 2, 2, 2]),
        ("1x20", 20, [20]),
    ],
)
def test_a_split_reads_as_tasks_times_size(split, classes, sizes):
    assert parse_split(split, classes, "data") == sizes


def test_a_split_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(ConfigError) as caught:
        parse_split("50+10x4", 100, "cifar100")
    message = str(caught.value)
    assert "'cifar100:50+10x4' stands for 90 classes where cifar100 has 100" in message
    assert "10x10" in message
    assert "50+10x5" in message


def test_a_split_into_very_many_tasks_is_refused_at_once():
    with pytest.raises(ConfigError, match="stands for 1000000000000 classes"):
        parse_split("1000000000000x1", 100, "cifar100")


def test_every_split_that_a_refusal_names_does_fit():
    for classes in (20, 97, 100, 200):
        with pytest.raises(ConfigError) as caught:
            parse_split("7+3x1000", classes, "data")
        named = str(caught.value).rpartition("classes: ")[2].rstrip(")").split(", ")
        assert all(sum(parse_split(split, classes, "data")) == classes for split in named)


@pytest.mark.parametrize(
    "split", ["10", "10x", "x10", "10*10", "50+50", "a+1x2", "-1+1x2", "10x10 ", ""]
)
def test_what_is_no_split_is_refused(split):
    with pytest.raises(ConfigError, match="neither TASKSxSIZE nor START"):
        parse_split(split, 100, "cifar100")


@pytest.mark.parametrize("split", ["0x10", "10x0", "0+10x10", "100+0x3"])
def test_an_empty_task_is_refused(split):
    with pytest.raises(ConfigError, match="empty task"):
        parse_split(split, 100, "cifar100")


def test_a_data_set_without_a_split_is_refused_with_an_example():
    with pytest.raises(ConfigError, match="'cifar100' needs a split, such as cifar100:2x50"):
        parse_split(None, 100, "cifar100")

"""Scenes: a few coloured objects on a four by four grid, and how to make one in which a sentence is true or false.

Every example of the benchmark is made text first: a sentence and its answer are drawn independently of each other, then
a scene in which they hold. So the text alone says nothing about the answer, and only the image decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

COLORS = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES = ("circle", "square", "triangle", "cross", "person")
SIZES = ("small", "large")
PLURALS = {
    "person": "people",
    "cross": "crosses",
    "circle": "circles",
    "square": "squares",
    "triangle": "triangles",
}
CORNERS = ("top left", "top right", "bottom left", "bottom right")
RELATIONS = {  # phrase -> (row step, column step) from the second object towards the first
    "left of": (0, -1),
    "right of": (0, 1),
    "above": (-1, 0),
    "below": (1, 0),
}
GRID = 4
CELLS = tuple((row, column) for row in range(GRID) for column in range(GRID))

Cell = tuple[int, int]


@dataclass(frozen=True)
class Item:
    """One object: what it is, the grid cell it stands in, and how far it is nudged off the cell's centre, in pixels."""

    shape: str
    color: str
    size: str
    cell: Cell
    nudge: tuple[int, int] = (0, 0)
    shade: float = 1.0  # brightness of its colour

    @property
    def corner(self) -> str:
        row, column = self.cell
        return (
            f"{'top' if row < GRID // 2 else 'bottom'} {'left' if column < GRID // 2 else 'right'}"
        )


@dataclass(frozen=True)
class Scene:
    """Objects in drawing order on a dark, even background. No two share a cell, so nothing hides anything."""

    items: tuple[Item, ...]
    background: int = 32

    def count(self, **attributes: str) -> int:
        return len(self.find(**attributes))

    def find(self, **attributes: str) -> list[Item]:
        """The objects with all of these attributes: `scene.find(shape="circle", color="red")`."""
        return [
            item
            for item in self.items
            if all(getattr(item, key) == value for key, value in attributes.items())
        ]


def stands(item: Item, relation: str, other: Item) -> bool:
    """Whether `item` is left of, right of, above or below `other`, by at least one row or column."""
    row, column = RELATIONS[relation]
    return (item.cell[0] - other.cell[0]) * row + (item.cell[1] - other.cell[1]) * column > 0


def cells_of(corner: str) -> list[Cell]:
    """The four cells that make up a corner of the image."""
    vertical, horizontal = corner.split()
    rows = range(GRID // 2) if vertical == "top" else range(GRID // 2, GRID)
    columns = range(GRID // 2) if horizontal == "left" else range(GRID // 2, GRID)
    return [(row, column) for row in rows for column in columns]


def another(rng: Random, value: str, values: Sequence[str]) -> str:
    """One of the values that is not `value`."""
    return rng.choice([candidate for candidate in values if candidate != value])


def draw_item(rng: Random, cells: Sequence[Cell] = CELLS, **fixed: str) -> Item:
    """A random object in one of the cells, with the given attributes fixed."""
    return Item(
        shape=fixed.get("shape") or rng.choice(SHAPES),
        color=fixed.get("color") or rng.choice(COLORS),
        size=fixed.get("size") or rng.choice(SIZES),
        cell=rng.choice(cells),
        nudge=(rng.randint(-1, 1), rng.randint(-1, 1)),
        shade=0.85 + 0.15 * rng.random(),
    )


def draw_pair(
    rng: Random, relation: str, first: dict[str, str], second: dict[str, str]
) -> tuple[Item, Item]:
    """Two objects of which the first stands in the relation to the second."""
    while True:
        one, other = draw_item(rng, **first), draw_item(rng, **second)
        if stands(one, relation, other):
            return one, other


def fill_scene(
    rng: Random,
    items: Sequence[Item] = (),
    extra: tuple[int, int] = (2, 4),
    allowed: Callable[[Item], bool] = lambda item: True,
) -> Scene:
    """The given objects and, in free cells, a random number of other objects that are all allowed."""
    items = list(items)
    free = [cell for cell in CELLS if all(cell != item.cell for item in items)]
    rng.shuffle(free)
    for _ in range(min(rng.randint(*extra), len(free))):
        cell = free.pop()
        for _ in range(30):  # a cell where nothing is allowed stays empty
            candidate = draw_item(rng, [cell])
            if allowed(candidate):
                items.append(candidate)
                break
    rng.shuffle(items)
    return Scene(tuple(items), background=rng.randint(20, 44))


def place_apart(rng: Random, wanted: Sequence[dict[str, str]]) -> list[Item]:
    """Objects with the wanted attributes, each in a cell of its own."""
    cells = rng.sample(CELLS, len(wanted))
    return [
        draw_item(rng, [cell], **attributes) for cell, attributes in zip(cells, wanted, strict=True)
    ]


def near_misses(rng: Random, color: str, shape: str) -> list[dict[str, str]]:
    """Attributes of two objects in random order: the colour with another shape, and the shape in another colour."""
    misses = [
        {"color": color, "shape": another(rng, shape, SHAPES)},
        {"color": another(rng, color, COLORS), "shape": shape},
    ]
    rng.shuffle(misses)
    return misses

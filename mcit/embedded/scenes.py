"""Scenes: a few colored objects on a grid, and how to make one in which a sentence holds.

Every example of the benchmark is made text first: a sentence and its answer are drawn independently
of each other, then a scene in which they hold. So the text alone says nothing about the answer, and
only the image decides. The order of the random draws is part of the benchmark: its bytes depend on
it.
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
# phrase -> (row step, column step) from the second object towards the first
RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
GRID = 4
HALF = GRID // 2
CELLS = tuple((row, column) for row in range(GRID) for column in range(GRID))

Cell = tuple[int, int]
Attributes = dict[str, str]


@dataclass(frozen=True)
class Item:
    """One object: what it is, and the grid cell it stands in."""

    shape: str
    color: str
    size: str
    cell: Cell
    # pixels off the cell's center
    nudge: tuple[int, int] = (0, 0)
    # brightness of its color
    shade: float = 1.0

    @property
    def corner(self) -> str:
        """Return the corner of the image that it stands in."""
        row, column = self.cell
        vertical = "top" if row < HALF else "bottom"
        horizontal = "left" if column < HALF else "right"
        return f"{vertical} {horizontal}"


def allow_all(item: Item) -> bool:
    """Return True: any object will do."""
    return True


@dataclass(frozen=True)
class Scene:
    """Objects in drawing order on a dark background. No two share a cell, so nothing is hidden."""

    items: tuple[Item, ...]
    background: int = 32

    def count(self, **attributes: str) -> int:
        """Return the number of objects with all of these attributes."""
        return len(self.find(**attributes))

    def find(self, **attributes: str) -> list[Item]:
        """Return the objects with all of these attributes, as in `scene.find(shape="circle")`."""
        return [item for item in self.items if has(item, attributes)]


def has(item: Item, attributes: Attributes) -> bool:
    """Whether an object has all of these attributes."""
    return all(getattr(item, name) == value for name, value in attributes.items())


def stands(item: Item, relation: str, other: Item) -> bool:
    """Whether `item` is left of, right of, above or below `other`."""
    row, column = RELATIONS[relation]
    down = item.cell[0] - other.cell[0]
    across = item.cell[1] - other.cell[1]
    return down * row + across * column > 0


def cells_of(corner: str) -> list[Cell]:
    """Return the four cells that make up a corner of the image."""
    vertical, horizontal = corner.split()
    rows = range(HALF) if vertical == "top" else range(HALF, GRID)
    columns = range(HALF) if horizontal == "left" else range(HALF, GRID)
    return [(row, column) for row in rows for column in columns]


def another(rng: Random, value: str, values: Sequence[str]) -> str:
    """Return one of the values that is not `value`."""
    return rng.choice([candidate for candidate in values if candidate != value])


def draw_item(rng: Random, cells: Sequence[Cell] = CELLS, /, **fixed: str) -> Item:
    """Return a random object in one of the cells, with the given attributes fixed."""
    return Item(
        shape=fixed.get("shape") or rng.choice(SHAPES),
        color=fixed.get("color") or rng.choice(COLORS),
        size=fixed.get("size") or rng.choice(SIZES),
        cell=rng.choice(cells),
        nudge=(rng.randint(-1, 1), rng.randint(-1, 1)),
        shade=0.85 + 0.15 * rng.random(),
    )


def draw_pair(
    rng: Random, relation: str, first: Attributes, second: Attributes
) -> tuple[Item, Item]:
    """Return two objects of which the first stands in the relation to the second."""
    while True:
        one = draw_item(rng, **first)
        other = draw_item(rng, **second)
        if stands(one, relation, other):
            return one, other


def fill_scene(
    rng: Random,
    items: Sequence[Item] = (),
    extra: tuple[int, int] = (2, 4),
    allowed: Callable[[Item], bool] = allow_all,
) -> Scene:
    """Return the given objects and, in free cells, some others that are all allowed."""
    shown = list(items)
    taken = {item.cell for item in shown}
    free = [cell for cell in CELLS if cell not in taken]
    rng.shuffle(free)
    for _ in range(min(rng.randint(*extra), len(free))):
        cell = free.pop()
        # a cell in which nothing is allowed stays empty
        for _ in range(30):
            candidate = draw_item(rng, [cell])
            if allowed(candidate):
                shown.append(candidate)
                break
    rng.shuffle(shown)
    return Scene(tuple(shown), background=rng.randint(20, 44))


def place_apart(rng: Random, wanted: Sequence[Attributes]) -> list[Item]:
    """Return objects with the wanted attributes, each in a cell of its own."""
    cells = rng.sample(CELLS, len(wanted))
    pairs = zip(cells, wanted, strict=True)
    return [draw_item(rng, [cell], **attributes) for cell, attributes in pairs]


def near_misses(rng: Random, color: str, shape: str) -> list[Attributes]:
    """Return the color with another shape and the shape in another color, in random order."""
    misses = [
        {"color": color, "shape": another(rng, shape, SHAPES)},
        {"color": another(rng, color, COLORS), "shape": shape},
    ]
    rng.shuffle(misses)
    return misses

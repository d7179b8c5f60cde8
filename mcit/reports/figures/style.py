"""How figures look: sizes for print, colours that everybody can tell apart, files that are the same every time."""

from __future__ import annotations

import functools
import math
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

COLUMN, TEXT = 3.3, 6.9  # widths in inches of a column and of a page's text
TALLEST = 8.6  # what a page has room for, above its caption
SMALLEST = 7  # points
DOTS = 200  # per inch, of the PNG

# Okabe and Ito's colours, without the yellow that white paper swallows, and a grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"
COLOURS = (BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY)

RULES = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so that every machine has it
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "figure.titlesize": 9,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "legend.columnspacing": 1.2,
    "mathtext.default": "regular",
    "image.interpolation": "nearest",
    "svg.hashsalt": "mcit",  # otherwise the names inside an SVG are drawn at random
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """The colour, the marker and the line of a method."""

    colour: str
    marker: str
    line: Any  # as matplotlib understands it


LOOKS = {
    "finetune": Look(BLACK, "o", ":"),
    "joint": Look(BLACK, "^", "--"),
    "single": Look(BLACK, "s", "--"),
    "ewc": Look(BLUE, "s", "-"),
    "ewc_dr": Look(VERMILLION, "o", "-"),
    "ewc_lo": Look(GREEN, "^", "-"),
    "online_ewc": Look(SKY, "D", "-"),
    "mas": Look(PURPLE, "v", "-"),
    "si": Look(ORANGE, "d", "-"),
    "l2_anchor": Look(GREY, "s", "--"),
    "freeze_encoder": Look(GREY, "v", ":"),
    "freeze_bottom": Look(GREY, "^", "-."),
    "adapters": Look(SKY, "o", "--"),
    "replay": Look(ORANGE, "s", "--"),
    "lwf": Look(PURPLE, "s", "--"),
}
# For the methods of anybody else: markers that none above has.
OTHER_MARKERS = ("P", "X", "p", "h", "*", "8", "<", ">")
OTHER_LINES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))


def make_plain(text: str) -> str:
    """Return a name as matplotlib must be given it: its dollars begin no formula, and SVG can hold its characters."""
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text
    )
    return shown.replace("$", "\\$")


def read_plain(text: str) -> str:
    """Return the text whose names `make_plain` made fit to be drawn, for readers of all else."""
    return text.replace("\\$", "$")


def look_up(method: str) -> Look:
    """The look of a method; it depends on the name only, never on what else is drawn."""
    if method in LOOKS:
        return LOOKS[method]
    number = zlib.crc32(method.encode())
    colour, number = COLOURS[number % len(COLOURS)], number // len(COLOURS)
    marker, number = OTHER_MARKERS[number % len(OTHER_MARKERS)], number // len(OTHER_MARKERS)
    return Look(colour, marker, OTHER_LINES[number % len(OTHER_LINES)])


@dataclass(frozen=True)
class FigureFile:
    """A figure in its three files, with what stands above and below it."""

    name: str
    title: str
    caption: str
    svg: Path
    png: Path
    pdf: Path


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that is not written yet. The title is drawn in it, the caption is not."""

    name: str
    title: str
    caption: str
    figure: Figure


@contextmanager
def house_style() -> Iterator[None]:
    """Inside, matplotlib draws in this style, whatever the user's own settings are; outside, nothing has changed."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RULES)
        yield


def make_figure(width: float, height: float, title: str, layout: str = "constrained") -> Figure:
    """An empty figure with its title; call it, and draw on it, inside `house_style`.

    With the layout `none` whoever draws places the axes, below the title's line.
    """
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    place = {} if layout == "constrained" else {"y": 1 - 0.05 / height, "va": "top"}
    figure.suptitle(title, x=0.05 / width, ha="left", **place)
    return figure


@dataclass(frozen=True)
class Legend:
    """What stands in so many rows under a figure."""

    handles: Sequence[Line2D]
    rows: int
    columns: int
    lines: bool

    @property
    def height(self) -> float:
        """Inches that the figure needs for it."""
        return 0.155 * self.rows

    def draw(self, figure: Figure) -> None:
        # read row by row, where matplotlib fills columns first
        order = [
            row * self.columns + column
            for column in range(self.columns)
            for row in range(self.rows)
        ]
        kept = [self.handles[place] for place in order if place < len(self.handles)]
        length = 2.6 if self.lines else 1.0
        figure.legend(
            handles=kept, loc="outside lower left", ncols=self.columns, handlelength=length
        )


def plan_legend(handles: Sequence[Line2D], width: float, lines: bool = True) -> Legend:
    """The legend of these handles in a figure so many inches wide."""
    widest = max((measure_text(handle.get_label()) for handle in handles), default=0.0) + (
        0.52 if lines else 0.34
    )
    columns = max(1, min(len(handles), int((width - 0.1) / widest)))
    rows = math.ceil(len(handles) / columns)
    return Legend(handles, rows, math.ceil(len(handles) / max(rows, 1)), lines)


def make_handle(
    label: str, method: str, colour: str | None = None, line: bool = True, marker: bool = True
) -> Line2D:
    """A method's line and marker for a legend."""
    look = look_up(method)
    style = {
        "linestyle": look.line if line else "none",
        "marker": look.marker if marker else "none",
    }
    return Line2D([], [], color=colour or look.colour, label=label, **style)


def tint(colour: str, share: float) -> str:
    """A colour mixed with white; the share is how much of it remains."""
    return to_hex([1 - share * (1 - part) for part in to_rgb(colour)]).upper()


@functools.cache
def measure_text(text: str, size: float = SMALLEST) -> float:
    """The width of a text in inches, in the house's font."""
    box = TextPath(
        (0, 0), text or " ", size=size, prop=FontProperties(family=RULES["font.family"])
    ).get_extents()
    return float(box.width) / 72 if text.strip() else 0.0


def write_drawing(drawing: Drawing, folder: Path) -> FigureFile:
    """Write SVG, PDF and PNG; the same drawing gives the same bytes, on any day."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png, pdf = (folder / f"{drawing.name}.{suffix}" for suffix in ("svg", "png", "pdf"))
    title, caption = read_plain(drawing.title), read_plain(drawing.caption)
    with house_style():
        drawing.figure.draw_without_rendering()
        drawing.figure.set_layout_engine("none")  # laid out once, the same for all files
        drawing.figure.savefig(svg, metadata={"Date": None, "Title": title, "Description": caption})
        drawing.figure.savefig(
            pdf, metadata={"CreationDate": None, "Title": title, "Subject": caption}
        )
        drawing.figure.savefig(png, dpi=DOTS, metadata={"Title": title, "Description": caption})
    return FigureFile(drawing.name, title, caption, svg, png, pdf)

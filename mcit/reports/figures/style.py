"""How figures look: for screens or for papers, with one line style per method everywhere."""

from __future__ import annotations

import textwrap
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mcit.files import DRAFT
from mcit.reports.groups import Group

if TYPE_CHECKING:
    from matplotlib.typing import LineStyleType, RcKeyType

# the width of a column of a paper, in inches
COLUMN = 3.3
SMALLEST = 7
DOTS_PER_INCH = 200
# inches that a letter of the smallest size takes, and letters of a label before it is wrapped
LETTER = 0.068
LONGEST = 26

# the forms of a figure, without the dates that matplotlib would put into them
METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}

RULES: dict[RcKeyType, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "mathtext.default": "regular",
    "image.interpolation": "nearest",
    # otherwise the names inside an SVG are drawn at random
    "svg.hashsalt": "mcit",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Style:
    """Where figures are shown; the fonts ship with matplotlib, so that every machine has them."""

    width: float
    # panels side by side
    across: int
    # whether methods are called as papers call them
    paper_names: bool = False
    rules: dict[RcKeyType, Any] = field(default_factory=dict)

    def label(self, group: Group) -> str:
        """Return the name of a group, ready to be drawn."""
        return make_plain(group.paper_name if self.paper_names else group.name)


SCREEN = Style(6.9, across=2, rules={"font.family": "DejaVu Sans"})
PAPER = Style(
    COLUMN,
    across=1,
    paper_names=True,
    rules={"font.family": "STIXGeneral", "mathtext.fontset": "stix"},
)
STYLES = {"screen": SCREEN, "paper": PAPER}


@dataclass(frozen=True)
class LineStyle:
    """The color, the marker and the line of a method."""

    color: str
    marker: str
    line: LineStyleType = "-"


LINE_STYLES = {
    "finetune": LineStyle("#4D4D4D", "o", ":"),
    "joint": LineStyle("#000000", "^", "--"),
    "single": LineStyle("#9E9E9E", "s", "--"),
    "ewc": LineStyle("#0072B2", "s"),
    "ewc_dr": LineStyle("#D55E00", "o"),
    "ewc_lo": LineStyle("#009E73", "^"),
    "online_ewc": LineStyle("#56B4E9", "D"),
    "mas": LineStyle("#CC79A7", "v"),
    "si": LineStyle("#E69F00", "d"),
    "lwf": LineStyle("#882255", "s", "--"),
    "replay": LineStyle("#999933", "P", "--"),
    "l2_anchor": LineStyle("#332288", "X", "-."),
    "adapters": LineStyle("#117733", "p", "-."),
    "freeze_encoder": LineStyle("#AA4499", "v", "-."),
    "freeze_bottom": LineStyle("#661100", "^", "-."),
}
# for all other methods: colors that none above has
OTHER_COLORS = (
    "#44AA99",
    "#CC6677",
    "#C2A83E",
    "#6C8EBF",
    "#8BBF3F",
    "#FF7F6E",
    "#1B3A6B",
    "#9F7FDB",
)
OTHER_MARKERS = ("h", "*", "8", "<", ">", "H", "P", "X")


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that is not written yet; its title and caption stand outside of it."""

    name: str
    title: str
    caption: str
    figure: Figure
    # the setting whose answer it stands next to
    opens: str = ""


@dataclass(frozen=True)
class FigureFile:
    """A figure in its three files, with its title and caption."""

    name: str
    title: str
    caption: str
    opens: str
    svg: Path
    png: Path
    pdf: Path


def find_line_style(method: str, classifier: str | None = None) -> LineStyle:
    """Return the line style of a method, which depends on nothing but the names."""
    number = zlib.crc32(method.encode())
    color = OTHER_COLORS[number % len(OTHER_COLORS)]
    marker = OTHER_MARKERS[number // len(OTHER_COLORS) % len(OTHER_MARKERS)]
    style = LINE_STYLES.get(method, LineStyle(color, marker))
    if classifier is None:
        return style
    marker = OTHER_MARKERS[zlib.crc32(classifier.encode()) % len(OTHER_MARKERS)]
    return LineStyle(style.color, marker, "--")


def style_of(group: Group) -> LineStyle:
    """Return the line style of a group."""
    return find_line_style(group.method, group.classifier)


@contextmanager
def drawing_in(style: Style) -> Iterator[None]:
    """Make matplotlib draw in this style inside, whatever the user's own settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**RULES, **style.rules})
        yield


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure; call this, and draw, inside `drawing_in`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def make_handle(label: str, look: LineStyle, color: str = "", line: bool = True) -> Line2D:
    """Return the entry of a legend."""
    shown = look.line if line else "none"
    return Line2D(
        [], [], color=color or look.color, marker=look.marker, linestyle=shown, label=label
    )


def add_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Add a legend under the figure, which grows by the room that it needs."""
    width, height = figure.get_size_inches()
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(handles), int(width / (LETTER * longest + 0.55))))
    rows = -(-len(handles) // columns)
    figure.set_size_inches(width, height + 0.16 * rows + 0.08)
    # matplotlib fills columns first; with this order they are read row by row
    ordered = [handle for first in range(columns) for handle in handles[first::columns]]
    figure.legend(handles=ordered, loc="outside lower left", ncols=columns)


def wrap_label(text: str, letters: int = LONGEST) -> str:
    """Return a label in lines of at most so many letters, broken before brackets if it must be."""
    if len(text) > letters:
        text = text.replace("[", " [")
    return "\n".join(textwrap.wrap(text, letters)) or text


def count_lines(labels: Sequence[str]) -> int:
    """Return the number of lines of the longest label."""
    return max(label.count("\n") + 1 for label in labels)


def make_plain(text: str) -> str:
    """Return a name that matplotlib draws as it stands: no formula, no character that SVG lacks."""
    shown = [
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in text
    ]
    return "".join(shown).replace("$", "\\$")


def write_drawing(drawing: Drawing, folder: Path) -> FigureFile:
    """Write SVG, PDF and PNG; the same drawing gives the same bytes on any day."""
    folder.mkdir(parents=True, exist_ok=True)
    drawing.figure.draw_without_rendering()
    # laid out once, the same for all files
    drawing.figure.set_layout_engine("none")
    paths = {}
    for form, metadata in METADATA.items():
        paths[form] = folder / f"{drawing.name}.{form}"
        draft = folder / f"{drawing.name}.{form}{DRAFT}"
        # a page in dark colors shows through an SVG
        clear = form == "svg"
        drawing.figure.savefig(
            draft, format=form, dpi=DOTS_PER_INCH, transparent=clear, metadata=metadata
        )
        draft.replace(paths[form])
    return FigureFile(drawing.name, drawing.title, drawing.caption, drawing.opens, **paths)

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
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from mcit.files import DRAFT
from mcit.reports.groups import Group

if TYPE_CHECKING:
    from matplotlib.typing import LineStyleType, RcKeyType

# the width of a column of a paper, in inches
COLUMN = 3.3
SMALLEST = 7
DOTS_PER_INCH = 200
POINTS_PER_INCH = 72
# letters of a label before it is wrapped
LONGEST = 26
# inches of an entry of a legend beside its text: line, marker and the room between columns
ENTRY = 0.56
# letters whose mean width stands for that of a font
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"

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
    # long enough to tell dashes from dots
    "legend.handlelength": 2.8,
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


# a name keeps its color and marker for good, so that figures of different days can be compared
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
    "freeze_encoder": LineStyle("#AA4499", "h", "-."),
    "freeze_bottom": LineStyle("#661100", "^", "-."),
    "ewc_delta": LineStyle("#504000", "<"),
    # low-rank adapters
    "olora": LineStyle("#E81078", ">", "-."),
    "dgg": LineStyle("#C00020", "h", "-."),
    "moelora": LineStyle("#00D068", "*", "-."),
    "reglora": LineStyle("#B08058", "8", "-."),
    "keeplora": LineStyle("#0068E8", "H", "-."),
    # distillation
    "lwf_mc": LineStyle("#F078F8", "d", "--"),
    "muc": LineStyle("#005038", "X", "--"),
    "icarl": LineStyle("#708050", ">", "--"),
    "der": LineStyle("#007080", "P", "--"),
    # projected gradients
    "gpm": LineStyle("#905000", "D"),
    "adam_nscl": LineStyle("#089000", "v"),
    # class-incremental learning with prototypes or other statistics of classes
    "fetril": LineStyle("#9048C8", "p"),
    "pass": LineStyle("#784040", "*"),
    "ssre": LineStyle("#88C078", "h"),
    "fecam": LineStyle("#785080", "^"),
    "efc": LineStyle("#F0A058", "H"),
    "ldc": LineStyle("#980030", "P"),
    "adc": LineStyle("#486000", "s"),
    "adagauss": LineStyle("#F048B8", "o"),
    "dpcr": LineStyle("#0090F8", "<"),
    "gatf": LineStyle("#C8A8E0", "X"),
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


def measure_text(text: str, points: float = SMALLEST) -> float:
    """Return the width in inches of the longest line of a text; call this inside `drawing_in`."""
    widths = []
    for line in text.split("\n"):
        path = TextPath((0, 0), line or " ", size=points, prop=FontProperties())
        widths.append(path.get_extents().width / POINTS_PER_INCH)
    return max(widths)


def measure_letter(points: float = SMALLEST) -> float:
    """Return the mean width in inches of a letter; call this inside `drawing_in`."""
    return measure_text(LETTERS, points) / len(LETTERS)


def add_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Add a legend under the figure, which grows by the room that it needs."""
    width, height = figure.get_size_inches()
    columns = _count_columns([measure_text(handle.get_label()) for handle in handles], width)
    rows = -(-len(handles) // columns)
    figure.set_size_inches(width, height + 0.16 * rows + 0.08)
    # matplotlib fills columns first; with this order they are read row by row
    ordered = [handle for first in range(columns) for handle in handles[first::columns]]
    figure.legend(handles=ordered, loc="outside lower left", ncols=columns)


def _count_columns(widths: Sequence[float], room: float) -> int:
    """Return into how many columns the entries of a legend go, each as wide as its widest text."""
    for columns in range(len(widths), 1, -1):
        needed = sum(max(widths[first::columns]) + ENTRY for first in range(columns))
        if needed <= room:
            return columns
    return 1


def wrap_label(text: str, letters: int = LONGEST) -> str:
    """Return a label in lines of at most so many letters, broken in a name only if it must be."""
    if len(text) > letters:
        text = text.replace("[", " [")
    words = []
    for word in text.split(" "):
        if len(word) > letters:
            word = word.replace("=", "= ")
        words.append(word)
    return "\n".join(textwrap.wrap(" ".join(words), letters)) or text


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

"""One look for all figures: colour-blind safe, labels at the lines; a page in dark mode inverts them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# Okabe and Ito's palette: distinguishable with every common colour-vision deficiency.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7A7A7A")
SPARE = ("#AA3377", "#117733", "#332288", "#882255", "#44AA99", "#999933")  # Tol's, where the palette is used up
MAIN, CONTRAST = PALETTE[0], PALETTE[4]
"""Colours of what a figure is about, and of what it is compared with."""

# Tol's bright palette, safe as well, for directions: not a colour of it stands for a method.
_DIRECTIONS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#999933", "#BBBBBB")


class Ink(NamedTuple):
    """The neutral colours."""

    text: str = "#1f2328"
    quiet: str = "#b4bcc5"  # lines that are there for comparison only
    faint: str = "#e4e8ec"  # the grid
    paper: str = "#ffffff"


def shade_of(direction: int) -> str:
    """Return the colour of a direction, by its position among the directions."""
    return _DIRECTIONS[direction % len(_DIRECTIONS)]


def tint(colour: str, index: int, ink: Ink) -> str:
    """Return a colour as it is drawn: "text" and "quiet" are those of the ink, an empty one is the palette's at this index."""
    if colour in ("text", "quiet"):
        return ink.text if colour == "text" else ink.quiet
    return colour or PALETTE[index % len(PALETTE)]


@contextmanager
def house_style() -> Iterator[Ink]:
    """Draw figures in one style."""
    ink = Ink()
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 10.0,
        "axes.titlesize": 11.0,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), ink.text),
        **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), ink.text),
        "axes.grid": True,
        "grid.color": ink.faint,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.linewidth": 0.8,
        **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3.0),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 9.0),
        "figure.facecolor": ink.paper,
        "axes.facecolor": ink.paper,
        "lines.linewidth": 1.8,
    }
    with mpl.rc_context(settings):
        yield ink


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with numbers written out; call it once everything is drawn."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    # Within few decades, powers of ten alone would leave an axis without numbers.
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100.0 * low else (1.0,), numticks=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def plain(text: str) -> str:
    """Escape dollar signs: matplotlib reads what is between two of them as a formula."""
    return text.replace("$", r"\$")


def label_lines(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write each line's name at its right end, pushed apart where they would overlap.

    The limits of the axes must be final; `ends` are (label, y of the last point, colour) of each line.
    """
    assert axes.figure is not None
    spacing = 0.165 * axes.figure.dpi / axes.bbox.height  # a line of text, in shares of the axes
    # In shares of the axes, so that a logarithmic axis is like any other.
    place = (axes.transData + axes.transAxes.inverted()).transform
    right = axes.get_xlim()[1]
    shares = ((label, float(np.clip(place((right, y))[1], 0.0, 1.0)), shade) for label, y, shade in ends)
    ordered = sorted(shares, key=lambda end: end[1])
    heights: list[float] = []
    for _, y, _ in ordered:
        heights.append(max(y, heights[-1] + spacing) if heights else y)
    # Pushing up may leave the axes: push back down from the top, and only the labels that are in the way.
    heights[-1:] = [min(height, 1.0) for height in heights[-1:]]
    for index in range(len(heights) - 2, -1, -1):
        heights[index] = min(heights[index], heights[index + 1] - spacing)
    line = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1.0, "shrinkB": 0.0, "relpos": (0.0, 0.5)}
    inside: dict[str, Any] = {"xycoords": axes.transAxes, "textcoords": axes.transAxes, "annotation_clip": False}
    for (label, y, shade), height in zip(ordered, heights, strict=True):
        look: dict[str, Any] = {"color": shade, "fontsize": 9.0, "va": "center", "arrowprops": line | {"color": shade}}
        axes.annotate(plain(label), xy=(1.0, y), xytext=(1.03, height), **inside, **look)

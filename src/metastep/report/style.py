"""One look for all figures: colour-blind safe, labels at the lines, light and dark."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Theme = Literal["light", "dark"]

# Okabe and Ito's palette: distinguishable with every common colour-vision deficiency.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7A7A7A")
MAIN, CONTRAST = PALETTE[0], PALETTE[4]
"""Colours of what a figure is about, and of what it is compared with."""


class Ink(NamedTuple):
    """The neutral colours of a theme."""

    text: str
    faint: str
    paper: str


INKS: dict[Theme, Ink] = {
    "light": Ink("#1f2328", "#d0d7de", "#ffffff"),
    "dark": Ink("#e6edf3", "#3d444d", "#12161c"),
}


def tint(colour: str, index: int, ink: Ink) -> str:
    """A method's own colour as it is drawn: "text" is that of the text, an empty one the next of the palette."""
    if colour == "text":
        return ink.text
    shade = colour or PALETTE[index % len(PALETTE)]
    # The palette's deep blue is too dark to read on a dark page.
    return "#4c9fe6" if shade == MAIN and ink == INKS["dark"] else shade


@contextmanager
def themed(theme: Theme) -> Iterator[Ink]:
    """Draw figures in the house style."""
    ink = INKS[theme]
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 10.0,
        "axes.titlesize": 11.0,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": ink.text,
        "axes.labelcolor": ink.text,
        "axes.titlecolor": ink.text,
        "text.color": ink.text,
        "xtick.color": ink.text,
        "ytick.color": ink.text,
        "axes.grid": True,
        "grid.color": ink.faint,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "figure.facecolor": ink.paper,
        "axes.facecolor": ink.paper,
        "lines.linewidth": 1.8,
    }
    with mpl.rc_context(settings):
        yield ink


def plain(text: str) -> str:
    """Text as it stands: between two dollar signs a figure would read a formula."""
    return text.replace("$", r"\$")


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, without the date, so that the same data gives the same bytes."""
    buffer = BytesIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "metastep"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, sharp enough for a slide."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=160, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def label_lines(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write each line's name at its right end, pushed apart where they would overlap.

    Args:
        axes: already holding its lines, with final limits.
        ends: (label, y of the last point, colour) of each line.
    """
    bottom, top = axes.get_ylim()
    spacing = (top - bottom) * 0.062
    ordered = sorted(ends, key=lambda end: end[1])
    heights: list[float] = []
    for _, y, _ in ordered:
        heights.append(max(y, heights[-1] + spacing) if heights else y)
    # Pushing up may leave the axes: push back down from the top, and only the labels that are in the way.
    heights[-1:] = [min(height, top) for height in heights[-1:]]
    for index in range(len(heights) - 2, -1, -1):
        heights[index] = min(heights[index], heights[index + 1] - spacing)
    right = axes.get_xlim()[1]
    for (label, y, shade), height in zip(ordered, heights, strict=True):
        axes.annotate(
            plain(label),
            xy=(right, y),
            xytext=(right + (right - axes.get_xlim()[0]) * 0.025, height),
            color=shade,
            fontsize=9.0,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": shade,
                "linewidth": 0.6,
                "shrinkA": 1.0,
                "shrinkB": 0.0,
                "relpos": (0.0, 0.5),
            },
        )

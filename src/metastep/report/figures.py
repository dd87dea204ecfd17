"""Panels and the figures made of them, in one look for all: colour-blind safe, labels at the lines.

Arrays in, figures out. Every band and bar is a 95 % interval over tasks. A page in dark mode inverts its figures.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from metastep.evaluation import Comparison, Difference
from metastep.evaluation.intervals import mean_interval
from metastep.report.document import Picture

# Okabe and Ito's palette: distinguishable with every common colour-vision deficiency.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7A7A7A")
SPARE = ("#AA3377", "#117733", "#332288", "#882255", "#44AA99", "#999933")  # Tol's, where the palette is used up
MAIN, CONTRAST = PALETTE[0], PALETTE[4]  # what a figure is about, and what it is compared with
# Tol's bright palette, safe as well, for directions: not a colour of it stands for a method.
_DIRECTIONS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#999933", "#BBBBBB")
# Fonts, grid and colours of all figures; users may read the file with matplotlib.style.use as well.
_STYLE: Any = mpl.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
TEXT, PAPER, FAINT = (_STYLE[name] for name in ("text.color", "figure.facecolor", "grid.color"))
QUIET = "#b4bcc5"  # lines that are there for comparison only


def shade_of(direction: int) -> str:
    """Return the colour of a direction, by its position among the directions."""
    return _DIRECTIONS[direction % len(_DIRECTIONS)]


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
    """Write the names of lines at their right ends, (label, y, colour), pushed apart; limits of the axes must be final."""
    assert axes.figure is not None
    # In shares of the axes, so that a logarithmic axis is like any other.
    spacing = 0.165 * axes.figure.dpi / axes.bbox.height  # a line of text
    place, right = (axes.transData + axes.transAxes.inverted()).transform, axes.get_xlim()[1]
    shares = ((label, float(np.clip(place((right, y))[1], 0.0, 1.0)), shade) for label, y, shade in ends)
    ordered = sorted(shares, key=lambda end: end[1])
    stack = spacing * np.arange(len(ordered))
    heights = np.maximum.accumulate(np.array([y for _, y, _ in ordered]) - stack) + stack
    # Pushing up may leave the axes: push back down from the top, and only the labels that are in the way.
    heights[-1:] = np.minimum(heights[-1:], 1.0)
    heights = np.minimum.accumulate((heights - stack)[::-1])[::-1] + stack
    line = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1.0, "shrinkB": 0.0, "relpos": (0.0, 0.5)}
    inside: dict[str, Any] = {"xycoords": axes.transAxes, "textcoords": axes.transAxes, "annotation_clip": False}
    for (label, y, shade), height in zip(ordered, heights, strict=True):
        look: dict[str, Any] = {"color": shade, "fontsize": 9.0, "va": "center", "arrowprops": line | {"color": shade}}
        axes.annotate(plain(label), xy=(1.0, y), xytext=(1.03, float(height)), **inside, **look)


Values = NDArray[np.floating[Any]]
Item = TypeVar("Item")


class Line(NamedTuple):
    """A curve over updates, (tasks, points); where bands would cover one another, only some lines have one."""

    label: str
    values: Values
    shade: str = ""
    is_main: bool = False
    is_dashed: bool = False
    has_band: bool = True


class Panel(NamedTuple):
    """One pair of axes: its title and what draws into it."""

    title: str
    draw: Callable[[Axes], None]


class Layout(NamedTuple):
    """How panels are set: the size of one with its labels, and the room between them in shares of it."""

    size: tuple[float, float] = (4.6, 3.0)
    gaps: tuple[float, float] = (0.66, 0.5)  # beside and below
    widths: Sequence[float] | None = None  # of the columns, relative to one another
    heights: Sequence[float] | None = None  # of the rows
    share_y: bool | Literal["row", "all"] = False  # numbers stand at the left only
    share_x: bool | Literal["col", "all"] = False  # and at the bottom only


def colour_of(comparison: Comparison, name: str) -> str:
    """Return a method's colour: its own, else one of the palette that no other method has, the same in every figure."""
    own = [record.colour for record in comparison.methods]
    free = [colour for colour in (*PALETTE, *SPARE) if colour not in own] or list(PALETTE)
    unnamed = [record.name for record in comparison.methods if not record.colour]
    colour = comparison.record(name).colour or free[unnamed.index(name) % len(free)]
    return TEXT if colour == "text" else colour


def line_of(comparison: Comparison, name: str, values: Values | None = None, **changes: Any) -> Line:
    """Return the curve of a method, or other values, with the method's label and colour; a yardstick is dashed."""
    record, values = comparison.record(name), comparison.returns[comparison.index(name)] if values is None else values
    return Line(record.label, values, colour_of(comparison, name), is_dashed=record.is_yardstick)._replace(**changes)


def alone(name: str, caption: str, panel: Panel, size: tuple[float, float] = (8.2, 4.1)) -> Picture:
    """Make one panel a picture, of a size in inches."""
    return picture(name, caption, [[panel]], Layout(size))


def in_rows(panels: Sequence[Item], num_columns: int) -> list[Sequence[Item]]:
    """Set so many panels to a row."""
    return [panels[first : first + num_columns] for first in range(0, len(panels), num_columns)]


def picture(name: str, caption: str, rows: Sequence[Sequence[Panel]], layout: Layout = Layout()) -> Picture:
    """Make rows of panels one picture."""

    def draw() -> Figure:
        with mpl.rc_context(_STYLE):
            num_columns = max(map(len, rows))
            figure = Figure(figsize=(layout.size[0] * num_columns, layout.size[1] * len(rows)))
            figure.subplots_adjust(wspace=layout.gaps[0], hspace=layout.gaps[1])
            options: dict[str, Any] = {"width_ratios": layout.widths, "height_ratios": layout.heights, "squeeze": False}
            grid = figure.subplots(len(rows), num_columns, sharex=layout.share_x, sharey=layout.share_y, **options)
            for row, line in zip(rows, grid, strict=True):
                for axes in line[len(row) :]:
                    axes.set_visible(False)
                for panel, axes in zip(row, line, strict=False):
                    axes.set_title(plain(panel.title))
                    panel.draw(axes)
            # Panels that share an axis have its name and numbers at the edge only, also where a last row is short.
            for (index, column), axes in np.ndenumerate(grid):
                if layout.share_y and column > 0:
                    axes.set_ylabel("")
                if layout.share_x:
                    is_lowest = index + 1 == len(rows) or column >= len(rows[index + 1])
                    axes.tick_params(labelbottom=is_lowest)
                    axes.set_xlabel(axes.get_xlabel() if is_lowest else "")
            return figure

    return Picture(name, caption, draw)


def mean_and_interval(values: Values) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the mean over tasks (axis 0) and the ends of its 95 % interval, the same that tables show.

    A value that is not finite counts as the worst of its task in this array, or of all tasks where the task has no other.
    """
    filled, finite = np.asarray(values, np.float64), np.isfinite(values)
    if finite.any() and not finite.all():
        worst = np.where(finite, filled, np.inf).reshape(len(filled), -1).min(axis=1)
        worst = np.where(np.isfinite(worst), worst, worst.min())
        filled = np.where(finite, filled, worst.reshape(-1, *[1] * (filled.ndim - 1)))
    mean = np.mean(filled, axis=0)
    if len(filled) < 2 or not finite.any():
        return mean, mean, mean
    return mean, *mean_interval(filled.T)


def curves(
    title: str,
    lines: Sequence[Line],
    *,
    ylabel: str = "mean return",
    first: int = 0,
    is_log: bool = False,
    top: float = np.inf,
    of_tasks: bool = False,
) -> Panel:
    """Curves over updates, labelled at their ends where they have a label; the first point is after `first` updates.

    On a logarithmic axis the mean is the geometric one. What lies above `top` is cut off. `of_tasks`, lines are medians and
    bands the middle half and the middle nine tenths of the tasks.
    """

    def draw(axes: Axes) -> None:
        ends = []
        for index, line in enumerate(lines):
            values = np.asarray(line.values, np.float64)
            if of_tasks:
                known = np.where(np.isfinite(values), values, np.nan)
                middle, *bands = np.nanquantile(known, (0.5, 0.05, 0.95, 0.25, 0.75), axis=0)
            elif is_log:  # what is not positive is shown at the smallest number that is
                smallest = values[values > 0.0].min(initial=np.inf)
                logarithm = np.log10(np.maximum(values, smallest if np.isfinite(smallest) else 1.0))
                middle, *bands = (10.0**each for each in mean_and_interval(logarithm))
            else:
                middle, *bands = mean_and_interval(values)
            updates, shade = first + np.arange(len(middle)), line.shade or PALETTE[index % len(PALETTE)]
            width, order = (2.4, 4) if line.is_main else (1.5, 3) if line.label else (0.8, 2)
            axes.plot(updates, middle, "--" if line.is_dashed else "-", color=shade, linewidth=width, zorder=order)
            for low, high in zip(bands[::2], bands[1::2], strict=True) if line.has_band else ():
                axes.fill_between(updates, low, high, color=shade, alpha=0.14, linewidth=0.0)
            if line.label:
                ends.append((line.label, float(middle[-1]), shade))
        axes.set(xlabel="update" if first else "updates", ylabel=ylabel)
        axes.margins(x=0.0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if is_log:
            logarithmic(axes, "y")
        elif axes.get_ylim()[1] > top:
            axes.set_ylim(max(axes.get_ylim()[0], -0.05 * top), top)  # the margin below was one of what is cut off
        label_lines(axes, ends)

    return Panel(title, draw)


def points(
    title: str,
    values: Values,
    positions: Sequence[float],
    *,
    xlabel: str,
    ylabel: str,
    shade: str = MAIN,
    ring: tuple[int, str] | None = None,
) -> Panel:
    """Means with intervals over tasks of (points, tasks) at positions; `ring` marks one of them, with a word."""

    def draw(axes: Axes) -> None:
        mean, low, high = mean_and_interval(values.T)
        look: dict[str, Any] = {"color": shade, "marker": "o", "capsize": 3.0, "linewidth": 1.4}
        axes.errorbar(positions, mean, (mean - low, high - mean), **look)
        if ring is not None:
            index, word = ring
            axes.plot(positions[index], mean[index], "o", markersize=13, markerfacecolor="none", color=TEXT)
            # Beside the line, not on it, and within the panel.
            is_last = index + 1 == len(mean)
            offset = (-11, 8) if is_last else (11, 6) if mean[index + 1] <= mean[index] else (11, -14)
            at, side = (positions[index], mean[index]), "right" if is_last else "left"
            axes.annotate(word, at, xytext=offset, textcoords="offset points", fontsize=9.0, ha=side)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=xlabel, ylabel=ylabel)

    return Panel(title, draw)


def whiskers(title: str, comparison: Comparison, rows: Sequence[Difference]) -> Panel:
    """Paired differences with their intervals; right of zero the target is better."""

    def draw(axes: Axes) -> None:
        for height, row in enumerate(reversed(rows)):
            shade = colour_of(comparison, row.baseline)
            axes.plot([row.low, row.high], [height, height], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(row.mean, height, "o", color=shade)
        axes.axvline(0.0, color=TEXT, linewidth=0.9)
        name_rows(axes, [comparison.label(row.baseline) for row in rows])
        axes.set_xlabel(plain(f"{comparison.label(rows[0].target)} minus it, AUC"))

    return Panel(title, draw)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write labels beside rows at heights 0, 1, ..., the first label at the top."""
    axes.set_yticks(range(len(labels)), [plain(label) for label in reversed(labels)])
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.grid(axis="y", visible=False)

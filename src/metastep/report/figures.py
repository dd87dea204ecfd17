"""Panels and the figures made of them: arrays in, figures out. Every band and bar is a 95 % interval over tasks."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from metastep.evaluation import Comparison, Difference
from metastep.evaluation.intervals import mean_interval
from metastep.report.document import Picture
from metastep.report.style import MAIN, PALETTE, SPARE, Ink, house_style, label_lines, logarithmic, plain, tint

Values = NDArray[np.floating[Any]]
# A colour of a method, or a family of lines and the place in it, from 0 to 1.
Shade = str | tuple[Literal["warm", "cool"], float]

_SCALES = {"warm": "YlOrBr", "cool": "YlGnBu"}


class Line(NamedTuple):
    """A curve over updates, (tasks, points); where bands would cover one another, only some lines have one."""

    label: str
    values: Values
    shade: Shade = ""
    is_main: bool = False
    is_dashed: bool = False
    has_band: bool = True


class Panel(NamedTuple):
    """One pair of axes: its title and what draws into it."""

    title: str
    draw: Callable[[Axes, Ink], None]


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
    return comparison.record(name).colour or free[unnamed.index(name) % len(free)]


def line_of(comparison: Comparison, name: str, values: Values | None = None, **changes: Any) -> Line:
    """Return the curve of a method, or other values, with the method's label and colour; a yardstick is dashed."""
    record = comparison.record(name)
    shown = comparison.returns[comparison.index(name)] if values is None else values
    line = Line(record.label, shown, colour_of(comparison, name), is_dashed=record.is_yardstick)
    return line._replace(**changes)


def alone(name: str, caption: str, panel: Panel, size: tuple[float, float] = (8.2, 4.1)) -> Picture:
    """Make one panel a picture, of a size in inches."""
    return picture(name, caption, [[panel]], Layout(size))


def in_rows(panels: Sequence[Panel], num_columns: int) -> list[Sequence[Panel]]:
    """Set so many panels to a row."""
    return [panels[first : first + num_columns] for first in range(0, len(panels), num_columns)]


def picture(name: str, caption: str, rows: Sequence[Sequence[Panel]], layout: Layout | None = None) -> Picture:
    """Make rows of panels one picture."""
    layout = layout or Layout()

    def draw() -> Figure:
        with house_style() as ink:
            num_columns = max(map(len, rows))
            figure = Figure(figsize=(layout.size[0] * num_columns, layout.size[1] * len(rows)))
            figure.subplots_adjust(wspace=layout.gaps[0], hspace=layout.gaps[1])
            options: dict[str, Any] = {"width_ratios": layout.widths, "height_ratios": layout.heights}
            options |= {"sharex": layout.share_x, "sharey": layout.share_y}
            grid = figure.subplots(len(rows), num_columns, squeeze=False, **options)
            for row, line in zip(rows, grid, strict=True):
                for axes in line[len(row) :]:
                    axes.set_visible(False)
                for panel, axes in zip(row, line, strict=False):
                    axes.set_title(plain(panel.title))
                    panel.draw(axes, ink)
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


def ink_of(shade: Shade, index: int, ink: Ink) -> Any:
    """Return a method's colour, or one of the scale of its family; the ends of a scale would vanish on the page."""
    if isinstance(shade, str):
        return tint(shade, index, ink)
    family, place = shade
    return mpl.colormaps[_SCALES[family]](0.38 + 0.55 * place)


def mean_and_interval(values: Values) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the mean over tasks (axis 0) and the ends of its 95 % interval, the same that tables show.

    A value that is not finite counts as the worst of its task in this array (of all tasks where the task has no other), so that
    no task is dropped; the report's own curves have none left, see `filled_returns`.
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
) -> Panel:
    """Curves over updates, labelled at their ends where they have a label; the first point is after `first` updates.

    On a logarithmic axis the mean is the geometric one. What lies above `top` is cut off.
    """

    def draw(axes: Axes, ink: Ink) -> None:
        ends = []
        for index, line in enumerate(lines):
            values = line.values
            if is_log:  # what is not positive is shown at the smallest number that is
                positive = values[values > 0.0]
                values = np.log10(np.maximum(values, positive.min() if positive.size else 1.0))
            shown = mean_and_interval(values)
            mean, low, high = (10.0**each for each in shown) if is_log else shown
            updates = first + np.arange(len(mean))
            shade = ink_of(line.shade, index, ink)
            width, order = (2.4, 4) if line.is_main else (1.5, 3) if line.label else (0.8, 2)
            axes.plot(updates, mean, "--" if line.is_dashed else "-", color=shade, linewidth=width, zorder=order)
            if line.has_band:
                axes.fill_between(updates, low, high, color=shade, alpha=0.14, linewidth=0.0)
            if line.label:
                ends.append((line.label, float(mean[-1]), shade))
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
    shade: Shade = MAIN,
    ring: tuple[int, str] | None = None,
) -> Panel:
    """Means with intervals over tasks of (points, tasks) at positions; `ring` marks one of them, with a word."""

    def draw(axes: Axes, ink: Ink) -> None:
        mean, low, high = mean_and_interval(values.T)
        look: dict[str, Any] = {"color": ink_of(shade, 0, ink), "marker": "o", "capsize": 3.0, "linewidth": 1.4}
        axes.errorbar(positions, mean, (mean - low, high - mean), **look)
        if ring is not None:
            index, word = ring
            axes.plot(positions[index], mean[index], "o", markersize=13, markerfacecolor="none", color=ink.text)
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

    def draw(axes: Axes, ink: Ink) -> None:
        for index, row in enumerate(rows):
            height = len(rows) - 1 - index
            shade = tint(colour_of(comparison, row.baseline), 0, ink)
            axes.plot([row.low, row.high], [height, height], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(row.mean, height, "o", color=shade)
        axes.axvline(0.0, color=ink.text, linewidth=0.9)
        axes.set_yticks(range(len(rows)), [plain(comparison.label(row.baseline)) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(plain(f"{comparison.label(rows[0].target)} minus it, AUC"))

    return Panel(title, draw)

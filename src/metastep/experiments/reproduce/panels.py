"""Several panels in one figure, in the house style; every band is a 95 % interval over tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from metastep.evaluation import Difference
from metastep.report.document import Picture
from metastep.report.figures import mean_and_interval
from metastep.report.style import Ink, Theme, colour, label_lines, themed, title_of

Values = NDArray[np.floating[Any]]
# A method's name, or a family of lines and the place in it, from 0 to 1.
Shade = str | tuple[Literal["warm", "cool"], float]
_WIDTH, _HEIGHT = 4.6, 3.0  # of a panel with its labels, in inches
_SCALES = {"warm": "YlOrBr", "cool": "YlGnBu"}


class Line(NamedTuple):
    """A curve over updates, (tasks, points); where bands would cover one another, only some lines have one."""

    label: str
    values: Values
    shade: Shade
    is_main: bool = False
    is_dashed: bool = False
    has_band: bool = True


class Panel(NamedTuple):
    """One pair of axes: its title and what draws into it."""

    title: str
    draw: Callable[[Axes, Ink], None]


def picture(name: str, caption: str, rows: Sequence[Sequence[Panel]]) -> Picture:
    """Panels in rows as one picture."""
    return Picture(name, caption, partial(_figure, rows))


def _figure(rows: Sequence[Sequence[Panel]], theme: Theme) -> Figure:
    with themed(theme) as ink:
        num_columns = max(map(len, rows))
        figure = Figure(figsize=(_WIDTH * num_columns, _HEIGHT * len(rows)))
        figure.subplots_adjust(wspace=0.66, hspace=0.5)
        grid = figure.subplots(len(rows), num_columns, squeeze=False)
        for row, line in zip(rows, grid, strict=True):
            for axes in line[len(row) :]:
                axes.set_visible(False)
            for panel, axes in zip(row, line, strict=False):
                axes.set_title(panel.title)
                panel.draw(axes, ink)
        return figure


def ink_of(shade: Shade, index: int, ink: Ink) -> Any:
    """A method's colour, or one of the scale of its family; the ends of a scale would vanish on the page."""
    if isinstance(shade, str):
        return colour(shade, index, ink)
    family, place = shade
    return mpl.colormaps[_SCALES[family]](0.38 + 0.55 * place)


def curves(title: str, lines: Sequence[Line], *, ylabel: str = "mean return", first: int = 0) -> Panel:
    """Curves over updates, labelled at their ends; the first point is after `first` updates."""

    def draw(axes: Axes, ink: Ink) -> None:
        ends = []
        for index, line in enumerate(lines):
            mean, half = mean_and_interval(line.values)
            updates = first + np.arange(len(mean))
            shade = ink_of(line.shade, index, ink)
            style = "--" if line.is_dashed else "-"
            axes.plot(
                updates,
                mean,
                style,
                color=shade,
                linewidth=2.4 if line.is_main else 1.5,
                zorder=4 if line.is_main else 3,
            )
            if line.has_band:
                axes.fill_between(updates, mean - half, mean + half, color=shade, alpha=0.14, linewidth=0.0)
            ends.append((line.label, float(mean[-1]), shade))
        axes.set(xlabel="update" if first else "updates", ylabel=ylabel)
        axes.margins(x=0.0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_lines(axes, ends)

    return Panel(title, draw)


def points(
    title: str,
    values: Values,
    positions: Sequence[float],
    *,
    xlabel: str,
    ylabel: str,
    shade: Shade = "metafqi",
    ring: tuple[int, str] | None = None,
) -> Panel:
    """Means with intervals over tasks of (points, tasks) at positions; `ring` marks one of them, with a word."""

    def draw(axes: Axes, ink: Ink) -> None:
        mean, half = mean_and_interval(values.T)
        tint = ink_of(shade, 0, ink)
        axes.errorbar(positions, mean, half, color=tint, marker="o", capsize=3.0, linewidth=1.4)
        if ring is not None:
            index, word = ring
            axes.plot(positions[index], mean[index], "o", markersize=13, markerfacecolor="none", color=ink.text)
            axes.annotate(
                word, (positions[index], mean[index]), xytext=(9, -15), textcoords="offset points", fontsize=9.0
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=xlabel, ylabel=ylabel)

    return Panel(title, draw)


def whiskers(title: str, rows: Sequence[Difference]) -> Panel:
    """Paired differences with their intervals; right of zero the target is better."""

    def draw(axes: Axes, ink: Ink) -> None:
        for index, row in enumerate(rows):
            height = len(rows) - 1 - index
            shade = colour(row.baseline, index, ink)
            axes.plot([row.low, row.high], [height, height], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(row.mean, height, "o", color=shade)
        axes.axvline(0.0, color=ink.text, linewidth=0.9)
        axes.set_yticks(range(len(rows)), [title_of(row.baseline) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("metaFQI minus it, AUC")

    return Panel(title, draw)

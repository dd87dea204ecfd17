"""The figures: arrays in, matplotlib figures out. Every interval is 95 % over tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy import stats

from metastep.report.style import Ink, Theme, colour, label_lines, themed, title_of

Curves = Mapping[str, NDArray[np.floating[Any]]]


class Difference(NamedTuple):
    """One row of a difference plot."""

    name: str
    value: float
    low: float
    high: float
    verdict: str


def mean_and_interval(values: NDArray[np.floating[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean over tasks (axis 0) and half the width of its 95 % t-interval.

    A value that is not finite counts as the worst of its task in this array, so that no task is dropped; the report's own
    curves have none left, see `filled_returns`.
    """
    num = values.shape[0]
    values = _finite(values)
    mean = np.mean(values, axis=0)
    if num < 2:
        return mean, np.zeros_like(mean)
    half = stats.t.ppf(0.975, num - 1) * np.std(values, axis=0, ddof=1) / np.sqrt(num)
    return mean, half


def _finite(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Values (tasks, ...) with those that are not finite at their task's worst; at the worst of all without any."""
    finite = np.isfinite(values)
    if finite.all() or not finite.any():
        return values
    worst = np.where(finite, values, np.inf).reshape(len(values), -1).min(axis=1)
    worst = np.where(np.isfinite(worst), worst, worst.min())
    return np.where(finite, values, worst.reshape(-1, *[1] * (values.ndim - 1)))


def _lines(
    curves: Curves, first_update: int, xlabel: str, ylabel: str, title: str, ink: Ink, dashed: Sequence[str] = ()
) -> Figure:
    figure = Figure(figsize=(6.4, 3.9))
    axes = figure.add_subplot()
    ends = []
    for index, (name, values) in enumerate(curves.items()):
        mean, half = mean_and_interval(values)
        updates = first_update + np.arange(len(mean))
        shade = colour(name, index, ink)
        style = "--" if name == "oracle" or name in dashed else "-"
        axes.plot(updates, mean, style, color=shade, linewidth=2.4 if name == "metafqi" else 1.6, zorder=3)
        axes.fill_between(updates, mean - half, mean + half, color=shade, alpha=0.14, linewidth=0.0)
        ends.append((title_of(name), float(mean[-1]), shade))
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.margins(x=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_lines(axes, ends)
    return figure


def learning_curves(curves: Curves, *, title: str, theme: Theme = "light", ylabel: str = "mean return") -> Figure:
    """Return over updates: one (tasks, updates + 1) array a method."""
    with themed(theme) as ink:
        return _lines(curves, 0, "updates", ylabel, title, ink)


def stepsize_curves(stepsizes: Curves, *, title: str, theme: Theme = "light") -> Figure:
    """Chosen step size over updates: one (tasks, updates) array a method."""
    with themed(theme) as ink:
        return _lines(stepsizes, 1, "update", "step size", title, ink)


def iteration_scores(scores: NDArray[np.floating[Any]], selected: int, *, title: str, theme: Theme = "light") -> Figure:
    """Validation score by FQI iteration, (iterations, tasks); the selected one (counted from 1) is marked."""
    with themed(theme) as ink:
        figure = Figure(figsize=(6.4, 3.4))
        axes = figure.add_subplot()
        mean, half = mean_and_interval(scores.T)
        numbers = np.arange(1, len(mean) + 1)
        axes.errorbar(numbers, mean, half, color=colour("metafqi", 0, ink), marker="o", capsize=3.0, linewidth=1.4)
        axes.plot(selected, mean[selected - 1], "o", markersize=13, markerfacecolor="none", color=ink.text)
        axes.annotate(
            "selected", (selected, mean[selected - 1]), xytext=(10, -16), textcoords="offset points", fontsize=9.0
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="FQI iteration N", ylabel="mean return over updates", title=title)
        return figure


def differences(rows: Sequence[Difference], *, title: str, xlabel: str, theme: Theme = "light") -> Figure:
    """Paired differences of metaFQI to each baseline with their intervals; right of zero is better."""
    with themed(theme) as ink:
        figure = Figure(figsize=(6.4, 0.9 + 0.42 * max(len(rows), 1)))
        axes = figure.add_subplot()
        for index, row in enumerate(rows):
            height = len(rows) - 1 - index
            shade = colour(row.name, index, ink)
            axes.plot([row.low, row.high], [height, height], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(row.value, height, "o", color=shade)
        axes.axvline(0.0, color=ink.text, linewidth=0.9)
        axes.set_yticks(range(len(rows)), [title_of(row.name) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set(xlabel=xlabel, title=title)
        return figure


def stepsize_map(
    coordinates: Sequence[NDArray[np.floating[Any]]],
    labels: Sequence[str],
    stepsizes: NDArray[np.floating[Any]],
    *,
    title: str,
    theme: Theme = "light",
) -> Figure:
    """Recommended step size over one context coordinate (a line) or two (a heat map)."""
    with themed(theme) as ink:
        figure = Figure(figsize=(6.4, 4.2) if len(coordinates) == 2 else (6.4, 3.2))
        axes = figure.add_subplot()
        axes.set_title(title)
        axes.set_xlabel(labels[0])
        if len(coordinates) == 1:
            axes.plot(coordinates[0], stepsizes, color=colour("metafqi", 0, ink), drawstyle="steps-mid")
            axes.set_ylabel("step size")
            return figure
        axes.grid(visible=False)
        image = axes.pcolormesh(
            coordinates[0], coordinates[1], stepsizes.T, cmap="cividis", shading="auto", rasterized=True
        )
        axes.set_ylabel(labels[1])
        bar = figure.colorbar(image, ax=axes, label="step size")
        bar.outline.set_visible(False)
        return figure


def importances(
    names: Sequence[str], values: NDArray[np.floating[Any]], *, title: str, theme: Theme = "light"
) -> Figure:
    """Which features the forests split on, largest first; at most twelve bars, the rest summed up."""
    order = np.argsort(values)[::-1]
    shown = [(names[i], float(values[i])) for i in order[:12]]
    if len(order) > 12:
        shown.append((f"{len(order) - 12} others", float(values[order[12:]].sum())))
    with themed(theme) as ink:
        figure = Figure(figsize=(6.4, 0.8 + 0.27 * len(shown)))
        axes = figure.add_subplot()
        heights = range(len(shown) - 1, -1, -1)
        axes.barh(list(heights), [value for _, value in shown], color=colour("metafqi", 0, ink), height=0.68)
        axes.set_yticks(list(heights), [name for name, _ in shown])
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="share of variance reduction", title=title)
        return figure

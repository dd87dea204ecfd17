"""Figures of what lies behind a mean: learning curves one by one, interquartile means, performance profiles."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from metastep.evaluation import filled_returns, metric_values, summary
from metastep.report.document import Picture
from metastep.report.figures import SMALL_MULTIPLES, Layout, Panel, alone, colour_of, curves, in_rows, line_of, picture
from metastep.report.findings import Findings, best_baseline, listed
from metastep.report.style import Ink, plain, tint

_LEVELS = 400  # points of a profile
_SHOWN = 0.98  # a profile is drawn until this share of the tasks is within it: the last few may be far away


def learning_curves(findings: Findings) -> Picture:
    """The mean of every method, with bands where they tell most: the target and the best baseline."""
    comparison, target = findings.comparison, findings.target
    banded = [target, *([best] if (best := best_baseline(comparison, target)) else [])]
    lines = [
        line_of(comparison, name, values, is_main=name == target, has_band=name in banded)
        for name, values in zip(comparison.names, filled_returns(comparison), strict=True)
    ]
    caption = (
        "Mean return over the test tasks; higher is better. Bands are 95 % intervals, of "
        f"{listed([comparison.label(name) for name in banded])}"
        f"{' (the best baseline) only' if best else ''}."
    )
    return alone("learning-curves", caption, curves("", lines))


def one_by_one(findings: Findings) -> list[Picture]:
    """The target against each other method, with both bands; nothing where there are too few methods for it to help."""
    comparison, target = findings.comparison, findings.target
    others = [name for name in comparison.names if name != target]
    if len(others) < 2:
        return []
    filled = dict(zip(comparison.names, filled_returns(comparison), strict=True))
    panels = []
    for name in others:
        # The others stay in sight, so that the panels are seen to show the same thing.
        quiet = [
            line_of(comparison, other, filled[other], label="", shade="quiet", has_band=False, is_dashed=False)
            for other in others
            if other != name
        ]
        own = [line_of(comparison, method, filled[method], label="", is_main=True) for method in (target, name)]
        panels.append(curves(comparison.label(name), [*quiet, *own]))
    label = comparison.label(target)
    caption = (
        f"{label} beside each other method, both with 95 % intervals; the grey lines are the remaining methods. {label} has the "
        "same colour in every panel."
    )
    return [picture("one-by-one", caption, in_rows(panels, 4), SMALL_MULTIPLES)]


def spread(findings: Findings) -> Picture:
    """Means and interquartile means side by side, and the shares of tasks behind them."""
    comparison = findings.comparison
    auc = metric_values(comparison, "auc")
    contenders = [index for index, record in enumerate(comparison.methods) if not record.is_yardstick]
    yardsticks = [record.label for record in comparison.methods if record.is_yardstick]
    spared = f", {listed(yardsticks)} apart" if yardsticks else ""
    low, high = np.quantile(auc, 1.0 - _SHOWN), auc.max()
    levels = np.linspace(low, high if high > low else low + 1.0, _LEVELS)  # all may be equal
    reached = performance_profile(auc, levels)
    behind = auc[contenders].max(axis=0) - auc[contenders]
    reach = max(float(np.quantile(behind.min(axis=0), _SHOWN)), float(np.quantile(behind, 0.9)), 1e-12)
    gaps = np.linspace(0.0, reach, _LEVELS)
    within = 1.0 - performance_profile(behind, np.nextafter(gaps, np.inf))
    panels = [
        _means("Mean and interquartile mean", findings),
        _profile("Tasks that reach an AUC", "AUC", findings, range(len(auc)), reached, levels),
        _profile("Tasks within a gap to the best", "gap in AUC", findings, contenders, within, gaps),
    ]
    caption = (
        "Left: mean AUC (dot) and its interquartile mean (diamond), with 95 % intervals; where they differ, few tasks make the "
        "mean. Middle: the share of tasks on which a method reaches an AUC. Right: the share of tasks on which it is at most so "
        f"far behind the best method of the task{spared}; at 0, the share of tasks on which it is the best. Higher is better."
    )
    return picture("spread", caption, [panels], Layout((3.4, 3.2), (0.42, 0.3)))


def _means(title: str, findings: Findings) -> Panel:
    comparison = findings.comparison
    rows = summary(comparison, **findings.resampling)

    def draw(axes: Axes, ink: Ink) -> None:
        for index, row in enumerate(rows):
            height = len(rows) - 1 - index
            shade = tint(colour_of(comparison, row.method), index, ink)
            for interval, mark, shift in ((row.auc, "o", 0.14), (row.auc_middle, "D", -0.14)):
                axes.plot([interval.low, interval.high], [height + shift] * 2, color=shade, linewidth=1.4)
                axes.plot(
                    interval.mean,
                    height + shift,
                    mark,
                    color=shade,
                    markersize=5.0,
                    markerfacecolor=shade if mark == "o" else ink.paper,
                )
        axes.set_yticks(range(len(rows)), [plain(comparison.label(row.method)) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("AUC")

    return Panel(title, draw)


def _profile(
    title: str, xlabel: str, findings: Findings, methods: Sequence[int], shares: np.ndarray, levels: np.ndarray
) -> Panel:
    """Draw the target and the best baseline in their colours and with their names, the others in grey."""
    comparison, target = findings.comparison, findings.target
    best = best_baseline(comparison, target)

    def draw(axes: Axes, ink: Ink) -> None:
        for index, row in zip(methods, shares, strict=True):
            record = comparison.methods[index]
            is_named = record.name in (target, best)
            is_coloured = is_named or record.is_yardstick
            shade = tint(colour_of(comparison, record.name), index, ink) if is_coloured else ink.quiet
            width = 2.2 if record.name == target else 1.5 if is_named else 1.0
            label, style = plain(record.label) if is_coloured else None, "--" if record.is_yardstick else "-"
            axes.plot(levels, row, style, color=shade, linewidth=width, zorder=4 if is_named else 2, label=label)
        axes.set(ylim=(0.0, 1.02), xlim=(levels[0], levels[-1]), xlabel=xlabel)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, fontsize=8.0, loc="best", handlelength=1.6)

    return Panel(title, draw)


def performance_profile(values: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of tasks on which each row of (rows, tasks) reaches each level: (rows, levels), from 1 to 0."""
    below = np.stack([np.searchsorted(np.sort(row), levels, side="left") for row in values])
    return np.asarray(1.0 - below / values.shape[-1])

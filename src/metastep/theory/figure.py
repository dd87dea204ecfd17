"""The figure of `reproduce theory`: measured differences under their bounds, and the smoothness of the other environments."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metastep.theory.coverage import Smoothness, steepest_of
from metastep.theory.table import BoundRow

_QUANTITIES = (("Q", "|Q - Q'|"), ("J", "|J - J'|"), ("gradient", "|∂J - ∂J'|"))
_MEASURED, _BOUND = "#0072B2", "#D55E00"  # Okabe and Ito: distinguishable with every common colour-vision deficiency
_TITLES = {"lqr": "LQR", "nav2d": "Nav2D", "minigolf": "Minigolf", "cartpole": "CartPole", "swingup": "SwingUp"}


def theory_figure(rows: Sequence[BoundRow], smoothness: Mapping[str, Sequence[Smoothness]]) -> Figure:
    """A row of panels for each environment with bounds (measured over bound, log-log), one row for the others (|J - J'|).

    Args:
        rows: the table of `measure_bounds`, of one or more environments.
        smoothness: for each other environment, one entry a policy.
    """
    envs = list(dict.fromkeys(row.env for row in rows))
    num_rows = len(envs) + bool(smoothness)
    num_columns = max(len(_QUANTITIES), len(smoothness))
    figure = Figure(figsize=(3.6 * num_columns, 3.1 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for line, env in zip(grid, envs, strict=False):
        for axes, (prefix, label) in zip(line, _QUANTITIES, strict=False):
            _against_bound(axes, [row for row in rows if row.env == env and row.quantity.startswith(prefix)])
            axes.set_title(f"{_TITLES.get(env, env)}: {label}", loc="left", fontsize=10, fontweight="bold")
    if smoothness:
        for axes, (env, policies) in zip(grid[-1], smoothness.items(), strict=False):
            _against_distance(axes, policies)
            axes.set_title(f"{_TITLES.get(env, env)}: |J - J'|, no bound", loc="left", fontsize=10, fontweight="bold")
    for axes in grid.ravel():
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, linewidth=0.5, alpha=0.4)
        axes.set_visible(axes.has_data())
    return figure


def _against_bound(axes: Axes, rows: Sequence[BoundRow]) -> None:
    bound = np.array([row.bound for row in rows])
    measured = np.array([row.measured for row in rows])
    # Zero has no place on a logarithmic axis: what is smaller than a billionth of its bound is drawn there.
    floor = 1e-9 * bound
    low = np.array([row.low for row in rows])
    high = np.array([row.high for row in rows])
    shown = np.maximum(measured, floor)
    below, above = shown - np.maximum(low, 0.5 * shown), np.maximum(high - shown, 0.0)
    ends = np.array([bound.min() * 0.8, bound.max() * 1.25])
    axes.plot(ends, ends, color=_BOUND, linewidth=1.4, zorder=2)
    axes.text(ends[1], ends[1], "bound", color=_BOUND, fontsize=8, ha="right", va="bottom")
    axes.errorbar(
        bound, shown, yerr=(below, above), fmt="o", color=_MEASURED, markersize=2.5, linewidth=0.6, alpha=0.6, zorder=3
    )
    best = max(row.tightness for row in rows)
    note = (
        f"n = {len(rows)}\nof the bound:\nmedian {np.median([row.tightness for row in rows]):.2g}, largest {best:.2g}"
    )
    axes.text(0.03, 0.97, note, transform=axes.transAxes, ha="left", va="top", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="bound", ylabel="measured")


def _against_distance(axes: Axes, policies: Sequence[Smoothness]) -> None:
    for policy in policies:
        below = np.minimum(policy.half_width, policy.difference)  # an absolute value is not below 0
        axes.errorbar(
            policy.distance,
            policy.difference,
            yerr=(below, policy.half_width),
            fmt="o",
            markersize=2.5,
            linewidth=0.6,
            alpha=0.7,
        )
    largest = steepest_of(policies)
    note = f"{len(policies)} policies\nsteepest pair {largest:.3g} a box width"
    axes.text(0.02, 0.97, note, transform=axes.transAxes, ha="left", va="top", fontsize=7)
    axes.set(xlabel="distance of the contexts (box widths)", ylabel="measured")

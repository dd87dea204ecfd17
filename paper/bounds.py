"""The theory section: the Lipschitz constants with respect to the context, against what is measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from metastep.envs import REGISTRY
from metastep.report.figures import CONTRAST, MAIN, Panel, picture
from metastep.report.tables import number
from paper.outcome import Outcome, Product, Verdict
from paper.theory.measure import BoundRow, Effort, measure_bounds
from paper.workbench import Workbench

_QUANTITIES = (("Q", "|Q - Q'|"), ("J", "|J - J'|"), ("gradient", "|∂J - ∂J'|"), ("occupancy", "mean state"))
_CAPTION = "Differences between tasks under common noise, with 99 % intervals, against the bounds of the theorems."
_DOTS: dict[str, Any] = {"fmt": "o", "markersize": 2.5, "linewidth": 0.6, "alpha": 0.6, "zorder": 3}


_EFFORTS = {"tiny": Effort(1, 2, 1, 50, 1), "quick": Effort(3, 12, 4, 4_000, 5), "full": Effort(10, 40, 4, 10_000, 5)}


def theory(bench: Workbench) -> Product:
    """Measure differences between tasks and compare them with their bounds, where the constants are exact."""
    with bench.stage("theory", 1, "table") as advance:
        rows = [row for env in ("lqr", "nav2d") for row in measure_bounds(env, _EFFORTS[bench.scale], bench.seed)]
        advance(1)
    texts = [
        row._asdict() | {"context": " ".join(map(repr, row.context)), "other": " ".join(map(repr, row.other))}
        for row in rows
    ]
    return Product([judge(rows)], [picture("theory", _CAPTION, panels_with_bounds(rows))], {"theory": texts})


def judge(rows: Sequence[BoundRow]) -> Outcome:
    """Judge whether the theorems hold: a violation is an interval that lies above its bound."""
    num_violations = sum(not row.holds for row in rows)
    tightest: dict[str, float] = {}
    for row in rows:
        name = f"{row.env} {row.quantity.split('[')[0]}"
        tightest[name] = max(tightest.get(name, 0.0), row.tightness)
    shares = ", ".join(f"{name} {number(value)}" for name, value in tightest.items())
    claim = (
        "Q, the return, its gradient and the occupancy are Lipschitz in the context, "
        "with the constants of Theorem 1, the gradient theorem and its lemma on occupancies"
    )
    quantity, effect = "differences beyond their bound (99 % intervals)", float(num_violations)
    verdict: Verdict = "does not hold" if num_violations else "holds"
    detail = f"largest share of the bound: {shares}"
    return Outcome("LQR, Nav2D", claim, quantity, effect, None, None, len(rows), "differences", verdict, detail)


def panels_with_bounds(rows: Sequence[BoundRow]) -> list[list[Panel]]:
    """Draw one panel for each quantity and environment: measured over bound, both logarithmic."""
    return [
        [
            _bound_panel(
                f"{REGISTRY.entry(env).label}: {label}",
                [r for r in rows if r.env == env and r.quantity.startswith(prefix)],
            )
            for prefix, label in _QUANTITIES
            # Nav2D's goal does not move its states: there the occupancy's bound is 0, and so is what is measured.
            if any(r.bound > 0.0 for r in rows if r.env == env and r.quantity.startswith(prefix))
        ]
        for env in dict.fromkeys(row.env for row in rows)
    ]


def _bound_panel(title: str, rows: Sequence[BoundRow]) -> Panel:
    measured, low, high, bound, tightness = (
        np.array([getattr(row, field) for row in rows]) for field in ("measured", "low", "high", "bound", "tightness")
    )
    # A logarithmic axis has no zero: values below a billionth of their bound are drawn there.
    shown = np.maximum(measured, 1e-9 * bound)
    bars = shown - np.maximum(low, 0.5 * shown), np.maximum(high - shown, 0.0)
    note = f"n = {len(rows)}, of the bound:\nmedian {np.median(tightness):.2g}, largest {max(tightness):.2g}"

    def draw(axes: Axes) -> None:
        limit, ends = CONTRAST, np.array([bound.min() * 0.8, bound.max() * 1.25])
        axes.plot(ends, ends, color=limit, linewidth=1.4, zorder=2)
        axes.text(ends[1], ends[1], "bound", color=limit, fontsize=8, ha="right", va="bottom")
        axes.errorbar(bound, shown, yerr=bars, color=MAIN, **_DOTS)
        axes.set(xscale="log", yscale="log", xlabel="bound", ylabel="measured")
        axes.text(0.98, 0.03, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)

    return Panel(title, draw)

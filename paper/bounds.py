"""The theory section: the Lipschitz constants with respect to the context, against what is measured."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from metastep.envs import REGISTRY, Env, make
from metastep.experiments.coverage import Smoothness, measure_smoothness, steepest_of
from metastep.policies import LinearGaussian
from metastep.report.figures import CONTRAST, MAIN, Ink, Panel, picture, tint
from metastep.report.tables import number
from metastep.simulation.rollouts import Rollout
from paper.outcome import Outcome, Product, Verdict
from paper.theory.constants import Floats
from paper.theory.measure import BoundRow, Effort, measure_bounds
from paper.workbench import Workbench

_QUANTITIES = (("Q", "|Q - Q'|"), ("J", "|J - J'|"), ("gradient", "|∂J - ∂J'|"), ("occupancy", "mean state"))
_CAPTION = (
    "Differences between tasks under common noise, with 99 % intervals. Above: against the bounds of the theorems, where the "
    "constants are exact. Below: the return by the distance of the tasks, where they are not."
)
_DOTS: dict[str, Any] = {"fmt": "o", "markersize": 2.5, "linewidth": 0.6, "alpha": 0.6, "zorder": 3}
_GAMMA = 0.99


class _Size(NamedTuple):
    effort: Effort  # with bounds
    num_policies: int  # for each environment without bounds, like the rest
    num_context_pairs: int
    num_episodes: int
    num_blocks: int


_SIZES = {
    "tiny": _Size(Effort(1, 2, 1, 50, 1), 1, 2, 8, 1),
    "quick": _Size(Effort(3, 12, 4, 4_000, 5), 3, 16, 500, 1),
    "full": _Size(Effort(10, 40, 4, 10_000, 5), 5, 40, 2_000, 2),
}


class _Setting(NamedTuple):
    """The paper's horizon, policy noise and initial policies of an environment without exact constants."""

    horizon: int
    sigma: float
    draw: Callable[[np.random.Generator, int], Floats]  # a policy with a number of parameters


_OTHERS = {
    "minigolf": _Setting(20, 0.1, lambda rng, num: rng.uniform((-2.0, -1.0), (3.5, 2.0))),
    "cartpole": _Setting(100, 1.001, lambda rng, num: np.sqrt(0.01) * rng.normal(size=num)),
    "swingup": _Setting(200, 1.001, lambda rng, num: np.sqrt(0.1) * rng.normal(size=num)),
}


def theory(bench: Workbench) -> Product:
    """Measure differences and compare them with their bounds; measure the smoothness of the return where there are none."""
    size, measured, smoothness = _SIZES[bench.scale], [], {}
    with bench.stage("theory", 1, "table") as advance:
        rows = [*measure_bounds("lqr", size.effort, bench.seed), *measure_bounds("nav2d", size.effort, bench.seed)]
        for env in _OTHERS:
            table, smoothness[env] = _measure_other(env, size, bench.seed)
            measured += table
        advance(1)
    texts = [
        row._asdict() | {"context": " ".join(map(repr, row.context)), "other": " ".join(map(repr, row.other))}
        for row in rows
    ]
    panels = [*panels_with_bounds(rows), [smoothness_panel(env, policies) for env, policies in smoothness.items()]]
    tables = {"theory": texts, "smoothness": measured}
    return Product([judge(rows)], [picture("theory", _CAPTION, panels)], tables)


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


def _measure_other(name: str, size: _Size, seed: int) -> tuple[list[dict[str, Any]], list[Smoothness]]:
    """Measure the smoothness of the return for each policy; contexts in widths of their box."""
    env, setting = make(name), _OTHERS[name]
    assert isinstance(env, Env)  # none of these runs on the host
    policy = LinearGaussian(env.num_observations, env.num_actions, setting.sigma)
    rollout = Rollout(env, policy, size.num_episodes, setting.horizon, _GAMMA, "none")
    rng, rows, smoothness = np.random.default_rng(seed), [], []
    for index in range(size.num_policies):
        theta = setting.draw(rng, policy.num_parameters)
        effort = {"num_pairs": size.num_context_pairs, "num_blocks": size.num_blocks, "seed": seed + index}
        smooth = measure_smoothness(rollout, theta, **effort)
        smoothness.append(smooth)
        row = {"env": name, "policy": index, "num_context_pairs": size.num_context_pairs}
        row |= {"return_steepest": smooth.steepest, "return_steepest_low": smooth.steepest_low}  # for a box width
        rows.append(row | {"return_median": smooth.median})
    return rows, smoothness


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

    def draw(axes: Axes, ink: Ink) -> None:
        limit, ends = tint(CONTRAST, 0, ink), np.array([bound.min() * 0.8, bound.max() * 1.25])
        axes.plot(ends, ends, color=limit, linewidth=1.4, zorder=2)
        axes.text(ends[1], ends[1], "bound", color=limit, fontsize=8, ha="right", va="bottom")
        axes.errorbar(bound, shown, yerr=bars, color=tint(MAIN, 0, ink), **_DOTS)
        axes.set(xscale="log", yscale="log", xlabel="bound", ylabel="measured")
        axes.text(0.98, 0.03, note, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)

    return Panel(title, draw)


def smoothness_panel(env: str, policies: Sequence[Smoothness]) -> Panel:
    """Draw |J - J'| over the distance of the tasks, for several policies."""
    note = f"{len(policies)} policies\nsteepest pair {steepest_of(policies):.3g} a box width"

    def draw(axes: Axes, ink: Ink) -> None:
        for index, policy in enumerate(policies):
            bars = np.minimum(policy.half_width, policy.difference), policy.half_width  # |J - J'| is not below 0
            axes.errorbar(policy.distance, policy.difference, yerr=bars, color=tint("", index, ink), **_DOTS)
        axes.set(xlabel="distance of the contexts (box widths)", ylabel="measured")
        axes.text(0.03, 0.97, note, transform=axes.transAxes, ha="left", va="top", fontsize=7)

    return Panel(f"{REGISTRY.entry(env).label}: |J - J'|, no bound", draw)

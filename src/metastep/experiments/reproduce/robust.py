"""Five random states of the forest, and single against double Q (the paper: HalfCheetah; here CartPole, too)."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation import Comparison, metafqi_method, metric_values
from metastep.evaluation.statistics import bootstrap_interval, paired_test, verdict
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.gains import gain_remark, shown
from metastep.experiments.reproduce.judging import AUC, MARGIN, title
from metastep.experiments.reproduce.outcome import Outcome, Product, at_most, beats_all, number
from metastep.experiments.reproduce.panels import Line, Panel, curves, ink_of, picture
from metastep.experiments.reproduce.workbench import Workbench
from metastep.experiments.stages import fit_model, join, on_test_tasks
from metastep.progress import Tracker
from metastep.report.style import Ink

KINDS = ("double", "single")
_NUM_STATES = 5
_ITERATIONS = 3
"""Planned updates, as in the paper's experiment."""


class Spread(NamedTuple):
    """A difference with its interval, and whether it is one."""

    value: float
    low: float
    high: float
    verdict: str


def fig_robust(bench: Workbench) -> Product:
    """Five random states, single and double Q."""
    outcomes: list[Outcome] = []
    rows: list[dict[str, object]] = []
    panels, kept = [], {}
    for env in bench.environments:
        folder = bench.folder(env)
        comparison = join([_one_state(bench, folder, kind, state) for kind in KINDS for state in range(_NUM_STATES)])
        # Everything is judged in what is shown: the spread over tasks of HalfCheetah's returns is that of its first ones.
        drawn, quantity = shown(folder, comparison)
        auc = metric_values(drawn, "auc").reshape(len(KINDS), _NUM_STATES, -1)  # (kinds, states, tasks)
        returns = drawn.returns.reshape(len(KINDS), _NUM_STATES, *drawn.returns.shape[1:]).astype(np.float64)
        outcomes += _outcomes(folder, auc, returns)
        rows += [
            {
                "environment": env,
                "kind": kind,
                "random_state": state,
                "mean_auc": float(row.mean()),
                "sd_over_tasks": float(row.std(ddof=1)),
            }
            for kind, states in zip(KINDS, auc, strict=True)
            for state, row in enumerate(states)
        ]
        panels.append(_panels(title(folder), auc, returns, quantity))
        kept[env] = comparison
    caption = (
        "Left: metaFQI with five random states of the forest, band: 95 % interval over the states. Middle: single and double "
        "Q, each the mean over the five states, 95 % intervals over test tasks. Right: mean return over the updates by state."
    ) + gain_remark(bench)
    return Product(outcomes, [picture("fig-robust", caption, panels)], {"states": rows}, kept)


def _panels(name: str, auc: NDArray[np.float64], returns: NDArray[np.float64], quantity: str) -> list[Panel]:
    return [
        curves(
            f"{name}: random states",
            # The unit of this panel is the random state: a curve is its mean over tasks.
            [
                Line("mean", returns[0].mean(axis=1), "metafqi", is_main=True),
                *(Line(f"state {i}", row, ("cool", i / 4), has_band=False) for i, row in enumerate(returns[0])),
            ],
            ylabel=quantity,
        ),
        curves(
            f"{name}: single and double Q",
            [
                Line("double Q", returns[0].mean(axis=0), "metafqi", is_main=True),
                Line("single Q", returns[1].mean(axis=0), "hoof"),
            ],
            ylabel=quantity,
        ),
        _states_panel(f"{name}: by random state", auc.mean(axis=2), f"{quantity} over updates"),
    ]


def _one_state(bench: Workbench, folder: RunFolder, kind: str, state: int) -> Comparison:
    config = folder.config
    fqi = config.fqi.model_copy(
        update={"double": kind == "double", "iterations": min(_ITERATIONS, config.fqi.iterations)}
    )
    variant = config.model_copy(update={"fqi": fqi})
    name = f"{kind}-{state}"

    def make(tracker: Tracker) -> Comparison:
        model = fit_model(variant, bench.dataset(folder), tracker=tracker, random_state=state)
        label = f"{kind} Q, random state {state}"
        return on_test_tasks(
            config, [dataclasses.replace(metafqi_method(model), name=name, label=label)], tracker=tracker
        )

    return bench.kept(folder, f"robust-{name}", make)


def _states_panel(name: str, means: NDArray[np.float64], ylabel: str) -> Panel:
    def draw(axes: Axes, ink: Ink) -> None:
        for index, (row, shade) in enumerate(zip(means, ("metafqi", "hoof"), strict=True)):
            tint = ink_of(shade, index, ink)
            axes.plot(np.full(len(row), index), row, "o", color=tint, alpha=0.7)
            axes.plot([index - 0.18, index + 0.18], [row.mean()] * 2, color=tint)
        axes.set_xticks([0, 1], ["double Q", "single Q"])
        axes.set_xlim(-0.6, 1.6)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(ylabel)

    return Panel(name, draw)


def _outcomes(folder: RunFolder, auc: NDArray[np.float64], returns: NDArray[np.float64]) -> list[Outcome]:
    resamples, seed, name = folder.config.compare.num_resamples, folder.config.seed, title(folder)
    num_tasks = auc.shape[2]
    margin = MARGIN * max(float((auc[0] - returns[0, :, :, 0]).mean()), 0.0)
    deviation, low, high = standard_deviation(auc[0].mean(axis=1))
    rest: dict[str, Any] = {"environment": name, "num": num_tasks, "counted": "tasks"}
    robust = Outcome(
        environment=name,
        claim="The random state of the forest matters little",
        quantity="standard deviation over random states of the mean AUC",
        effect=deviation,
        low=low,
        high=high,
        num=_NUM_STATES,
        counted="random states",
        verdict=at_most(low, high, margin),
        detail=f"the limit is {MARGIN:.0%} of metaFQI's gain, {number(margin)}",
    )
    steadier = _paired(auc[1].std(axis=0, ddof=1) - auc[0].std(axis=0, ddof=1), seed, resamples)
    narrower = spread_difference(auc[1].mean(axis=0), auc[0].mean(axis=0), seed=seed, num_resamples=resamples)
    better = _paired(auc[0].mean(axis=0) - auc[1].mean(axis=0), seed, resamples)
    deviations = auc.mean(axis=2).std(axis=1, ddof=1)
    return [
        robust,
        Outcome(
            claim="Double Q depends less on the random state than single Q",
            quantity="single minus double: standard deviation over random states of a task's AUC, mean over tasks",
            effect=steadier.value,
            low=steadier.low,
            high=steadier.high,
            verdict=beats_all([steadier.verdict]),
            detail=(
                f"standard deviation of the mean over tasks: single {number(deviations[1])}, double {number(deviations[0])}"
            ),
            **rest,
        ),
        Outcome(
            claim="Double Q has the lower variance over tasks",
            quantity="single minus double: standard deviation over tasks of the AUC",
            effect=narrower.value,
            low=narrower.low,
            high=narrower.high,
            verdict=beats_all([narrower.verdict]),
            **rest,
        ),
        Outcome(
            claim="Double Q learns faster than single Q",
            quantity=f"double minus single, mean over random states: {AUC}",
            effect=better.value,
            low=better.low,
            high=better.high,
            verdict=beats_all([better.verdict]),
            **rest,
        ),
    ]


def standard_deviation(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Standard deviation of a few numbers with its 95 % interval, taking them as normal (chi-square)."""
    free = len(values) - 1
    deviation = float(values.std(ddof=1))
    low, high = deviation * np.sqrt(free / stats.chi2.ppf([0.975, 0.025], free))
    return deviation, float(low), float(high)


def _paired(differences: NDArray[np.float64], seed: int, num_resamples: int) -> Spread:
    test = paired_test(differences[None, :], seed=seed, num_resamples=num_resamples)
    low, high = float(test.low[0]), float(test.high[0])
    return Spread(float(test.mean[0]), low, high, verdict(low, high, float(test.p_value[0]), 0.95))


def spread_difference(
    wide: NDArray[np.float64], narrow: NDArray[np.float64], *, seed: int, num_resamples: int
) -> Spread:
    """How much more one method varies over tasks than another on the same tasks; the interval resamples tasks."""

    def statistic(first: NDArray[Any], second: NDArray[Any], axis: int = -1) -> NDArray[Any]:
        return np.std(first, axis=axis, ddof=1) - np.std(second, axis=axis, ddof=1)

    low, high = bootstrap_interval((wide, narrow), statistic, seed=seed, num_resamples=num_resamples)
    answer = "better" if low > 0.0 else "worse" if high < 0.0 else "not distinguishable"
    return Spread(float(statistic(wide, narrow)), float(low), float(high), answer)

"""Five random states of the forest, and single against double Q (the paper: HalfCheetah; here CartPole, too)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation import Comparison, join, metric_values
from metastep.evaluation.intervals import bootstrap_interval, verdict
from metastep.report.figures import CONTRAST, MAIN, Line, curves
from metastep.report.tables import number
from paper.claims import AUC, Judged
from paper.columns import Column, Figure, family_shade, shown
from paper.judging import MARGIN, found
from paper.outcome import Effect, Outcome, at_most, better
from paper.workbench import PresetRun

KINDS = ("double", "single")
_NUM_STATES = 5
_ITERATIONS = 3  # planned updates, as in the paper's experiment


def random_states(run: PresetRun) -> Comparison:
    """Test forests of five random states, of both kinds of Q: `double-0`, ..., `single-4`."""
    return join([_one_state(run, kind, state) for kind in KINDS for state in range(_NUM_STATES)])


def has_random_states(run: PresetRun) -> bool:
    """Say whether a run holds all of them: ten models take longer to fit than all else about HalfCheetah."""
    return all(run.extra_file(f"robust-{kind}-{state}").exists() for kind in KINDS for state in range(_NUM_STATES))


def _one_state(run: PresetRun, kind: str, state: int) -> Comparison:
    other = run.changed("fqi", double=kind == "double", iterations=min(_ITERATIONS, run.config.fqi.iterations))
    name, label = f"{kind}-{state}", f"{kind} Q, random state {state}"
    return run.kept(f"robust-{name}", lambda: run.test([run.refitted(other, name, label, state)]), ["data"])


def _random_states(run: PresetRun) -> Column:
    comparison = random_states(run)
    # Everything is judged in what is shown: the spread over tasks of HalfCheetah's returns is that of its first ones.
    drawn, quantity, note = shown(run, comparison)
    auc = metric_values(drawn, "auc").reshape(len(KINDS), _NUM_STATES, -1)  # (kinds, states, tasks)
    returns = drawn.returns.reshape(len(KINDS), _NUM_STATES, *drawn.returns.shape[1:]).astype(np.float64)
    rows = [
        {"kind": kind, "random_state": state, "mean_auc": float(row.mean()), "sd_over_tasks": float(row.std(ddof=1))}
        for kind, states in zip(KINDS, auc, strict=True)
        for state, row in enumerate(states)
    ]
    # The unit of the first panel is the random state: a curve is its mean over tasks.
    states = [Line(f"state {i}", row, family_shade("cool", i / 4), has_band=False) for i, row in enumerate(returns[0])]
    mean = Line("mean", returns[0].mean(axis=1), MAIN, is_main=True)
    double, single = returns.mean(axis=1)
    kinds = [Line("double Q", double, MAIN, is_main=True), Line("single Q", single, CONTRAST)]
    panels = [
        curves(f"{run.title}: random states", [mean, *states], ylabel=quantity),
        curves(f"{run.title}: single and double Q", kinds, ylabel=quantity),
    ]
    return Column([Judged(row) for row in _outcomes(run, auc, returns)], panels, comparison, note, rows)


def _outcomes(run: PresetRun, auc: NDArray[np.float64], returns: NDArray[np.float64]) -> list[Outcome]:
    margin = MARGIN * max(float((auc[0] - returns[0, :, :, 0]).mean()), 0.0)
    over_states, over_tasks = auc.std(axis=1, ddof=1), auc.mean(axis=1)  # (kinds, tasks)
    spread = standard_deviation(auc[0].mean(axis=1))
    narrower = spread_difference(
        over_tasks[1], over_tasks[0], seed=run.config.seed, num_resamples=run.config.compare.num_resamples
    )
    double, single = (number(deviation) for deviation in auc.mean(axis=2).std(axis=1, ddof=1))
    deviations = "single minus double: standard deviation over"
    limit = f"the limit is {MARGIN:.0%} of metaFQI's gain, {number(margin)}"
    of_means = f"standard deviation of the mean over tasks: single {single}, double {double}"
    steadier, faster = over_states[1] - over_states[0], over_tasks[0] - over_tasks[1]
    quantities = (
        "standard deviation over random states of the mean AUC",
        f"{deviations} random states of a task's AUC, mean over tasks",
        f"{deviations} tasks of the AUC",
        f"double minus single, mean over random states: {AUC}",
    )
    states, tasks = (_NUM_STATES, "random states"), (auc.shape[2], "tasks")
    outcomes = {
        "The random state of the forest matters little": Outcome(
            "", "", quantities[0], *spread[:3], *states, at_most(spread, margin), limit
        ),
        "Double Q depends less on the random state than single Q": found(better, steadier, quantities[1], of_means),
        "Double Q has the lower variance over tasks": Outcome(
            "", "", quantities[2], *narrower[:3], *tasks, better(narrower)
        ),
        "Double Q learns faster than single Q": found(better, faster, quantities[3]),
    }
    return [outcome._replace(environment=run.title, claim=claim) for claim, outcome in outcomes.items()]


def standard_deviation(values: NDArray[np.float64]) -> Effect:
    """Return the standard deviation of a few numbers with its 95 % interval, taking them as normal (chi-square)."""
    free = len(values) - 1
    deviation = float(values.std(ddof=1))
    low, high = (deviation * np.sqrt(free / stats.chi2.ppf([0.975, 0.025], free))).tolist()
    return Effect(deviation, low, high, verdict(low, high, 0.0, 0.95))


def spread_difference(
    wide: NDArray[np.float64], narrow: NDArray[np.float64], *, seed: int, num_resamples: int
) -> Effect:
    """Return how much more one method varies over tasks than another; the interval resamples tasks."""

    def statistic(first: NDArray[Any], second: NDArray[Any], axis: int = -1) -> NDArray[Any]:
        return np.std(first, axis=axis, ddof=1) - np.std(second, axis=axis, ddof=1)

    ends = bootstrap_interval((wide, narrow), statistic, seed=seed, num_resamples=num_resamples)
    low, high = float(ends[0]), float(ends[1])
    return Effect(float(statistic(wide, narrow)), low, high, verdict(low, high, 0.0, 0.95))


fig_robust = Figure(
    "fig-robust",
    "Left: metaFQI with five random states of the forest, band: 95 % interval over the states. Right: single and double Q, "
    "each the mean over the five states, 95 % intervals over test tasks.",
    _random_states,
    table="states",
    is_turned=True,
)

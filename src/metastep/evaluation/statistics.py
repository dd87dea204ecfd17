"""Paired statistics of a comparison: differences with intervals, corrected p-values, verdicts, and the oracle score.

The task is the unit of replication; how intervals and p-values are made is told in `metastep.evaluation.resampling`.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.evaluation.aggregates import improvement_probability, interquartile_mean
from metastep.evaluation.comparison import Comparison
from metastep.evaluation.resampling import Verdict, bootstrap_interval, holm, mean_interval, paired_test, verdict

Metric = Literal["auc", "final"]


class Interval(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """How much better `target` is than `baseline` on the same tasks."""

    target: str
    baseline: str
    metric: Metric
    mean: float
    low: float
    high: float
    p_value: float
    p_holm: float  # corrected for the number of comparisons made together
    verdict: Verdict
    probability: float  # of improvement: the share of tasks on which the target is better, ties counting half
    probability_low: float
    probability_high: float
    num_tasks: int


class OracleScore(NamedTuple):
    """100 (m - fixed) / (oracle - fixed) of the mean areas under the curve, in percent."""

    method: str
    score: float  # NaN where the oracle is not distinguishable from the fixed step, so that the scale has no length
    low: float
    high: float


class Summary(NamedTuple):
    """One row of the results table."""

    method: str
    auc: Interval
    auc_middle: Interval  # interquartile mean
    final: Interval
    num_diverged: int
    num_flagged: int


def filled_returns(comparison: Comparison, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Curves of the named methods (all by default) with every return finite: (methods, tasks, updates + 1).

    A return that is not finite counts as the worst finite one of these methods on that task: dropping it would reward
    divergence. `Comparison.num_diverged` counts them. Only the named methods matter, so that what is said of a pair does
    not depend on who else took part.
    """
    chosen = [comparison.index(name) for name in (comparison.names if names is None else names)]
    returns = comparison.returns[chosen].astype(np.float64)
    finite = np.isfinite(returns)
    if not finite.any(axis=(0, 2)).all():
        raise InputError("comparison: a task has no finite return of any method.")
    worst = np.where(finite, returns, np.inf).min(axis=(0, 2))  # (tasks,)
    return np.where(finite, returns, worst[:, None])


def metric_values(comparison: Comparison, metric: Metric, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Area under the curve (mean return over updates 1..T) or return after the last update: (methods, tasks).

    Of the named methods, all by default; diverged returns are filled in among them, see `filled_returns`.
    """
    if metric not in get_args(Metric):
        raise InputError(f"metric: {metric!r} must be one of {', '.join(get_args(Metric))}.")
    filled = filled_returns(comparison, names)
    return filled[:, :, 1:].mean(axis=2) if metric == "auc" else filled[:, :, -1]


def differences(
    comparison: Comparison,
    target: str,
    baselines: Sequence[str] | None = None,
    *,
    metric: Metric = "auc",
    seed: int = 0,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[Difference, ...]:
    """The target against every baseline; all methods but the target and the yardsticks by default."""
    if baselines is None:
        baselines = [m.name for m in comparison.methods if m.name != target and not m.is_yardstick]
    if not baselines:
        return ()
    pairs = [(target, name) for name in baselines]
    return _tested(comparison, pairs, metric, seed, num_resamples, confidence)


def all_differences(
    comparison: Comparison,
    metric: Metric = "auc",
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[Difference, ...]:
    """Every pair of methods that are not yardsticks, in their order; p-values are corrected for the number of pairs."""
    pairs = list(combinations([record.name for record in comparison.methods if not record.is_yardstick], 2))
    return _tested(comparison, pairs, metric, seed, num_resamples, confidence) if pairs else ()


def _tested(
    comparison: Comparison,
    pairs: Sequence[tuple[str, str]],
    metric: Metric,
    seed: int,
    num_resamples: int,
    confidence: float,
) -> tuple[Difference, ...]:
    """First minus second of each pair, as one family."""
    values = np.stack([metric_values(comparison, metric, pair) for pair in pairs])  # (pairs, 2, tasks)
    test = paired_test(values[:, 0] - values[:, 1], seed=seed, num_resamples=num_resamples, confidence=confidence)
    corrected = holm(test.p_value)
    improved = improvement_probability(values[:, 0] - values[:, 1], confidence=confidence)
    return tuple(
        Difference(
            target=target,
            baseline=baseline,
            metric=metric,
            mean=float(test.mean[row]),
            low=float(test.low[row]),
            high=float(test.high[row]),
            p_value=float(test.p_value[row]),
            p_holm=float(corrected[row]),
            # Of the pair alone: one effect has one verdict, whoever else it is compared with.
            verdict=verdict(test.low[row], test.high[row], test.p_value[row], confidence),
            probability=float(improved.value[row]),
            probability_low=float(improved.low[row]),
            probability_high=float(improved.high[row]),
            num_tasks=comparison.num_tasks,
        )
        for row, (target, baseline) in enumerate(pairs)
    )


def oracle_scores(
    comparison: Comparison,
    *,
    fixed: str = "fixed",
    oracle: str = "oracle",
    seed: int = 0,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[OracleScore, ...]:
    """Where every method stands between the best fixed step (0 %, chosen on tuning tasks) and the greedy oracle (100 %)."""
    scale = differences(comparison, oracle, [fixed], seed=seed, num_resamples=num_resamples, confidence=confidence)[0]
    if scale.low <= 0.0:
        return tuple(OracleScore(name, np.nan, np.nan, np.nan) for name in comparison.names)

    def share(method: NDArray[Any], start: NDArray[Any], end: NDArray[Any], axis: int = -1) -> NDArray[Any]:
        start_mean = np.mean(start, axis=axis)
        return 100.0 * (np.mean(method, axis=axis) - start_mean) / (np.mean(end, axis=axis) - start_mean)

    scores = []
    for name in comparison.names:
        row, zero, full = metric_values(comparison, "auc", (name, fixed, oracle))
        low, high = bootstrap_interval(
            (row, zero, full), share, seed=seed, num_resamples=num_resamples, confidence=confidence
        )
        scores.append(OracleScore(name, float(share(row, zero, full)), float(low), float(high)))
    return tuple(scores)


def summary(
    comparison: Comparison, *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[Summary, ...]:
    """Area under the curve and final return of every method, with intervals over tasks, and what went wrong.

    A diverged return counts as the worst of any method on its task.
    """
    intervals = {}
    for metric in get_args(Metric):
        values = metric_values(comparison, metric)
        low, high = mean_interval(values, confidence=confidence)
        intervals[metric] = [Interval(*map(float, row)) for row in zip(values.mean(axis=1), low, high, strict=True)]
    auc = metric_values(comparison, "auc")
    middle = interquartile_mean(auc, seed=seed, num_resamples=num_resamples, confidence=confidence)
    middles = [Interval(*map(float, row)) for row in zip(*middle, strict=True)]
    diverged, flagged = comparison.num_diverged(), comparison.num_flagged()
    return tuple(
        Summary(name, intervals["auc"][row], middles[row], intervals["final"][row], diverged[name], flagged[name])
        for row, name in enumerate(comparison.names)
    )

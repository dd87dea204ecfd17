"""Paired statistics: differences with bootstrap intervals, corrected p-values, verdicts, and the oracle score.

The task is the unit of replication. Intervals are SciPy's percentile bootstrap with the level widened by Hesterberg's rule
(What teachers should know about the bootstrap, 2015): the plain one is too narrow by sqrt((n - 1)/n) and by the difference
between normal and t quantiles, which shows at 20 tasks. BCa was tried and covers less for heavy tails. P-values come from
random sign flips, exact when two methods are exchangeable within a task.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.errors import InputError
from metastep.evaluation.comparison import Comparison

Metric = Literal["auc", "final"]
Verdict = Literal["better", "worse", "not distinguishable"]

_BATCH_ELEMENTS = 1 << 19
"""Resampled numbers held at once: few enough to stay in the cache."""


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
    p_holm: float  # corrected for the number of baselines
    verdict: Verdict
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
    final: Interval
    num_diverged: int
    num_flagged: int


class PairedTest(NamedTuple):
    """Mean differences of several comparisons, with intervals and p-values; each (comparisons,)."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p_value: NDArray[np.float64]


def metric_values(comparison: Comparison, metric: Metric) -> NDArray[np.float64]:
    """Area under the curve (mean return over updates 1..T) or return after the last update: (methods, tasks).

    A return that is not finite counts as the worst finite one of any method on that task: dropping it would reward
    divergence. `Comparison.num_diverged` counts them.
    """
    if metric not in get_args(Metric):
        raise InputError(f"metric: {metric!r} must be one of {', '.join(get_args(Metric))}.")
    returns = comparison.returns.astype(np.float64)
    finite = np.isfinite(returns)
    if not finite.any(axis=(0, 2)).all():
        raise InputError("comparison: a task has no finite return of any method.")
    worst = np.where(finite, returns, np.inf).min(axis=(0, 2))  # (tasks,)
    filled = np.where(finite, returns, worst[:, None])
    return filled[:, :, 1:].mean(axis=2) if metric == "auc" else filled[:, :, -1]


def _widened(confidence: float, num: int) -> float:
    """The level at which a percentile interval of `num` numbers has the width of a t interval."""
    quantile = stats.t.ppf((1.0 - confidence) / 2.0, num - 1) * np.sqrt(num / (num - 1))
    return float(1.0 - 2.0 * stats.norm.cdf(quantile))


def bootstrap_interval(
    data: Sequence[NDArray[np.float64]],
    statistic: Any,
    *,
    seed: int,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interval of a statistic of paired samples (..., tasks), resampling tasks; the same resamples for all rows."""
    num = data[0].shape[-1]
    if num < 2:
        raise InputError(f"statistics: {num} task; an interval needs at least 2.")
    result = stats.bootstrap(
        tuple(data),
        statistic,
        n_resamples=num_resamples,
        batch=max(1, _BATCH_ELEMENTS // max(array.size for array in data)),
        vectorized=True,
        paired=True,
        axis=-1,
        confidence_level=_widened(confidence, num),
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return np.asarray(result.confidence_interval.low), np.asarray(result.confidence_interval.high)


def _mean(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.mean(values, axis=axis)


def sign_flip_p_values(differences: NDArray[np.float64], *, seed: int, num_flips: int) -> NDArray[np.float64]:
    """Two-sided p-values that the mean of (comparisons, tasks) is zero: share of random sign flips that are as extreme."""
    rng = np.random.default_rng(seed)
    signs = 2.0 * rng.integers(0, 2, (num_flips, differences.shape[1])) - 1.0
    observed = np.abs(differences.sum(axis=1))
    # Equal sums may differ by rounding; they must count as extreme.
    extreme = np.abs(signs @ differences.T) >= observed * (1.0 - 1e-12)
    return (1.0 + extreme.sum(axis=0)) / (1.0 + num_flips)


def paired_test(
    differences: NDArray[np.float64], *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> PairedTest:
    """Test differences (comparisons, tasks), each row on its own."""
    low, high = bootstrap_interval((differences,), _mean, seed=seed, num_resamples=num_resamples, confidence=confidence)
    p_value = sign_flip_p_values(differences, seed=seed, num_flips=num_resamples)
    return PairedTest(differences.mean(axis=1), low, high, p_value)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction of one family: p_(i) (m - i + 1), made monotone, at most 1."""
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected


def verdict(low: float, high: float, p_holm: float, confidence: float) -> Verdict:
    """Better or worse when the interval excludes 0 and the corrected p-value is below 1 - confidence."""
    if p_holm >= 1.0 - confidence or low <= 0.0 <= high:
        return "not distinguishable"
    return "better" if low > 0.0 else "worse"


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
    values = metric_values(comparison, metric)
    rows = values[[comparison.index(name) for name in baselines]]
    test = paired_test(
        values[comparison.index(target)] - rows, seed=seed, num_resamples=num_resamples, confidence=confidence
    )
    corrected = holm(test.p_value)
    return tuple(
        Difference(
            target=target,
            baseline=name,
            metric=metric,
            mean=float(test.mean[row]),
            low=float(test.low[row]),
            high=float(test.high[row]),
            p_value=float(test.p_value[row]),
            p_holm=float(corrected[row]),
            verdict=verdict(test.low[row], test.high[row], corrected[row], confidence),
            num_tasks=comparison.num_tasks,
        )
        for row, name in enumerate(baselines)
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
    values = metric_values(comparison, "auc")
    zero, full = values[comparison.index(fixed)], values[comparison.index(oracle)]
    scale = differences(comparison, oracle, [fixed], seed=seed, num_resamples=num_resamples, confidence=confidence)[0]
    if scale.low <= 0.0:
        return tuple(OracleScore(name, np.nan, np.nan, np.nan) for name in comparison.names)

    def share(method: NDArray[Any], start: NDArray[Any], end: NDArray[Any], axis: int = -1) -> NDArray[Any]:
        start_mean = np.mean(start, axis=axis)
        return 100.0 * (np.mean(method, axis=axis) - start_mean) / (np.mean(end, axis=axis) - start_mean)

    scores = []
    for name, row in zip(comparison.names, values, strict=True):
        low, high = bootstrap_interval(
            (row, zero, full), share, seed=seed, num_resamples=num_resamples, confidence=confidence
        )
        scores.append(OracleScore(name, float(share(row, zero, full)), float(low), float(high)))
    return tuple(scores)


def summary(
    comparison: Comparison, *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[Summary, ...]:
    """Area under the curve and final return of every method, with intervals over tasks, and what went wrong."""
    intervals = {}
    for metric in get_args(Metric):
        values = metric_values(comparison, metric)
        low, high = bootstrap_interval((values,), _mean, seed=seed, num_resamples=num_resamples, confidence=confidence)
        intervals[metric] = [Interval(*map(float, row)) for row in zip(values.mean(axis=1), low, high, strict=True)]
    diverged, flagged = comparison.num_diverged(), comparison.num_flagged()
    return tuple(
        Summary(name, intervals["auc"][row], intervals["final"][row], diverged[name], flagged[name])
        for row, name in enumerate(comparison.names)
    )

"""Confidence intervals and tests of numbers over tasks; the task is the unit of replication.

The interval of a mean is that of Johnson's skewness-adjusted t statistic (Modified t tests and confidence intervals for
asymmetrical populations, JASA 73, 1978) in Hall's monotone form (On the removal of skewness by transformation, JRSS B 54, 1992)
with Student's quantiles, as Willink proposes (A confidence interval and test for the mean of an asymmetric distribution,
Communications in Statistics 34, 2005). With the t statistic t = (m - mu) / (s / sqrt(n)), the third central moment mu_3 and
a = mu_3 / (6 sqrt(n) s^3),

    g(t) = ((1 + 2 a t)^3 - 1) / (6 a) + a = t + 2 a t^2 + 4/3 a^2 t^3 + a

has Student's distribution up to a smaller error than t, and the interval holds every mean with |g(t)| below Student's quantile.
`benchmarks/calibration.py` compares its coverage with that of Student's t, Johnson's own interval and SciPy's percentile and BCa
bootstrap: it is the nearest to 95 %. Of numbers with two heavy tails it covers too rarely; there the sign flips decide, since a
p-value is the larger of two: that of the interval, and that of random sign flips, which is exact for symmetric differences.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep._core.errors import InputError

Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "not distinguishable"]

_BATCH_ELEMENTS = 1 << 19  # resampled numbers held at once: few enough to stay in the cache
_ADDED = 2.0  # wins and losses added to a proportion; one of each covers in at most 92 % of some samples of 20 tasks


class Interval(NamedTuple):
    """A mean and its confidence interval: numbers, or arrays with one for each row."""

    mean: Any
    low: Any
    high: Any


def _checked(values: Array) -> Array:
    """Return values; fewer than 2 tasks or a value that is not finite is an error."""
    if values.shape[-1] < 2:
        raise InputError(f"statistics: {values.shape[-1]} task; an interval needs at least 2.")
    if not np.isfinite(values).all():
        raise InputError("statistics: a value is not finite; fill in diverged tasks first (`filled_returns` does).")
    return values


def _moments(values: Array) -> tuple[Array, Array, Array]:
    """Return the mean of each row, its standard error (0 where all numbers are equal) and a = mu_3 / (6 sqrt(n) s^3)."""
    num = _checked(values).shape[-1]
    mean, deviation = values.mean(axis=1), values.std(axis=1, ddof=1)
    # Rounding gives equal numbers a deviation that is not quite zero.
    deviation = np.where(deviation > 1e-12 * np.abs(values).max(axis=1), deviation, 0.0)
    standard = (values - mean[:, None]) / np.where(deviation > 0.0, deviation, 1.0)[:, None]
    third = (standard**3).sum(axis=1) * num / ((num - 1) * max(num - 2, 1))
    return mean, deviation / np.sqrt(num), np.where(deviation > 0.0, third, 0.0) / (6.0 * np.sqrt(num))


def mean_interval(values: Array, *, confidence: float = 0.95) -> tuple[Array, Array]:
    """Return the ends of the skewness-adjusted t interval of the mean of each row of (rows, tasks)."""
    mean, error, skew = _moments(values)
    quantile = stats.t.ppf((1.0 + confidence) / 2.0, values.shape[1] - 1)
    safe = np.where(np.abs(skew) < 1e-6, 1.0, skew)

    def inverse(adjusted: float) -> Array:
        exact = (np.cbrt(1.0 + 6.0 * safe * (adjusted - safe)) - 1.0) / (2.0 * safe)
        return np.where(np.abs(skew) < 1e-6, adjusted, exact)

    return mean - error * inverse(quantile), mean - error * inverse(-quantile)


def paired_test(
    differences: Array, *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[Array, Array, Array, Array]:
    """Return mean, interval ends and p-value (that the mean is zero) of each row of (comparisons, tasks), on its own."""
    mean, error, skew = _moments(differences)
    t = mean / np.where(error > 0.0, error, 1.0)
    adjusted = t + 2.0 * skew * t**2 + 4.0 / 3.0 * skew**2 * t**3 + skew
    by_interval = 2.0 * stats.t.sf(np.abs(adjusted), differences.shape[1] - 1)
    by_flips = sign_flip_p_values(differences, seed=seed, num_flips=num_resamples)
    # Equal numbers have no t statistic; the flips decide alone.
    p_value = np.where(error > 0.0, np.maximum(by_flips, by_interval), by_flips)
    return mean, *mean_interval(differences, confidence=confidence), p_value


def sign_flip_p_values(differences: Array, *, seed: int, num_flips: int) -> Array:
    """Return two-sided p-values that the mean of (comparisons, tasks) is zero: the share of sign flips as extreme."""
    signs = 2.0 * np.random.default_rng(seed).integers(0, 2, (num_flips, differences.shape[1])) - 1.0
    observed = np.abs(differences.sum(axis=1))
    # Equal sums may differ by rounding; they must count as extreme.
    extreme = np.abs(signs @ differences.T) >= observed * (1.0 - 1e-12)
    return (1.0 + extreme.sum(axis=0)) / (1.0 + num_flips)


def holm(p_values: Array) -> Array:
    """Correct the p-values of one family by Holm's method: p_(i) (m - i + 1), made monotone, at most 1."""
    order, corrected = np.argsort(p_values, kind="stable"), np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1)), 1.0)
    return corrected


def verdict(low: float, high: float, p_value: float, confidence: float) -> Verdict:
    """Return better or worse where the interval excludes 0 and the p-value is below 1 - confidence."""
    if p_value >= 1.0 - confidence or low <= 0.0 <= high:
        return "not distinguishable"
    return "better" if low > 0.0 else "worse"


def bootstrap_interval(
    data: Sequence[Array], statistic: Any, *, seed: int, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[Array, Array]:
    """Return SciPy's percentile interval of any statistic of paired samples (..., tasks), resampling tasks.

    The level is widened by Hesterberg's rule (What teachers should know about the bootstrap, 2015): the plain interval is too
    narrow by sqrt((n - 1)/n) and by the difference between normal and t quantiles, which shows at 20 tasks.
    """
    num = _checked(data[0]).shape[-1]
    quantile = stats.t.ppf((1.0 - confidence) / 2.0, num - 1) * np.sqrt(num / (num - 1))
    options: Any = {"vectorized": True, "paired": True, "axis": -1, "method": "percentile"}
    options |= {"n_resamples": num_resamples, "batch": max(1, _BATCH_ELEMENTS // max(array.size for array in data))}
    level, rng = float(1.0 - 2.0 * stats.norm.cdf(quantile)), np.random.default_rng(seed)
    result = stats.bootstrap(tuple(data), statistic, confidence_level=level, rng=rng, **options)
    return np.asarray(result.confidence_interval.low), np.asarray(result.confidence_interval.high)


def interquartile_mean(values: Array, *, seed: int, num_resamples: int = 10_000, confidence: float = 0.95) -> Interval:
    """Return the mean of each row of (rows, tasks) without its lowest and highest quarter (rounded down)."""
    middle_mean = partial(stats.trim_mean, proportiontocut=0.25)
    ends = bootstrap_interval((values,), middle_mean, seed=seed, num_resamples=num_resamples, confidence=confidence)
    return Interval(middle_mean(values, axis=-1), *ends)


def improvement_probability(differences: Array, *, confidence: float = 0.95) -> Interval:
    """Return the share of positive differences in each row of (comparisons, tasks); a difference of zero counts half.

    The interval is the adjusted Wald interval of paired proportions (Bonett and Price 2012) with two added wins and losses,
    that of Agresti and Coull where nothing ties. Unlike a bootstrap it keeps its length where all tasks agree.
    """
    num = _checked(differences).shape[-1]
    wins, losses = (differences > 0.0).sum(axis=-1), (differences < 0.0).sum(axis=-1)
    win, loss = (wins + _ADDED) / (num + 2.0 * _ADDED), (losses + _ADDED) / (num + 2.0 * _ADDED)
    half = stats.norm.ppf((1.0 + confidence) / 2.0) * np.sqrt((win + loss - (win - loss) ** 2) / (num + 2.0 * _ADDED))
    low, high = (np.clip(0.5 + (win - loss + side * half) / 2.0, 0.0, 1.0) for side in (-1.0, 1.0))
    return Interval(0.5 + (wins - losses) / (2.0 * num), low, high)

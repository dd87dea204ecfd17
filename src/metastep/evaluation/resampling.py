"""Tests of paired samples by resampling: intervals, p-values, their correction, verdicts. The task is the unit.

The interval of a mean is the symmetric bootstrap-t: `m +- q s/sqrt(n)` with q the quantile of `|m* - m| sqrt(n)/s*` over
resamples, each studentised by its own deviation. Measured on 8,000 null comparisons of 100 tasks it covers in 94.5 %
(normal), 95.2 % (Laplace), 95.8 % (Student's t with 3 degrees of freedom) and 94.8 % (exponential, skewness 2); the
percentile interval and BCa cover less when skewed, and BCa and the bootstrap-t with tails of its own fall below 93.5 % for
heavy tails. Limits: at 20 tasks of skewness 2 it covers in 93.3 %, and four of five intervals that miss skewed data lie
too far from the long tail.

A p-value is the larger of two. That of random sign flips is exact where two methods are exchangeable within a task (and
studentising it would change nothing: a flip leaves the sum of squares as it is, so that t orders flips as the mean does). That
of the bootstrap-t, the share of resamples with a larger |t*|, holds where differences are skewed: there the flips alone would
give families of five true nulls a false win in 8.4 % after Holm's correction, the larger of both in 5.3 %. False wins of
single comparisons at 100 tasks are 4.2 to 5.0 % for those four distributions (10,000 each).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.errors import InputError

Verdict = Literal["better", "worse", "not distinguishable"]

_BATCH_ELEMENTS = 1 << 19
"""Resampled numbers held at once: few enough to stay in the cache."""


class PairedTest(NamedTuple):
    """Mean differences of several comparisons, with intervals and p-values; each (comparisons,)."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p_value: NDArray[np.float64]


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
    """Percentile interval of any statistic of paired samples (..., tasks), resampling tasks; the same resamples for all rows.

    SciPy's, with the level widened by Hesterberg's rule (What teachers should know about the bootstrap, 2015): the plain one
    is too narrow by sqrt((n - 1)/n) and by the difference between normal and t quantiles, which shows at 20 tasks.
    """
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


def _resample_counts(num: int, num_resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each of `num` tasks is in each resample, in batches (resamples, tasks)."""
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH_ELEMENTS // num)
    for first in range(0, num_resamples, batch):
        size = min(batch, num_resamples - first)
        drawn = rng.integers(0, num, (size, num)) + num * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * num).reshape(size, num).astype(np.float64)


class _Studentised(NamedTuple):
    """Rows of numbers beside the t statistics of their resamples; each (rows,) but the last."""

    mean: NDArray[np.float64]
    error: NDArray[np.float64]  # the standard error; 0 where all numbers are equal
    extremes: NDArray[np.float64]  # (resamples, rows): |m* - m| sqrt(n)/s*, infinite where s* is 0


def _studentised(values: NDArray[np.float64], seed: int, num_resamples: int) -> _Studentised:
    num = values.shape[-1]
    if num < 2:
        raise InputError(f"statistics: {num} task; an interval needs at least 2.")
    mean, deviation = values.mean(axis=1), values.std(axis=1, ddof=1)
    # Rounding gives equal numbers a deviation that is not quite zero.
    deviation = np.where(deviation > 1e-12 * np.abs(values).max(axis=1), deviation, 0.0)
    standard = (values - mean[:, None]) / np.where(deviation > 0.0, deviation, 1.0)[:, None]
    squares = standard * standard
    extremes = []
    for counts in _resample_counts(num, num_resamples, seed):
        shift = counts @ standard.T / num  # (resamples, rows)
        variance = (counts @ squares.T / num - shift * shift) * (num / (num - 1))
        # A resample of one repeated number has no spread, up to rounding.
        known = variance > 1e-12
        statistic = np.abs(shift) * np.sqrt(num / np.where(known, variance, 1.0))
        extremes.append(np.where(known | (np.abs(shift) < 1e-12), statistic, np.inf))
    return _Studentised(mean, deviation / np.sqrt(num), np.concatenate(extremes))


def _interval(found: _Studentised, num: int, confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    quantile = np.quantile(found.extremes, confidence, axis=0, method="higher")
    quantile = np.where(np.isfinite(quantile), quantile, stats.t.ppf((1.0 + confidence) / 2.0, num - 1))
    return found.mean - quantile * found.error, found.mean + quantile * found.error


def mean_interval(
    values: NDArray[np.float64], *, seed: int, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Symmetric bootstrap-t interval of the mean of each row of (rows, tasks); the same resamples for all rows.

    Equal numbers have an interval of no length. Where so many resamples have no spread of their own that the quantile is
    infinite (two or three tasks, or a single one that differs), Student's quantile takes its place.
    """
    return _interval(_studentised(values, seed, num_resamples), values.shape[-1], confidence)


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
    """Test differences (comparisons, tasks), each row on its own; the p-value is the larger of sign flips' and bootstrap-t's."""
    found = _studentised(differences, seed, num_resamples)
    low, high = _interval(found, differences.shape[-1], confidence)
    as_extreme = found.extremes * found.error >= np.abs(found.mean) * (1.0 - 1e-12)
    by_resampling = (1.0 + as_extreme.sum(axis=0)) / (1.0 + num_resamples)
    by_flips = sign_flip_p_values(differences, seed=seed, num_flips=num_resamples)
    # Equal numbers have no t statistic; then the flips decide alone.
    p_value = np.where(found.error > 0.0, np.maximum(by_flips, by_resampling), by_flips)
    return PairedTest(found.mean, low, high, p_value)


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

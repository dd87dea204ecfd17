"""Intervals and tests of means over tasks: how they are made, their correction, verdicts. The task is the unit.

The interval of a mean, of differences too, is Student's with a stretched long side: `m - q s/sqrt(n)` to `m + q s/sqrt(n)`,
where the end on the side of the longer tail lies up to twice as far from m. With G the (adjusted) sample skewness it lies
`1 + min(1, (2.4 q G)^2 / n^1.5)` times as far. Student's interval of skewed numbers misses on that side, because a sample
without its rare large numbers has too small a mean and too small a deviation; of numbers with two heavy tails it misses on
the other side, so that the stretch costs those only width. It cannot be wider than 1.5 times Student's interval, and it stays
within the range of the numbers, which the mean leaves only by an odd chance. Nothing is drawn, so that tables and the bands of
figures can use it alike. `benchmarks/calibration.py` measures it, docs/calibration.md has the result: 95 % intervals cover in
93.6 to 96.6 % of samples of 20, 32 and 100 tasks for normal, heavy-tailed, Laplace, exponential, beta and log-normal numbers.
Limits: of 20 tasks of which one in ten differs, only two do on average, and no interval of that width can cover in 95 %.

A p-value is the larger of two. That of random sign flips is exact where two methods are exchangeable within a task (and
studentising it would change nothing: a flip leaves the sum of squares as it is, so that t orders flips as the mean does). That
of the interval, the level at which it begins to reach zero, is the better one where differences are skewed.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep._core.errors import InputError

Verdict = Literal["better", "worse", "not distinguishable"]

_BATCH_ELEMENTS = 1 << 19
"""Resampled numbers held at once: few enough to stay in the cache."""

_STRETCH = 2.4
"""With the power 1.5 of the number of tasks fitted to the targets of docs/calibration.md; other nulls there were held out."""


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


class _Sample(NamedTuple):
    """What the intervals of several rows are made of; each (rows,) but the first."""

    num: int
    mean: NDArray[np.float64]
    error: NDArray[np.float64]  # the standard error; 0 where all numbers are equal
    skewness: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]

    def bend(self) -> NDArray[np.float64]:
        """How the stretch grows with the squared quantile."""
        return (_STRETCH * self.skewness) ** 2 / self.num**1.5

    def range_level(self) -> float:
        """Intervals with at least this much beyond them stay in the range: ten times the odds of all on a side of the median."""
        return 10.0 * 2.0 ** (1 - self.num)


def _sample(values: NDArray[np.float64]) -> _Sample:
    num = values.shape[-1]
    if num < 2:
        raise InputError(f"statistics: {num} task; an interval needs at least 2.")
    mean, deviation = values.mean(axis=1), values.std(axis=1, ddof=1)
    # Rounding gives equal numbers a deviation that is not quite zero.
    deviation = np.where(deviation > 1e-12 * np.abs(values).max(axis=1), deviation, 0.0)
    standard = (values - mean[:, None]) / np.where(deviation > 0.0, deviation, 1.0)[:, None]
    skewness = np.where(deviation > 0.0, (standard**3).sum(axis=1) * num / ((num - 1) * max(num - 2, 1)), 0.0)
    return _Sample(num, mean, deviation / np.sqrt(num), skewness, values.min(axis=1), values.max(axis=1))


def _interval(sample: _Sample, confidence: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    quantile = stats.t.ppf((1.0 + confidence) / 2.0, sample.num - 1)
    half = quantile * sample.error
    long = half * (1.0 + np.minimum(1.0, sample.bend() * quantile**2))
    low = sample.mean - np.where(sample.skewness < 0.0, long, half)
    high = sample.mean + np.where(sample.skewness > 0.0, long, half)
    if sample.range_level() > 1.0 - confidence:
        return low, high
    return np.maximum(low, sample.least), np.minimum(high, sample.most)


def _p_values(sample: _Sample) -> NDArray[np.float64]:
    """The largest levels 1 - confidence at which the intervals contain zero."""
    statistic = np.abs(sample.mean) / np.where(sample.error > 0.0, sample.error, 1.0)
    # The quantile q with q min(2, 1 + bend q^2) = |t|, by Cardano's formula, where zero lies on the stretched side.
    root = np.sqrt(3.0 * np.where(sample.mean * sample.skewness < 0.0, sample.bend(), 0.0))
    safe = np.where(root > 1e-6, root, 1.0)
    bent = np.where(root > 1e-6, 2.0 / safe * np.sinh(np.arcsinh(1.5 * safe * statistic) / 3.0), statistic)
    p_value = 2.0 * stats.t.sf(np.maximum(bent, statistic / 2.0), sample.num - 1)
    is_outside = (sample.least > 0.0) | (sample.most < 0.0)
    return np.where(is_outside, np.minimum(p_value, sample.range_level()), p_value)


def mean_interval(
    values: NDArray[np.float64], *, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interval of the mean of each row of (rows, tasks): Student's, its long side stretched, within the range of the row.

    Equal numbers have an interval of no length.
    """
    return _interval(_sample(values), confidence)


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
    """Test differences (comparisons, tasks), each row on its own; the p-value is the larger of sign flips' and the interval's."""
    sample = _sample(differences)
    low, high = _interval(sample, confidence)
    by_flips = sign_flip_p_values(differences, seed=seed, num_flips=num_resamples)
    # Equal numbers have no t statistic; then the flips decide alone.
    p_value = np.where(sample.error > 0.0, np.maximum(by_flips, _p_values(sample)), by_flips)
    return PairedTest(sample.mean, low, high, p_value)


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction of one family: p_(i) (m - i + 1), made monotone, at most 1."""
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected


def verdict(low: float, high: float, p_holm: float, confidence: float) -> Verdict:
    """Better or worse when the interval excludes 0 and the p-value is below 1 - confidence."""
    if p_holm >= 1.0 - confidence or low <= 0.0 <= high:
        return "not distinguishable"
    return "better" if low > 0.0 else "worse"

"""Intervals over several seeds of training, of which the library has one."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from metastep import InputError
from metastep.evaluation.intervals import Array, Interval

_ELEMENTS = 1 << 19  # resampled numbers held at once


def hierarchical_interval(
    values: Array, *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> Interval:
    """Return the mean of (seeds, tasks) with an interval over seeds and tasks, by a hierarchical bootstrap.

    A model that is fitted on new data differs by more than the error over tasks says. Each resample draws tasks within every
    seed, with replacement, and adds a draw of the seeds' own error: Student's t with k - 1 degrees, times
    sqrt((b - w/2) / k) where b > w/2, for the variance b of the means of k seeds, of which tasks explain w = s^2 / n. No library
    has it: resampling the seeds themselves covers in as few as 74 % for k = 3, and the unbiased b - w is negative too often for
    so few seeds. Half of w is a compromise between that and b, and covers in 92 to 98 % (`benchmarks/calibration.py`).
    """
    if values.ndim != 2 or min(values.shape) < 2 or not np.isfinite(values).all():
        need = "an interval over seeds needs 2 seeds or more, 2 tasks or more and finite numbers"
        raise InputError(f"statistics: values of shape {values.shape}; {need}.")
    (num_seeds, num), rng = values.shape, np.random.default_rng(seed)
    means, within = values.mean(axis=1), values.var(axis=1, ddof=1).mean() / num
    drawn, rows = _errors_of_seeds(means, within, rng, num_resamples), max(1, _ELEMENTS // num)
    for first in range(0, num_resamples, rows):
        part = drawn[first : first + rows]
        for tasks in values:
            part += tasks[rng.integers(0, num, (len(part), num))].mean(axis=1) / num_seeds
    ends = np.quantile(drawn, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return Interval(float(means.mean()), *ends.tolist())


def summarised_interval(
    seeds: Sequence[tuple[float, float, float]], *, num_draws: int = 100_000, confidence: float = 0.95
) -> Interval:
    """Return the mean effect over seeds with an interval as of `hierarchical_interval`, from (mean, low, high) of every seed.

    The error over tasks is taken as normal, with the width of the seed's interval.
    """
    means, low, high = np.array(seeds, np.float64).T
    errors, rng = (high - low) / (2.0 * stats.norm.ppf((1.0 + confidence) / 2.0)), np.random.default_rng(0)
    drawn = means.mean() + _errors_of_seeds(means, (errors**2).mean(), rng, num_draws)
    drawn += np.sqrt((errors**2).sum()) / len(means) * rng.standard_normal(num_draws)
    ends = np.quantile(drawn, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return Interval(float(means.mean()), *ends.tolist())


def _errors_of_seeds(means: Array, within: float, rng: np.random.Generator, num: int) -> Array:
    """Draw the error of the mean that comes from the seeds themselves, where tasks explain `within` of their variance."""
    between = max(float(means.var(ddof=1) - within / 2.0), 0.0)
    return np.sqrt(between / len(means)) * rng.standard_t(len(means) - 1, num)

"""Intervals over several seeds of training, of which the library has one."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from metastep.evaluation.intervals import Interval


def summarised_interval(
    seeds: Sequence[tuple[float, float, float]], *, num_draws: int = 100_000, confidence: float = 0.95
) -> Interval:
    """Return the mean effect over seeds with an interval as of `hierarchical_interval`, from (mean, low, high) of every seed.

    The error over tasks is taken as normal, with the width of the seed's interval.
    """
    means, low, high = np.array(seeds, np.float64).T
    errors, rng = (high - low) / (2.0 * stats.norm.ppf((1.0 + confidence) / 2.0)), np.random.default_rng(0)
    between = max(float(means.var(ddof=1) - (errors**2).mean() / 2.0), 0.0)
    drawn = means.mean() + np.sqrt(between / len(means)) * rng.standard_t(len(means) - 1, num_draws)
    drawn += np.sqrt((errors**2).sum()) / len(means) * rng.standard_normal(num_draws)
    ends = np.quantile(drawn, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return Interval(float(means.mean()), *ends.tolist())

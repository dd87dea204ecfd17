"""Aggregates beside the mean that single tasks cannot pull far: interquartile mean, probability of improvement, profiles.

The first two have intervals over tasks; docs/calibration.md tells how often these cover.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep._core.errors import InputError
from metastep.evaluation.resampling import bootstrap_interval

_ADDED = 2.0
"""Made-up wins, and as many losses: one of each covers in no more than 92 % of some samples of 20 tasks."""


class Aggregate(NamedTuple):
    """One number for each row, with its interval; each (rows,)."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def _middle_mean(values: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    values = np.moveaxis(values, axis, -1)
    num = values.shape[-1]
    first = num // 4
    return np.partition(values, (first, num - first - 1), axis=-1)[..., first : num - first].mean(axis=-1)


def interquartile_mean(
    values: NDArray[np.float64], *, seed: int, num_resamples: int = 10_000, confidence: float = 0.95
) -> Aggregate:
    """Mean of each row of (rows, tasks) without its lowest and highest quarter (rounded down); percentile interval."""
    low, high = bootstrap_interval(
        (values,), _middle_mean, seed=seed, num_resamples=num_resamples, confidence=confidence
    )
    return Aggregate(_middle_mean(values), low, high)


def improvement_probability(differences: NDArray[np.float64], *, confidence: float = 0.95) -> Aggregate:
    """Share of tasks with a positive difference, of each row of (comparisons, tasks); a difference of zero counts half.

    The interval is the adjusted Wald interval of paired proportions (Bonett and Price 2012) with two made-up wins and losses,
    that of Agresti and Coull where nothing ties. Unlike a bootstrap it keeps its length where all tasks agree.
    """
    num = differences.shape[-1]
    if num < 2:
        raise InputError(f"statistics: {num} task; an interval needs at least 2.")
    wins, losses = (differences > 0.0).sum(axis=-1), (differences < 0.0).sum(axis=-1)
    win, loss = (wins + _ADDED) / (num + 2.0 * _ADDED), (losses + _ADDED) / (num + 2.0 * _ADDED)
    half = stats.norm.ppf((1.0 + confidence) / 2.0) * np.sqrt((win + loss - (win - loss) ** 2) / (num + 2.0 * _ADDED))
    low, high = (np.clip(0.5 + (win - loss + side * half) / 2.0, 0.0, 1.0) for side in (-1.0, 1.0))
    return Aggregate(0.5 + (wins - losses) / (2.0 * num), low, high)


def performance_profile(values: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of tasks on which each row of (rows, tasks) reaches each level: (rows, levels); it falls from 1 to 0."""
    ordered = np.sort(values, axis=-1)
    below = np.stack([np.searchsorted(row, levels, side="left") for row in ordered])
    return np.asarray(1.0 - below / values.shape[-1])


def shortfall(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each row of (rows, tasks) stays behind the best row of the task: (rows, tasks), not negative."""
    return np.asarray(values.max(axis=0) - values)

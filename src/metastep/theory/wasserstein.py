"""Kantorovich (Wasserstein-1) distances between samples: exact on the line, bracketed in several dimensions.

`W(p, q) = sup |E_p f - E_q f|` over 1-Lipschitz f. On the line it is the area between the distribution functions. A projection
on a unit vector is 1-Lipschitz, so the distance of the projections is a lower (dual) bound in several dimensions; any pairing
of the samples is an upper (primal) one.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import wasserstein_distance

from metastep.errors import InputError

Floats = NDArray[np.float64]


def on_the_line(left: ArrayLike, right: ArrayLike) -> float:
    """The exact distance of two one-dimensional samples, of any sizes."""
    return float(wasserstein_distance(np.ravel(np.asarray(left, np.float64)), np.ravel(np.asarray(right, np.float64))))


def dual_bound(left: ArrayLike, right: ArrayLike, num_directions: int = 64, seed: int = 0) -> float:
    """A lower bound of the distance of two samples (points, coordinates): the largest distance of projections on the line.

    The direction between the means is always tried, so the bound is exact when one sample is the other one shifted; the
    coordinate axes and `num_directions` random directions follow.
    """
    first, second = _points(left, "left"), _points(right, "right")
    if first.shape[1] != second.shape[1]:
        raise InputError(f"right: points with {second.shape[1]} coordinates, expected {first.shape[1]} as in left.")
    size = first.shape[1]
    if size == 1:
        return on_the_line(first, second)
    random = np.random.default_rng(seed).normal(size=(num_directions, size))
    shift = second.mean(axis=0) - first.mean(axis=0)
    directions = np.concatenate([shift[None], np.eye(size), random])
    lengths = np.linalg.norm(directions, axis=1)
    return max(
        on_the_line(first @ direction / length, second @ direction / length)
        for direction, length in zip(directions, lengths, strict=True)
        if length > 0.0
    )


def paired_bounds(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Lower and upper bounds for many pairs of equally large samples drawn with common random numbers.

    Args:
        left, right: (pairs, draws, coordinates); draw i of both comes from the same noise.

    Returns:
        (pairs,) each: the dual bound over the direction between the means and the coordinate axes, and the mean distance of
        paired points. Both equal the distance when noise is added to the state; on the line the lower one always does.
    """
    shift = np.mean(right - left, axis=1)
    length = np.linalg.norm(shift, axis=-1, keepdims=True)
    along = shift / np.where(length > 0.0, length, 1.0)
    projected = [np.einsum("pdc,pc->pd", sample, along) for sample in (left, right)]
    lower = np.mean(np.abs(np.sort(projected[1], axis=1) - np.sort(projected[0], axis=1)), axis=1)
    by_axis = np.mean(np.abs(np.sort(right, axis=1) - np.sort(left, axis=1)), axis=1)
    upper = np.mean(np.linalg.norm(right - left, axis=-1), axis=1)
    return np.maximum(lower, np.max(by_axis, axis=-1)), upper


def _points(sample: ArrayLike, field: str) -> Floats:
    points = np.asarray(sample, np.float64)
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or not points.size:
        raise InputError(
            f"{field}: an array of shape {points.shape}, expected (points, coordinates) with at least one point."
        )
    return points

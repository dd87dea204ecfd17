"""Extremely randomised trees in Numba: what scikit-learn's ExtraTreesRegressor fits, several times faster.

The algorithm is Geurts, Ernst and Wehenkel's with scikit-learn's conventions: every node draws one uniform threshold
between the minimum and the maximum of each feature and keeps the one with the largest variance reduction; constant
features are skipped; all rows are used (no bootstrap); a node with fewer rows than the minimum, or with constant
targets, is a leaf. Random numbers differ from scikit-learn's, so forests agree in distribution, not tree by tree.

Speed comes from the layout: a row's features are contiguous and padded to whole SIMD registers, so one pass over the
rows of a node updates the statistics of all its features at once, without a sort and without a gather.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from metastep.errors import InputError
from metastep.fqi.forest import LEAF, Forest, as_inputs, predict
from metastep.fqi.maximise import default_threads

_LANES = 8
"""Features are padded to a multiple of this many float32: one 256-bit register."""
_CONSTANT = np.float32(1e-7)
"""A feature whose range in a node is at most this is constant there, as in scikit-learn."""


class NativeExtraTreesRegressor(BaseEstimator):  # type: ignore[misc]
    """Extremely randomised trees with scikit-learn's interface; `forest_` is the fitted flat forest.

    Args:
        n_estimators: number of trees.
        min_samples_split: fewest rows of a node that is split: a number of rows (int), or a share of all rows (float),
            rounded up.
        random_state: seed; each tree has a seed of its own, so the forest does not depend on `n_jobs`.
        n_jobs: trees grown at the same time; None takes all processors.
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        min_samples_split: int | float = 2,
        random_state: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.min_samples_split = min_samples_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit on inputs `(rows, features)` and targets `(rows,)`."""
        self.forest_ = fit_forest(
            X,
            y,
            num_trees=self.n_estimators,
            min_samples_split=self.min_samples_split,
            seed=self.random_state,
            threads=self.n_jobs,
        )
        self.n_features_in_ = self.forest_.num_features
        self.feature_importances_ = self.forest_.importances
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Mean over trees, `(rows,)`."""
        return predict(self.forest_, X)


def minimum_split(min_samples_split: int | float, num_rows: int) -> int:
    """Fewest rows of a node that is split: `ceil(share * rows)` for a float, as scikit-learn counts; at least 2."""
    if isinstance(min_samples_split, float):
        if not 0 < min_samples_split <= 1:
            raise InputError(f"min_samples_split is {min_samples_split}, allowed is a share in (0, 1] or an int >= 2.")
        return max(2, int(np.ceil(min_samples_split * num_rows)))
    if min_samples_split < 2:
        raise InputError(f"min_samples_split is {min_samples_split}, allowed is a share in (0, 1] or an int >= 2.")
    return int(min_samples_split)


def fit_forest(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    num_trees: int,
    min_samples_split: int | float,
    seed: int,
    threads: int | None = None,
) -> Forest:
    """Grow `num_trees` extremely randomised trees, one per thread at a time; the bits do not depend on `threads`."""
    matrix = np.ascontiguousarray(inputs, dtype=np.float32)
    y = np.ascontiguousarray(targets, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape or y.shape != matrix.shape[:1]:
        raise InputError(f"inputs has shape {matrix.shape} and targets {y.shape}, allowed is (rows, features) and (rows,).")
    if not (np.isfinite(matrix).all() and np.isfinite(y).all()):
        raise InputError("inputs and targets must be finite.")
    if num_trees < 1:
        raise InputError(f"num_trees is {num_trees}, allowed is at least 1.")
    num_rows, num_features = matrix.shape
    padded = np.zeros((num_rows, -(-num_features // _LANES) * _LANES), dtype=np.float32)
    padded[:, :num_features] = matrix
    # Sums of squares lose digits when the mean is large against the spread.
    mean = float(y.mean())
    centred = y - mean
    fewest = minimum_split(min_samples_split, num_rows)
    low, high = padded.min(axis=0), padded.max(axis=0)
    seeds = np.random.SeedSequence(seed).generate_state(num_trees, np.uint64)

    def grow(tree_seed: np.uint64) -> Any:
        return _grow_tree(padded, centred, num_features, fewest, tree_seed, low, high)

    return _assemble(_map(grow, seeds, threads or default_threads()), mean)


def _map(function: Callable[[Any], Any], items: Any, workers: int) -> list[Any]:
    if workers == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def _assemble(trees: list[Any], mean: float) -> Forest:
    offsets = np.concatenate([[0], np.cumsum([len(tree[0]) for tree in trees])]).astype(np.int64)
    feature, threshold, left, right, value, importances = zip(*trees, strict=True)

    def shifted(children: tuple[NDArray[np.int32], ...]) -> NDArray[np.int32]:
        moved = [np.where(c >= 0, c + start, LEAF) for c, start in zip(children, offsets[:-1], strict=True)]
        return np.concatenate(moved).astype(np.int32)

    # Each tree's shares sum to 1 unless it never split, and such trees do not count, as in scikit-learn.
    total = np.sum(importances, axis=0)
    return Forest(
        feature=np.concatenate(feature),
        threshold=np.concatenate(threshold),
        left=shifted(left),
        right=shifted(right),
        value=np.concatenate(value) + mean,
        offsets=offsets,
        importances=total / total.sum() if total.sum() > 0 else total,
    )


@numba.njit(cache=True, nogil=True)
def _grow_tree(data, targets, num_features, fewest, seed, root_low, root_high):  # type: ignore[no-untyped-def]
    """One tree in depth-first order, left before right: the left child of a node is the next node."""
    num_rows, width = data.shape
    state = np.array([seed], dtype=np.uint64)
    ids = np.arange(num_rows).astype(np.uint32)
    y = targets.copy()  # in the order of `ids`, so that a node's targets are contiguous
    spare_ids, spare_y = np.empty(num_rows, dtype=np.uint32), np.empty(num_rows)
    low, high, threshold = np.empty(width, np.float32), np.empty(width, np.float32), np.zeros(width, np.float32)
    count, left_sum = np.empty(width, np.int32), np.empty(width)
    importances = np.zeros(num_features)

    capacity = 64 + 8 * (num_rows // fewest)
    node_feature, node_threshold = np.empty(capacity, np.int32), np.empty(capacity, np.float32)
    node_right, node_value = np.empty(capacity, np.int32), np.empty(capacity)
    nodes = 0
    pending = np.empty((64, 3), dtype=np.int64)  # (start, stop, parent) of right children still to grow
    pending[0, 0], pending[0, 1], pending[0, 2] = 0, num_rows, -1
    height = 1
    while height > 0:
        height -= 1
        start, stop, parent = pending[height, 0], pending[height, 1], pending[height, 2]
        if parent >= 0:
            node_right[parent] = nodes
        while True:  # down the left children, until a leaf
            if nodes == capacity:
                capacity *= 2
                node_feature, node_threshold = _enlarged(node_feature), _enlarged(node_threshold)
                node_right, node_value = _enlarged(node_right), _enlarged(node_value)
            node = nodes
            nodes += 1
            size = stop - start
            total, spread = _moments(y, start, stop)
            node_feature[node], node_threshold[node], node_right[node] = LEAF, 0, LEAF
            node_value[node] = total / size
            # The tolerance on the variance is scikit-learn's.
            if size < fewest or spread <= 2.220446049250313e-16 * size:
                break
            if node == 0:
                low[:], high[:] = root_low, root_high
            else:
                _ranges(data, ids, start, stop, low, high)
            for feature in range(num_features):
                drawn = np.float32(low[feature] + _uniform(state) * (np.float64(high[feature]) - low[feature]))
                threshold[feature] = low[feature] if drawn >= high[feature] else drawn
            _left_statistics(data, ids, y, start, stop, threshold, count, left_sum)
            best = _best_feature(low, high, count, left_sum, total, size, num_features, state)
            if best < 0:
                break
            difference = left_sum[best] / count[best] - (total - left_sum[best]) / (size - count[best])
            importances[best] += difference * difference * count[best] * (size - count[best]) / size
            middle = _partition(data, best, threshold[best], ids, y, start, stop, spare_ids, spare_y)
            node_feature[node], node_threshold[node] = best, threshold[best]
            if height == pending.shape[0]:
                pending = _enlarged_rows(pending)
            pending[height, 0], pending[height, 1], pending[height, 2] = middle, stop, node
            height += 1
            stop = middle
    node_left = np.full(nodes, LEAF, dtype=np.int32)
    for node in range(nodes):
        if node_feature[node] >= 0:
            node_left[node] = node + 1
    if importances.sum() > 0:
        importances /= importances.sum()
    return (
        node_feature[:nodes].copy(),
        node_threshold[:nodes].copy(),
        node_left,
        node_right[:nodes].copy(),
        node_value[:nodes].copy(),
        importances,
    )


@numba.njit(cache=True, nogil=True)
def _enlarged(array):  # type: ignore[no-untyped-def]
    larger = np.empty(2 * array.size, dtype=array.dtype)
    larger[: array.size] = array
    return larger


@numba.njit(cache=True, nogil=True)
def _enlarged_rows(array):  # type: ignore[no-untyped-def]
    larger = np.empty((2 * array.shape[0], array.shape[1]), dtype=array.dtype)
    larger[: array.shape[0]] = array
    return larger


@numba.njit(cache=True, nogil=True)
def _uniform(state):  # type: ignore[no-untyped-def]
    """A uniform number in [0, 1) from a splitmix64 counter: one addition of state, then a hash of it."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@numba.njit(cache=True, nogil=True)
def _moments(y, start, stop):  # type: ignore[no-untyped-def]
    """Sum, and sum of squares about the mean; four sums at a time, because additions to one would wait in line."""
    size = stop - start
    whole = start + size // 4 * 4
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(start, whole, 4):
        a += y[i]
        b += y[i + 1]
        c += y[i + 2]
        d += y[i + 3]
    for i in range(whole, stop):
        a += y[i]
    total = (a + b) + (c + d)
    mean = total / size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(start, whole, 4):
        a += (y[i] - mean) * (y[i] - mean)
        b += (y[i + 1] - mean) * (y[i + 1] - mean)
        c += (y[i + 2] - mean) * (y[i + 2] - mean)
        d += (y[i + 3] - mean) * (y[i + 3] - mean)
    for i in range(whole, stop):
        a += (y[i] - mean) * (y[i] - mean)
    return total, (a + b) + (c + d)


@numba.njit(cache=True, nogil=True)
def _ranges(data, ids, start, stop, low, high):  # type: ignore[no-untyped-def]
    """Minimum and maximum of every feature over the rows of a node, four rows a pass."""
    low[:] = data[ids[start]]
    high[:] = low
    whole = start + (stop - start) // 4 * 4
    for i in range(start, whole, 4):
        a, b, c, d = data[ids[i]], data[ids[i + 1]], data[ids[i + 2]], data[ids[i + 3]]
        for f in range(data.shape[1]):
            p = a[f] if a[f] < b[f] else b[f]
            q = c[f] if c[f] < d[f] else d[f]
            p = p if p < q else q
            low[f] = p if p < low[f] else low[f]
            p = a[f] if a[f] > b[f] else b[f]
            q = c[f] if c[f] > d[f] else d[f]
            p = p if p > q else q
            high[f] = p if p > high[f] else high[f]
    for i in range(whole, stop):
        a = data[ids[i]]
        for f in range(data.shape[1]):
            low[f] = a[f] if a[f] < low[f] else low[f]
            high[f] = a[f] if a[f] > high[f] else high[f]


@numba.njit(cache=True, nogil=True)
def _left_statistics(data, ids, y, start, stop, threshold, count, left_sum):  # type: ignore[no-untyped-def]
    """Number and target sum of the rows at or below each feature's threshold, four rows a pass."""
    count[:] = 0
    left_sum[:] = 0
    one, none = np.int32(1), np.int32(0)
    whole = start + (stop - start) // 4 * 4
    for i in range(start, whole, 4):
        a, b, c, d = data[ids[i]], data[ids[i + 1]], data[ids[i + 2]], data[ids[i + 3]]
        ya, yb, yc, yd = y[i], y[i + 1], y[i + 2], y[i + 3]
        for f in range(data.shape[1]):
            t = threshold[f]
            in_a, in_b, in_c, in_d = a[f] <= t, b[f] <= t, c[f] <= t, d[f] <= t
            count[f] += ((one if in_a else none) + (one if in_b else none)) + (
                (one if in_c else none) + (one if in_d else none)
            )
            left_sum[f] += ((ya if in_a else 0.0) + (yb if in_b else 0.0)) + (
                (yc if in_c else 0.0) + (yd if in_d else 0.0)
            )
    for i in range(whole, stop):
        a, ya = data[ids[i]], y[i]
        for f in range(data.shape[1]):
            inside = a[f] <= threshold[f]
            count[f] += one if inside else none
            left_sum[f] += ya if inside else 0.0


@numba.njit(cache=True, nogil=True)
def _best_feature(low, high, count, left_sum, total, size, num_features, state):  # type: ignore[no-untyped-def]
    """The feature whose split reduces the variance most, -1 when all are constant; ties are drawn evenly."""
    best, best_score, ties = -1, -np.inf, 0
    for f in range(num_features):
        if high[f] <= low[f] + _CONSTANT:
            continue
        right_sum = total - left_sum[f]
        score = left_sum[f] * left_sum[f] / count[f] + right_sum * right_sum / (size - count[f])
        if score > best_score:
            best, best_score, ties = f, score, 1
        elif score == best_score:
            ties += 1
            if _uniform(state) * ties < 1.0:
                best = f
    return best


@numba.njit(cache=True, nogil=True)
def _partition(data, feature, limit, ids, y, start, stop, spare_ids, spare_y):  # type: ignore[no-untyped-def]
    """Move the rows at or below the threshold to the front, keeping the order: memory is then read forwards."""
    kept, moved = np.uint64(start), np.uint64(0)
    for i in range(start, stop):
        row, target = ids[i], y[i]
        goes_left = np.uint64(data[row, feature] <= limit)
        ids[kept], y[kept] = row, target
        spare_ids[moved], spare_y[moved] = row, target
        kept += goes_left
        moved += np.uint64(1) - goes_left
    middle, right = np.int64(kept), np.int64(moved)
    ids[middle:stop] = spare_ids[:right]
    y[middle:stop] = spare_y[:right]
    return middle

"""Extremely randomised trees in Numba: the forests of scikit-learn's ExtraTreesRegressor, several times faster.

The algorithm is Geurts, Ernst and Wehenkel's with scikit-learn's conventions: every node draws one uniform threshold between the
minimum and the maximum of each feature and keeps the one with the largest variance reduction; constant features are skipped; all
rows are used (no bootstrap). Random numbers differ, so forests agree in distribution, not tree by tree.

Speed comes from the layout: a row's features are contiguous and padded to whole SIMD registers, so one pass over the rows of a
node updates the statistics of all its features at once, without a sort and without a gather.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep._core.settings import check_fields
from metastep.fqi.forest import LEAF, Forest, join, kernel, load_forest

_LANES = 16  # features are padded to a multiple: compiled loops handle 16 float32 at once, fewer one by one
_CONSTANT = np.float32(1e-7)  # largest range of a feature that is constant in a node, as in scikit-learn


@dataclass(frozen=True)
class ExtraTrees:
    """Extremely randomised trees, grown in Numba.

    Args:
        trees: trees of each forest.
        min_samples_split: fewest rows of a node that is split, as a share of all rows (float, rounded up) or as a number (int).
        state_first: whether a first half of as many trees learns from all inputs but the last one, and the other trees from
            what is left. MetaFQI's last input is the step: otherwise most splits go to the state, which explains most of a
            value, and few to the step, which decides.
    """

    trees: Annotated[int, Ge(1), Le(100_000)] = 50
    min_samples_split: Annotated[float, Gt(0.0), Le(1.0)] | Annotated[int, Ge(2)] = 0.01
    state_first: bool = False

    name: ClassVar[str] = "extra-trees"

    def __post_init__(self) -> None:
        check_fields(self, "fqi.regressor")

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None) -> Forest:
        """Grow the trees; each has its own seed, so that the result does not depend on `threads`."""
        matrix, y = np.asarray(inputs, dtype=np.float32), np.asarray(targets, dtype=np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape or y.shape != matrix.shape[:1]:
            allowed = "allowed is (rows, features) and (rows,)"
            raise InputError(f"inputs has shape {matrix.shape} and targets {y.shape}, {allowed}.")
        if not (np.isfinite(matrix).all() and np.isfinite(y).all()):
            raise InputError("inputs and targets must be finite.")
        num_rows, num_features = matrix.shape
        padded = np.zeros((num_rows, -(-num_features // _LANES) * _LANES), dtype=np.float32)
        padded[:, :num_features] = matrix
        is_number = isinstance(self.min_samples_split, int | np.integer)
        fewest = max(2, int(self.min_samples_split if is_number else np.ceil(self.min_samples_split * num_rows)))

        def forest(data: NDArray[np.float32], y: NDArray[np.float64], seeds: NDArray[Any]) -> tuple[Forest, float]:
            """Return a forest, and by how much its splits reduce the variance of the targets, times the number of rows."""
            # Targets are centred, because sums of squares lose digits if the mean is large compared with the spread.
            mean, low, high = float(y.mean()), data.min(axis=0), data.max(axis=0)
            centred = y - mean

            def tree(seed: np.uint64) -> tuple[Forest, float]:
                own = np.array([seed], dtype=np.uint64), low.copy(), high.copy()
                nodes, *arrays, importances = _grow(data, centred.copy(), num_features, fewest, *own)
                feature, threshold, right, value = (array[:nodes].copy() for array in arrays)
                left = np.where(feature >= 0, np.arange(1, nodes + 1), LEAF).astype(np.int32)  # the next node
                removed = float(importances.sum())
                shares = importances / removed if removed > 0 else importances
                return Forest(feature, threshold, left, right, value, np.array([0, nodes]), shares), removed

            trees, removed = zip(*map_threads(tree, seeds, threads), strict=True)
            joined = join(trees)
            return joined._replace(value=joined.value + mean), sum(removed)

        number = 2 * self.trees if self.state_first else self.trees
        seeds: NDArray[Any] = np.random.SeedSequence(seed).generate_state(number, np.uint64)
        if not self.state_first:
            return forest(padded, y, seeds)[0]
        blind = padded.copy()
        blind[:, num_features - 1] = 0.0  # constant features are never split
        halves = [forest(blind, y, seeds[: self.trees])]
        residuals = y - np.concatenate(map_threads(halves[0][0].predict, np.array_split(matrix, 64), threads))
        halves.append(forest(padded, residuals, seeds[self.trees :]))
        # A forest predicts the mean of its trees; the prediction here is the sum of the two halves' means.
        return join([own._replace(value=2.0 * own.value, importances=part * own.importances) for own, part in halves])

    load = staticmethod(load_forest)


@kernel
def _grow(data, y, num_features, fewest, state, low, high):  # type: ignore[no-untyped-def]
    """Grow one tree, depth first, left before right, and return its number of nodes, their arrays, and importances.

    A node is a range of `ids`, and of the targets `y`, in the same order; `low` and `high` are the ranges of the features in the
    current node. Plain loops, here and below: array expressions take several times as long to compile.
    """
    num_rows, width = data.shape
    ids, spare_ids, spare_y = np.empty(num_rows, np.uint32), np.empty(num_rows, np.uint32), np.empty(num_rows)
    for row in range(num_rows):
        ids[row] = row
    # A split needs `fewest` rows and takes at least one away. Memory that is not written to is never claimed.
    most_splits = max(num_rows - fewest + 1, 0)
    most_nodes = 2 * most_splits + 1
    feature, right = np.empty(most_nodes, np.int32), np.empty(most_nodes, np.int32)
    threshold, value = np.empty(most_nodes, np.float32), np.empty(most_nodes)
    importances = np.zeros(num_features)
    drawn, count, left_sum = np.zeros(width, np.float32), np.empty(width, np.int32), np.empty(width)
    pending = np.empty((most_splits + 1, 3), np.int64)  # stack of right children: start, stop, parent
    pending[0, 0], pending[0, 1], pending[0, 2] = 0, num_rows, LEAF
    nodes, height = 0, 1
    while height > 0:
        height -= 1
        start, stop, parent = pending[height, 0], pending[height, 1], pending[height, 2]
        if parent >= 0:
            right[parent] = nodes
        while True:  # down the left children, until a leaf
            node, size = nodes, stop - start
            nodes += 1
            total = _sum(y, start, stop, 0.0, False)
            mean = total / size
            spread = _sum(y, start, stop, mean, True)
            feature[node], threshold[node], right[node], value[node] = LEAF, 0, LEAF, mean
            # The tolerance on the variance is scikit-learn's.
            if size < fewest or spread <= 2.220446049250313e-16 * size:
                break
            if node > 0:
                _ranges(data, ids, start, stop, low, high)
            for f in range(num_features):
                draw = np.float32(low[f] + _uniform(state) * (np.float64(high[f]) - low[f]))
                drawn[f] = low[f] if draw >= high[f] else draw
            _left_statistics(data, ids, y, start, stop, drawn, count, left_sum)
            best, best_score, ties = -1, -np.inf, 0  # the largest variance reduction; ties are drawn evenly
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
            if best < 0:  # all features are constant
                break
            difference = left_sum[best] / count[best] - (total - left_sum[best]) / (size - count[best])
            importances[best] += difference * difference * count[best] * (size - count[best]) / size
            # Move the rows at or below the threshold to the front, keeping the order: memory is then read forwards.
            kept, moved, limit = np.uint64(start), np.uint64(0), drawn[best]
            for i in range(start, stop):
                own, target = ids[i], y[i]
                goes_left = np.uint64(data[own, best] <= limit)
                ids[kept], y[kept] = own, target
                spare_ids[moved], spare_y[moved] = own, target
                kept += goes_left
                moved += np.uint64(1) - goes_left
            middle = np.int64(kept)
            for i in range(stop - middle):
                ids[middle + i] = spare_ids[i]
                y[middle + i] = spare_y[i]
            feature[node], threshold[node] = best, drawn[best]
            pending[height, 0], pending[height, 1], pending[height, 2] = middle, stop, node
            height += 1
            stop = middle
    return nodes, feature, threshold, right, value, importances


@kernel
def _sum(y, start, stop, centre, squares):  # type: ignore[no-untyped-def]
    """Sum differences from the centre, or their squares; four sums at a time, because additions to one would wait."""
    whole = start + (stop - start) // 4 * 4
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(start, whole, 4):
        p, q, r, s = y[i] - centre, y[i + 1] - centre, y[i + 2] - centre, y[i + 3] - centre
        a += p * p if squares else p
        b += q * q if squares else q
        c += r * r if squares else r
        d += s * s if squares else s
    for i in range(whole, stop):
        p = y[i] - centre
        a += p * p if squares else p
    return (a + b) + (c + d)


@kernel
def _uniform(state):  # type: ignore[no-untyped-def]
    """Draw a uniform number in [0, 1) from a splitmix64 counter: one addition to the state, then a hash of it."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@kernel
def _ranges(data, ids, start, stop, low, high):  # type: ignore[no-untyped-def]
    """Compute the minimum and maximum of every feature over the rows of a node, four rows in each pass to spare loads.

    They come from the four quarters of the node: the processor prefetches forward streams far apart, not neighbouring rows.
    """
    for f in range(data.shape[1]):
        low[f] = high[f] = data[ids[start], f]
    quarter = (stop - start) // 4
    for i in range(start, start + quarter):
        j, k, m = i + quarter, i + 2 * quarter, i + 3 * quarter
        a, b, c, d = data[ids[i]], data[ids[j]], data[ids[k]], data[ids[m]]
        for f in range(data.shape[1]):
            low[f] = min(low[f], min(min(a[f], b[f]), min(c[f], d[f])))
            high[f] = max(high[f], max(max(a[f], b[f]), max(c[f], d[f])))
    for i in range(start + 4 * quarter, stop):
        a = data[ids[i]]
        for f in range(data.shape[1]):
            low[f], high[f] = min(low[f], a[f]), max(high[f], a[f])


@kernel
def _left_statistics(data, ids, y, start, stop, threshold, count, left_sum):  # type: ignore[no-untyped-def]
    """Compute number and target sum of the rows at or below each feature's threshold, in the order of `_ranges`."""
    for f in range(data.shape[1]):
        count[f], left_sum[f] = 0, 0.0
    quarter = (stop - start) // 4
    for i in range(start, start + quarter):
        j, k, m = i + quarter, i + 2 * quarter, i + 3 * quarter
        a, b, c, d = data[ids[i]], data[ids[j]], data[ids[k]], data[ids[m]]
        ya, yb, yc, yd = y[i], y[j], y[k], y[m]
        for f in range(data.shape[1]):
            t = threshold[f]
            p, q, r, s = a[f] <= t, b[f] <= t, c[f] <= t, d[f] <= t
            count[f] += np.int32(p) + np.int32(q) + np.int32(r) + np.int32(s)
            left_sum[f] += ((ya if p else 0.0) + (yb if q else 0.0)) + ((yc if r else 0.0) + (yd if s else 0.0))
    for i in range(start + 4 * quarter, stop):
        a, ya = data[ids[i]], y[i]
        for f in range(data.shape[1]):
            inside = a[f] <= threshold[f]
            count[f] += np.int32(inside)
            left_sum[f] += ya if inside else 0.0

"""The maximum of a forest over the step size, without predicting on (states x step sizes) rows.

Every tree is walked once per block of states. A node of the walk is (tree node, range of row ids, interval of step-size cells): a
split on a state feature partitions the row ids in place, a split on the step size (always the LAST input feature) cuts the
interval and follows both branches with the same rows, a leaf adds its difference to the previous leaf at the start of its
interval. One prefix sum over the cells then gives every state's value at every step size.

Leaf values are summed as 64-bit integers, scaled by a power of two so that nothing overflows. Integer sums do not depend on their
order: ties are real, bits do not depend on threads or blocks. Rounding, `max|leaf| * trees * 2^-62` a leaf, is below float64's.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.parallel import count_threads, map_threads
from metastep.fqi.forest import Forest, as_inputs, join, kernel

Ties = Literal["smallest", "middle", "largest", "longest-run"]  # which of several best steps is taken

_BLOCK_ROWS = 1024  # states walked together: a block of columns and its sums stay in the second-level cache
_BLOCK_CELLS = 1 << 20  # largest number of (cell, row) sums of a block: limits the rows if there are many cells


class Plan(NamedTuple):
    """One or two forests prepared for the walk over a set of step sizes."""

    stepsizes: NDArray[np.float32]  # (cells,), increasing
    trees: Forest  # of all forests, concatenated
    fixed: NDArray[np.int64]  # (nodes,), leaf values in fixed point
    cut: NDArray[np.int32]  # (nodes,), number of step sizes that go left
    trees_until: NDArray[np.int64]  # (forests,), trees in this and earlier forests
    unit: NDArray[np.float64]  # (forests,), value of one fixed-point unit divided by the number of trees
    lam: float  # weight of the smaller of two forests


class Maximum(NamedTuple):
    """The best step size of each state; ties go to the smallest."""

    value: NDArray[np.float64]  # (states,)
    stepsize: NDArray[np.float32]  # (states,)
    values: NDArray[np.float64] = np.empty((0, 0))  # (states, step sizes), on request
    branch: NDArray[np.int64] | int = 0  # (states,), index of the branch, if there are several


def stepsize_cells(forests: Sequence[Forest], low: float, high: float) -> NDArray[np.float32]:
    """Return the smallest step size of each cell of `[low, high]` on which all forests are constant.

    Forests jump just above their thresholds, so the maximum over these points is that over the continuous interval.
    """
    first, last = np.float32(low), np.float32(high)
    thresholds = np.concatenate([forest.threshold[forest.feature == forest.num_features - 1] for forest in forests])
    inside = thresholds[(thresholds >= first) & (thresholds < last)]
    return np.unique(np.concatenate([[first], np.nextafter(inside, np.float32(np.inf))]).astype(np.float32))


def prepare(forests: Sequence[Forest], stepsizes: ArrayLike, lam: float = 1.0) -> Plan:
    """Prepare one forest, or two to be combined as `lam*min + (1-lam)*max`, for maximisation over increasing `stepsizes`."""
    points = np.ascontiguousarray(stepsizes, dtype=np.float32)
    trees, fixed, unit = join(forests), [], []
    for forest in forests:
        # A sum over the trees stays below 2^61. Exponents are added, because a product could overflow; values below 2^-900 count
        # as zero, because their scale would overflow.
        largest = float(np.abs(forest.value).max())
        shift = 61 - math.frexp(largest)[1] - math.frexp(forest.num_trees)[1] if largest >= 2.0**-900 else 0
        fixed.append(np.rint(np.ldexp(forest.value, shift)))
        unit.append(np.ldexp(1.0, -shift) / forest.num_trees)
    left, is_cut = np.searchsorted(points, trees.threshold, side="right"), trees.feature == trees.num_features - 1
    cut, until = np.where(is_cut, left, -1).astype(np.int32), np.cumsum([forest.num_trees for forest in forests])
    return Plan(points, trees, np.concatenate(fixed).astype(np.int64), cut, until, np.array(unit), float(lam))


def maximise(plan: Plan, states: ArrayLike, *, threads: int | None = None, with_values: bool = False) -> Maximum:
    """Find the best step size of each state `(states, features)`, and its value; the bits do not depend on `threads`.

    A NaN in a state compares as larger than every threshold: the step size is still one of the plan's.
    """
    matrix = as_inputs(states, plan.trees.num_features - 1, "states")
    num, cells = len(matrix), len(plan.stepsizes)
    rows = max(1, min(num, _BLOCK_ROWS, max(64, _BLOCK_CELLS // cells)))
    value, best, values = np.empty(num), np.empty(num, np.int64), np.empty((num if with_values else 0, cells))
    # A few shares per thread balance the load; shares are whole blocks, so that only the last block is short.
    share = rows * max(1, -(-num // (rows * count_threads(threads) * 4)))

    def fill(start: int) -> None:
        _maximise_rows(plan, matrix, start, min(start + share, num), rows, value, best, values)

    map_threads(fill, range(0, num, share), threads)
    return Maximum(value, plan.stepsizes[best], values)


def maximise_general(
    heads: Sequence[Any], states: NDArray[Any], points: NDArray[Any], lam: float = 1.0, *, with_values: bool = False
) -> Maximum:
    """Find the same maximum for any regressor, by predicting on every (state, step size) row."""
    value, best = np.empty(len(states)), np.empty(len(states), np.int64)
    values = np.empty((len(states) if with_values else 0, len(points)))
    for start in range(0, len(states), _BLOCK_ROWS):
        block = states[start : start + _BLOCK_ROWS]
        inputs = np.column_stack([np.repeat(block, len(points), axis=0), np.tile(points, len(block))])
        predicted = [np.asarray(head.predict(inputs), dtype=np.float64).reshape(len(block), -1) for head in heads]
        combined = predicted[0]
        if len(predicted) == 2:
            combined = lam * np.minimum(*predicted) + (1 - lam) * np.maximum(*predicted)
        rows = slice(start, start + len(block))
        best[rows], value[rows] = combined.argmax(axis=1), combined.max(axis=1)
        if with_values:
            values[rows] = combined
    return Maximum(value, points[best], values)


def tied(values: NDArray[np.float64], ties: Ties) -> NDArray[np.intp]:
    """Return the index of one of the largest values of each row `(rows, cells)`.

    "longest-run" is the middle of the longest run of neighbouring maxima, the first of several runs and of two middles.
    """
    if ties == "smallest":
        return values.argmax(axis=1)
    is_best = values == values.max(axis=1, keepdims=True)
    if ties == "largest":
        return values.shape[1] - 1 - is_best[:, ::-1].argmax(axis=1)
    if ties == "middle":
        rank = is_best.cumsum(axis=1)
        return (rank == (rank[:, -1:] + 1) // 2).argmax(axis=1)
    index = np.arange(values.shape[1])
    length = index - np.maximum.accumulate(np.where(is_best, -1, index), axis=1)  # of the run up to here, or 0
    return length.argmax(axis=1) - length.max(axis=1) // 2


@kernel
def _maximise_rows(plan, states, first, last, block, value, best, values):  # type: ignore[no-untyped-def]
    """Fill `value`, `best` (and `values`, unless empty) of the states in `[first, last)`, `block` rows at a time."""
    num_forests, cells = plan.trees_until.size, plan.stepsizes.size
    columns = np.empty((states.shape[1], block), dtype=np.float32)
    sums = np.empty((num_forests, cells, block), dtype=np.int64)
    previous = np.empty(block, dtype=np.int64)
    # At most one node waits at each level, and a tree is less deep than it has nodes.
    stack = np.empty((np.diff(plan.trees.offsets).max(), 5), dtype=np.int64)
    for start in range(first, last, block):
        rows = min(block, last - start)
        ids = np.arange(rows).astype(np.uint32)
        for column in range(states.shape[1]):
            for row in range(rows):
                columns[column, row] = states[start + row, column]
        sums.fill(0)
        tree = 0
        for forest in range(num_forests):
            while tree < plan.trees_until[forest]:
                _add_tree(plan, plan.trees.offsets[tree], rows, columns, ids, stack, previous, sums[forest])
                tree += 1
        # Prefix sums over the cells, combined over the forests, and the first maximum.
        running = np.zeros((num_forests, block), dtype=np.int64)
        highest, where = value[start : start + rows], best[start : start + rows]
        highest.fill(-np.inf)
        where.fill(0)
        for cell in range(cells):
            for forest in range(num_forests):
                for row in range(rows):
                    running[forest, row] += sums[forest, cell, row]
            for row in range(rows):
                combined = running[0, row] * plan.unit[0]
                if num_forests == 2:
                    other = running[1, row] * plan.unit[1]
                    combined = plan.lam * min(combined, other) + (1 - plan.lam) * max(combined, other)
                if combined > highest[row]:
                    highest[row] = combined
                    where[row] = cell
                if values.shape[0] > 0:
                    values[start + row, cell] = combined


@kernel
def _add_tree(plan, root, rows, columns, ids, stack, previous, sums):  # type: ignore[no-untyped-def]
    """Add one tree to the difference array `sums` `(cells, rows)`.

    The branch of the smaller step sizes is walked to its end first, so a row meets its leaves in the order of their
    intervals, and the first of them starts at cell 0.
    """
    feature, threshold, left, right = plan.trees.feature, plan.trees.threshold, plan.trees.left, plan.trees.right
    cut, fixed = plan.cut, plan.fixed
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], stack[0, 4] = root, 0, rows, 0, sums.shape[0]
    height = 1
    while height > 0:
        height -= 1
        node, start, stop = stack[height, 0], stack[height, 1], stack[height, 2]
        low, high = stack[height, 3], stack[height, 4]
        while feature[node] >= 0:
            if cut[node] >= 0:
                if cut[node] <= low:
                    node = right[node]
                elif cut[node] >= high:
                    node = left[node]
                else:
                    stack[height, 0], stack[height, 1], stack[height, 2] = right[node], start, stop
                    stack[height, 3], stack[height, 4] = cut[node], high
                    height += 1
                    node, high = left[node], cut[node]
                continue
            # Rows at or below the threshold move to the front: swap first, then advance if the row belongs there, so that
            # there is no branch to mispredict. Unsigned subscripts spare the check for negative ones.
            column, limit, boundary = feature[node], threshold[node], np.uint64(start)
            for position in range(start, stop):
                row = ids[position]
                ids[position] = ids[boundary]
                ids[boundary] = row
                boundary += np.uint64(columns[column, row] <= limit)
            middle = np.int64(boundary)
            if middle == start:
                node = right[node]
            elif middle == stop:
                node = left[node]
            else:
                stack[height, 0], stack[height, 1], stack[height, 2] = right[node], middle, stop
                stack[height, 3], stack[height, 4] = low, high
                height += 1
                node, stop = left[node], middle
        # From cell `low` on, the rows have this leaf's value instead of their previous leaf's (none before cell 0).
        leaf = fixed[node]
        for position in range(start, stop):
            row = ids[position]
            sums[low, row] += leaf - previous[row] if low > 0 else leaf
            previous[row] = leaf

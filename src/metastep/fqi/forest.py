"""A regression forest as a few flat arrays: what is fitted, walked, saved and loaded.

scikit-learn keeps a tree as a Python object with float64 thresholds and compares float32 inputs with them. Here all
trees of a forest share contiguous arrays and thresholds are float32: for a float32 `x` and a float64 `t`,
`x <= t` holds exactly when `x <= floor32(t)`, so flooring the thresholds changes no comparison.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep.errors import InputError

LEAF = -1
"""`feature`, `left` and `right` of a leaf."""


class Forest(NamedTuple):
    """All trees of a forest; node 0 of tree `t` is `offsets[t]`, children are indices into the same arrays.

    An input goes left at a node when `input[feature] <= threshold`. A child always comes after its parent and every
    node but a root has exactly one parent, so a walk cannot loop.
    """

    feature: NDArray[np.int32]  # (nodes,), LEAF at a leaf
    threshold: NDArray[np.float32]  # (nodes,), 0 at a leaf
    left: NDArray[np.int32]  # (nodes,), LEAF at a leaf
    right: NDArray[np.int32]  # (nodes,), LEAF at a leaf
    value: NDArray[np.float64]  # (nodes,), mean target of the node's rows
    offsets: NDArray[np.int64]  # (trees + 1,)
    importances: NDArray[np.float64]  # (features,), share of the variance reduction, sums to 1 (or is all 0)

    @property
    def num_trees(self) -> int:
        """Number of trees."""
        return len(self.offsets) - 1

    @property
    def num_features(self) -> int:
        """Number of input features."""
        return len(self.importances)


def floor_to_float32(values: ArrayLike) -> NDArray[np.float32]:
    """Largest float32 not above each float64 value."""
    exact = np.asarray(values, dtype=np.float64)
    rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def from_sklearn(regressor: Any) -> Forest:
    """The flat forest of a fitted scikit-learn ExtraTreesRegressor or RandomForestRegressor with one output."""
    trees = [estimator.tree_ for estimator in regressor.estimators_]
    offsets = np.concatenate([[0], np.cumsum([tree.node_count for tree in trees])]).astype(np.int64)
    feature = np.concatenate([tree.feature for tree in trees])
    leaf = feature < 0

    def children(name: str) -> NDArray[np.int32]:
        shifted = [getattr(tree, name) + start for tree, start in zip(trees, offsets[:-1], strict=True)]
        return np.where(leaf, LEAF, np.concatenate(shifted)).astype(np.int32)

    return Forest(
        feature=np.where(leaf, LEAF, feature).astype(np.int32),
        threshold=np.where(leaf, np.float32(0), floor_to_float32(np.concatenate([t.threshold for t in trees]))),
        left=children("children_left"),
        right=children("children_right"),
        value=np.concatenate([tree.value[:, 0, 0] for tree in trees]),
        offsets=offsets,
        importances=np.asarray(regressor.feature_importances_, dtype=np.float64),
    )


def as_inputs(inputs: ArrayLike, num_features: int, name: str = "inputs") -> NDArray[np.float32]:
    """Inputs as a C-ordered float32 matrix `(rows, num_features)`, or one sentence on what is wrong."""
    matrix = np.ascontiguousarray(inputs, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != num_features:
        raise InputError(f"{name} has shape {matrix.shape}, allowed is (rows, {num_features}).")
    return matrix


def predict(forest: Forest, inputs: ArrayLike) -> NDArray[np.float64]:
    """Mean over trees of each input's leaf value, `(rows,)`; trees are summed in order, so bits never vary."""
    matrix = as_inputs(inputs, forest.num_features)
    return _predict(matrix, forest.feature, forest.threshold, forest.left, forest.right, forest.value, forest.offsets)


def leaf_counts(forest: Forest) -> NDArray[np.int64]:
    """Number of leaves of each tree, `(trees,)`."""
    return np.add.reduceat((forest.feature == LEAF).astype(np.int64), forest.offsets[:-1])


def depth(forest: Forest) -> int:
    """Number of splits on the longest path of any tree."""
    return int(_depth(forest.left, forest.right, forest.offsets))


@numba.njit(cache=True, nogil=True)
def _predict(inputs, feature, threshold, left, right, value, offsets):  # type: ignore[no-untyped-def]
    total = np.zeros(inputs.shape[0])
    for tree in range(offsets.size - 1):
        for row in range(inputs.shape[0]):
            node = offsets[tree]
            while feature[node] >= 0:
                node = left[node] if inputs[row, feature[node]] <= threshold[node] else right[node]
            total[row] += value[node]
    return total / (offsets.size - 1)


@numba.njit(cache=True, nogil=True)
def _depth(left, right, offsets):  # type: ignore[no-untyped-def]
    # Children come after their parent, so one pass in order knows every parent's level before its children's.
    level = np.zeros(left.size, dtype=np.int32)
    deepest = 0
    for node in range(left.size):
        if left[node] >= 0:
            level[left[node]] = level[node] + 1
            level[right[node]] = level[node] + 1
            deepest = max(deepest, level[node] + 1)
    return deepest


_PROBLEMS = {
    1: "offsets must start at 0, increase and end at the number of nodes",
    2: "feature must be -1 at a leaf and otherwise below the number of features",
    3: "left and right must be -1 at a leaf",
    4: "left and right must point to later nodes of the same tree",
    5: "every node but a root must have exactly one parent",
    6: "threshold must be finite",
    7: "value must be finite",
}


def check_structure(forest: Forest) -> None:
    """Raise `InputError` unless every walk through the forest ends and every value in it is finite.

    Trusts nothing but the arrays' own lengths; allocates one byte per node.
    """
    nodes = len(forest.feature)
    for name in ("threshold", "left", "right", "value"):
        if len(getattr(forest, name)) != nodes:
            raise InputError(
                f"forest: {name} has {len(getattr(forest, name))} nodes, allowed is {nodes} as in feature."
            )
    if forest.num_trees < 1 or forest.num_features < 1:
        raise InputError(f"forest: has {forest.num_trees} trees and {forest.num_features} features, at least 1 each.")
    if not np.isfinite(forest.importances).all():
        raise InputError("forest: importances must be finite.")
    problem, where = _find_problem(
        forest.feature,
        forest.threshold,
        forest.left,
        forest.right,
        forest.value,
        forest.offsets,
        forest.num_features,
    )
    if problem:
        raise InputError(f"forest: {_PROBLEMS[problem]} (at position {where}).")


@numba.njit(cache=True, nogil=True)
def _find_problem(feature, threshold, left, right, value, offsets, num_features):  # type: ignore[no-untyped-def]
    nodes = feature.size
    if offsets[0] != 0 or offsets[-1] != nodes:
        return 1, 0
    for tree in range(offsets.size - 1):
        # Both bounds are checked before use: a huge offset must not become a subscript.
        if offsets[tree + 1] <= offsets[tree] or offsets[tree + 1] > nodes:
            return 1, tree
    has_parent = np.zeros(nodes, dtype=np.uint8)
    for tree in range(offsets.size - 1):
        start, stop = offsets[tree], offsets[tree + 1]
        for node in range(start, stop):
            if node > start and has_parent[node] != 1:
                return 5, node
            if not np.isfinite(value[node]):
                return 7, node
            if not np.isfinite(threshold[node]):
                return 6, node
            if feature[node] == LEAF:
                if left[node] != LEAF or right[node] != LEAF:
                    return 3, node
                continue
            if feature[node] < 0 or feature[node] >= num_features:
                return 2, node
            for child in (left[node], right[node]):
                if child <= node or child >= stop:
                    return 4, node
                if has_parent[child]:
                    return 5, child
                has_parent[child] = 1
    return 0, 0

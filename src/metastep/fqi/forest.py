"""A regression forest as a few flat arrays, which all its trees share: what is fitted, walked, saved and loaded."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.fqi.kernel import kernel

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

    def predict(self, inputs: ArrayLike) -> NDArray[np.float64]:
        """Mean over trees of each input's leaf value, `(rows,)`; trees are summed in order, so bits never vary."""
        matrix = as_inputs(inputs, self.num_features)
        return _predict(matrix, self.feature, self.threshold, self.left, self.right, self.value, self.offsets)

    def some_trees(self, which: Sequence[int]) -> "Forest":
        """These trees, as a forest with the importances of all."""
        return join([self._tree(index) for index in which])._replace(importances=self.importances)

    def in_unit(self, column: int, zero: float, unit: float) -> "Forest":
        """The same forest for rows that have a column in another unit, as `zero + unit * number`."""
        moved = (zero + unit * self.threshold.astype(np.float64)).astype(np.float32)
        return self._replace(threshold=np.where(self.feature == column, moved, self.threshold))

    def _tree(self, index: int) -> "Forest":
        own = slice(self.offsets[index], self.offsets[index + 1])
        left, right = (np.where(array[own] >= 0, array[own] - own.start, LEAF) for array in (self.left, self.right))
        ends = np.array([0, own.stop - own.start])
        return Forest(self.feature[own], self.threshold[own], left, right, self.value[own], ends, self.importances)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `load_forest` takes."""
        return self._asdict()


_KINDS = (np.int32, np.float32, np.int32, np.int32, np.float64, np.int64, np.float64)
_TYPES = {name: np.dtype(kind) for name, kind in zip(Forest._fields, _KINDS, strict=True)}


def load_forest(arrays: Mapping[str, NDArray[Any]]) -> Forest:
    """The forest of arrays that may come from anywhere: whatever would break a walk is an `InputError`."""
    if arrays.keys() != _TYPES.keys():
        raise InputError(f"forest: has the arrays {sorted(arrays)!r:.200}, allowed are {', '.join(_TYPES)}.")
    for name, array in arrays.items():
        if array.dtype != (kind := _TYPES[name]) or array.ndim != 1:
            raise InputError(f"forest: {name} is {array.dtype} of shape {array.shape}, allowed is a list of {kind}.")
    check_structure(forest := Forest(**arrays))
    return forest


def join(forests: Sequence[Forest]) -> Forest:
    """The trees of all forests as one.

    Importances are added up, then made shares again: those of a forest that never split count nothing, as in scikit-learn.
    """
    starts = np.cumsum([0] + [len(forest.feature) for forest in forests])

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(forest, name) for forest in forests])

    def children(name: str) -> NDArray[np.int32]:
        shift = np.repeat(starts[:-1], np.diff(starts))
        return np.where((own := joined(name)) >= 0, own + shift, LEAF).astype(np.int32)

    shares = np.sum([forest.importances for forest in forests], axis=0)
    return Forest(
        feature=joined("feature"),
        threshold=joined("threshold"),
        left=children("left"),
        right=children("right"),
        value=joined("value"),
        offsets=np.concatenate([[0], *(f.offsets[1:] + start for f, start in zip(forests, starts[:-1], strict=True))]),
        importances=shares / shares.sum() if shares.sum() > 0 else shares,
    )


def as_inputs(inputs: ArrayLike, num_features: int, name: str = "inputs") -> NDArray[np.float32]:
    """Inputs as a C-ordered float32 matrix `(rows, num_features)`, or one sentence on what is wrong."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        matrix = np.ascontiguousarray(inputs, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != num_features:
        raise InputError(f"{name} has shape {matrix.shape}, allowed is (rows, {num_features}).")
    return matrix


@kernel
def _predict(inputs, feature, threshold, left, right, value, offsets):  # type: ignore[no-untyped-def]
    total = np.zeros(inputs.shape[0])
    for tree in range(offsets.size - 1):
        for row in range(inputs.shape[0]):
            node = offsets[tree]
            while feature[node] >= 0:
                node = left[node] if inputs[row, feature[node]] <= threshold[node] else right[node]
            total[row] += value[node]
    return total / (offsets.size - 1)


@kernel
def depth(left, right):  # type: ignore[no-untyped-def]
    """Number of splits on the longest path of any tree of a forest, from the children of its nodes."""
    # Children come after their parent, so one pass in order knows every parent's level before its children's.
    level = np.zeros(left.size, dtype=np.int32)
    deepest = 0
    for node in range(left.size):
        if left[node] >= 0:
            level[left[node]] = level[right[node]] = level[node] + 1
            deepest = max(deepest, level[node] + 1)
    return deepest


def check_structure(forest: Forest) -> None:
    """Raise `InputError` unless every walk through the forest ends and every value in it is finite."""

    def require(holds: NDArray[np.bool_], problem: str) -> None:
        if not holds.all():
            raise InputError(f"forest: {problem} (at position {int(np.argmin(holds))}).")

    feature, left, right, offsets = forest.feature, forest.left, forest.right, forest.offsets
    nodes = len(feature)
    for name in ("threshold", "left", "right", "value"):
        if (length := len(getattr(forest, name))) != nodes:
            raise InputError(f"forest: {name} has {length} nodes, allowed is {nodes} as in feature.")
    if forest.num_trees < 1 or forest.num_features < 1:
        raise InputError(f"forest: has {forest.num_trees} trees and {forest.num_features} features, at least 1 each.")
    for name in ("threshold", "value", "importances"):
        require(np.isfinite(getattr(forest, name)), f"{name} must be finite")
    ends = (offsets[:1] == 0) & (offsets[-1:] == nodes)
    increasing = np.concatenate([ends, offsets[1:] > offsets[:-1]])
    require(increasing, "offsets must start at 0, increase and end at the number of nodes")
    in_range = (feature >= LEAF) & (feature < forest.num_features)
    require(in_range, "feature must be -1 at a leaf and otherwise below the number of features")
    leaf = feature == LEAF
    node, stop = np.arange(nodes, dtype=np.int32), np.repeat(offsets[1:].astype(np.int32), np.diff(offsets))
    for child in (left, right):
        require(~leaf | (child == LEAF), "left and right must be -1 at a leaf")
        require(leaf | ((child > node) & (child < stop)), "left and right must point to later nodes of the same tree")
    # As many children as there are nodes below a root, and no node left out: each has exactly one parent.
    inner, reached = np.flatnonzero(~leaf), np.zeros(nodes, np.bool_)
    for children in (left[inner], right[inner], offsets[:-1]):
        reached[children] = True
    reached &= 2 * len(inner) + forest.num_trees == nodes
    require(reached, "every node but a root must have exactly one parent")

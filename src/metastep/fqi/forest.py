"""Regression forests as flat arrays shared by all trees: predict, join, save, load, pack."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError

LEAF = -1  # `feature`, `left` and `right` of a leaf


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, to run without the GIL, and cache the machine code if possible."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):  # no writable folder for the cache
        return numba.njit(nogil=True)(function)


class Forest(NamedTuple):
    """All trees of a forest; the root of tree `t` is node `offsets[t]`, children are indices into the same arrays.

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
        return len(self.importances)

    def predict(self, inputs: ArrayLike) -> NDArray[np.float64]:
        """Return the mean over trees of each input's leaf value, `(rows,)`; trees are summed in order, for reproducible bits."""
        matrix = as_inputs(inputs, self.num_features)
        return _predict(matrix, self.feature, self.threshold, self.left, self.right, self.value, self.offsets)

    def some_trees(self, which: Sequence[int]) -> "Forest":
        """Return a forest of these trees, with the importances of all."""

        def tree(index: int) -> Forest:
            own = slice(*self.offsets[index : index + 2])  # nodes of this tree
            left, right = (np.where(array[own] >= 0, array[own] - own.start, LEAF) for array in (self.left, self.right))
            ends = np.array([0, own.stop - own.start])
            return Forest(self.feature[own], self.threshold[own], left, right, self.value[own], ends, self.importances)

        return join(list(map(tree, which)))._replace(importances=self.importances)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self._asdict()


_TYPES = dict(zip(Forest._fields, ["i4", "f4", "i4", "i4", "f8", "i8", "f8"], strict=True))
# Features are int8 unless there are too many; low and high are of every feature's thresholds, then of the leaves.
_PACKED = {"feature": "i1 i2", "code": "u2", "low": "f4", "high": "f4", "offsets": "i8", "importances": "f4"}
_PACKED_TYPES = {f"packed_{name}": kinds for name, kinds in _PACKED.items()}
_STEPS = np.iinfo(np.uint16).max


def load_forest(arrays: Mapping[str, NDArray[Any]]) -> Forest:
    """Check arrays from an untrusted source, packed or not, and return their forest; invalid arrays are an `InputError`."""
    types = _PACKED_TYPES if arrays.keys() == _PACKED_TYPES.keys() else _TYPES
    if arrays.keys() != types.keys():
        raise InputError(f"forest: has the arrays {sorted(arrays)!r:.200}, allowed are {', '.join(_TYPES)}.")
    for name, array in arrays.items():
        allowed = [np.dtype(kind) for kind in types[name].split()]
        if array.dtype not in allowed or array.ndim != 1:
            actual = f"{name} is {array.dtype} of shape {array.shape}"
            raise InputError(f"forest: {actual}, allowed is a list of {allowed[0]}.")
    forest = Forest(**arrays) if types is _TYPES else _unpack(arrays)
    check_structure(forest)
    return forest


def join(forests: Sequence[Forest]) -> Forest:
    """Concatenate forests; importances are added and normalised, as in scikit-learn."""
    starts = np.cumsum([0] + [len(forest.feature) for forest in forests])
    columns = zip(*(forest[:5] for forest in forests), strict=True)
    feature, threshold, left, right, value = (np.concatenate(column) for column in columns)
    shift = np.repeat(starts[:-1], np.diff(starts))
    left, right = (np.where(child >= 0, child + shift, LEAF).astype(np.int32) for child in (left, right))
    ends = [forest.offsets[1:] + start for forest, start in zip(forests, starts[:-1], strict=True)]
    shares = np.sum([forest.importances for forest in forests], axis=0)
    shares = shares / shares.sum() if shares.sum() > 0 else shares
    return Forest(feature, threshold, left, right, value, np.concatenate([[0], *ends]), shares)


def as_inputs(inputs: ArrayLike, num_features: int, name: str = "inputs") -> NDArray[np.float32]:
    """Return inputs as a C-ordered float32 matrix `(rows, num_features)`."""
    with np.errstate(over="ignore"):  # larger numbers become infinite
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


def check_structure(forest: Forest) -> None:
    """Raise `InputError` unless every walk through the forest ends and every value in it is finite."""
    feature, threshold, left, right, value, offsets, importances = forest
    nodes, trees = len(feature), len(offsets) - 1
    if {len(threshold), len(left), len(right), len(value)} != {nodes} or trees < 1 or not len(importances):
        raise InputError("forest: needs one tree and one feature or more, and arrays of as many nodes each.")

    def require(holds: NDArray[np.bool_], problem: str) -> None:
        if not holds.all():
            raise InputError(f"forest: {problem} (at position {int(np.argmin(holds))}).")

    for name in ("threshold", "value", "importances"):
        require(np.isfinite(getattr(forest, name)), f"{name} must be finite")
    increasing = np.concatenate([(offsets[:1] == 0) & (offsets[-1:] == nodes), offsets[1:] > offsets[:-1]])
    require(increasing, "offsets must start at 0, increase and end at the number of nodes")
    in_range = (feature >= LEAF) & (feature < len(importances))
    require(in_range, "feature must be -1 at a leaf and otherwise below the number of features")
    leaf = feature == LEAF
    node, stop = np.arange(nodes, dtype=np.int32), np.repeat(offsets[1:].astype(np.int32), np.diff(offsets))
    for child in (left, right):
        require(~leaf | (child == LEAF), "left and right must be -1 at a leaf")
        require(leaf | ((child > node) & (child < stop)), "left and right must point to later nodes of the same tree")
    # If there are as many children as nodes that are not roots, and all nodes are reached, each has exactly one parent.
    inner, reached = np.flatnonzero(~leaf), np.zeros(nodes, np.bool_)
    for children in (left[inner], right[inner], offsets[:-1]):
        reached[children] = True
    require(reached & (2 * len(inner) + trees == nodes), "every node but a root must have exactly one parent")


def pack(forest: Forest) -> dict[str, NDArray[Any]]:
    """Return arrays with three bytes per node, an eighth of the space, for models that are published.

    Nodes must be in depth-first order, left before right, as trees are grown; other forests are not packed. Then `feature` alone
    determines the children, and one number per node is sufficient: the threshold of a split or the value of a leaf, rounded to
    one of 65,536 steps between the smallest and largest threshold of that feature, or leaf, in the forest.
    """
    feature, num = forest.feature, forest.num_features
    left, right = _children(feature)
    if not (np.array_equal(left, forest.left) and np.array_equal(right, forest.right)):
        return forest.arrays()
    number = np.where(feature == LEAF, forest.value, forest.threshold)
    low, high = np.full(num + 1, np.inf), np.full(num + 1, -np.inf)
    np.minimum.at(low, feature, number)  # LEAF, -1, is the last entry
    np.maximum.at(high, feature, number)
    is_used = low <= high
    low, high = (np.where(is_used, ends, 0.0).astype(np.float32) for ends in (low, high))
    reach = np.float64(high) - low
    shares = (number - low[feature]) / np.where(reach > 0.0, reach, 1.0)[feature]
    code = np.rint(_STEPS * np.clip(shares, 0.0, 1.0)).astype(np.uint16)
    kept = feature.astype(np.int8 if num <= np.iinfo(np.int8).max else np.int16)
    parts = kept, code, low, high, forest.offsets, forest.importances.astype(np.float32)
    return dict(zip(_PACKED_TYPES, parts, strict=True))


def _unpack(arrays: Mapping[str, NDArray[Any]]) -> Forest:
    packed, code, low, high, offsets, importances = (np.asarray(arrays[name]) for name in _PACKED_TYPES)
    feature, num = packed.astype(np.int32), len(importances)
    if len(code) != len(feature) or not len(low) == len(high) == num + 1:
        raise InputError("forest: packed arrays have lengths that do not fit each other.")
    if len(feature) and not LEAF <= feature.min() <= feature.max() < num:
        raise InputError(f"forest: packed_feature must be {LEAF} or below the number of features.")
    (left, right), is_leaf = _children(feature), feature == LEAF
    number = low[feature] + (np.float64(high) - low)[feature] * (code / _STEPS)
    threshold, value = np.where(is_leaf, 0.0, number).astype(np.float32), np.where(is_leaf, number, 0.0)
    return Forest(feature, threshold, left, right, value, offsets, importances.astype(np.float64))


@kernel
def _children(feature):  # type: ignore[no-untyped-def]
    """Return the left and right children of nodes in depth-first order; -1 for missing children."""
    left, right = np.full(feature.size, -1, np.int32), np.full(feature.size, -1, np.int32)
    stack, height = np.empty(feature.size + 1, np.int64), 0
    for node in range(feature.size):
        if height > 0:  # the next node is a child of the last node that lacks one
            parent = stack[height - 1]
            if left[parent] < 0:
                left[parent] = node
            else:
                right[parent] = node
                height -= 1
        if feature[node] >= 0:
            stack[height] = node
            height += 1
    return left, right

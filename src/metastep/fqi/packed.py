"""Forests in an eighth of the space: three bytes for each node, for models that travel in a package.

Nodes are put in the order in which a walk meets them, left before right. Then `feature`, with its mark of leaves, says where
every child is, and one number is enough for a node: the threshold of a split, the value of a leaf. Numbers are kept as one of
65,536 steps between the smallest and the largest of the forest's thresholds of that feature, or of its leaves.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.fqi.forest import LEAF, Forest, check_structure
from metastep.fqi.kernel import kernel

_STEPS = np.iinfo(np.uint16).max
_TYPES = {
    "packed_feature": (np.dtype(np.int8), np.dtype(np.int16)),  # the first unless there are too many features
    "packed_code": (np.dtype(np.uint16),),
    "packed_low": (np.dtype(np.float32),),  # of every feature's thresholds, and at last of the leaves
    "packed_high": (np.dtype(np.float32),),
    "packed_offsets": (np.dtype(np.int64),),
    "packed_importances": (np.dtype(np.float32),),
}


def pack(forest: Forest) -> dict[str, NDArray[Any]]:
    """The arrays that `unpack` takes; numbers are rounded to a step, and values of splits are left out."""
    order, num = _walk_order(forest.left, forest.right, forest.offsets), forest.num_features
    feature = forest.feature[order]
    number = np.where(feature == LEAF, forest.value[order], forest.threshold[order])
    low, high = np.full(num + 1, np.inf), np.full(num + 1, -np.inf)
    np.minimum.at(low, feature, number)  # LEAF is the last place
    np.maximum.at(high, feature, number)
    is_used = low <= high
    low, high = (np.where(is_used, ends, 0.0).astype(np.float32) for ends in (low, high))
    reach = np.float64(high) - low
    shares = (number - low[feature]) / np.where(reach > 0.0, reach, 1.0)[feature]
    code = np.rint(_STEPS * np.clip(shares, 0.0, 1.0)).astype(np.uint16)
    kept = feature.astype(np.int8 if num <= np.iinfo(np.int8).max else np.int16)
    parts = kept, code, low, high, forest.offsets, forest.importances.astype(np.float32)
    return dict(zip(_TYPES, parts, strict=True))


def is_packed(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether arrays are those of a packed forest."""
    return arrays.keys() == _TYPES.keys()


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Forest:
    """The forest of packed arrays, which may come from anywhere."""
    for name, kinds in _TYPES.items():
        if (array := arrays[name]).dtype not in kinds or array.ndim != 1:
            raise InputError(
                f"forest: {name} is {array.dtype} of shape {array.shape}, allowed is a list of {kinds[0]}."
            )
    packed, code, low, high, offsets, importances = (np.asarray(arrays[name]) for name in _TYPES)
    feature = packed.astype(np.int32)
    if len(code) != len(feature):
        raise InputError(f"forest: packed_code has {len(code)} nodes, allowed is {len(feature)} as in packed_feature.")
    places = len(importances) + 1
    if not len(low) == len(high) == places:
        raise InputError(
            f"forest: packed_low has {len(low)} and packed_high {len(high)} numbers, allowed is {places}, one for every "
            "feature and one for leaves."
        )
    if len(feature) and not LEAF <= feature.min() <= feature.max() < len(importances):
        raise InputError(f"forest: packed_feature must be {LEAF} or below the number of features.")
    left, right, is_whole = _children(feature)
    if not is_whole:
        raise InputError("forest: packed_feature ends within a tree.")
    is_leaf = feature == LEAF
    number = low[feature] + (np.float64(high) - low)[feature] * (code / _STEPS)
    forest = Forest(
        feature=feature,
        threshold=np.where(is_leaf, 0.0, number).astype(np.float32),
        left=left,
        right=right,
        value=np.where(is_leaf, number, 0.0),
        offsets=offsets,
        importances=importances.astype(np.float64),
    )
    check_structure(forest)
    return forest


@kernel
def _walk_order(left, right, offsets):  # type: ignore[no-untyped-def]
    order, stack = np.empty(left.size, np.int64), np.empty(left.size + 1, np.int64)
    position = 0
    for tree in range(offsets.size - 1):
        stack[0] = offsets[tree]
        height = 1
        while height > 0:
            height -= 1
            node = stack[height]
            order[position] = node
            position += 1
            if left[node] >= 0:
                stack[height] = right[node]
                stack[height + 1] = left[node]
                height += 2
    return order


@kernel
def _children(feature):  # type: ignore[no-untyped-def]
    """Children of nodes in the order of a walk, and whether the last tree is whole."""
    left, right = np.full(feature.size, -1, np.int32), np.full(feature.size, -1, np.int32)
    stack = np.empty(feature.size + 1, np.int64)
    height = 0
    for node in range(feature.size):
        if height > 0:  # the next node is the right child of whoever waits last, unless it is somebody's left one
            parent = stack[height - 1]
            if left[parent] < 0:
                left[parent] = node
            else:
                right[parent] = node
                height -= 1
        if feature[node] >= 0:
            stack[height] = node
            height += 1
    return left, right, height == 0

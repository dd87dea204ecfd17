"""Forests in a quarter of the space: six bytes for each node, for models that travel in a package.

Nodes are put in the order in which a walk meets them, left before right. Then `feature`, with its mark of leaves, says where
every child is, and one number is enough for a node: the threshold of a split, the value of a leaf, as float32.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.errors import InputError
from metastep.fqi.forest import LEAF, Forest, check_structure
from metastep.fqi.kernel import kernel

_TYPES = {
    "packed_feature": np.dtype(np.int16),
    "packed_number": np.dtype(np.float32),
    "packed_offsets": np.dtype(np.int64),
    "packed_importances": np.dtype(np.float32),
}


def pack(forest: Forest) -> dict[str, NDArray[Any]]:
    """The arrays that `unpack` takes; values of leaves are rounded to float32, those of splits are left out."""
    order = _walk_order(forest.left, forest.right, forest.offsets)
    feature = forest.feature[order]
    number = np.where(feature == LEAF, forest.value[order], forest.threshold[order])
    parts = feature, number, forest.offsets, forest.importances
    return {name: array.astype(kind) for (name, kind), array in zip(_TYPES.items(), parts, strict=True)}


def is_packed(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether arrays are those of a packed forest."""
    return arrays.keys() == _TYPES.keys()


def unpack(arrays: Mapping[str, NDArray[Any]]) -> Forest:
    """The forest of packed arrays, which may come from anywhere."""
    for name, kind in _TYPES.items():
        if (array := arrays[name]).dtype != kind or array.ndim != 1:
            raise InputError(f"forest: {name} is {array.dtype} of shape {array.shape}, allowed is a list of {kind}.")
    packed, number, offsets, importances = (np.asarray(arrays[name]) for name in _TYPES)
    feature = packed.astype(np.int32)
    if len(number) != len(feature):
        raise InputError(
            f"forest: packed_number has {len(number)} nodes, allowed is {len(feature)} as in packed_feature."
        )
    left, right, is_whole = _children(feature)
    if not is_whole:
        raise InputError("forest: packed_feature ends within a tree.")
    is_leaf = feature == LEAF
    forest = Forest(
        feature=feature,
        threshold=np.where(is_leaf, np.float32(0.0), number).astype(np.float32),
        left=left,
        right=right,
        value=np.where(is_leaf, number, np.float32(0.0)).astype(np.float64),
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

"""The contract of features."""

from typing import Any

import numpy as np

from metastep import features
from metastep.features import Feature
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.testing.subject import named, other_first


def check_feature(feature: Feature, mdp: MetaMDP, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the feature keeps the contract of `metastep.features.Feature`.

    It has a name, a size, as many names of columns and bounds as that; it gives float32 numbers of shape (learners, size); the
    same learners give the same bits; and the numbers of a learner do not depend on the other learners of the block.

    Args:
        feature: what to check.
        mdp: a meta-MDP that has such features, with blocks of two learners or more; a small one will do.
        seed: of the tasks.
    """
    subject = named("feature", feature)
    subject.methods("size", "columns", "bounds", "__call__")
    size = subject.call("size", feature.size, mdp)
    subject.count("size", size)
    columns: Any = subject.call("columns", feature.columns, mdp)
    subject.words("columns", columns)
    subject.require(len(set(columns)) == size, f"`columns` must give {size} different names, got {columns!r}")
    bounds: Any = subject.call("bounds", feature.bounds, mdp)
    is_pair = isinstance(bounds, tuple) and [np.shape(each) for each in bounds] == [(size,)] * 2
    subject.require(is_pair, f"`bounds` must give {size} lower and {size} upper ones, got {bounds!r}")
    low, high = np.asarray(bounds, np.float64)
    subject.require((low <= high).all(), f"the lower `bounds` must not exceed the upper ones, got {bounds!r}")

    def evaluate(learners: Learners) -> tuple[Any]:
        return (features.evaluate(feature, mdp.diagnostics(learners), mdp.block_size),)

    tasks = mdp.tasks(seed, Stream.VALIDATION, 0)
    learners, others = (mdp.begin(each) for each in (tasks, other_first(subject, mdp, tasks)))
    (found,) = subject.trace("__call__", evaluate, learners)
    subject.array("what `__call__` returns", found, (mdp.block_size, size))
    subject.apart(("__call__",), evaluate, (learners,), (others,))

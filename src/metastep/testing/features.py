"""The contract of features."""

from typing import Any

import numpy as np

from metastep import features
from metastep.features import Feature
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.testing.controllers import other_first
from metastep.testing.subject import named


def check_feature(feature: Feature, mdp: MetaMDP, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the feature keeps the contract of `metastep.features.Feature`.

    Checked: that it has a name, a size and as many names of columns and bounds; that it gives float32 numbers of shape
    (learners, size); that the same learners give the same bits; and that a learner's numbers do not depend on other learners.
    `mdp` is any meta-MDP that has such features, with blocks of at least two learners.
    """
    subject = named("feature", feature)
    subject.has_methods("size", "columns", "bounds", "__call__")
    size = subject.call("size", feature.size, mdp)
    subject.require(isinstance(size, int) and size >= 1, f"`size` must be a whole number of at least 1, got {size!r}")
    columns: Any = subject.call("columns", feature.columns, mdp)
    words = isinstance(columns, tuple) and all(isinstance(word, str) and word for word in columns)
    subject.require(words, f"`columns` must be a tuple of strings, got {columns!r}")
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
    subject.is_array("what `__call__` returns", found, (mdp.block_size, size))
    subject.independent(("__call__",), evaluate, (learners,), (others,))

"""Extremely randomised trees in Numba: what scikit-learn's ExtraTreesRegressor fits, several times faster.

The algorithm is Geurts, Ernst and Wehenkel's with scikit-learn's conventions: every node draws one uniform threshold
between the minimum and the maximum of each feature and keeps the one with the largest variance reduction; constant
features are skipped; all rows are used (no bootstrap); a node with fewer rows than the minimum, or with constant
targets, is a leaf. Random numbers differ from scikit-learn's, so forests agree in distribution, not tree by tree.

Speed comes from the layout: a row's features are contiguous and padded to whole SIMD registers, so one pass over the
rows of a node updates the statistics of all its features at once, without a sort and without a gather.
"""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from metastep.errors import InputError
from metastep.fqi.forest import LEAF, Forest, predict
from metastep.fqi.grow import Tree, grow_tree
from metastep.fqi.threads import map_threads

_LANES = 16
"""Features are padded to a multiple of this many float32: the compiled loops handle 16 at once, fewer one by one."""


class NativeExtraTreesRegressor(BaseEstimator):
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
        raise InputError(
            f"inputs has shape {matrix.shape} and targets {y.shape}, allowed is (rows, features) and (rows,)."
        )
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

    def grow(tree_seed: np.uint64) -> Tree:
        return grow_tree(padded, centred, num_features, fewest, tree_seed, low, high)

    return _assemble(map_threads(grow, seeds, threads), mean)


def _assemble(trees: list[Tree], mean: float) -> Forest:
    offsets = np.concatenate([[0], np.cumsum([len(tree.feature) for tree in trees])]).astype(np.int64)
    feature = np.concatenate([tree.feature for tree in trees])
    right = [np.where(t.right >= 0, t.right + start, LEAF) for t, start in zip(trees, offsets[:-1], strict=True)]
    # Each tree's shares sum to 1 unless it never split, and such trees do not count, as in scikit-learn.
    shares = np.sum([tree.importances for tree in trees], axis=0)
    return Forest(
        feature=feature,
        threshold=np.concatenate([tree.threshold for tree in trees]),
        left=np.where(feature >= 0, np.arange(1, len(feature) + 1), LEAF).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        value=np.concatenate([tree.value for tree in trees]) + mean,
        offsets=offsets,
        importances=shares / shares.sum() if shares.sum() > 0 else shares,
    )

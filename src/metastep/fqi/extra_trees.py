"""Extremely randomised trees in Numba: what scikit-learn's ExtraTreesRegressor fits, several times faster.

The algorithm is Geurts, Ernst and Wehenkel's with scikit-learn's conventions: every node draws one uniform threshold
between the minimum and the maximum of each feature and keeps the one with the largest variance reduction; constant
features are skipped; all rows are used (no bootstrap); a node with fewer rows than the minimum, or with constant
targets, is a leaf. Random numbers differ from scikit-learn's, so forests agree in distribution, not tree by tree.

Speed comes from the layout: a row's features are contiguous and padded to whole SIMD registers, so one pass over the
rows of a node updates the statistics of all its features at once, without a sort and without a gather.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep._core.settings import check_fields
from metastep.fqi.forest import Forest, join, load_forest
from metastep.fqi.grow import grow_tree
from metastep.fqi.packed import is_packed, unpack

_LANES = 16
"""Features are padded to a multiple of this many float32: the compiled loops handle 16 at once, fewer one by one."""
_PIECES = 64
"""Rows are predicted in so many pieces, for threads to share."""


@dataclass(frozen=True)
class ExtraTrees:
    """Extremely randomised trees, grown in Numba.

    Args:
        trees: trees of each forest.
        min_samples_split: fewest rows of a node that is split, as a share of all rows (float, rounded up) or as a number (int).
        state_first: whether as many trees again, which come first, learn what all inputs but the last one say, so that these
            learn what is left. MetaFQI's last input is the step: otherwise most splits go to the state, which explains most
            of a value, and few to the step, which decides.
    """

    trees: Annotated[int, Ge(1), Le(100_000)] = 50
    min_samples_split: Annotated[float, Gt(0.0), Le(1.0)] | Annotated[int, Ge(2)] = 0.01
    state_first: bool = False

    name: ClassVar[str] = "extra-trees"

    def __post_init__(self) -> None:
        check_fields(self, "fqi.regressor")

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None) -> Forest:
        """Grow the trees, each with a seed of its own, so that the bits do not depend on `threads`."""
        matrix, y = np.asarray(inputs, dtype=np.float32), np.asarray(targets, dtype=np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape or y.shape != matrix.shape[:1]:
            raise InputError(
                f"inputs has shape {matrix.shape} and targets {y.shape}, allowed is (rows, features) and (rows,)."
            )
        if not (np.isfinite(matrix).all() and np.isfinite(y).all()):
            raise InputError("inputs and targets must be finite.")
        num_rows, num_features = matrix.shape
        padded = np.zeros((num_rows, -(-num_features // _LANES) * _LANES), dtype=np.float32)
        padded[:, :num_features] = matrix
        number = 2 * self.trees if self.state_first else self.trees
        seeds: NDArray[Any] = np.random.SeedSequence(seed).generate_state(number, np.uint64)
        if not self.state_first:
            return self._grow(padded, y, num_features, seeds, threads)[0]
        last = num_features - 1
        blind = padded.copy()
        blind[:, last] = 0.0  # what does not vary is never split
        first, by_first = self._grow(blind, y, num_features, seeds[: self.trees], threads)
        left = y - np.concatenate(map_threads(first.predict, np.array_split(matrix, _PIECES), threads))
        rest, by_rest = self._grow(padded, left, num_features, seeds[self.trees :], threads)
        # A forest is the mean of its trees, and here the sum of two such means, each with the importance that it has.
        halves = ((first, by_first), (rest, by_rest))
        return join(
            [half._replace(value=2.0 * half.value, importances=removed * half.importances) for half, removed in halves]
        )

    def _grow(
        self,
        padded: NDArray[np.float32],
        y: NDArray[np.float64],
        num_features: int,
        seeds: NDArray[Any],
        threads: int | None,
    ) -> tuple[Forest, float]:
        """A forest, and how much of the targets' variance, times the number of rows, the splits of all its trees remove."""
        # Sums of squares lose digits when the mean is large against the spread.
        mean, fewest = float(y.mean()), self.fewest_rows(len(y))
        centred, low, high = y - mean, padded.min(axis=0), padded.max(axis=0)

        def grow(seed: np.uint64) -> tuple[Forest, float]:
            return grow_tree(padded, centred, num_features, fewest, seed, low, high)

        trees, removed = zip(*map_threads(grow, seeds, threads), strict=True)
        forest = join(trees)
        return forest._replace(value=forest.value + mean), sum(removed)

    def fewest_rows(self, num_rows: int) -> int:
        """Fewest rows of a node that is split, counted as scikit-learn does: at least 2."""
        is_number = isinstance(self.min_samples_split, int | np.integer)
        return max(2, int(self.min_samples_split if is_number else np.ceil(self.min_samples_split * num_rows)))

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """A forest that was fitted before, packed or not."""
        return unpack(arrays) if is_packed(arrays) else load_forest(arrays)

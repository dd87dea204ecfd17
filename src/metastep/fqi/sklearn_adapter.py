"""Regressors of scikit-learn.

It keeps a tree as a Python object with float64 thresholds and compares float32 inputs with them; flat forests have float32
thresholds. For a float32 `x` and a float64 `t`, `x <= t` holds exactly when `x <= floor32(t)`, so flooring the thresholds
changes no comparison.

Its ensembles are imported where they are used: nothing else needs them, and they take a tenth of the time of a short command.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep.fqi.extra_trees import ExtraTrees
from metastep.fqi.forest import LEAF, Forest, join


class SklearnHead(NamedTuple):
    """A fitted regressor of scikit-learn that is not a forest; it lives in memory only."""

    regressor: Any
    num_features: int

    @property
    def importances(self) -> NDArray[np.float64] | None:
        """Where the regressor tells them."""
        return getattr(self.regressor, "feature_importances_", None)

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the regressor predicts."""
        return np.asarray(self.regressor.predict(inputs), dtype=np.float64)

    def arrays(self) -> NoReturn:
        """Its parts are not known."""
        raise InputError(f"fqi.regressor: {self.regressor!r} lives in memory only and cannot be saved.")


class OfSklearn(NamedTuple):
    """Any regressor of scikit-learn; its forests become flat ones."""

    given: Any

    @property
    def name(self) -> str:
        """How it was made; this is not a name in the registry."""
        return repr(self.given)

    def fit(
        self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None
    ) -> Forest | SklearnHead:
        """Fit a copy whose random states come from the seed; threads are the regressor's own matter."""
        from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

        regressor = clone(self.given).set_params(**_random_states(self.given, seed))
        # Trees read one feature of many rows at a time: columns first halves scikit-learn's time on wide data.
        regressor.fit(np.asfortranarray(inputs), targets)
        if isinstance(regressor, ExtraTreesRegressor | RandomForestRegressor):
            return from_sklearn(regressor)
        return SklearnHead(regressor, np.shape(inputs)[1])

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> NoReturn:
        """Nothing was saved."""
        raise InputError(f"fqi.regressor: {self.name} lives in memory only and cannot be loaded.")


class SklearnExtraTrees(ExtraTrees):
    """The same trees grown by scikit-learn, the reference.

    Args:
        trees: trees of each forest.
        min_samples_split: fewest rows of a node that is split, as a share of all rows (float, rounded up) or as a number (int).
    """

    name: ClassVar[str] = "sklearn-extra-trees"

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None) -> Forest:
        """Grow the trees."""
        from sklearn.ensemble import ExtraTreesRegressor

        trees = ExtraTreesRegressor(
            self.trees, min_samples_split=self.min_samples_split, random_state=seed, n_jobs=count_threads(threads)
        )
        return from_sklearn(trees.fit(np.asfortranarray(inputs), targets))


def _random_states(regressor: Any, seed: int) -> dict[str, int]:
    """A value for every random state of a regressor: the seed for its own, one derived from it for each inside it."""
    found = [name for name in sorted(regressor.get_params()) if name.rpartition("__")[2] == "random_state"]
    inner = np.random.SeedSequence(seed).generate_state(len(found) + 1)
    return {name: seed if name == "random_state" else int(state) for name, state in zip(found, inner[1:], strict=True)}


def floor_to_float32(values: ArrayLike) -> NDArray[np.float32]:
    """Largest float32 not above each float64 value."""
    exact = np.asarray(values, dtype=np.float64)
    rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def from_sklearn(regressor: Any) -> Forest:
    """The flat forest of a fitted scikit-learn ExtraTreesRegressor or RandomForestRegressor with one output."""

    def flat(tree: Any) -> Forest:
        leaf = tree.feature < 0
        return Forest(
            feature=np.where(leaf, LEAF, tree.feature).astype(np.int32),
            threshold=np.where(leaf, np.float32(0), floor_to_float32(tree.threshold)),
            left=tree.children_left,  # -1 at a leaf, as here
            right=tree.children_right,
            value=tree.value[:, 0, 0],
            offsets=np.array([0, tree.node_count]),
            importances=np.zeros(tree.n_features),
        )

    whole = join([flat(estimator.tree_) for estimator in regressor.estimators_])
    return whole._replace(importances=np.asarray(regressor.feature_importances_, dtype=np.float64))

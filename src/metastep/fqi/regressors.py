"""Regressors of the Q-function, their registry, and the adapter for scikit-learn.

A regressor of your own is a frozen dataclass with the members of `Regressor`, whose `fit` returns an object with those of `Head`.
After `register("mine", Mine)`, configurations can name it, and its models can be saved and loaded.

scikit-learn's ensembles are imported only where they are used, because they slow down the start of short commands.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from metastep._core.errors import InputError
from metastep._core.parallel import count_threads
from metastep._core.settings import Registry
from metastep.fqi.extra_trees import ExtraTrees as ExtraTrees
from metastep.fqi.forest import LEAF, Forest, join


class Head(Protocol):
    """A fitted regressor. The maximum over the step size is fast for a `Forest`; others predict on a grid."""

    @property
    def num_features(self) -> int:
        """Number of inputs: those of an observation, then the step size."""

    @property
    def importances(self) -> NDArray[np.float64] | None:
        """Importance of each input, (features,), as shares; None if unknown."""

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the values of inputs (rows, features): (rows,)."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which `Regressor.load` restores the head."""


@runtime_checkable
class Regressor(Protocol):
    """The settings of a regressor: a frozen dataclass whose fields are the options."""

    @property
    def name(self) -> str:
        """Identifier in the registry."""

    def fit(self, inputs: NDArray[np.float32], targets: NDArray[np.float64], *, seed: int, threads: int | None) -> Head:
        """Learn targets (rows,) from inputs (rows, features); the same seed gives the same head for any `threads`."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Head:
        """Return the head with these `arrays`; they may come from an untrusted file, so wrong ones are an `InputError`."""


class SklearnHead(NamedTuple):
    """A fitted regressor of scikit-learn that is not a forest; it cannot be saved."""

    regressor: Any
    num_features: int

    @property
    def importances(self) -> NDArray[np.float64] | None:
        return getattr(self.regressor, "feature_importances_", None)

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.regressor.predict(inputs), dtype=np.float64)

    def arrays(self) -> NoReturn:
        raise InputError(f"fqi.regressor: {self.regressor!r} lives in memory only and cannot be saved.")


class SklearnRegressor(NamedTuple):
    """Any regressor of scikit-learn; its forests become flat ones."""

    given: Any

    @property
    def name(self) -> str:
        return repr(self.given)

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None) -> Head:
        """Fit a copy whose random state is the seed; nested regressors have states derived from it."""
        from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

        names = [name for name in sorted(self.given.get_params()) if name.rpartition("__")[2] == "random_state"]
        pairs = zip(names, np.random.SeedSequence(seed).generate_state(len(names) + 1)[1:], strict=True)
        states = {name: seed if name == "random_state" else int(state) for name, state in pairs}
        # Trees read one feature of many rows at a time: Fortran order halves scikit-learn's time on wide data.
        regressor = clone(self.given).set_params(**states).fit(np.asfortranarray(inputs), targets)
        if isinstance(regressor, ExtraTreesRegressor | RandomForestRegressor):
            return from_sklearn(regressor)
        return SklearnHead(regressor, np.shape(inputs)[1])

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> NoReturn:
        raise InputError(f"fqi.regressor: {self.name} lives in memory only and cannot be loaded.")


class SklearnExtraTrees(ExtraTrees):
    """The same trees, grown by scikit-learn, as a reference; the options are those of `ExtraTrees`."""

    name: ClassVar[str] = "sklearn-extra-trees"

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None = None) -> Forest:
        from sklearn.ensemble import ExtraTreesRegressor

        if self.state_first:
            raise InputError(f"fqi.regressor.state_first: True must be False where the regressor is {self.name!r}.")
        settings = {"min_samples_split": self.min_samples_split, "n_jobs": count_threads(threads)}
        trees = SklearnRegressor(ExtraTreesRegressor(self.trees, **settings))
        return cast(Forest, trees.fit(inputs, targets, seed=seed))


def from_sklearn(regressor: Any) -> Forest:
    """Return the flat forest of a fitted ExtraTreesRegressor or RandomForestRegressor with one output.

    For a float32 `x` and a float64 `t`, `x <= t` holds exactly when `x <= floor32(t)`, so flooring changes no comparison.
    """

    def flat(tree: Any) -> Forest:
        leaf, rounded = tree.feature < 0, tree.threshold.astype(np.float32)
        floor = np.where(rounded > tree.threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return Forest(
            feature=np.where(leaf, LEAF, tree.feature).astype(np.int32),
            threshold=np.where(leaf, np.float32(0), floor),
            left=tree.children_left,  # -1 at a leaf, as here
            right=tree.children_right,
            value=tree.value[:, 0, 0],
            offsets=np.array([0, tree.node_count]),
            importances=np.zeros(tree.n_features),
        )

    whole = join([flat(estimator.tree_) for estimator in regressor.estimators_])
    return whole._replace(importances=np.asarray(regressor.feature_importances_, dtype=np.float64))


REGISTRY: Registry[Regressor] = Registry("fqi.regressor")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

register("extra-trees", ExtraTrees, label="extra trees")
register("sklearn-extra-trees", SklearnExtraTrees, label="extra trees of scikit-learn")


def resolve(given: Any) -> Regressor:
    """Return the regressor of a registered name, a `Regressor` or a scikit-learn regressor."""
    if isinstance(given, str):
        return make(given)
    if not isinstance(given, type):
        if isinstance(given, Regressor):
            return given
        if all(callable(getattr(given, method, None)) for method in ("fit", "predict", "get_params")):
            return SklearnRegressor(given)
    allowed = f"a registered name ({', '.join(names())}), a Regressor or a scikit-learn regressor"
    raise InputError(f"fqi.regressor: {given!r} must be {allowed}.")


def options_of(regressor: Any) -> dict[str, Any]:
    """Return the options from which `make` builds an equal regressor."""
    fields = dataclasses.fields(regressor) if dataclasses.is_dataclass(regressor) else ()
    return {field.name: getattr(regressor, field.name) for field in fields}

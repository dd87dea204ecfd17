"""What can learn a Q function: the regressors and the registry that names them.

A regressor of your own is a frozen dataclass with `name`, `fit` and `load`, what it fits a class with the members of `Head`,
and a line `register("mine", Mine)` gives it a name that configurations can use and that model files can be loaded with.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from metastep.errors import InputError
from metastep.fqi.extra_trees import ExtraTrees, SklearnExtraTrees
from metastep.fqi.forest import from_sklearn
from metastep.registry import Registry


class Head(Protocol):
    """A fitted regressor. Those that are a `Forest` are maximised over the step size fast, others by predicting on a grid."""

    @property
    def num_features(self) -> int:
        """Numbers of an input: those of an observation, then the step size."""
        ...

    @property
    def importances(self) -> NDArray[np.float64] | None:
        """How much each input matters, (features,), in shares; None where that is not known."""
        ...

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Values of inputs (rows, features): (rows,)."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is needed to load it again."""
        ...


@runtime_checkable
class Regressor(Protocol):
    """The settings of a regressor: a frozen dataclass whose fields are the options."""

    @property
    def name(self) -> str:
        """Identifier in the registry."""
        ...

    def fit(self, inputs: NDArray[np.float32], targets: NDArray[np.float64], *, seed: int, threads: int | None) -> Head:
        """Learn targets (rows,) from inputs (rows, features); the same seed gives the same head, whatever the threads."""
        ...

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Head:
        """The head that gave these `arrays`; they may come from anywhere, so what does not fit is an `InputError`."""
        ...


REGISTRY: Registry[Regressor] = Registry("fqi.regressor")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

register("extra-trees", ExtraTrees, label="extra trees")
register("sklearn-extra-trees", SklearnExtraTrees, label="extra trees of scikit-learn")


def resolve(given: Any) -> Regressor:
    """The regressor that a name, a `Regressor` or a scikit-learn regressor stands for."""
    if isinstance(given, str):
        return make(given)
    if not isinstance(given, type):
        if isinstance(given, Regressor):
            return given
        if all(callable(getattr(given, method, None)) for method in ("fit", "predict", "get_params")):
            return _OfSklearn(given)
    raise InputError(
        f"fqi.regressor: {given!r} must be a registered name ({', '.join(names())}), a Regressor or a scikit-learn regressor."
    )


def options_of(regressor: Any) -> dict[str, Any]:
    """The options that `make` builds the regressor with."""
    if not dataclasses.is_dataclass(regressor):
        return {}
    return {field.name: getattr(regressor, field.name) for field in dataclasses.fields(regressor)}


class _SklearnHead(NamedTuple):
    """A fitted scikit-learn regressor."""

    regressor: Any
    num_features: int

    @property
    def importances(self) -> NDArray[np.float64] | None:
        """Where the regressor tells them."""
        return getattr(self.regressor, "feature_importances_", None)

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the regressor predicts."""
        return np.asarray(self.regressor.predict(inputs), dtype=np.float64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """None: it lives in memory only."""
        raise InputError(
            f"fqi.regressor: {self.regressor!r} cannot be saved, allowed are the registered {', '.join(names())}."
        )


class _OfSklearn(NamedTuple):
    """Any scikit-learn regressor; its forests become flat ones."""

    given: Any

    @property
    def name(self) -> str:
        """How it was made, which is not in the registry."""
        return repr(self.given)

    def fit(self, inputs: ArrayLike, targets: ArrayLike, *, seed: int, threads: int | None) -> Head:
        """Fit a copy whose random states come from the seed; threads are the regressor's own matter."""
        regressor = clone(self.given).set_params(**_random_states(self.given, seed))
        # Trees read one feature of many rows at a time: columns first halves scikit-learn's time on wide data.
        regressor.fit(np.asfortranarray(inputs), targets)
        if isinstance(regressor, ExtraTreesRegressor | RandomForestRegressor):
            return from_sklearn(regressor)
        return _SklearnHead(regressor, np.shape(inputs)[1])

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> Head:
        """Nothing was saved."""
        raise InputError(f"fqi.regressor: {self.name!r} cannot be loaded.")


def _random_states(regressor: Any, seed: int) -> dict[str, int]:
    """A value for every random state of a regressor: the seed for its own, one derived from it for each inside it."""
    found = [name for name in sorted(regressor.get_params()) if name.rpartition("__")[2] == "random_state"]
    inner = np.random.SeedSequence(seed).generate_state(len(found) + 1)
    return {name: seed if name == "random_state" else int(state) for name, state in zip(found, inner[1:], strict=True)}

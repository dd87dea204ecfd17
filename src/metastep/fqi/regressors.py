"""What can learn a Q function: the regressors and the registry that names them.

A regressor of your own is a frozen dataclass with the members of `Regressor`, and what it fits has those of `Head`. After the
line `register("mine", Mine)` configurations can name it, and its models can be saved and loaded.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.registry import Registry
from metastep.fqi.extra_trees import ExtraTrees as ExtraTrees
from metastep.fqi.sklearn_adapter import OfSklearn
from metastep.fqi.sklearn_adapter import SklearnExtraTrees as SklearnExtraTrees


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
            return OfSklearn(given)
    raise InputError(
        f"fqi.regressor: {given!r} must be a registered name ({', '.join(names())}), a Regressor or a scikit-learn regressor."
    )


def options_of(regressor: Any) -> dict[str, Any]:
    """The options that `make` builds the regressor with."""
    if not dataclasses.is_dataclass(regressor):
        return {}
    return {field.name: getattr(regressor, field.name) for field in dataclasses.fields(regressor)}

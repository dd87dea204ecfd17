"""Every registered regressor keeps the contract; each way to break it gets its own sentence."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsRegressor

from metastep._core.errors import InputError
from metastep.fqi import regressors
from metastep.fqi.regressors import SklearnRegressor
from metastep.testing import check_regressor


@pytest.mark.parametrize("name", ["extra-trees", "sklearn-extra-trees"])
def test_registered_regressors_pass(name: str) -> None:
    assert name in regressors.names()
    check_regressor(regressors.make(name, trees=3))


class Line(NamedTuple):
    """A linear function."""

    weights: Any
    importances: Any = None

    @property
    def num_features(self) -> Any:
        return len(self.weights)

    def predict(self, inputs: Any) -> Any:
        return np.asarray(inputs, np.float64) @ self.weights

    def arrays(self) -> Any:
        return {"weights": self.weights}


@dataclass(frozen=True)
class LeastSquares:
    ridge: float = 1e-3
    head: Any = Line

    name: ClassVar[Any] = "least-squares"

    def fit(self, inputs: Any, targets: Any, *, seed: int, threads: int | None) -> Any:
        x = np.asarray(inputs, np.float64)
        return self.head(np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ targets))

    def load(self, arrays: Any) -> Any:
        if arrays.keys() != {"weights"}:
            raise InputError("least-squares: the only array must be weights.")
        return self.head(arrays["weights"])


def test_a_regressor_of_ones_own_passes() -> None:
    check_regressor(LeastSquares())


class Nameless(LeastSquares):
    name: ClassVar[Any] = None


class WithoutLoad(LeastSquares):
    load: Any = None


class PlainClass:
    """An option that no file would hold."""

    name, head = "least-squares", Line

    def __init__(self, ridge: float = 1e-3) -> None:
        self.ridge = ridge

    fit, load = LeastSquares.fit, LeastSquares.load


class ScalesInPlace(LeastSquares):
    def fit(self, inputs: Any, targets: Any, **settings: Any) -> Any:
        inputs -= inputs.mean(axis=0)
        return super().fit(inputs, targets, **settings)


class Draws(LeastSquares):
    generator = np.random.default_rng(0)

    def fit(self, inputs: Any, targets: Any, **settings: Any) -> Any:
        return super().fit(inputs, targets + self.generator.normal(size=len(targets)), **settings)


class CountsThreads(LeastSquares):
    def fit(self, inputs: Any, targets: Any, *, seed: int, threads: int | None) -> Any:
        return super().fit(inputs, targets * (1.0 + (threads or 0)), seed=seed, threads=threads)


class ReturnsWeights(LeastSquares):
    def fit(self, *given: Any, **settings: Any) -> Any:
        return super().fit(*given, **settings).weights


class LoadsAnything(LeastSquares):
    def load(self, arrays: Any) -> Any:
        return self.head(next(iter(arrays.values())))


class LoadsWithoutLooking(LeastSquares):
    def load(self, arrays: Any) -> Any:
        return self.head(arrays["weights"])


class LoadsZeros(LeastSquares):
    def load(self, arrays: Any) -> Any:
        return self.head(np.zeros_like(super().load(arrays).weights))


class Wide(Line):
    num_features = 7  # type: ignore[assignment]


class Single(Line):
    def predict(self, inputs: Any) -> Any:
        return super().predict(inputs).astype(np.float32)


class Column(Line):
    def predict(self, inputs: Any) -> Any:
        return super().predict(inputs)[:, None]


class Infinite(Line):
    def predict(self, inputs: Any) -> Any:
        return super().predict(inputs) + np.inf


class OneImportance(Line):
    @property
    def importances(self) -> Any:  # type: ignore[override]
        return np.ones(1)


class NothingToSave(Line):
    def arrays(self) -> Any:
        return {}


class SavesALambda(Line):
    def arrays(self) -> Any:
        return {"weights": lambda: self.weights}


class SavesObjects(Line):
    def arrays(self) -> Any:
        return {"weights": self.weights.astype(object)}


@pytest.mark.parametrize(
    ("regressor", "sentence"),
    [
        (Nameless(), "regressor: Nameless must have a `name`, a non-empty string, got None"),
        (WithoutLoad(), "it has no method `load`"),
        (PlainClass(), "one with its options {} is not equal to it; make it a frozen dataclass"),
        (ScalesInPlace(), "`fit` fails with ValueError: output array is read-only"),
        (Draws(), "`fit` gives different heads for the same seed"),
        (CountsThreads(), "`fit` gives different heads for the same seed; they must not depend on the threads either"),
        (ReturnsWeights(), "`fit` must return a metastep.fqi.regressors.Head, its result has no `num_features`"),
        (LeastSquares(head=Wide), "`num_features` is 7, it must be 4"),
        (LeastSquares(head=Single), "what `predict` returns has dtype float32, it must be float64"),
        (LeastSquares(head=Column), r"what `predict` returns has shape \(60, 1\), it must be \(60,\)"),
        (LeastSquares(head=Infinite), "what `predict` returns must be finite"),
        (LeastSquares(head=OneImportance), r"`importances` has shape \(1,\), it must be \(4,\)"),
        (LeastSquares(head=NothingToSave), "`arrays` must return arrays by name"),
        (LeastSquares(head=SavesALambda), "'weights' of `arrays` must be a NumPy array of numbers, got a function"),
        (LeastSquares(head=SavesObjects), "'weights' of `arrays` must be a NumPy array of numbers, got a ndarray"),
        (LoadsZeros(), "a head that is loaded predicts something else"),
        (LoadsAnything(), "`load` must refuse arrays of others with an InputError, but it takes them"),
        (LoadsWithoutLooking(), "`load` must refuse arrays of others with an InputError, not a KeyError"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_regressor_gets_a_sentence(regressor: Any, sentence: str) -> None:
    start = "^regressor 'least-squares': " if regressor.name else "^"
    with pytest.raises(InputError, match=start + sentence) as caught:
        check_regressor(regressor)
    assert "\n" not in str(caught.value)


def test_what_lives_in_memory_only_says_so() -> None:
    with pytest.raises(InputError, match="lives in memory only and cannot be saved"):
        check_regressor(SklearnRegressor(KNeighborsRegressor()))

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
from tests.testing.variants import refused, then, variant


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


class CountsThreads(LeastSquares):
    def fit(self, inputs: Any, targets: Any, *, seed: int, threads: int | None) -> Any:
        return super().fit(inputs, targets * (1.0 + (threads or 0)), seed=seed, threads=threads)


def heads(**members: Any) -> LeastSquares:
    """Fits heads with these members."""
    return LeastSquares(head=type("Head", (Line,), members))


def loads(load: Any) -> Any:
    return variant(LeastSquares, load=load)


@pytest.mark.parametrize(
    ("regressor", "sentence"),
    [
        (variant(LeastSquares, load=None), "^regressor 'least-squares': it has no method `load`"),
        (PlainClass(), "one with its options {} is not equal to it; make it a frozen dataclass"),
        (ScalesInPlace(), "`fit` fails with ValueError: output array is read-only"),
        (CountsThreads(), "`fit` gives different heads for the same seed; they must not depend on the threads either"),
        (
            variant(LeastSquares, fit=then(LeastSquares.fit, lambda head: head.weights)),
            "`fit` must return a metastep.fqi.regressors.Head, its result has no `num_features`",
        ),
        (heads(num_features=7), "`num_features` is 7, it must be 4"),
        (
            heads(predict=then(Line.predict, lambda found: found.astype(np.float32))),
            "what `predict` returns has dtype float32, it must be float64",
        ),
        (heads(predict=then(Line.predict, lambda found: found + np.inf)), "what `predict` returns must be finite"),
        (heads(importances=np.ones(1)), r"`importances` has shape \(1,\), it must be \(4,\)"),
        (heads(arrays=lambda self: {}), "`arrays` must return arrays by name"),
        (
            heads(arrays=lambda self: {"w": self.weights.astype(object)}),
            "'w' of `arrays` must be a NumPy array of numbers, got a ndarray",
        ),
        (
            loads(then(LeastSquares.load, lambda head: Line(0.0 * head.weights))),
            "a head that is loaded predicts something",
        ),
        (
            loads(lambda self, arrays: Line(next(iter(arrays.values())))),
            "`load` must refuse arrays of others with an InputError, but it takes them",
        ),
        (
            loads(lambda self, arrays: Line(arrays["weights"])),
            "`load` must refuse arrays of others with an InputError, not a KeyError",
        ),
    ],
)
def test_a_broken_regressor_gets_a_sentence(regressor: Any, sentence: str) -> None:
    refused(check_regressor, regressor, sentence)


def test_what_lives_in_memory_only_says_so() -> None:
    with pytest.raises(InputError, match="lives in memory only and cannot be saved"):
        check_regressor(SklearnRegressor(KNeighborsRegressor()))

"""The contract of regressors and of what they fit."""

from typing import Any

import numpy as np

from metastep._core.errors import InputError
from metastep.fqi.regressors import Regressor, options_of
from metastep.testing.subject import Subject, named, read_only, same

_ROWS, _FEATURES = 60, 4


def check_regressor(regressor: Regressor, *, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless the regressor keeps the contract of `metastep.fqi.regressors.Regressor`.

    Checked: that its options make an equal regressor; that `fit` returns a `Head` that predicts finite float64 numbers of shape
    (rows,); that the same seed gives the same bits with any number of threads, and leaves the data unchanged; that a loaded head
    predicts the same bits; and that `load` refuses other arrays with an `InputError`.
    """
    subject = named("regressor", regressor)
    subject.has_methods("fit", "load")
    rng = np.random.default_rng(seed)
    inputs, fresh = rng.normal(size=(2, _ROWS, _FEATURES)).astype(np.float32)
    targets = np.sin(inputs[:, 0]) - inputs[:, -1] ** 2
    given = read_only(inputs, targets.astype(np.float64))
    first, *others = (subject.call("fit", regressor.fit, *given, seed=seed, threads=threads) for threads in (1, 1, 2))
    predicted = _check_head(subject, first, fresh)
    alike = all(same(predicted, _predict(subject, other, fresh)) for other in others)
    subject.require(alike, "`fit` gives different heads for the same seed; they must not depend on the threads either")
    arrays = subject.call("arrays", first.arrays)
    is_dict = isinstance(arrays, dict) and bool(arrays) and all(isinstance(name, str) for name in arrays)
    subject.require(is_dict, f"`arrays` must return arrays by name, got a {type(arrays).__name__}")
    for name, array in arrays.items():
        right = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        subject.require(right, f"{name!r} of `arrays` must be a NumPy array of numbers, got a {type(array).__name__}")
    options = options_of(regressor)
    equal = subject.call("__init__", type(regressor), **options) == regressor
    subject.require(equal, f"one with its options {options!r} is not equal to it; make it a frozen dataclass")
    loaded = subject.call("load", regressor.load, dict(zip(arrays, read_only(*arrays.values()), strict=True)))
    subject.require(
        same(predicted, _check_head(subject, loaded, fresh)), "a head that is loaded predicts something else"
    )
    try:
        regressor.load({"nothing": np.zeros(0)})
    except InputError:
        return
    except Exception as error:
        subject.require(False, f"`load` must refuse arrays of others with an InputError, not a {type(error).__name__}")
    subject.require(False, "`load` must refuse arrays of others with an InputError, but it takes them")


def _check_head(subject: Subject, head: Any, inputs: Any) -> Any:
    """Return the predictions of a checked head."""
    subject.has_fields(
        "fit", head, "metastep.fqi.regressors.Head", ("num_features", "importances", "predict", "arrays")
    )
    subject.require(head.num_features == _FEATURES, f"`num_features` is {head.num_features}, it must be {_FEATURES}")
    if head.importances is not None:
        subject.is_array("`importances`", head.importances, (_FEATURES,), np.number)
    return _predict(subject, head, inputs)


def _predict(subject: Subject, head: Any, inputs: Any) -> Any:
    predicted = subject.call("predict", head.predict, *read_only(inputs))
    subject.is_array("what `predict` returns", predicted, (len(inputs),), np.float64)
    subject.require(np.isfinite(predicted).all(), "what `predict` returns must be finite")
    return predicted

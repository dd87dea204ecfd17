"""Packed forests: an eighth of the space, the same trees, and nothing that breaks a walk."""

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.fqi import ExtraTrees, load_model, save_model
from metastep.fqi.forest import load_forest, pack
from tests.fqi.problems import regression
from tests.steppers import tiny_model


@pytest.fixture(scope="module")
def forest():
    inputs, targets = regression(500, 4, seed=1)
    return ExtraTrees(6, 0.02).fit(inputs, targets, seed=0, threads=1)


def test_the_same_trees_in_an_eighth_of_the_space(forest):
    packed = pack(forest)
    again = ExtraTrees().load(packed)
    inputs, _ = regression(300, 4, seed=2)
    np.testing.assert_allclose(again.predict(inputs), forest.predict(inputs), rtol=1e-3, atol=1e-3)
    assert sum(array.nbytes for array in packed.values()) < 0.2 * sum(
        array.nbytes for array in forest.arrays().values()
    )
    assert all(np.array_equal(pack(again)[name], packed[name]) for name in packed)


def test_a_packed_model_is_loaded_like_others(tmp_path):
    save_model(tiny_model(), tmp_path / "whole.safetensors")
    save_model(tiny_model(), tmp_path / "packed.safetensors", packed=True)
    rows = np.random.default_rng(0).normal(size=(200, 11))
    whole, packed = (load_model(tmp_path / f"{name}.safetensors").act(rows) for name in ("whole", "packed"))
    assert np.mean(whole == packed) > 0.99


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("packed_feature", lambda array: array[:-1], "packed_code has"),
        (
            "packed_feature",
            lambda array: np.where(np.arange(len(array)) == len(array) - 1, 0, array),
            "ends within a tree",
        ),
        ("packed_feature", lambda array: np.where(array == 0, 90, array), "below the number of features"),
        ("packed_high", lambda array: np.full_like(array, np.nan), "must be finite"),
        ("packed_low", lambda array: array[1:], "packed_low has"),
        ("packed_code", lambda array: array.astype(np.float64), "is float64 of shape"),
        ("packed_offsets", lambda array: array + 1, "offsets must start at 0"),
    ],
)
def test_what_is_damaged_is_refused(forest, name, spoil, sentence):
    packed = pack(forest)
    spoiled = spoil(packed[name])
    kept = spoiled if sentence.startswith("is ") else spoiled.astype(packed[name].dtype)
    with pytest.raises(InputError, match=sentence):
        load_forest(packed | {name: kept})

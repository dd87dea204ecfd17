"""Flat forests predict what scikit-learn's do, and a forest from a file, packed or not, cannot break a walk."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from metastep._core.errors import InputError
from metastep.fqi import ExtraTrees, load_model, save_model
from metastep.fqi.forest import check_structure, join, load_forest, pack
from metastep.fqi.regressors import from_sklearn
from tests.fqi.problems import leaf_counts, regression
from tests.steppers import tiny_model


@pytest.fixture(scope="module")
def fitted():
    inputs, targets = regression(400, 5, seed=1)
    return ExtraTreesRegressor(7, min_samples_split=0.02, random_state=3).fit(inputs, targets)


@pytest.fixture(scope="module")
def forest(fitted):
    return from_sklearn(fitted)


def test_predictions_and_structure_are_scikit_learns(fitted, forest):
    unseen, targets = regression(1000, 5, seed=2)
    assert np.array_equal(forest.predict(unseen), fitted.predict(unseen))
    bagged = RandomForestRegressor(5, random_state=0).fit(unseen[:200], targets[:200])
    assert np.array_equal(from_sklearn(bagged).predict(unseen), bagged.predict(unseen))
    # The float32 neighbours of every threshold, where rounding it the wrong way would show.
    tree, rows = fitted.estimators_[0].tree_, []
    for feature, threshold in zip(tree.feature, tree.threshold, strict=True):
        for near in np.nextafter(np.float32(threshold), np.float32([-np.inf, threshold, np.inf]), dtype=np.float32):
            if feature >= 0:
                rows.append(unseen[0].copy())
                rows[-1][feature] = near
    assert np.array_equal(forest.predict(rows), fitted.predict(np.array(rows)))
    check_structure(forest)
    assert list(leaf_counts(forest)) == [estimator.get_n_leaves() for estimator in fitted.estimators_]
    assert forest.importances == pytest.approx(fitted.feature_importances_)
    with pytest.raises(InputError, match=r"inputs has shape \(3, 4\), allowed is \(rows, 5\)\."):
        forest.predict(np.zeros((3, 4)))


@pytest.mark.parametrize(
    ("name", "index", "value", "problem"),
    [
        ("offsets", 0, 1, "offsets"),
        ("offsets", 1, 10**15, "offsets"),
        ("feature", 0, 5, "feature must"),
        ("feature", 0, -1, "left and right must be -1"),
        ("left", 0, 0, "later nodes"),
        ("right", 0, -1, "later nodes"),
        ("right", 0, 1, "exactly one parent"),
        ("threshold", 0, np.nan, "threshold must be finite"),
        ("value", 2, np.inf, "value must be finite"),
    ],
)
def test_broken_structure_is_named(forest, name, index, value, problem):
    array = getattr(forest, name).copy()
    array[index] = value
    with pytest.raises(InputError, match=problem):
        check_structure(forest._replace(**{name: array}))


def test_trees_are_joined_in_order_and_loaded_from_their_arrays(forest):
    unseen, _ = regression(50, 5, seed=2)
    twice = join([forest, forest])
    check_structure(twice)
    assert twice.num_trees == 14
    assert twice.predict(unseen) == pytest.approx(forest.predict(unseen))
    assert twice.importances == pytest.approx(forest.importances)
    arrays = forest.arrays()
    assert all(np.array_equal(a, b) for a, b in zip(load_forest(arrays), forest, strict=True))
    for change, sentence in (
        ({"extra": forest.left}, "has the arrays .*, allowed are feature, threshold"),
        ({"left": forest.left.astype(np.int64)}, r"left is int64 of shape .*, allowed is a list of int32"),
        ({"right": forest.right[:-1]}, "arrays of as many nodes"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_forest(arrays | change)


def test_packed_forests_are_the_same_trees_in_an_eighth_of_the_space(tmp_path):
    inputs, targets = regression(500, 4, seed=1)
    forest = ExtraTrees(6, 0.02).fit(inputs, targets, seed=0, threads=1)
    packed = pack(forest)
    again = ExtraTrees().load(packed)
    np.testing.assert_allclose(again.predict(inputs), forest.predict(inputs), rtol=1e-3, atol=1e-3)
    assert sum(array.nbytes for array in packed.values()) < 0.2 * sum(array.nbytes for array in forest)
    assert all(np.array_equal(pack(again)[name], packed[name]) for name in packed)
    save_model(tiny_model(), tmp_path / "packed", packed=True)
    rows = np.random.default_rng(0).normal(size=(200, 11))
    assert np.mean(load_model(tmp_path / "packed").act(rows) == tiny_model().act(rows)) > 0.99


@pytest.mark.parametrize(
    ("name", "spoil", "sentence"),
    [
        ("feature", lambda array: array[:-1], "lengths that do not fit"),
        ("feature", lambda array: np.r_[array[:-1], array[:1] * 0], "must point to later nodes"),
        ("feature", lambda array: np.where(array == 0, np.int8(90), array), "below the number of features"),
        ("high", lambda array: np.full_like(array, np.nan), "must be finite"),
        ("low", lambda array: array[1:], "lengths that do not fit"),
        ("code", lambda array: array.astype(np.float64), "is float64 of shape"),
        ("offsets", lambda array: array + 1, "offsets must start at 0"),
    ],
)
def test_damaged_packed_forests_are_refused(forest, name, spoil, sentence):
    packed = pack(forest)
    with pytest.raises(InputError, match=sentence):
        load_forest(packed | {f"packed_{name}": spoil(packed[f"packed_{name}"])})

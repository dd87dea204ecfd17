import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from metastep._core.errors import InputError
from metastep.fqi.forest import Forest, check_structure, depth, join, load_forest
from metastep.fqi.regressors import floor_to_float32, from_sklearn
from tests.fqi.problems import leaf_counts, regression


@pytest.fixture(scope="module")
def fitted():
    inputs, targets = regression(400, 5, seed=1)
    return ExtraTreesRegressor(7, min_samples_split=0.02, random_state=3).fit(inputs, targets)


def test_predictions_equal_scikit_learn_bit_for_bit(fitted):
    unseen, _ = regression(1000, 5, seed=2)
    assert np.array_equal(from_sklearn(fitted).predict(unseen), fitted.predict(unseen))


def test_inputs_at_a_threshold_go_where_scikit_learn_sends_them(fitted):
    # The float32 neighbours of every threshold, where rounding it the wrong way would show.
    unseen, _ = regression(1, 5, seed=2)
    tree = fitted.estimators_[0].tree_
    rows = []
    for feature, threshold in zip(tree.feature, tree.threshold, strict=True):
        for near in np.nextafter(np.float32(threshold), np.float32([-np.inf, threshold, np.inf]), dtype=np.float32):
            if feature >= 0:
                rows.append(unseen[0].copy())
                rows[-1][feature] = near
    assert np.array_equal(from_sklearn(fitted).predict(rows), fitted.predict(np.array(rows)))


@given(st.floats(-1e30, 1e30))
def test_floor_is_the_largest_float32_not_above(value):
    floor = floor_to_float32(value)
    assert float(floor) <= value < float(np.nextafter(floor, np.float32(np.inf)))


def test_structure_is_scikit_learns(fitted):
    forest = from_sklearn(fitted)
    check_structure(forest)
    assert list(leaf_counts(forest)) == [estimator.get_n_leaves() for estimator in fitted.estimators_]
    assert depth(forest.left, forest.right) == max(estimator.get_depth() for estimator in fitted.estimators_)
    assert forest.num_trees == 7
    assert forest.importances == pytest.approx(fitted.feature_importances_)


def test_random_forests_convert_too():
    inputs, targets = regression(200, 4, seed=1)
    fitted = RandomForestRegressor(5, random_state=0).fit(inputs, targets)
    assert np.array_equal(from_sklearn(fitted).predict(inputs), fitted.predict(inputs))


def test_a_forest_of_single_leaves():
    fitted = ExtraTreesRegressor(3, random_state=0).fit(np.zeros((4, 2)), [1.0, 2.0, 3.0, 4.0])
    forest = from_sklearn(fitted)
    check_structure(forest)
    assert forest.predict(np.zeros((2, 2))) == pytest.approx([2.5, 2.5])


def test_wrong_width_is_one_sentence(fitted):
    with pytest.raises(InputError, match=r"inputs has shape \(3, 4\), allowed is \(rows, 5\)\."):
        from_sklearn(fitted).predict(np.zeros((3, 4)))


def _changed(forest: Forest, name: str, index: int, value: float) -> Forest:
    array = getattr(forest, name).copy()
    array[index] = value
    return forest._replace(**{name: array})


@pytest.mark.parametrize(
    ("name", "index", "value", "problem"),
    [
        ("offsets", 0, 1, "offsets"),
        ("offsets", 1, 10**15, "offsets"),
        ("offsets", -1, 3, "offsets"),
        ("feature", 0, 5, "feature must"),
        ("feature", 0, -2, "feature must"),
        ("feature", 0, -1, "left and right must be -1"),
        ("left", 0, 0, "later nodes"),
        ("left", 0, 10**9, "later nodes"),
        ("right", 0, -1, "later nodes"),
        ("right", 0, 1, "exactly one parent"),
        ("threshold", 0, np.nan, "threshold must be finite"),
        ("value", 2, np.inf, "value must be finite"),
        ("importances", 0, np.nan, "importances must be finite"),
    ],
)
def test_broken_structure_is_named(fitted, name, index, value, problem):
    with pytest.raises(InputError, match=problem):
        check_structure(_changed(from_sklearn(fitted), name, index, value))


def test_a_node_with_two_parents_is_refused():
    # Both children of a node leading to the same next node would double the walk at every level.
    feature = np.array([0, 0, 0, -1, -1], dtype=np.int32)
    left = np.array([1, 3, 3, -1, -1], dtype=np.int32)
    right = np.array([2, 4, 4, -1, -1], dtype=np.int32)
    ladder = Forest(feature, np.zeros(5, np.float32), left, right, np.zeros(5), np.array([0, 5]), np.ones(1))
    with pytest.raises(InputError, match="exactly one parent"):
        check_structure(ladder)


def test_lengths_must_agree(fitted):
    forest = from_sklearn(fitted)
    with pytest.raises(InputError, match="left has"):
        check_structure(forest._replace(left=forest.left[:-1]))


def test_trees_are_joined_in_order(fitted):
    forest = from_sklearn(fitted)
    unseen, _ = regression(50, 5, seed=2)
    twice = join([forest, forest])
    check_structure(twice)
    assert twice.num_trees == 14
    assert twice.predict(unseen) == pytest.approx(forest.predict(unseen))
    assert twice.importances == pytest.approx(forest.importances)


def test_a_forest_is_loaded_from_its_arrays(fitted):
    forest = from_sklearn(fitted)
    arrays = forest.arrays()
    assert all(np.array_equal(a, b) for a, b in zip(load_forest(arrays), forest, strict=True))
    for change, sentence in (
        ({"extra": forest.left}, "has the arrays .*, allowed are feature, threshold"),
        ({"left": forest.left.astype(np.int64)}, r"left is int64 of shape .*, allowed is a list of int32"),
        ({"value": forest.value[None]}, r"value is float64 of shape \(1, "),
        ({"right": forest.right[:-1]}, "right has"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_forest(arrays | change)

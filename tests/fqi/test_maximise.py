from itertools import groupby
from typing import get_args

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from metastep._core.errors import InputError
from metastep.fqi.forest import Forest, join
from metastep.fqi.maximise import Ties, maximise, maximise_general, prepare, stepsize_cells, tied
from metastep.fqi.regressors import from_sklearn
from tests.fqi.problems import HIGH, all_actions, regression

GRID = np.linspace(0.0, HIGH, 101).astype(np.float32)


def _fit(features: int, seed: int) -> ExtraTreesRegressor:
    return ExtraTreesRegressor(11, min_samples_split=0.01, random_state=seed).fit(*regression(600, features, seed))


def _combined(regressors, inputs, lam):
    values = [regressor.predict(inputs) for regressor in regressors]
    return lam * np.minimum(*values) + (1 - lam) * np.maximum(*values) if len(values) == 2 else values[0]


@pytest.mark.parametrize(("heads", "lam"), [(1, 1.0), (2, 1.0), (2, 0.75)])
@pytest.mark.parametrize("features", [2, 7])
def test_equals_brute_force_prediction(heads, lam, features):
    regressors = [_fit(features, seed) for seed in range(heads)]
    states = regression(1100, features, seed=9)[0][:, :-1]  # more than a block, and a block that is not full
    expected = _combined(regressors, all_actions(states, GRID), lam).reshape(len(states), -1)
    found = maximise(prepare([from_sklearn(r) for r in regressors], GRID, lam), states, with_values=True)
    assert found.values == pytest.approx(expected, abs=1e-13)
    assert found.value == pytest.approx(expected.max(axis=1), abs=1e-13)
    assert np.array_equal(found.value, found.values.max(axis=1))
    assert np.array_equal(found.stepsize, GRID[found.values.argmax(axis=1)])
    general = maximise_general(regressors, states, GRID, lam, with_values=True)
    assert general.values == pytest.approx(found.values, abs=1e-13)
    assert general.value == pytest.approx(found.value, abs=1e-13)


def _one_tree(feature, threshold, left, right, value) -> Forest:
    """A tree on a state feature (0) and the step (1)."""
    feature, left, right = (np.array(array, np.int32) for array in (feature, left, right))
    ends = np.array([0, len(value)])
    return Forest(feature, np.array(threshold, np.float32), left, right, np.array(value), ends, np.ones(2))


def _stump(threshold: float, below: float, above: float) -> Forest:
    return _one_tree([1, -1, -1], [threshold, 0, 0], [1, -1, -1], [2, -1, -1], [0.0, below, above])


def _dip(start: float, stop: float, outside: float, inside: float) -> Forest:
    left, right = [1, -1, 3, -1, -1], [2, -1, 4, -1, -1]
    return _one_tree([1, -1, 1, -1, -1], [start, 0, stop, 0, 0], left, right, [0.0, outside, 0.0, inside, outside])


def test_ties_go_to_the_smallest_step_size():
    # Every tree has the same value at both ends and less between them. Differences of floating-point numbers would not
    # add up to the same sum again, and the last step size would win by a rounding error.
    draw = np.random.default_rng(0)
    for _ in range(50):
        trees = [_dip(*np.sort(draw.uniform(0.1, 3.9, 2)), draw.normal(), -10 + draw.normal()) for _ in range(20)]
        found = maximise(prepare([join(trees)], GRID), np.zeros((1, 1)), with_values=True)
        assert found.values[0, 0] == found.values[0, -1] == found.value[0]
        assert found.stepsize[0] == 0.0


@pytest.mark.parametrize("most", [2, 4])
def test_tie_rules_equal_plain_loops(most):
    values = np.random.default_rng(0).integers(0, most, (200, 11)).astype(np.float64)
    for row, *found in zip(values, *(tied(values, ties) for ties in get_args(Ties)), strict=True):
        best = [cell for cell, value in enumerate(row) if value == max(row)]
        runs = groupby(range(len(row)), lambda cell: row[cell] == max(row))  # noqa: B023
        longest = max((list(cells) for is_best, cells in runs if is_best), key=len)  # the first of several
        middle = [cells[(len(cells) - 1) // 2] for cells in (best, longest)]
        assert found == [best[0], middle[0], best[-1], middle[1]]


def test_smallest_step_size_above_a_threshold_is_exact():
    forest = _stump(1.0, 0.0, 1.0)
    found = maximise(prepare([forest], stepsize_cells([forest], 0.0, 2.0)), np.zeros((1, 1)))
    assert found.stepsize[0] == np.nextafter(np.float32(1.0), np.float32(2.0))
    assert found.value[0] == 1.0


@pytest.mark.parametrize("value", [1e-250, 1e-5, 1.0, 1e9, 1e300])
def test_any_scale_of_values(value):
    forest = join([_stump(t, value * t, -value) for t in (0.3, 0.7, 1.1)])
    found = maximise(prepare([forest], GRID), np.zeros((1, 1)), with_values=True)
    expected = forest.predict(all_actions(np.zeros((1, 1), np.float32), GRID))
    assert found.values[0] == pytest.approx(expected, rel=1e-12, abs=1e-13 * value)


def test_states_that_are_few_or_no_numbers_and_bad_input():
    plan = prepare([_stump(1.0, 0.0, 1.0)], GRID)
    assert maximise(plan, np.empty((0, 1))).value.shape == (0,)
    assert set(maximise(plan, np.array([[np.nan], [np.inf]])).stepsize) <= set(GRID)
    with pytest.raises(InputError, match=r"states has shape \(2, 3\), allowed is \(rows, 1\)"):
        maximise(plan, np.zeros((2, 3)))
    with pytest.raises(InputError, match="threads is 0"):
        maximise(plan, np.zeros((2, 1)), threads=0)

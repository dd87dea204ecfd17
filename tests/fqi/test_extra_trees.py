import numpy as np
import pytest
from scipy.stats import ttest_ind

from metastep._core.errors import InputError
from metastep.fqi import ExtraTrees, SklearnExtraTrees
from metastep.fqi.forest import check_structure
from tests.fqi.problems import all_actions, leaf_counts, regression

SEEDS = range(12)


def _heavy_tails(rows: int, seed: int):
    """Correlated features, some discrete, some constant, some heavy-tailed, and a jump and plateaus in the target.

    The target is near zero because scikit-learn's variance, the mean square minus the squared mean, rounds: far from
    zero it keeps splitting nodes of equal targets, which the native forest does not.
    """
    draw = np.random.default_rng(seed)
    base = draw.standard_t(2, size=(rows, 6))
    inputs = np.column_stack(
        [base, base[:, 0] + 0.1 * base[:, 1], np.round(base[:, 2]), np.full(rows, 3.0), draw.uniform(0, 1, rows)]
    ).astype(np.float32)
    return inputs, np.tanh(base[:, 0]) * (inputs[:, -1] > 0.4) + 0.1 * base[:, 3].clip(-2, 2)


@pytest.mark.parametrize("problem", [lambda rows, seed: regression(rows, 6, seed), _heavy_tails])
@pytest.mark.parametrize("min_samples_split", [0.02, 2])
def test_indistinguishable_from_scikit_learn(problem, min_samples_split):
    inputs, targets = problem(1500, 0)
    unseen, truth = problem(2000, 1)
    rows = {"native": [], "sklearn": []}
    for seed in SEEDS:
        for name, kind in (("native", ExtraTrees), ("sklearn", SklearnExtraTrees)):
            forest = kind(20, min_samples_split).fit(inputs, targets, seed=seed)
            r2 = 1 - ((forest.predict(unseen) - truth) ** 2).mean() / truth.var()
            roots, num = forest.feature[forest.offsets[:-1]], forest.num_features
            splits = [np.bincount(each[each >= 0], minlength=num) for each in (forest.feature, roots)]
            shares = [splits[0] / splits[0].sum(), splits[1] / len(roots), forest.importances]
            rows[name].append(np.concatenate([[r2, leaf_counts(forest).mean()], *shares]))
    native, reference = np.array(rows["native"]), np.array(rows["sklearn"])
    # Fewer leaves or worse predictions than the reference by more than a hair would be a defect even if rare.
    assert native[:, 0].mean() == pytest.approx(reference[:, 0].mean(), abs=0.01)
    assert native[:, 1].mean() == pytest.approx(reference[:, 1].mean(), rel=0.02)
    varying = (native.std(axis=0) + reference.std(axis=0)) > 0
    assert np.array_equal(native[:, ~varying].mean(axis=0), reference[:, ~varying].mean(axis=0))
    p = ttest_ind(native[:, varying], reference[:, varying], equal_var=False).pvalue
    # About 30 statistics are compared for each problem: the smallest p of 30 equal pairs is below 3e-5 once in 1,000.
    assert p.min() > 3e-5


@pytest.mark.parametrize("features", [4, 37])  # fewer than the padding, and several registers with a remainder
def test_pure_leaves_fit_exactly(features):
    inputs, targets = regression(300, features, seed=0)
    forest = ExtraTrees(20, 2).fit(inputs, targets, seed=0)
    assert forest.predict(inputs) == pytest.approx(targets, abs=1e-12)
    assert forest.feature.max() > 0.8 * (features - 1)
    assert forest.importances.sum() == pytest.approx(1.0)
    check_structure(forest)


def test_constant_targets_and_constant_inputs_are_one_leaf():
    inputs, targets = regression(50, 3, seed=0)
    for x, y in ((inputs, np.full(50, 7.0)), (np.ones_like(inputs), targets)):
        forest = ExtraTrees(20, 2).fit(x, y, seed=0)
        assert (leaf_counts(forest) == 1).all()
        assert forest.predict(inputs) == pytest.approx(np.full(50, y.mean()))
        assert (forest.importances == 0).all()


def test_a_large_mean_does_not_hide_the_signal():
    inputs, targets = regression(400, 4, seed=0)
    near, far = (ExtraTrees(20, 0.05).fit(inputs, targets + shift, seed=0) for shift in (0.0, 1e6))
    assert np.array_equal(near.feature, far.feature)
    assert far.predict(inputs) - 1e6 == pytest.approx(near.predict(inputs), abs=1e-8)


def test_values_next_to_each_other_still_split():
    # Only the two floats exist between which a threshold can be drawn: it must be the smaller.
    low = np.float32(1e6)
    inputs = np.array([[low], [np.nextafter(low, np.float32(np.inf))]] * 4)
    forest = ExtraTrees(20, 2).fit(inputs, [0.0, 1.0] * 4, seed=0)
    assert forest.predict(inputs) == pytest.approx([0.0, 1.0] * 4)


@pytest.mark.parametrize(
    ("options", "change", "sentence"),
    [
        ({}, {"inputs": np.zeros((3, 2, 1))}, "inputs has shape"),
        ({}, {"targets": np.zeros(4)}, "targets"),
        ({}, {"inputs": np.full((3, 2), np.nan)}, "must be finite"),
        ({"trees": 0}, {}, "fqi.regressor.trees: 0 must be greater than or equal to 1"),
        ({"min_samples_split": 1}, {}, "min_samples_split: 1 must be greater than or equal to 2"),
        ({"min_samples_split": 1.5}, {}, "min_samples_split: 1.5 must be less than or equal to 1"),
    ],
)
def test_bad_input_is_one_sentence(options, change, sentence):
    with pytest.raises(InputError, match=sentence):
        ExtraTrees(**options).fit(**{"inputs": np.eye(3, 2), "targets": np.arange(3.0), "seed": 0} | change)


def test_state_first_is_a_forest_of_states_and_one_of_what_is_left_and_finds_steps_that_others_overlook():
    """The state explains the value almost alone, and decides whether the best step is 0.3 or 0.7."""
    inputs = np.random.default_rng(0).uniform(0, 1, (4000, 3)).astype(np.float32)
    best = np.where(inputs[:, 0] > 0.5, 0.7, 0.3)
    targets = 10.0 * inputs[:, :2].sum(axis=1) - 4.0 * (inputs[:, 2] - best) ** 2
    steps, errors = np.linspace(0, 1, 21, dtype=np.float32), []
    for is_first in (False, True):
        forest = ExtraTrees(20, 0.02, state_first=is_first).fit(inputs, targets, seed=1)
        values = forest.predict(all_actions(inputs[:, :-1], steps)).reshape(len(inputs), -1)
        errors.append(np.abs(steps[values.argmax(axis=1)] - best).mean())
    assert errors[1] < min(0.7 * errors[0], 0.1)
    check_structure(forest)
    assert forest.num_trees == 40
    first, rest = forest.some_trees(range(20)), forest.some_trees(range(20, 40))
    assert not (first.feature == 2).any(), "the first trees must not see the step"
    assert (rest.feature == 2).any()
    assert np.var(targets - first.predict(inputs) / 2.0) < 0.3 * np.var(targets)
    np.testing.assert_allclose(forest.predict(inputs).mean(), targets.mean(), rtol=1e-6)

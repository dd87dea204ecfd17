"""Fitted Q-Iteration, over steps or over a menu of branches and steps, equals a plain implementation and dynamic programming."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor, ExtraTreesRegressor, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import ExtraTreeRegressor

from metastep._core.errors import InputError
from metastep._core.settings import settings_of
from metastep.fqi import ExtraTrees, MetaFQI, SklearnExtraTrees
from metastep.fqi.iteration import forest_seed
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range
from tests.fqi.problems import HIGH, MENU, all_actions, menu_transitions, transitions

SMALL = {"iterations": 3, "regressor": ExtraTrees(8, 0.05), "random_state": 7, "num_stepsizes": 31}
PLAIN, CHOICE = SMALL | {"stepsize_high": HIGH}, SMALL | {"menu": MENU}
MIDDLE = {"maximum": "continuous", "ties": "middle"}


@pytest.fixture(scope="module")
def data():
    return transitions(500, 4, seed=0)


@pytest.fixture(scope="module")
def choices():
    return menu_transitions(600, 4, seed=0)


@pytest.mark.parametrize(("double", "lam", "discount"), [(False, 1.0, 1.0), (True, 0.7, 0.9)])
@pytest.mark.parametrize("is_menu", [False, True], ids=["steps", "menu"])
def test_equals_a_plain_implementation_with_scikit_learns_forests(data, choices, is_menu, double, lam, discount):
    """One forest after the other, predictions on all rows; without a menu there is one branch."""
    settings, given = (CHOICE, choices) if is_menu else (PLAIN, data)
    settings = settings | {"regressor": SklearnExtraTrees(8, 0.05)}
    kept = given.stepsize.copy()
    fitted = MetaFQI(**settings, double=double, lam=lam, meta_discount=discount).fit(given)
    np.testing.assert_array_equal(given.stepsize, kept)
    menu = MENU if is_menu else {"": Range(0.0, HIGH)}
    position, step = given.stepsize.reshape(len(given.reward), -1).T[[0, -1]]
    rows_of = [position == index for index in range(len(menu))] if is_menu else [np.full(len(step), True)]
    target, heads = given.reward.astype(float), 2 if double else 1
    for iteration in range(1, 4):
        seen, following = [], []
        for index, (bounds, rows) in enumerate(zip(menu.values(), rows_of, strict=True)):
            inputs = np.column_stack([given.observation, bounds.to_axis(step)])[rows]
            grid = np.linspace(*bounds.axis, 31)
            seeds = [forest_seed(7, iteration, index * heads + head) for head in range(heads)]
            forests = [ExtraTreesRegressor(8, min_samples_split=0.05, random_state=seed, n_jobs=1) for seed in seeds]
            forests = [forest.fit(inputs, target[rows]) for forest in forests]
            for observation, found in ((given.observation, seen), (given.next_observation, following)):
                values = [f.predict(all_actions(observation, grid)).reshape(-1, 31) for f in forests]
                found.append(lam * np.minimum(values[0], values[-1]) + (1 - lam) * np.maximum(values[0], values[-1]))
        expected = np.stack(seen, axis=1)
        ours = fitted.values(given.observation, iteration).reshape(expected.shape)
        assert ours == pytest.approx(expected, abs=1e-10)
        chosen = fitted.act(given.observation, iteration).reshape(len(step), -1)
        for row, (*branch, best) in enumerate(chosen):
            index = int(branch[0]) if is_menu else 0
            place = np.abs(list(menu.values())[index].grid(31) - best).argmin()
            assert expected[row, index, place] == pytest.approx(expected[row].max(), abs=1e-10)
        best = fitted.q_functions_[iteration - 1].maximum(given.next_observation).value
        assert best == pytest.approx(np.stack(following, axis=1).max(axis=(1, 2)), abs=1e-10)
        target = given.reward + discount * best  # to the last bit: the next forests' splits depend on it


def test_rewards_below_the_floor_count_as_the_floor(data):
    cut = data._replace(reward=np.maximum(data.reward, np.quantile(data.reward, 0.25)))
    fits = MetaFQI(**PLAIN, reward_floor=0.25).fit(data), MetaFQI(**PLAIN).fit(cut), MetaFQI(**PLAIN).fit(data)
    floored, by_hand, plain = (fitted.values(data.observation) for fitted in fits)
    np.testing.assert_allclose(floored, by_hand, atol=1e-6)
    assert not np.allclose(floored, plain, atol=1e-6)


# A line of seven places. The height rises, falls into a valley, and is highest behind it; a step size of k in [0, 3]
# moves floor(k) places to the right.
HEIGHT = np.array([0.1, 0.4, 0.2, 0.0, 0.0, 0.3, 1.0])
MOVES = np.linspace(0.0, 3.0, 13)


@pytest.mark.parametrize("forest", [ExtraTrees, SklearnExtraTrees])
@pytest.mark.parametrize("double", [False, True])
def test_values_are_those_of_dynamic_programming_and_the_policy_is_optimal(forest, double):
    place, move = (array.ravel() for array in np.meshgrid(np.arange(7), MOVES, indexing="ij"))
    following = np.minimum(place + np.floor(move).astype(int), 6)
    reward, discount = (HEIGHT[following] - HEIGHT[place]).astype(np.float32), 0.95
    columns = (array.astype(np.float32) for array in (place[:, None], move, reward, following[:, None]))
    model = MetaFQI(6, forest(5, 2), discount, double, stepsize_high=3.0, num_stepsizes=13, random_state=1)
    fitted = model.fit(Transitions(*columns))
    leads, gains, values = following.reshape(7, 13), reward.reshape(7, 13), np.zeros((7, 13))
    for iteration in range(1, 7):
        # Every (place, move) is in the data and in a leaf of its own.
        values = gains + discount * values.max(axis=1)[leads]
        assert fitted.values(np.arange(7.0)[:, None], iteration) == pytest.approx(values, abs=1e-6)
    first, last = (fitted.act(np.array([[1.0]]), iteration)[0] for iteration in (1, 6))
    assert first < 1.0  # one step ahead, it stays on the first hill
    assert last >= 2.0


@pytest.mark.parametrize("is_menu", [False, True], ids=["steps", "menu"])
def test_bits_do_not_depend_on_threads_or_on_the_other_states(data, choices, is_menu):
    settings, given = (CHOICE, choices) if is_menu else (PLAIN, data)
    one, many = (MetaFQI(**settings, threads=threads).fit(given) for threads in (1, 3))
    for left, right in zip(one.q_functions_, many.q_functions_, strict=True):
        for first, second in zip(left.heads, right.heads, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    observation = menu_transitions(2500, 4, seed=1).observation  # more than one thread walks alone
    for rows in (observation[:30], observation):
        for answer in ("act", "values"):
            np.testing.assert_array_equal(getattr(one, answer)(rows), getattr(many, answer)(rows))
    np.testing.assert_array_equal(many.values(observation[2000:2003]), one.values(observation)[2000:2003])
    assert not np.array_equal(*(head.threshold for head in one.q_functions_[0].heads[:2]))


def test_the_continuous_maximum_is_attained_and_above_every_action_tried(choices):
    fitted = MetaFQI(**CHOICE, maximum="continuous").fit(choices)
    function, observation, rows = fitted.q_functions_[-1], choices.observation[:50], np.arange(50)
    best = function.maximum(observation)
    assert (best.value >= fitted.values(observation).max(axis=(1, 2))).all()
    draw, at_best = np.random.default_rng(0), []
    for own, bounds in function.by_branch:
        inputs = all_actions(observation, draw.uniform(*bounds.axis, 500).astype(np.float32))
        tried = np.minimum(*(head.predict(inputs) for head in own)).reshape(50, -1)
        assert (tried <= best.value[:, None] + 1e-13).all()
        there = np.column_stack([observation, bounds.to_axis(best.stepsize)])
        at_best.append(np.minimum(*(head.predict(there) for head in own)))
    attained = np.stack(at_best)[best.branch, rows]
    assert np.mean(np.abs(attained - best.value) < 1e-13) > 0.9  # a logarithm may round across a threshold


def test_ties_and_numbers_that_are_not_finite_go_to_the_first_branch_and_the_smallest_step(data, choices):
    smallest = np.array([0.0, 1e-3], np.float32)
    flat = MetaFQI(**CHOICE | {"iterations": 1}).fit(choices._replace(reward=np.zeros(600)))
    np.testing.assert_array_equal(flat.act(choices.observation[:9]), np.tile(smallest, (9, 1)))
    neighbours = {"regressor": KNeighborsRegressor(3), "stepsize_low": -0.5}  # which refuses what is not finite
    for settings, given, wanted in ((CHOICE, choices, smallest), (PLAIN | neighbours, data, np.float32(-0.5))):
        fitted = MetaFQI(**settings).fit(given)
        observation = given.observation[:4].astype(float)
        observation[1, 0], observation[2, 3] = np.nan, 1e300
        chosen = fitted.act(observation)
        np.testing.assert_array_equal(chosen[1:3], np.stack([wanted, wanted]))
        np.testing.assert_array_equal(chosen[[0, 3]], fitted.act(given.observation[[0, 3]]))


def test_regressors_of_scikit_learn_are_fitted_fast_if_they_are_forests_and_with_every_random_state_set(data):
    fast = MetaFQI(**PLAIN | {"regressor": RandomForestRegressor(5, max_depth=4)}, maximum="continuous").fit(data)
    assert fast.q_functions_[-1].is_forest
    # Two heads of a pipeline with a random state left alone would be one and the same, and not repeatable.
    regressor = make_pipeline(StandardScaler(), BaggingRegressor(ExtraTreeRegressor(), 3))
    first, again = (MetaFQI(1, stepsize_high=HIGH, regressor=regressor).fit(data) for _ in range(2))
    heads = first.q_functions_[0].heads
    parameters = [sorted(head.regressor.get_params().items()) for head in heads]
    states = [[value for name, value in each if name.endswith("__random_state")] for each in parameters]
    assert len(states[0]) == 2
    assert len({value for row in states for value in row}) == 4
    np.testing.assert_array_equal(first.values(data.observation), again.values(data.observation))
    inputs = np.column_stack([data.observation, data.stepsize])
    assert not np.array_equal(heads[0].predict(inputs), heads[1].predict(inputs))


def test_follows_scikit_learns_manner(data):
    calls, estimator = [], clone(MetaFQI(**PLAIN))
    dataset = SimpleNamespace(transitions=lambda: data)
    with pytest.raises(NotFittedError):
        estimator.act(data.observation)
    assert estimator.fit(dataset, progress=lambda *call: calls.append(call)) is estimator
    assert [*zip(*calls, strict=True)] == [(1, 2, 3), estimator.seconds_]
    assert np.array_equal(estimator.act(data.observation), estimator.act(data.observation, 3))
    settings = settings_of(MetaFQI)
    assert settings.keys() == MetaFQI().get_params().keys()
    assert all(setting.sentence for setting in settings.values())
    for ask, iteration in ((estimator.act, 5), (estimator.values, 0)):
        with pytest.raises(InputError, match=f"iteration is {iteration}, allowed is 1 to 3"):
            ask(data.observation, iteration)


@pytest.mark.parametrize(
    ("settings", "change", "sentence"),
    [
        ({"regressor": "pine"}, {}, "fqi.regressor: 'pine' is not registered, allowed are .*extra-trees"),
        ({"maximum": "peak"}, {}, "fqi.maximum: 'peak' must be 'grid' or 'continuous'"),
        ({"maximum": "continuous", "regressor": KNeighborsRegressor()}, {}, "regressor whose heads are not forests"),
        ({"reward_floor": 0.6}, {}, "fqi.reward_floor: 0.6 must be less than or equal to 0.5"),
        ({"ties": "median"}, {}, "fqi.ties: 'median' must be 'smallest', 'middle', 'largest' or 'longest-run'"),
        (MIDDLE, {}, "'middle' must be 'smallest' where fqi.maximum is 'continuous'"),
        ({"stepsize_high": 1.0}, {}, "stepsize spans"),
        ({"stepsize_low": 5.0}, {}, "stepsize_low: 5.0 must lie below stepsize_high = 4.0"),
        ({"stepsize_low": 1e6, "stepsize_high": 1e6 + 1}, {}, "as many as float32 can tell apart"),
        ({"menu": {"": MENU["plain"]}}, {}, r"fqi\.menu: .* must give one name or more"),
        ({"menu": MENU}, {}, r"stepsize has shape \(500,\), allowed is \(500, 2\)"),
        ({}, {"observation": np.zeros((0, 4), np.float32)}, "observation has shape"),
        ({}, {"next_observation": np.zeros((500, 3), np.float32)}, r"next_observation has shape \(500, 3\)"),
        ({}, {"reward": np.r_[np.zeros(498), np.nan, np.inf]}, "2 tuples are not finite, the first at 498"),
    ],
)
def test_bad_settings_and_transitions_are_one_sentence(data, settings, change, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        MetaFQI(**(PLAIN | settings)).fit(data._replace(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("menu", "first", "sentence"),
    [
        (MENU | {"plain": Range(0.0, 1.0)}, 0, r"stepsize of 'plain' spans .* allowed is 0.0 to 1.0"),
        (MENU | {"hoof": Range(0.0, 1.0)}, 0, "direction 'hoof' has 0 tuples, allowed are 2 or more"),
        ({name: MENU[name] for name in ("natural", "plain")}, 0, "of tuple .* is 2, allowed is the position 0 to 1"),
        (MENU, -1, "is -1"),
    ],
)
def test_bad_branches_are_one_sentence(choices, menu, first, sentence):
    chosen = choices.stepsize.copy()
    chosen[0, 0] = first
    with pytest.raises(InputError, match=sentence):
        MetaFQI(**SMALL, menu=menu).fit(choices._replace(stepsize=chosen))
    with pytest.raises(InputError, match="fit: got a list, allowed are Transitions"):
        MetaFQI(1).fit([1, 2])

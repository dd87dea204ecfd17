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
from tests.fqi.problems import HIGH, all_actions, transitions

SMALL = {"iterations": 4, "regressor": ExtraTrees(8, 0.05), "stepsize_high": HIGH, "random_state": 7}


@pytest.fixture(scope="module")
def data():
    return transitions(500, 4, seed=0)


@pytest.mark.parametrize(("double", "lam", "discount"), [(False, 1.0, 1.0), (True, 1.0, 0.9), (True, 0.7, 1.0)])
def test_equals_a_plain_implementation_iteration_by_iteration(data, double, lam, discount):
    fitted = MetaFQI(
        **(SMALL | {"regressor": SklearnExtraTrees(8, 0.05)}), double=double, lam=lam, meta_discount=discount
    ).fit(data)

    grid = np.linspace(0, HIGH, 101)
    inputs = np.column_stack([data.observation, data.stepsize])
    next_actions = all_actions(data.next_observation, grid)
    seen_actions = all_actions(data.observation, grid)
    target = data.reward.astype(float)
    for iteration in range(1, 5):
        forests = []
        for head in range(2 if double else 1):
            forest = ExtraTreesRegressor(
                8, min_samples_split=0.05, random_state=forest_seed(7, iteration, head), n_jobs=1
            )
            forests.append(forest.fit(inputs, target))

        def q(rows, forests=forests):
            first, last = (forest.predict(rows).reshape(500, 101) for forest in (forests[0], forests[-1]))
            return lam * np.minimum(first, last) + (1 - lam) * np.maximum(first, last)

        expected = q(seen_actions)
        assert fitted.values(data.observation, iteration) == pytest.approx(expected, abs=1e-10)
        chosen = fitted.act(data.observation, iteration)
        assert expected[np.arange(500), np.searchsorted(grid, chosen - 1e-5)] == pytest.approx(
            expected.max(1), abs=1e-10
        )
        target = data.reward + discount * q(next_actions).max(axis=1)


# A line of seven places. The height rises, falls into a valley, and is highest behind it; a step size of k in [0, 3]
# moves floor(k) places to the right.
HEIGHT = np.array([0.1, 0.4, 0.2, 0.0, 0.0, 0.3, 1.0])
MOVES = np.linspace(0.0, 3.0, 13)
HORIZON = 3


def _line() -> tuple[Transitions, np.ndarray]:
    place, move = (array.ravel() for array in np.meshgrid(np.arange(7), MOVES, indexing="ij"))
    following = np.minimum(place + np.floor(move).astype(int), 6)
    reward = HEIGHT[following] - HEIGHT[place]
    data = Transitions(
        place[:, None].astype(np.float32),
        move.astype(np.float32),
        reward.astype(np.float32),
        following[:, None].astype(np.float32),
    )
    return data, following.reshape(7, 13)


def _optimal_values(following: np.ndarray, discount: float, steps: int) -> np.ndarray:
    """Dynamic programming: values `(places, moves)` with so many steps to go."""
    reward = (HEIGHT[following] - HEIGHT[:, None]).astype(np.float32)
    values = np.zeros_like(reward, dtype=float)
    for _ in range(steps):
        values = reward + discount * values.max(axis=1)[following]
    return values


def _policy_value(stepsizes: np.ndarray, following: np.ndarray, discount: float) -> np.ndarray:
    """Discounted return of a policy from every place, 50 steps long."""
    step = following[np.arange(7), np.searchsorted(MOVES, stepsizes - 1e-5)]
    place, total = np.arange(7), np.zeros(7)
    for t in range(50):
        total += discount**t * (HEIGHT[step[place]] - HEIGHT[place])
        place = step[place]
    return total


@pytest.mark.parametrize("forest", [ExtraTrees, SklearnExtraTrees])
@pytest.mark.parametrize("double", [False, True])
def test_greedy_policy_is_optimal_from_the_horizon_on(forest, double):
    data, following = _line()
    discount = 0.95
    fitted = MetaFQI(6, forest(5, 2), discount, double, stepsize_high=3.0, num_stepsizes=13, random_state=1).fit(data)
    places = np.arange(7.0)[:, None]
    best = _optimal_values(following, discount, 50).max(axis=1)
    for iteration in range(1, 7):
        # Every (place, move) is in the data and in a leaf of its own: the values are those of dynamic programming.
        expected = _optimal_values(following, discount, iteration)
        assert fitted.values(places, iteration) == pytest.approx(expected, abs=1e-6)
        achieved = _policy_value(fitted.act(places, iteration), following, discount)
        if iteration >= HORIZON:
            assert achieved == pytest.approx(best, abs=1e-6)
        if iteration == 1:
            assert (best - achieved).max() > 0.5  # one step ahead, it stays on the first hill


@pytest.mark.parametrize("forest", [ExtraTrees, SklearnExtraTrees])
def test_fit_does_not_depend_on_threads(data, forest):
    settings = SMALL | {"regressor": forest(8, 0.05)}
    one, many = (MetaFQI(**settings, threads=threads).fit(data) for threads in (1, 3))
    for iteration in range(1, 5):
        assert np.array_equal(one.values(data.observation, iteration), many.values(data.observation, iteration))
        for left, right in zip(
            one.q_functions_[iteration - 1].heads, many.q_functions_[iteration - 1].heads, strict=True
        ):
            assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_seeds_differ_between_iterations_and_heads(data):
    assert len({forest_seed(0, iteration, head) for iteration in range(1, 50) for head in (0, 1)}) == 98
    first, second = MetaFQI(**SMALL).fit(data).q_functions_[0].heads
    assert not np.array_equal(first.threshold, second.threshold)


def test_continuous_maximum(data):
    fitted = MetaFQI(**SMALL, maximum="continuous").fit(data)
    function = fitted.q_functions_[0]
    assert (function.maximum(data.observation).value >= fitted.values(data.observation, 1).max(axis=1)).all()
    chosen = fitted.act(data.observation, 1)
    assert ((chosen >= 0) & (chosen <= HIGH)).all()
    assert not np.isin(chosen, np.linspace(0, HIGH, 101, dtype=np.float32)).all()


def test_any_regressor_takes_the_general_path(data):
    fitted = MetaFQI(**(SMALL | {"regressor": KNeighborsRegressor(5)})).fit(data)
    neighbours = KNeighborsRegressor(5).fit(
        np.column_stack([data.observation, data.stepsize]), data.reward.astype(float)
    )
    grid = np.linspace(0, HIGH, 101)
    expected = neighbours.predict(all_actions(data.observation[:20], grid)).reshape(20, 101)
    assert fitted.values(data.observation[:20], 1) == pytest.approx(expected)
    assert fitted.act(data.observation[:20], 1) == pytest.approx(grid[expected.argmax(axis=1)])
    assert not fitted.q_functions_[0].is_forest


def test_a_forest_as_regressor_takes_the_fast_path(data):
    settings = SMALL | {"regressor": RandomForestRegressor(5, max_depth=4)}
    fitted = MetaFQI(**settings, maximum="continuous").fit(data)
    assert fitted.q_functions_[-1].is_forest
    first, second = fitted.q_functions_[-1].heads
    assert not np.array_equal(first.threshold, second.threshold)  # the heads' random states were set


def test_progress_is_reported(data):
    calls = []
    fitted = MetaFQI(**SMALL).fit(data, progress=lambda *call: calls.append(call))
    assert [iteration for iteration, _ in calls] == [1, 2, 3, 4]
    assert tuple(seconds for _, seconds in calls) == fitted.seconds_


def test_follows_scikit_learns_manner(data):
    estimator = clone(MetaFQI(**SMALL))
    with pytest.raises(NotFittedError):
        estimator.act(data.observation)
    assert estimator.fit(data) is estimator
    assert estimator.n_features_in_ == 4
    assert len(estimator.q_functions_) == 4
    assert np.array_equal(estimator.act(data.observation), estimator.act(data.observation, 4))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"iterations": 0}, "fqi.iterations: 0 must be greater than or equal to 1"),
        ({"iterations": 1001}, "fqi.iterations: 1001 must be less than or equal to 1000"),
        ({"iterations": "many"}, "fqi.iterations: 'many' must be a whole number"),
        ({"meta_discount": 1.5}, "fqi.meta_discount: 1.5 must be less than or equal to 1"),
        ({"lam": 0.5}, "fqi.lam: 0.5 must be greater than 0.5"),
        ({"random_state": -1}, "fqi.random_state: -1 must be greater than or equal to 0"),
        ({"regressor": "pine"}, "fqi.regressor: 'pine' is not registered, allowed are extra-trees"),
        ({"regressor": 3}, "fqi.regressor: 3 must be a registered name"),
        ({"regressor": KNeighborsRegressor}, "must be a registered name"),
        ({"maximum": "peak"}, "fqi.maximum: 'peak' must be 'grid' or 'continuous'"),
        ({"maximum": "continuous", "regressor": KNeighborsRegressor()}, "regressor whose heads are not forests"),
        ({"stepsize_high": 1.0}, "stepsize spans"),
        ({"stepsize_low": 5.0}, "low is 5.0 and high 4.0"),
        ({"stepsize_low": -np.inf}, "low < high that are finite in float32"),
        ({"stepsize_high": 1e39}, "high 1e\\+39, allowed are low < high that are finite in float32"),
        ({"num_stepsizes": 1}, "fqi.num_stepsizes: 1 must be greater than or equal to 2"),
        ({"num_stepsizes": 10**9}, "fqi.num_stepsizes: 1000000000 must be less than or equal to 10000"),
        ({"stepsize_low": 1e6, "stepsize_high": 1e6 + 1}, "too many"),
        ({"threads": 0}, "fqi.threads: 0 must be greater than or equal to 1"),
    ],
)
def test_bad_settings_are_one_sentence(data, settings, sentence):
    with pytest.raises(InputError, match=sentence):
        MetaFQI(**(SMALL | settings)).fit(data)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"observation": np.zeros((0, 4), np.float32)}, "observation has shape"),
        ({"next_observation": np.zeros((500, 3), np.float32)}, r"next_observation has shape \(500, 3\)"),
        ({"stepsize": np.zeros(3, np.float32)}, "stepsize has shape"),
        ({"reward": np.zeros((500, 1), np.float32)}, "reward has shape"),
        ({"reward": np.r_[np.zeros(498), np.nan, np.inf]}, "2 tuples are not finite, the first at 498"),
    ],
)
def test_bad_transitions_are_one_sentence(data, change, sentence):
    with pytest.raises(InputError, match=sentence):
        MetaFQI(**SMALL).fit(data._replace(**change))


def test_bad_questions_are_one_sentence(data):
    fitted = MetaFQI(**SMALL).fit(data)
    with pytest.raises(InputError, match="iteration is 5, allowed is 1 to 4"):
        fitted.act(data.observation, 5)
    with pytest.raises(InputError, match="iteration is 0"):
        fitted.values(data.observation, 0)
    with pytest.raises(InputError, match=r"observation has shape \(4,\)"):
        fitted.act(data.observation[0])


def test_every_random_state_inside_a_regressor_is_set(data):
    """Two heads of a pipeline with a random state left alone would be one and the same, and not repeatable."""
    regressor = make_pipeline(StandardScaler(), BaggingRegressor(ExtraTreeRegressor(), 3))
    first, again = (MetaFQI(1, stepsize_high=HIGH, regressor=regressor).fit(data) for _ in range(2))
    heads = first.q_functions_[0].heads
    states = [
        [value for name, value in sorted(head.regressor.get_params().items()) if name.endswith("__random_state")]
        for head in heads
    ]
    assert len(states[0]) == 2
    assert all(isinstance(value, int) for row in states for value in row)
    assert len({value for row in states for value in row}) == 4
    np.testing.assert_array_equal(first.values(data.observation), again.values(data.observation))
    inputs = np.column_stack([data.observation, data.stepsize])
    assert not np.array_equal(heads[0].predict(inputs), heads[1].predict(inputs))


def test_a_name_stands_for_its_regressor_with_default_options(data):
    named, made = (MetaFQI(1, regressor, stepsize_high=HIGH).fit(data) for regressor in ("extra-trees", ExtraTrees()))
    assert all(function.is_forest for function in named.q_functions_)
    assert named.regressor_ == ExtraTrees(50, 0.01)
    np.testing.assert_array_equal(named.values(data.observation), made.values(data.observation))


def test_an_observation_that_is_not_finite_gets_the_smallest_step_size(data):
    observation = data.observation[:4].astype(float)
    observation[1, 0], observation[2, 3] = np.nan, 1e300
    for regressor in (ExtraTrees(5, 0.1), KNeighborsRegressor(3)):
        fitted = MetaFQI(1, regressor, stepsize_low=-0.5, stepsize_high=HIGH).fit(data)
        chosen = fitted.act(observation)
        assert list(chosen[1:3]) == [-0.5, -0.5]
        np.testing.assert_array_equal(chosen[[0, 3]], fitted.act(data.observation[[0, 3]]))


def test_every_setting_has_a_sentence():
    settings = settings_of(MetaFQI)
    assert settings.keys() == MetaFQI().get_params().keys()
    assert all(setting.sentence for setting in settings.values())
    assert settings["lam"].sentence == "Weight of the smaller of the two values."
    assert {name: setting.default for name, setting in settings_of(ExtraTrees).items()} == {
        "trees": 50,
        "min_samples_split": 0.01,
        "state_first": False,
    }


def test_a_dataset_is_fitted_as_its_transitions(data):
    class Stored:
        def transitions(self) -> Transitions:
            return data

    observation = data.observation[:20]
    stored, plain = (MetaFQI(1, ExtraTrees(3, 0.1), stepsize_high=HIGH).fit(given) for given in (Stored(), data))
    np.testing.assert_array_equal(stored.values(observation), plain.values(observation))
    for wrong in (data.observation, [1, 2], None):
        with pytest.raises(InputError, match=f"fit: got a {type(wrong).__name__}, allowed are Transitions"):
            MetaFQI(1).fit(wrong)

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from metastep.fqi import ExtraTrees, MetaFQI
from paper import figure1


def test_gradient_is_that_of_the_landscape():
    for point in ([-1.0, 0.0], [2.5, 0.0], [1.3, 2.2]):
        numerical = approx_fprime(np.array(point), lambda theta: float(figure1.landscape(theta)), 1e-7)
        assert figure1.gradient(point) == pytest.approx(numerical, abs=1e-6)


def test_figure_one():
    assert float(figure1.landscape(figure1.START)) == pytest.approx(0.186, abs=1e-3)
    assert float(figure1.landscape(figure1.GLOBAL_OPTIMUM)) == pytest.approx(1.0, abs=1e-3)
    over_the_hill = figure1.update(figure1.START, 3.5)
    assert over_the_hill == pytest.approx([2.5, 0.0], abs=0.05)
    assert figure1.landscape(over_the_hill) < figure1.landscape(figure1.START)
    assert figure1.landscape(figure1.update(over_the_hill, 2.5)) > 0.99


def test_transitions_are_consecutive():
    data = figure1.sample_transitions(episodes=10, updates=3, seed=0)
    assert data.observation.shape == data.next_observation.shape == (30, 4)
    assert np.array_equal(data.observation[10:], data.next_observation[:20])
    theta = data.observation[:, :2].astype(float)
    assert figure1.observe(figure1.update(theta, data.stepsize)) == pytest.approx(data.next_observation, abs=1e-5)
    gain = figure1.landscape(figure1.update(theta, data.stepsize)) - figure1.landscape(theta)
    assert data.reward == pytest.approx(gain, abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_step_reaches_the_local_optimum_and_planning_the_global_one(seed):
    fitted = MetaFQI(
        iterations=5,
        regressor=ExtraTrees(25, 0.005),
        meta_discount=figure1.META_DISCOUNT,
        stepsize_high=figure1.STEPSIZE_HIGH,
        num_stepsizes=figure1.NUM_STEPSIZES,
        random_state=seed,
    ).fit(figure1.sample_transitions(episodes=2000, updates=3, seed=seed))

    greedy = figure1.roll_out(lambda observation: fitted.act(observation, 1), updates=5)
    assert greedy.theta[-1] == pytest.approx(figure1.LOCAL_OPTIMUM, abs=0.15)
    assert greedy.returns[-1] == pytest.approx(0.51, abs=0.02)
    for iteration in range(2, 6):
        planned = figure1.roll_out(lambda observation, n=iteration: fitted.act(observation, n), updates=5)
        assert planned.theta[-1] == pytest.approx(figure1.GLOBAL_OPTIMUM, abs=0.5)
        assert planned.returns[-1] > 0.9

"""The probe's closed forms, against finite differences and against a simulation that shares no code with them."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from metastep.envs import LQR
from metastep.envs.lqr import Point
from tests.reference import exact

CASES = [
    ((0.1, -0.3, -0.6), 1.0, 0.5, 10, 0.99),
    ((-0.4, 0.2, 0.1), 0.6, 1.0, 7, 0.9),
    ((0.0, 0.0, 0.0), 1.1, 0.3, 20, 1.0),
    ((0.3, 0.1, -0.2), 0.8, 0.7, 1, 0.5),
]


def test_one_step_by_hand() -> None:
    """s = (2, -1), a = 0.5, z = (1, -2), scale = 0.5.

    r = -(1 * 4 + 0.5 * 1 + 0.1 * 0.25) = -4.525; s' = 0.5 (0.9 * 2 - 0.3, -0.2 - 0.8) + (0.05, 0.25) + 0.1 (1, -2).
    """
    env = LQR()
    context = env.context_space.unpack(jnp.asarray([0.5], jnp.float32))
    state = Point(jnp.float32(2.0), jnp.float32(-1.0))
    after = env.step(context, state, (jnp.float32(0.5),), (jnp.float32(1.0), jnp.float32(-2.0)))
    np.testing.assert_allclose(after.reward, -4.525, rtol=1e-6)
    np.testing.assert_allclose(after.state, (0.9, -0.45), rtol=1e-5)
    assert not bool(after.terminated)


def test_starts_are_normal_around_the_start() -> None:
    start = LQR().reset(None, (jnp.float32(1.0), jnp.float32(-2.0)))
    np.testing.assert_allclose(start, (1.3, -1.1), rtol=1e-6)


@pytest.mark.parametrize(("theta", "scale", "sigma", "horizon", "discount"), CASES)
def test_gradient_is_the_slope_of_the_return(
    theta: tuple[float, ...], scale: float, sigma: float, horizon: int, discount: float
) -> None:
    def mean_return(parameters: NDArray[np.float64]) -> float:
        return exact(LQR(), parameters, scale, sigma=sigma, horizon=horizon, discount=discount).mean_return

    step = 1e-5
    slopes = [
        (mean_return(np.add(theta, step * axis)) - mean_return(np.subtract(theta, step * axis))) / (2 * step)
        for axis in np.eye(3)
    ]
    gradient = exact(LQR(), theta, scale, sigma=sigma, horizon=horizon, discount=discount).gradient
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)


def simulate(
    theta: tuple[float, ...], scale: float, sigma: float, horizon: int, discount: float, num: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns (num,), REINFORCE gradients (num, 3) with the whole return, and the Fisher matrix of the scores (3, 3)."""
    generator = np.random.default_rng(20)
    states = np.array([1.0, -0.5]) + 0.3 * generator.standard_normal((num, 2))
    returns, scores, fisher = np.zeros(num), np.zeros((num, 3)), np.zeros((3, 3))
    for t in range(horizon):
        features = np.column_stack([np.ones(num), states])
        normal = generator.standard_normal(num)
        action = features @ np.asarray(theta) + sigma * normal
        score = features * normal[:, None] / sigma
        scores += score
        fisher += score.T @ score / (num * horizon)
        returns -= discount**t * (states[:, 0] ** 2 + 0.5 * states[:, 1] ** 2 + 0.1 * action**2)
        drift = scale * states @ np.array([[0.9, 0.3], [-0.1, 0.8]]).T
        states = drift + np.outer(action, [0.1, 0.5]) + 0.1 * generator.standard_normal((num, 2))
    return returns, scores * (returns - returns.mean())[:, None], fisher


@pytest.mark.parametrize(("theta", "scale", "sigma", "horizon", "discount"), CASES)
def test_closed_forms_within_the_interval_of_a_simulation(
    theta: tuple[float, ...], scale: float, sigma: float, horizon: int, discount: float
) -> None:
    num = 100_000
    returns, gradients, fisher = simulate(theta, scale, sigma, horizon, discount, num)
    truth = exact(LQR(), theta, scale, sigma=sigma, horizon=horizon, discount=discount)
    assert abs(returns.mean() - truth.mean_return) < 4 * returns.std() / np.sqrt(num)
    assert (np.abs(gradients.mean(axis=0) - truth.gradient) < 4 * gradients.std(axis=0) / np.sqrt(num)).all()
    np.testing.assert_allclose(truth.natural_gradient, np.linalg.solve(fisher, truth.gradient), rtol=0.03, atol=1e-3)
    # The intervals are narrow enough to mean something.
    assert 4 * returns.std() / np.sqrt(num) < 0.02 * abs(truth.mean_return)


def test_the_context_scales_the_dynamics() -> None:
    returns = [
        exact(LQR(), np.zeros(3), scale, sigma=0.5, horizon=10, discount=0.99).mean_return for scale in (0.5, 0.8, 1.1)
    ]
    assert returns[0] > returns[1] > returns[2]

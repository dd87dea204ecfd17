"""Distances between samples, and constants estimated from pairs."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from metastep.envs import make
from metastep.envs.lqr import LQR
from metastep.envs.nav2d import Nav2D
from paper.theory.estimate import Samples, estimate_constants, law_distances, step_function
from paper.theory.lqr import from_env, lqr_constants, reachable_ball
from paper.theory.policy import policy_from_theta


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_distances_of_laws_are_bounds_from_below(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(12, size)), rng.normal(size=(12, size)) * 1.5 + rng.normal(size=size)
    cost = np.linalg.norm(left[:, None] - right[None], axis=-1)
    exact = float(cost[linear_sum_assignment(cost)].mean())
    (lower,) = law_distances(left[None], right[None])
    assert lower <= exact + 1e-12
    if size == 1:
        assert lower == pytest.approx(exact)


def test_a_shift_is_found_exactly() -> None:
    rng = np.random.default_rng(0)
    left, shift = rng.normal(size=(50, 3)), np.array([0.3, -0.2, 0.6])
    assert law_distances(left[None], left[None] + shift) == pytest.approx(0.7)
    assert law_distances(left[None], left[None]) == 0.0


def _in_ball(rng: np.random.Generator, num: int, size: int, radius: float) -> np.ndarray:
    direction = rng.normal(size=(num, size))
    length = radius * rng.uniform(size=(num, 1)) ** (1 / size)
    return length * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def test_estimates_approach_the_exact_constants_of_lqr_from_below() -> None:
    rng = np.random.default_rng(1)
    env, gamma, horizon = LQR(), 0.9, 6
    family = from_env(env, gamma, horizon)
    policy = policy_from_theta(np.array([0.2, -0.3, 0.4]), 2, 1, 0.5)
    omegas = np.array([[0.5], [1.1]])
    exact, _, _ = lqr_constants(family, policy, omegas)
    ball = reachable_ball(family, policy, omegas)

    def step(contexts, states, actions, noise):
        after = contexts * (states @ family.drift[1].T) + actions @ family.control.T + noise @ family.noise.T
        reward = -(states**2 @ np.diag(family.state_cost[0]) + family.action_cost[0, 0] * actions[:, 0] ** 2)
        return after, reward, np.zeros(len(states), bool)

    num = 20_000
    samples = Samples(
        rng.uniform(0.5, 1.1, size=(num, 1)),
        _in_ball(rng, num, 2, float(ball.state_radius)),
        _in_ball(rng, num, 1, float(ball.action_radius)),
    )
    shares = []
    for num_pairs in (20, 200, 2_000, 20_000):
        estimates = [
            estimate_constants(step, samples, num_pairs, num_noise=2, num_draws=2, seed=seed) for seed in range(3)
        ]
        names = ("L_P", "L_r", "L_omega_P", "R_max")
        share = np.array([[getattr(estimate, name) / getattr(exact, name) for name in names] for estimate in estimates])
        assert np.all(share <= 1.0 + 1e-12)
        assert all(estimate.L_omega_r == 0.0 and estimate.ending_share == 0.0 for estimate in estimates)
        shares.append(share.mean(axis=0))
    assert np.all(shares[-1] > 0.95)
    assert np.all(shares[-1] > shares[0])
    assert np.all(np.diff(np.stack(shares), axis=0).mean(axis=0) > 0)


def test_nav2d_estimates_find_its_exact_constants() -> None:
    """L_P = L_r = L_omegar = 1 and L_omegaP = 0; the float32 environment may overshoot by its rounding."""
    rng = np.random.default_rng(3)
    samples = Samples(
        rng.uniform(-0.5, 0.5, (4_000, 2)), rng.uniform(-0.5, 0.5, (4_000, 2)), rng.uniform(-0.2, 0.2, (4_000, 2))
    )
    estimate = estimate_constants(step_function(Nav2D()), samples, 4_000, num_noise=0)
    for value in (estimate.L_P, estimate.L_r, estimate.L_omega_r):
        assert 0.98 < value < 1.0 + 1e-3
    assert estimate.L_omega_P == 0.0


def test_endings_are_reported() -> None:
    """Minigolf's strokes end or do not end: the estimate says how many pairs straddle the edge."""
    rng = np.random.default_rng(4)
    env = make("minigolf")
    samples = Samples(
        rng.uniform((0.7, 0.065), (1.0, 0.196), (500, 2)), rng.uniform(0, 20, (500, 1)), rng.uniform(0, 5, (500, 1))
    )
    estimate = estimate_constants(step_function(env), samples, 500, num_noise=1, num_draws=8)
    assert 0.0 < estimate.ending_share < 1.0
    assert estimate.L_r > 10.0  # 100 lost across a small move

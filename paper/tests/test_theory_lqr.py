"""LQR: closed forms against independent ones, and no bound violated by thousands of policies and contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep.envs.small import LQR
from paper.theory.constants import Bounds, per_coordinate
from paper.theory.lqr import (
    LinearQuadratic,
    expected_return,
    from_env,
    lqr_constants,
    q_functions,
    reachable_ball,
    return_gradient,
)
from paper.theory.policy import policy_from_theta


def _random_family(rng: np.random.Generator, horizon: int, num_coordinates: int = 2) -> LinearQuadratic:
    """Random dynamics with the context in the dynamics and in the cost."""
    states, actions = int(rng.integers(1, 4)), int(rng.integers(1, 3))

    def symmetric(*shape: int) -> np.ndarray:
        square = rng.normal(size=(*shape, states, states)) / np.sqrt(states)
        return (square + np.swapaxes(square, -1, -2)) / 2

    return LinearQuadratic(
        drift=0.35 * rng.normal(size=(1 + num_coordinates, states, states)) / np.sqrt(states),
        control=0.4 * rng.normal(size=(states, actions)) / np.sqrt(states),
        state_cost=symmetric(1 + num_coordinates),
        action_cost=rng.uniform(0.0, 0.5) * np.eye(actions),
        noise=0.2 * rng.normal(size=(states, 2)),
        start_mean=rng.normal(size=states),
        start_factor=0.2 * rng.normal(size=(states, 2)),
        gamma=float(rng.uniform(0.5, 0.95)),
        horizon=horizon,
    )


def _on_spheres(rng, family, policy, omegas) -> np.ndarray:
    """One point on the spheres of first states and first actions for each pair of contexts."""
    ball = reachable_ball(family, policy, omegas)
    s, a = (rng.normal(size=(len(omegas), size)) for size in family.control.shape)
    s *= ball.start_radius / np.linalg.norm(s, axis=1, keepdims=True)
    a *= ball.first_action_radius[:, None] / np.linalg.norm(a, axis=1, keepdims=True)
    return np.concatenate([s, a], axis=1)


def test_gradient_is_the_derivative_of_the_return() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        family = _random_family(rng, 6)
        states, actions = family.control.shape
        theta, omega = 0.4 * rng.normal(size=actions * (1 + states)), rng.uniform(-1, 1, size=2)
        moves = 1e-5 * np.eye(len(theta))
        up, down = (
            expected_return(family, policy_from_theta(theta + sign * moves, states, actions, 0.5), omega)
            for sign in (1, -1)
        )
        gradient = return_gradient(family, policy_from_theta(theta, states, actions, 0.5), omega)
        np.testing.assert_allclose((up - down) / 2e-5, gradient, rtol=1e-6, atol=1e-7)


def test_the_two_point_law_has_the_same_values_and_gradient() -> None:
    """Enumerate every two-point noise sequence of two steps; the means equal the Gaussian closed forms."""
    family = from_env(LQR(), gamma=0.9, horizon=2)
    theta, omega, sigma = np.array([0.3, -0.4, 0.2]), np.array([0.8]), 0.6
    policy = policy_from_theta(theta, 2, 1, sigma)
    signs = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 6, indexing="ij"), axis=-1).reshape(-1, 6)
    drift = 0.8 * family.drift[1]

    def reward(s: np.ndarray, a: np.ndarray) -> np.ndarray:
        return -(np.einsum("ni,ij,nj->n", s, family.state_cost[0], s) + family.action_cost[0, 0] * a[:, 0] ** 2)

    s0 = family.start_mean + signs[:, :2] @ family.start_factor.T
    a0 = policy.bias + s0 @ policy.weights.T + sigma * signs[:, 2:3]
    s1 = s0 @ drift.T + a0 @ family.control.T + signs[:, 3:5] @ family.noise.T
    a1 = policy.bias + s1 @ policy.weights.T + sigma * signs[:, 5:6]
    payoff = [reward(s0, a0), 0.9 * reward(s1, a1)]
    assert np.mean(sum(payoff)) == pytest.approx(float(expected_return(family, policy, omega)))
    scores = [
        np.concatenate([np.ones((64, 1)), s], axis=1) * z / sigma for s, z in ((s0, signs[:, 2:3]), (s1, signs[:, 5:6]))
    ]
    gradient = np.mean(scores[0] * sum(payoff)[:, None] + scores[1] * payoff[1][:, None], axis=0)
    np.testing.assert_allclose(gradient, return_gradient(family, policy, omega))
    ball = reachable_ball(family, policy, omega[None])
    for s, a in ((s0, a0), (s1, a1)):
        assert np.linalg.norm(s, axis=1).max() <= ball.state_radius
        assert np.abs(a).max() <= ball.action_radius


def test_no_violation_over_thousands_of_policies_and_contexts() -> None:
    """Differences of Q, J and gradient for 5,000 random policies and context pairs in 50 families, against their constants."""
    rng = np.random.default_rng(3)
    ratios: dict[str, list[np.ndarray]] = {"Q": [], "J": [], "gradient": [], "Q in (s, a)": []}
    for _ in range(50):
        family = _random_family(rng, horizon=int(rng.integers(1, 15)))
        states, actions = family.control.shape
        theta = rng.uniform(0.05, 0.6, size=(100, 1)) * rng.normal(size=(100, actions * (1 + states)))
        policy = policy_from_theta(theta, states, actions, rng.uniform(0.1, 1.0))
        omegas = rng.uniform(-1.0, 1.0, size=(100, 2, 2))
        omegas[::2, 1] = omegas[::2, 0] + 0.01 * omegas[::2, 1]  # near pairs, where the constant is sharpest
        distance = np.linalg.norm(omegas[:, 0] - omegas[:, 1], axis=1)
        cmdp, constants, score = lqr_constants(family, policy, omegas)
        bounds = Bounds(cmdp, constants, horizon=family.horizon)
        in_gradient = Bounds(*per_coordinate(cmdp, constants), score, family.horizon).L_gradient * distance[:, None]
        first, second = (q_functions(family, policy, omegas[:, index])[-1] for index in (0, 1))
        returns = [expected_return(family, policy, omegas[:, index]) for index in (0, 1)]
        gradients = [return_gradient(family, policy, omegas[:, index]) for index in (0, 1)]
        # On the spheres convex-minus-convex functions are largest in practice.
        corners = [_on_spheres(rng, family, policy, omegas) for _ in range(20)]
        apart = np.max([np.abs(first.at(point) - second.at(point)) for point in corners], axis=0)
        ratios["Q"].append(apart / (bounds.L_omega_Q * distance))
        ratios["J"].append(np.abs(returns[0] - returns[1]) / (bounds.L_omega_Q * distance))
        ratios["gradient"].append(np.max(np.abs(gradients[0] - gradients[1]) / in_gradient, axis=1))
        # Q at two random points of the first ball, against L_Q.
        left, right = (
            _on_spheres(rng, family, policy, omegas)
            * np.repeat(rng.uniform(0, 1, (100, 2)), family.control.shape, axis=1)
            for _ in (0, 1)
        )
        gap = sum(np.linalg.norm(part, axis=1) for part in np.split(left - right, [states], axis=1))
        ratios["Q in (s, a)"].append(np.abs(first.at(left) - first.at(right)) / (bounds.L_Q * gap))
    largest = {name: np.concatenate(collected).max() for name, collected in ratios.items()}
    assert max(largest.values()) <= 1.0 + 1e-9
    assert largest["Q"] > 0.5
    assert largest["J"] > 0.2
    assert largest["gradient"] > 0.02


def test_constants_match_jax_derivatives() -> None:
    """L_r is the largest reward gradient on the ball: automatic differentiation on a fine grid of its boundary agrees."""
    family = from_env(LQR(), gamma=0.9, horizon=4)
    policy = policy_from_theta(np.array([0.1, -0.2, 0.3]), 2, 1, 0.5)
    omegas = np.array([[0.6], [1.0]])
    cmdp, constants, _ = lqr_constants(family, policy, omegas)
    ball = reachable_ball(family, policy, omegas)
    angles = np.linspace(0, 2 * np.pi, 721)
    states = ball.state_radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    cost = jnp.asarray(family.state_cost[0])
    slopes = jax.vmap(jax.grad(lambda s: -s @ cost @ s))(jnp.asarray(states))
    steepest = max(float(jnp.linalg.norm(slopes, axis=1).max()), float(2 * 0.1 * ball.action_radius))
    assert cmdp.L_r == pytest.approx(steepest, rel=1e-4)
    assert cmdp.L_omega_P == pytest.approx(np.linalg.norm(states @ family.drift[1].T, axis=1).max(), rel=1e-4)
    assert constants.L_pi == pytest.approx(np.hypot(0.2, 0.3))

"""Closed forms for the contextual linear-quadratic regulator, in float64 and batched over policies and contexts.

    s' = A(omega) s + B a + G w,    r = -(s^T C(omega) s + a^T D a),    a = b + W s + sigma z,    H steps, discount gamma

with A and C affine in the context and w, z standard normal. Q is quadratic, so Q, the return and its gradient depend on the
noise only through its moments of order one to three, (0, I, 0). The two-point law (every coordinate ±1) has the same moments:
replacing normal noise by it changes none of the three, and keeps every state in a ball, on which the quadratic reward is
Lipschitz. The constants of `lqr_constants` are those of the two-point system; the bounds that follow from them therefore hold
for the Gaussian one, exactly (docs/theory.md has the proof).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metastep.envs.small import LQR
from paper.theory.constants import CmdpConstants, Constants, Floats
from paper.theory.policy import MEAN_ABSOLUTE_TWO_POINT, LinearPolicy, policy_constants
from paper.theory.policy import spectral_norm as _norm


class LinearQuadratic(NamedTuple):
    """A family of tasks; index 0 of `drift` and `state_cost` is the constant part, index k the slope in omega_k."""

    drift: Floats  # (1 + coordinates, states, states)
    control: Floats  # (states, actions)
    state_cost: Floats  # (1 + coordinates, states, states), symmetric
    action_cost: Floats  # (actions, actions), symmetric
    noise: Floats  # (states, noises): G
    start_mean: Floats  # (states,)
    start_factor: Floats  # (states, noises): s_0 = mean + factor w
    gamma: float
    horizon: int


class QuadraticQ(NamedTuple):
    """Q(z) = -(z^T matrix z + 2 linear . z + constant), z = (s, a)."""

    matrix: Floats  # (..., states + actions, states + actions)
    linear: Floats  # (..., states + actions)
    constant: Floats  # (...)

    def at(self, point: Floats) -> Floats:
        """Q at points z (..., states + actions)."""
        return -(_dot(point, _apply(self.matrix, point) + 2.0 * self.linear) + self.constant)


class Ball(NamedTuple):
    """Where the two-point system lives, whichever of the contexts is true."""

    state_radius: Floats  # (...)
    action_radius: Floats  # (...)
    start_radius: Floats  # (...): of the first state
    first_action_radius: Floats  # (...)


def from_env(env: LQR, gamma: float, horizon: int) -> LinearQuadratic:
    """Return the family of the registered environment, where the context scales the dynamics."""
    dynamics = np.asarray(env.dynamics, np.float64)
    cost = np.diag(np.asarray(env.state_cost, np.float64))
    identity = np.eye(len(env.start))
    return LinearQuadratic(
        drift=np.stack([np.zeros_like(dynamics), dynamics]),
        control=np.asarray(env.control, np.float64)[:, None],
        state_cost=np.stack([cost, np.zeros_like(cost)]),
        action_cost=np.full((1, 1), env.action_cost),
        noise=env.noise * identity,
        start_mean=np.asarray(env.start, np.float64),
        start_factor=env.start_scale * identity,
        gamma=gamma,
        horizon=horizon,
    )


def q_functions(family: LinearQuadratic, policy: LinearPolicy, omega: ArrayLike) -> list[QuadraticQ]:
    """Return the action-value functions with 1, 2, ..., H steps left, for contexts (..., coordinates)."""
    drift, state_cost = _affine(family.drift, omega), _affine(family.state_cost, omega)
    num_states, num_actions = family.control.shape
    batch = np.broadcast_shapes(drift.shape[:-2], policy.bias.shape[:-1])
    step = np.concatenate([drift, np.broadcast_to(family.control, (*drift.shape[:-2], *family.control.shape))], axis=-1)
    cost = np.zeros((*drift.shape[:-2], num_states + num_actions, num_states + num_actions))
    cost[..., :num_states, :num_states] = state_cost
    cost[..., num_states:, num_states:] = family.action_cost
    noise = family.noise @ family.noise.T
    loop, shift = _closed_loop(policy, num_states)

    value = np.zeros((*batch, num_states, num_states))
    slope, level = np.zeros((*batch, num_states)), np.zeros(batch)
    functions = []
    for _ in range(family.horizon):
        matrix = cost + family.gamma * step.mT @ value @ step
        linear = family.gamma * _apply(step.mT, slope)
        constant = family.gamma * (level + np.sum(value * noise, axis=(-2, -1)))
        functions.append(QuadraticQ(matrix, linear, constant))
        # V(s) = E Q(s, b + W s + sigma z): put z = loop s + shift + (0, sigma z) into the quadratic form.
        spread = policy.sigma**2 * np.trace(matrix[..., num_states:, num_states:], axis1=-2, axis2=-1)
        value = loop.mT @ matrix @ loop
        slope = _apply(loop.mT, _apply(matrix, shift) + linear)
        level = _dot(shift, _apply(matrix, shift) + 2.0 * linear) + constant + spread
    return functions


def expected_return(family: LinearQuadratic, policy: LinearPolicy, omega: ArrayLike) -> Floats:
    """Return J = E[sum_{t<H} gamma^t r_t] of every policy and context."""
    last = q_functions(family, policy, omega)[-1]
    num_states, num_actions = family.control.shape
    loop, shift = _closed_loop(policy, num_states)
    covariance = loop @ family.start_factor @ family.start_factor.T @ loop.mT
    covariance[..., num_states:, num_states:] += policy.sigma**2 * np.eye(num_actions)
    mean = _apply(loop, family.start_mean) + shift
    return last.at(mean) - np.sum(last.matrix * covariance, axis=(-2, -1))


def occupied_mean(family: LinearQuadratic, policy: LinearPolicy, omega: ArrayLike) -> Floats:
    """Return the mean state under the normalised discounted occupancy: (..., states)."""
    drift = _affine(family.drift, omega)
    mean = np.broadcast_to(family.start_mean, (*drift.shape[:-2], len(family.start_mean)))
    total, mass = np.zeros(mean.shape), 0.0
    for t in range(family.horizon):
        weight = family.gamma**t
        total, mass = total + weight * mean, mass + weight
        action = policy.bias + _apply(policy.weights, mean)
        mean = _apply(drift, mean) + _apply(family.control, action)
    return total / mass


def return_gradient(family: LinearQuadratic, policy: LinearPolicy, omega: ArrayLike) -> Floats:
    """Return dJ/dtheta (..., parameters), theta = (b, W row by row).

    `sum_t gamma^t E[phi dQ/da]` with dQ/da at the mean action: `E[z Q(s, m + sigma z)] = sigma dQ/da` for quadratic Q.
    """
    functions = q_functions(family, policy, omega)
    num_states = len(family.start_mean)
    drift = _affine(family.drift, omega) + family.control @ policy.weights
    push = _apply(family.control, policy.bias)
    noise = family.noise @ family.noise.T + policy.sigma**2 * family.control @ family.control.T
    mean, covariance = family.start_mean, family.start_factor @ family.start_factor.T
    of_bias: Floats = np.zeros(policy.bias.shape)
    of_weights: Floats = np.zeros(policy.weights.shape)
    for t in range(family.horizon):
        function = functions[family.horizon - 1 - t]
        act_state = function.matrix[..., num_states:, :num_states]
        act_act = function.matrix[..., num_states:, num_states:]
        slope = -2.0 * (act_state + act_act @ policy.weights)
        level = -2.0 * (_apply(act_act, policy.bias) + function.linear[..., num_states:])
        weight = family.gamma**t
        second = covariance + mean[..., :, None] * mean[..., None, :]
        of_bias = of_bias + weight * (_apply(slope, mean) + level)
        of_weights = of_weights + weight * (slope @ second + level[..., :, None] * mean[..., None, :])
        mean, covariance = _apply(drift, mean) + push, drift @ covariance @ drift.mT + noise
    return np.concatenate([of_bias, of_weights.reshape(*of_weights.shape[:-2], -1)], axis=-1)


def closed_forms(
    family: LinearQuadratic, policy: LinearPolicy, omega: Floats, points: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return Q at points (contexts, points, .), the return, its gradient and the mean state, (contexts, .) each."""
    return (
        q_functions(family, policy, omega[:, None])[-1].at(points),
        expected_return(family, policy, omega)[:, None],
        return_gradient(family, policy, omega),
        occupied_mean(family, policy, omega),
    )


def reachable_ball(family: LinearQuadratic, policy: LinearPolicy, omegas: ArrayLike) -> Ball:
    """Return balls that hold every state and action of an episode of the two-point system, in all contexts between `omegas`.

    The first state lies in the start ball and the first action in its own (Q is compared there at any pair); afterwards the
    closed loop moves. Norms of affine matrices are convex, so the corners `omegas` (..., contexts, coordinates) are the worst.
    """
    drift = _affine(family.drift, omegas)  # (..., contexts, states, states)
    control = family.control
    start = np.linalg.norm(family.start_mean) + np.linalg.norm(family.start_factor)
    first = _action_radius(policy, start)
    # Only G G^T matters, so the two points of w may lie along its eigenvectors, where |G w| is the Frobenius norm of G.
    noise = np.linalg.norm(family.noise)
    open_norm = np.max(_norm(drift), axis=-1)
    closed_norm = np.max(_norm(drift + (control @ policy.weights)[..., None, :, :]), axis=-1)
    shake = policy.sigma * np.sqrt(control.shape[1]) * _norm(control)
    push = np.linalg.norm(_apply(control, policy.bias), axis=-1) + shake
    radius = largest = np.broadcast_to(start, np.broadcast_shapes(open_norm.shape, np.shape(first)))
    for t in range(family.horizon - 1):
        free = open_norm * radius + _norm(control) * first + noise
        radius = free if t == 0 else closed_norm * radius + push + noise
        largest = np.maximum(largest, radius)
    return Ball(largest, _action_radius(policy, largest), np.asarray(start), first)


def lqr_constants(family: LinearQuadratic, policy: LinearPolicy, omegas: ArrayLike) -> Constants:
    """Return all constants on the ball, valid for any two contexts in the convex hull of `omegas` (..., contexts, coordinates).

    L_P = max(|A|, |B|), since noise is added: a translated law is as far away as it was moved. L_omegaP = sqrt(sum_k |A_k|^2) R
    and L_omegar = sqrt(sum_k |C_k|^2) R^2, which are attained when the context has one coordinate and bounds otherwise.
    """
    ball = reachable_ball(family, policy, omegas)
    radius, actions = ball.state_radius, ball.action_radius
    state_cost = np.max(_norm(_affine(family.state_cost, omegas)), axis=-1)
    action_cost = _norm(family.action_cost)
    cmdp = CmdpConstants(
        L_P=np.maximum(np.max(_norm(_affine(family.drift, omegas)), axis=-1), _norm(family.control)),
        L_r=2.0 * np.maximum(state_cost * radius, action_cost * actions),
        L_omega_P=np.sqrt(np.sum(_norm(family.drift[1:]) ** 2)) * radius,
        L_omega_r=np.sqrt(np.sum(_norm(family.state_cost[1:]) ** 2)) * radius**2,
        gamma=family.gamma,
        R_max=state_cost * radius**2 + action_cost * actions**2,
    )
    of_policy, of_score = policy_constants(
        policy, largest_coordinate=radius, largest_norm=radius, mean_absolute_noise=MEAN_ABSOLUTE_TWO_POINT
    )
    return cmdp, of_policy, of_score


def _action_radius(policy: LinearPolicy, radius: ArrayLike) -> Floats:
    """Return the largest |b + W s + sigma z| with |s| up to the radius and z of the two-point law."""
    bias = np.linalg.norm(policy.bias, axis=-1)
    return np.asarray(bias + policy.L_pi * np.asarray(radius) + policy.sigma * np.sqrt(policy.bias.shape[-1]))


def _affine(parts: Floats, omega: ArrayLike) -> Floats:
    """parts[0] + sum_k omega_k parts[k]: (..., rows, columns)."""
    coordinates = np.asarray(omega, np.float64)
    return np.asarray(parts[0] + np.tensordot(coordinates, parts[1:], axes=(-1, 0)))


def _closed_loop(policy: LinearPolicy, num_states: int) -> tuple[Floats, Floats]:
    """(s, mean action) = loop s + shift."""
    identity = np.broadcast_to(np.eye(num_states), (*policy.weights.shape[:-2], num_states, num_states))
    shift = np.concatenate([np.zeros((*policy.bias.shape[:-1], num_states)), policy.bias], axis=-1)
    return np.concatenate([identity, policy.weights], axis=-2), shift


def _apply(matrix: Floats, vector: Floats) -> Floats:
    return np.asarray((matrix @ vector[..., None])[..., 0])


def _dot(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.sum(left * right, axis=-1))

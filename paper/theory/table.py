"""Measured differences against their bounds, one row each."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metastep import InputError
from metastep.envs.lqr import LQR
from metastep.envs.nav2d import Nav2D
from metastep.experiments.coverage import Z_99, Difference, context_pairs, return_differences
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout
from paper.theory import lqr
from paper.theory.constants import Bounds, Constants, Floats, per_coordinate
from paper.theory.measure import FromPair, Occupied, gradient_differences
from paper.theory.nav2d import nav2d_constants
from paper.theory.policy import LinearPolicy, policy_from_theta


class BoundRow(NamedTuple):
    """One measured difference; the interval is at 99 % and `tightness` is measured / bound."""

    env: str
    quantity: str  # Q, J, gradient[i], or occupancy[i]: of its mean in coordinate i
    policy: int
    context: tuple[float, ...]
    other: tuple[float, ...]
    distance: float
    measured: float
    low: float
    high: float
    exact: float  # the closed form where there is one, else nan
    bound: float
    tightness: float
    holds: bool  # the interval does not lie above the bound


class Effort(NamedTuple):
    """How much is measured."""

    num_policies: int
    num_pairs: int  # of contexts, for each policy
    num_points: int  # state-action pairs, for each policy and pair of contexts
    num_episodes: int  # of a block
    num_blocks: int


class _Setting(NamedTuple):
    """The environment, horizon, discount and policies a table is made with."""

    env: LQR | Nav2D
    horizon: int
    gamma: float
    sigma: float
    theta_scale: float


# Nav2D as in the paper, without its end (paper.theory.nav2d). LQR: gamma and horizon at which the constants of its default
# dynamics stay small enough to compare.
_SETTINGS = {
    "lqr": _Setting(LQR(), 5, 0.9, 0.5, 0.2),
    "nav2d": _Setting(Nav2D(goal_radius=0.0), 10, 0.99, 1.001, 0.1**0.5),
}


def measure_bounds(name: str, effort: Effort, seed: int) -> list[BoundRow]:
    """|Q - Q'|, |J - J'|, |grad - grad'| and means of the occupancy over random policies and `context_pairs`, with bounds."""
    if name not in _SETTINGS:
        raise InputError(f"env: {name!r} has no exact constants, those that have are {', '.join(_SETTINGS)}.")
    rng = np.random.default_rng(seed)
    rows = (_measure_policy(rng, _SETTINGS[name], effort, index, seed) for index in range(effort.num_policies))
    return [row for of_policy in rows for row in of_policy]


def _measure_policy(
    rng: np.random.Generator, setting: _Setting, effort: Effort, index: int, seed: int
) -> list[BoundRow]:
    """The rows of one policy. Quantities are Q at points, the return and its gradient, side by side: (pairs, quantities)."""
    env, horizon = setting.env, setting.horizon
    linear = LinearGaussian(env.num_observations, env.num_actions, setting.sigma)
    rollout = Rollout(env, linear, effort.num_episodes, horizon, setting.gamma, "none")
    theta = setting.theta_scale * rng.normal(size=linear.num_parameters)
    pairs = context_pairs(rng, env.context_space, effort.num_pairs)
    (cmdp, policy, score), points, exact = _known(rng, setting, theta, pairs, effort.num_points)

    blocks, seed = effort.num_blocks, seed + index
    forced = replace(rollout, env=FromPair(env))
    of_q = return_differences(forced, theta, _at_points(pairs, points), num_blocks=blocks, seed=seed)
    of_task = gradient_differences(rollout, theta, pairs, num_blocks=blocks, seed=seed)
    occupied = [
        return_differences(
            replace(rollout, env=Occupied(env, coordinate=coordinate)), theta, pairs, num_blocks=blocks, seed=seed
        )
        for coordinate in range(env.num_observations)
    ]
    mass = float(np.sum(setting.gamma ** np.arange(horizon)))  # the occupancy of the theorem has mass one
    of_place = [np.stack([getattr(one, part) / mass for one in occupied], axis=1) for part in Difference._fields]
    difference = Difference(
        np.concatenate([of_q.mean.reshape(points.shape[:2]), of_task.mean, of_place[0]], axis=1),
        np.concatenate([of_q.standard_error.reshape(points.shape[:2]), of_task.standard_error, of_place[1]], axis=1),
    )
    constants = np.empty_like(exact)
    values, rest = np.split(constants, [effort.num_points + 1], axis=1)
    gradient, place = np.split(rest, [len(theta)], axis=1)
    bounds = Bounds(cmdp, policy, horizon=horizon)
    values[:] = np.asarray(bounds.L_omega_Q)[..., None]
    gradient[:] = Bounds(*per_coordinate(cmdp, policy), score, horizon).L_gradient
    place[:] = np.asarray(bounds.L_delta_omega)[..., None]
    return _rows(env.name, index, pairs, difference, constants, exact, effort.num_points, len(theta))


def _known(
    rng: np.random.Generator, setting: _Setting, theta: Floats, pairs: Floats, num_points: int
) -> tuple[Constants, Floats, Floats]:
    """Constants, random state-action pairs (pairs, points, .) at which Q is asked, and the exact differences."""
    env, shape = setting.env, (len(pairs), num_points)
    policy = policy_from_theta(theta, env.num_observations, env.num_actions, setting.sigma)
    if isinstance(env, Nav2D):
        states = rng.uniform(-0.5, 0.5, size=(*shape, env.num_observations))
        actions = rng.uniform(-2.0 * env.max_move, 2.0 * env.max_move, size=(*shape, env.num_actions))
        unknown = np.full((len(pairs), num_points + 1 + len(theta) + env.num_observations), np.nan)
        constants = nav2d_constants(env, policy, setting.gamma, setting.horizon)
        return constants, np.concatenate([states, actions], axis=-1), unknown
    family = lqr.from_env(env, setting.gamma, setting.horizon)
    ball = lqr.reachable_ball(family, policy, pairs)
    states = ball.start_radius * _unit(rng, (*shape, env.num_observations))
    actions = ball.first_action_radius * _unit(rng, (*shape, env.num_actions))
    points = np.concatenate([states, actions], axis=-1)
    first, second = (_closed_forms(family, policy, pairs[:, side], points) for side in (0, 1))
    return lqr.lqr_constants(family, policy, pairs), points, second - first


def _closed_forms(family: lqr.LinearQuadratic, policy: LinearPolicy, contexts: Floats, points: Floats) -> Floats:
    of_q = lqr.q_functions(family, policy, contexts[:, None])[-1].at(points)
    of_return = lqr.expected_return(family, policy, contexts)[:, None]
    of_gradient, of_place = (of(family, policy, contexts) for of in (lqr.return_gradient, lqr.occupied_mean))
    return np.concatenate([of_q, of_return, of_gradient, of_place], axis=1)


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    vectors = rng.normal(size=shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _at_points(pairs: Floats, points: Floats) -> Floats:
    """Pairs of contexts of `FromPair`: (pairs * points, 2, coordinates and point)."""
    shape = (*points.shape[:2], 2)
    contexts = np.broadcast_to(pairs[:, None], (*shape, pairs.shape[-1]))
    starts = np.broadcast_to(points[:, :, None], (*shape, points.shape[-1]))
    return np.concatenate([contexts, starts], axis=-1).reshape(-1, 2, pairs.shape[-1] + points.shape[-1])


def _rows(
    env: str,
    policy: int,
    pairs: Floats,
    difference: Difference,
    constants: Floats,
    exact: Floats,
    num_points: int,
    num_parameters: int,
) -> list[BoundRow]:
    quantities = [*["Q"] * num_points, "J", *(f"gradient[{i}]" for i in range(num_parameters))]
    quantities += [f"occupancy[{i}]" for i in range(exact.shape[1] - len(quantities))]
    distance = np.linalg.norm(pairs[:, 1] - pairs[:, 0], axis=-1, keepdims=True)
    measured, spread, bound = np.abs(difference.mean), Z_99 * difference.standard_error, constants * distance
    tightness = np.divide(measured, bound, out=np.zeros_like(bound), where=bound > 0.0)
    holds = measured - spread <= bound * (1.0 + 1e-6)  # what is not a number does not hold
    return [
        BoundRow(
            env=env,
            quantity=quantities[cell],
            policy=policy,
            context=tuple(pairs[pair, 0].tolist()),
            other=tuple(pairs[pair, 1].tolist()),
            distance=float(distance[pair, 0]),
            measured=float(measured[pair, cell]),
            low=max(0.0, float(measured[pair, cell] - spread[pair, cell])),
            high=float(measured[pair, cell] + spread[pair, cell]),
            exact=abs(float(exact[pair, cell])),
            bound=float(bound[pair, cell]),
            tightness=float(tightness[pair, cell]),
            holds=bool(holds[pair, cell]),
        )
        for pair, cell in np.ndindex(bound.shape)
    ]

"""Measured differences against their bounds, one row each."""

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.envs.lqr import LQR
from metastep.envs.nav2d import Nav2D
from metastep.errors import InputError
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout
from metastep.theory import lqr
from metastep.theory.constants import context_q_constant, gradient_constant, per_coordinate
from metastep.theory.measure import Z_99, Difference, FromPair, measure_differences, measure_return_differences
from metastep.theory.nav2d import nav2d_constants

Floats = NDArray[np.float64]
Bounded = Literal["lqr", "nav2d"]


class BoundRow(NamedTuple):
    """One measured difference; the interval is at 99 % and `tightness` is measured / bound."""

    env: str
    quantity: str  # Q, J, or gradient[i]
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
    """The horizon, discount and policies a table is made with."""

    horizon: int
    gamma: float
    sigma: float
    theta_scale: float


# Nav2D as in the paper. LQR: gamma and horizon at which the constants of its default dynamics stay small enough to compare.
_SETTINGS: dict[Bounded, _Setting] = {"lqr": _Setting(5, 0.9, 0.5, 0.2), "nav2d": _Setting(10, 0.99, 1.001, 0.1**0.5)}


def measure_bounds(name: Bounded, effort: Effort, seed: int) -> list[BoundRow]:
    """|Q - Q'|, |J - J'| and |grad - grad'| over random policies and pairs of contexts, against Theorem 1 and the gradient one.

    Half of the pairs are neighbours at a tenth of the distance. Nav2D runs with `goal_radius = 0` (metastep.theory.nav2d).
    """
    if name not in get_args(Bounded):
        raise InputError(f"env: {name!r} has no exact constants, those that have are {', '.join(get_args(Bounded))}.")
    rng = np.random.default_rng(seed)
    setting = _SETTINGS[name]
    rows: list[BoundRow] = []
    for index in range(effort.num_policies):
        measured = _measure_lqr if name == "lqr" else _measure_nav2d
        rows += measured(rng, setting, effort, index, seed)
    return rows


def _measure_lqr(rng: np.random.Generator, setting: _Setting, effort: Effort, index: int, seed: int) -> list[BoundRow]:
    env = LQR()
    rollout = _rollout(env, setting, effort)
    theta = setting.theta_scale * rng.normal(size=rollout.policy.num_parameters)
    pairs = _context_pairs(rng, env, effort.num_pairs)
    family = lqr.from_env(env, setting.gamma, setting.horizon)
    policy = lqr.policy_from_theta(theta, env.num_observations, env.num_actions, setting.sigma)
    cmdp, constants, score = lqr.lqr_constants(family, policy, pairs)
    in_context = np.asarray(context_q_constant(cmdp, constants, setting.horizon))
    in_gradient = np.asarray(gradient_constant(*per_coordinate(cmdp, constants), score, setting.horizon))
    ball = lqr.reachable_ball(family, policy, pairs)
    tasks = [pairs[:, side] for side in (0, 1)]
    exact_return = np.subtract(*(lqr.expected_return(family, policy, task) for task in reversed(tasks)))
    exact_gradient = np.subtract(*(lqr.return_gradient(family, policy, task) for task in reversed(tasks)))

    shape = (effort.num_pairs, effort.num_points)
    states = float(ball.start_radius) * _unit(rng, (*shape, env.num_observations))
    actions = float(ball.first_action_radius) * _unit(rng, (*shape, env.num_actions))
    last = [lqr.q_functions(family, policy, task[:, None])[-1] for task in tasks]
    exact_q = lqr.evaluate(last[1], states, actions) - lqr.evaluate(last[0], states, actions)
    differences = _all_differences(env, rollout, theta, pairs, states, actions, effort, seed + index)
    return _rows(env.name, index, pairs, differences, in_context, in_gradient, (exact_q, exact_return, exact_gradient))


def _measure_nav2d(
    rng: np.random.Generator, setting: _Setting, effort: Effort, index: int, seed: int
) -> list[BoundRow]:
    env = Nav2D(goal_radius=0.0)
    rollout = _rollout(env, setting, effort)
    theta = setting.theta_scale * rng.normal(size=rollout.policy.num_parameters)
    pairs = _context_pairs(rng, env, effort.num_pairs)
    cmdp, policy, score = nav2d_constants(env, theta, sigma=setting.sigma, gamma=setting.gamma, horizon=setting.horizon)
    in_context = np.broadcast_to(context_q_constant(cmdp, policy, setting.horizon), effort.num_pairs)
    in_gradient = np.asarray(gradient_constant(*per_coordinate(cmdp, policy), score, setting.horizon))
    shape = (effort.num_pairs, effort.num_points, env.num_observations)
    states = rng.uniform(-0.5, 0.5, size=shape)
    actions = rng.uniform(-2.0 * env.max_move, 2.0 * env.max_move, size=shape)
    differences = _all_differences(env, rollout, theta, pairs, states, actions, effort, seed + index)
    unknown = (
        np.full(shape[:2], np.nan),
        np.full(effort.num_pairs, np.nan),
        np.full((effort.num_pairs, len(theta)), np.nan),
    )
    in_gradient = np.broadcast_to(in_gradient, (effort.num_pairs, len(theta)))
    return _rows(env.name, index, pairs, differences, in_context, in_gradient, unknown)


def _rollout(env: LQR | Nav2D, setting: _Setting, effort: Effort) -> Rollout:
    policy = LinearGaussian(env.num_observations, env.num_actions, setting.sigma)
    return Rollout(env, policy, effort.num_episodes, setting.horizon, setting.gamma, "none")


def _context_pairs(rng: np.random.Generator, env: LQR | Nav2D, num_pairs: int) -> Floats:
    space = env.context_space
    pairs = rng.uniform(space.low, space.high, size=(num_pairs, 2, space.num_coordinates))
    pairs[::2, 1] = pairs[::2, 0] + 0.1 * (pairs[::2, 1] - pairs[::2, 0])
    # What the simulation sees is float32; the distance must be that of the contexts it sees.
    return pairs.astype(np.float32).astype(np.float64)


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    vectors = rng.normal(size=shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _all_differences(
    env: LQR | Nav2D,
    rollout: Rollout,
    theta: Floats,
    pairs: Floats,
    states: Floats,
    actions: Floats,
    effort: Effort,
    seed: int,
) -> tuple[Difference, Difference, Difference]:
    """Of Q (pairs, points), of the return (pairs,) and of the gradient (pairs, parameters)."""
    num_pairs, num_points = states.shape[:2]
    starts = np.concatenate([states, actions], axis=-1)
    from_pairs = np.concatenate(
        [
            np.broadcast_to(pairs[:, None], (num_pairs, num_points, *pairs.shape[1:])),
            np.broadcast_to(starts[:, :, None], (num_pairs, num_points, 2, starts.shape[-1])),
        ],
        axis=-1,
    ).reshape(num_pairs * num_points, 2, -1)
    forced = Rollout(FromPair(env), rollout.policy, rollout.num_episodes, rollout.horizon, rollout.discount, "none")
    of_q = measure_return_differences(forced, theta, from_pairs, num_blocks=effort.num_blocks, seed=seed)
    both = measure_differences(rollout, theta, pairs, num_blocks=effort.num_blocks, seed=seed)
    shape = (num_pairs, num_points)
    shaped = Difference(of_q.mean.reshape(shape), of_q.standard_error.reshape(shape), of_q.num_episodes)
    return shaped, both.of_return, both.of_gradient


def _rows(
    env: str,
    policy: int,
    pairs: Floats,
    differences: tuple[Difference, Difference, Difference],
    in_context: Floats,
    in_gradient: Floats,
    exact: tuple[Floats, Floats, Floats],
) -> list[BoundRow]:
    distance = np.linalg.norm(pairs[:, 1] - pairs[:, 0], axis=-1)
    rows = []
    for pair in range(len(pairs)):
        points, parameters = range(exact[0].shape[1]), range(exact[2].shape[1])
        entries: list[tuple[str, int, tuple[int, ...], float]] = [
            *(("Q", 0, (pair, point), in_context[pair]) for point in points),
            ("J", 1, (pair,), in_context[pair]),
            *((f"gradient[{i}]", 2, (pair, i), in_gradient[pair, i]) for i in parameters),
        ]
        for quantity, kind, cell, constant in entries:
            difference, closed = differences[kind], exact[kind]
            size, spread = abs(float(difference.mean[cell])), Z_99 * float(difference.standard_error[cell])
            bound = float(constant * distance[pair])
            rows.append(
                BoundRow(
                    env=env,
                    quantity=quantity,
                    policy=policy,
                    context=tuple(pairs[pair, 0].tolist()),
                    other=tuple(pairs[pair, 1].tolist()),
                    distance=float(distance[pair]),
                    measured=size,
                    low=max(0.0, size - spread),
                    high=size + spread,
                    exact=abs(float(closed[cell])),
                    bound=bound,
                    tightness=size / bound if bound > 0.0 else 0.0,
                    holds=bool(size - spread <= bound * (1.0 + 1e-6)),  # what is not a number does not hold
                )
            )
    return rows

"""Differences between tasks, measured with common random numbers, against their bounds: one row each.

A pair of contexts shares reset noise, environment noise and action noise episode by episode, so what differs is the task. The
mean of the paired differences has an interval from their own spread.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import PyTreeDef
from numpy.typing import ArrayLike

from metastep.envs.base import Context, Env, State, Step, Wrapper
from metastep.envs.contexts import ContextSpace
from metastep.envs.small import LQR, Nav2D
from metastep.experiments.coverage import Z_99, Difference, context_pairs, paired_difference, return_differences
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout, trajectories
from paper.theory import lqr
from paper.theory.constants import Bounds, Floats, per_coordinate
from paper.theory.policy import nav2d_constants, policy_from_theta


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
    """The environment, horizon, discount and policies of a table."""

    env: LQR | Nav2D
    horizon: int
    gamma: float
    sigma: float
    theta_scale: float


# Nav2D as in the paper, without its end (paper.theory.policy). LQR: gamma and horizon at which the constants of its default
# dynamics stay small enough to compare.
_SETTINGS = {
    "lqr": _Setting(LQR(), 5, 0.9, 0.5, 0.2),
    "nav2d": _Setting(Nav2D(goal_radius=0.0), 10, 0.99, 1.001, 0.1**0.5),
}


class Part(NamedTuple):
    """One kind of quantity, for pairs of contexts."""

    names: list[str]  # of the quantities
    difference: Difference  # measured, (pairs, quantities)
    constant: Floats  # the bound for a unit of distance, (pairs, quantities) or broadcastable to it
    exact: Floats | None  # (pairs, quantities), where there is a closed form


def measure_bounds(name: str, effort: Effort, seed: int) -> list[BoundRow]:
    """Measure |Q - Q'|, |J - J'|, |grad - grad'| and means of the occupancy over random policies and contexts, with bounds."""
    setting, rng, rows = _SETTINGS[name], np.random.default_rng(seed), []
    num_parameters = setting.env.num_actions * (1 + setting.env.num_observations)
    for index in range(effort.num_policies):
        theta = setting.theta_scale * rng.normal(size=num_parameters)
        pairs = context_pairs(rng, setting.env.context_space, effort.num_pairs)
        for part in _measured(rng, setting, effort, theta, pairs, seed + index):
            rows.append((index, pairs, part))
    return [row for index, pairs, part in rows for row in rows_of(name, index, pairs, part)]


def _measured(
    rng: np.random.Generator, setting: _Setting, effort: Effort, theta: Floats, pairs: Floats, seed: int
) -> list[Part]:
    env, horizon, gamma = setting.env, setting.horizon, setting.gamma
    linear = policy_from_theta(theta, env.num_observations, env.num_actions, setting.sigma)
    shape = (len(pairs), effort.num_points)  # of random state-action pairs at which Q is compared
    exact: list[Floats | None] = [None] * 4
    if isinstance(env, Nav2D):
        states = rng.uniform(-0.5, 0.5, size=(*shape, env.num_observations))
        actions = rng.uniform(-2.0 * env.max_move, 2.0 * env.max_move, size=(*shape, env.num_actions))
        points = np.concatenate([states, actions], axis=-1)
        cmdp, policy, score = nav2d_constants(env, linear, gamma, horizon)
    else:
        family = lqr.from_env(env, gamma, horizon)
        ball = lqr.reachable_ball(family, linear, pairs)
        states = ball.start_radius * _unit(rng, (*shape, env.num_observations))
        actions = ball.first_action_radius * _unit(rng, (*shape, env.num_actions))
        points = np.concatenate([states, actions], axis=-1)
        cmdp, policy, score = lqr.lqr_constants(family, linear, pairs)
        first, second = (lqr.closed_forms(family, linear, pairs[:, side], points) for side in (0, 1))
        exact = [after - before for before, after in zip(first, second, strict=True)]

    episodes = LinearGaussian(env.num_observations, env.num_actions, setting.sigma)
    rollout = Rollout(env, episodes, effort.num_episodes, horizon, gamma, "none")
    noise = {"num_blocks": effort.num_blocks, "seed": seed}
    of_q = return_differences(replace(rollout, env=FromPair(env)), theta, _at_points(pairs, points), **noise)
    of_task = gradient_differences(rollout, theta, pairs, **noise)  # the return first
    mass = float(np.sum(gamma ** np.arange(horizon)))  # the occupancy of the theorem has mass one
    coordinates = range(env.num_observations)
    occupied = [
        return_differences(replace(rollout, env=Occupied(env, coordinate=i)), theta, pairs, **noise)
        for i in coordinates
    ]
    in_place = Difference(*(np.stack(arrays, axis=1) / mass for arrays in zip(*occupied, strict=True)))
    bounds = Bounds(cmdp, policy, horizon=horizon)
    of_value, of_occupancy = (np.asarray(constant)[..., None] for constant in (bounds.L_omega_Q, bounds.L_delta_omega))
    of_gradient = np.asarray(Bounds(*per_coordinate(cmdp, policy), score, horizon).L_gradient)
    return [
        Part(["Q"] * effort.num_points, Difference(*(array.reshape(shape) for array in of_q)), of_value, exact[0]),
        Part(["J"], Difference(*(array[:, :1] for array in of_task)), of_value, exact[1]),
        Part(
            [f"gradient[{i}]" for i in range(len(theta))],
            Difference(*(array[:, 1:] for array in of_task)),
            of_gradient,
            exact[2],
        ),
        Part([f"occupancy[{i}]" for i in coordinates], in_place, of_occupancy, exact[3]),
    ]


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    vectors = rng.normal(size=shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _at_points(pairs: Floats, points: Floats) -> Floats:
    """Return pairs of contexts of `FromPair`: (pairs * points, 2, coordinates and point)."""
    shape = (*points.shape[:2], 2)
    contexts = np.broadcast_to(pairs[:, None], (*shape, pairs.shape[-1]))
    starts = np.broadcast_to(points[:, :, None], (*shape, points.shape[-1]))
    return np.concatenate([contexts, starts], axis=-1).reshape(-1, 2, pairs.shape[-1] + points.shape[-1])


def rows_of(env: str, policy: int, pairs: Floats, part: Part) -> list[BoundRow]:
    """Return a row for each pair of contexts and quantity of a part."""
    distance = np.linalg.norm(pairs[:, 1] - pairs[:, 0], axis=-1, keepdims=True)
    measured, spread = np.abs(part.difference.mean), Z_99 * part.difference.standard_error
    bound = np.broadcast_to(part.constant * distance, measured.shape)
    exact = np.full(measured.shape, np.nan) if part.exact is None else np.abs(part.exact)
    tightness = np.divide(measured, bound, out=np.zeros_like(bound), where=bound > 0.0)
    holds = measured - spread <= bound * (1.0 + 1e-6)  # what is not a number does not hold
    return [
        BoundRow(
            env=env,
            quantity=part.names[cell],
            policy=policy,
            context=tuple(pairs[pair, 0].tolist()),
            other=tuple(pairs[pair, 1].tolist()),
            distance=float(distance[pair, 0]),
            measured=float(measured[pair, cell]),
            low=max(0.0, float(measured[pair, cell] - spread[pair, cell])),
            high=float(measured[pair, cell] + spread[pair, cell]),
            exact=float(exact[pair, cell]),
            bound=float(bound[pair, cell]),
            tightness=float(tightness[pair, cell]),
            holds=bool(holds[pair, cell]),
        )
        for pair, cell in np.ndindex(measured.shape)
    ]


def state_structure(env: Env) -> PyTreeDef:
    """Return how the states of an environment are composed of numbers."""
    numbers = [
        jax.ShapeDtypeStruct((num,), jnp.float32) for num in (env.context_space.num_coordinates, env.reset_noise)
    ]
    return jax.tree.structure(
        jax.eval_shape(lambda context, noise: env.reset(env.context_space.unpack(context), tuple(noise)), *numbers)
    )


class Started(NamedTuple):
    """The state of `FromPair`: whether the first action is still due, and the environment's own state."""

    first: Array
    inner: State


@dataclass(frozen=True)
class FromPair(Wrapper):
    """An environment whose episodes start in a given state with a given action: its return is Q(s, a).

    The state's fields and the action are further coordinates of the context, so one compiled program serves all pairs.
    """

    @cached_property
    def context_space(self) -> ContextSpace:
        """The environment's own, and the pair."""
        space, fields = self.env.context_space, range(state_structure(self.env).num_leaves)
        extra = (*(f"start_{i}" for i in fields), *(f"first_action_{i}" for i in range(self.num_actions)))
        largest = (float(np.finfo(np.float32).max),) * len(extra)  # a space's bounds are finite
        low = (*space.low, *(-bound for bound in largest))
        return ContextSpace((*space.names, *extra), low, (*space.high, *largest))

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Started:
        structure = state_structure(self.env)
        fields = [getattr(context, f"start_{i}") for i in range(structure.num_leaves)]
        return Started(jnp.bool_(True), jax.tree.unflatten(structure, fields))

    def observe(self, context: Context, state: Started) -> tuple[Array, ...]:
        return self.env.observe(context, state.inner)

    def step(self, context: Context, state: Started, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        forced = tuple(
            jnp.where(state.first, getattr(context, f"first_action_{i}"), value) for i, value in enumerate(action)
        )
        after = self.env.step(context, state.inner, forced, noise)
        return after._replace(state=Started(jnp.bool_(False), after.state))


@dataclass(frozen=True)
class Occupied(Wrapper):
    """An environment that pays one coordinate of what is observed: its mean return is the coordinate's mean under the occupancy.

    A coordinate is a function of slope 1, so that a difference of these means is at most the (Kantorovich) distance of two
    occupancies.
    """

    coordinate: int = 0

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        seen = self.env.observe(context, state)[self.coordinate]
        return self.env.step(context, state, action, noise)._replace(reward=seen)


def gradient_differences(
    rollout: Rollout, theta: ArrayLike, pairs: ArrayLike, *, num_blocks: int, seed: int
) -> Difference:
    """Measure differences of the return and of its gradient between the contexts of each pair: (pairs, 1 + parameters).

    The gradient is GPOMDP with a leave-one-out mean baseline, which is unbiased. Arguments are those of `return_differences`;
    the policy must be linear.
    """
    policy, contexts = jnp.asarray(theta, jnp.float32), jnp.asarray(pairs, jnp.float32)
    contexts = contexts.reshape(2 * len(contexts), -1)
    blocks = [
        _episodes(rollout, policy, contexts, jax.random.fold_in(jax.random.key(seed), block))
        for block in range(num_blocks)
    ]
    values = np.concatenate([np.asarray(block, np.float64) for block in blocks], axis=-1)
    return paired_difference(values[1::2] - values[::2])


@partial(jax.jit, static_argnums=0)
def _episodes(rollout: Rollout, theta: Array, contexts: Array, key: Array) -> Array:
    """Simulate returns and gradient samples, (contexts, 1 + parameters, episodes), with the same noise in all contexts."""
    weight = rollout.discount ** jnp.arange(rollout.horizon, dtype=jnp.float32)

    def one(context: Array) -> Array:
        steps = trajectories(rollout, theta[None], context[None], key)
        payoff = weight[:, None] * steps.reward[..., 0]  # (horizon, episodes)
        observation, noise = (tuple(jnp.moveaxis(array[..., 0], 1, 0)) for array in (steps.observation, steps.noise))
        score = jnp.stack(rollout.policy.score(theta[:, None], observation, noise))  # (parameters, horizon, episodes)
        running = jnp.cumsum(jnp.where(steps.alive[..., 0], score, 0.0), axis=1)
        # A baseline from the other episodes only: (n / (n - 1)) (x - mean) leaves the mean where it was.
        unbiased = rollout.num_episodes / (rollout.num_episodes - 1)
        centred = (payoff - jnp.mean(payoff, axis=1, keepdims=True)) * unbiased
        return jnp.concatenate([jnp.sum(payoff, axis=0, keepdims=True), jnp.sum(running * centred, axis=1)])

    return lax.map(one, contexts)

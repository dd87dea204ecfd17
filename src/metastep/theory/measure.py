"""Differences between tasks, measured with common random numbers: the same noise runs through every context.

A pair of contexts shares reset noise, environment noise and action noise episode by episode, so what differs is the task. The
mean of the paired differences has an interval from their own spread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray

from metastep.contexts import ContextSpace
from metastep.envs.base import Context, Env, State, Step
from metastep.errors import InputError
from metastep.simulation.rollouts import Rollout, trajectories

Floats = NDArray[np.float64]

Z_99 = 2.5758293035489004  # two-sided 99 % of a normal


class Started(NamedTuple):
    """The state of `FromPair`: whether the first action is still due, and the environment's own state."""

    first: Array
    inner: State


@dataclass(frozen=True)
class FromPair:
    """An environment whose episodes start in a given state with a given action: its return is Q(s, a).

    The state's fields and the action are further coordinates of the context, so one compiled program serves all pairs.
    """

    env: Env

    @property
    def name(self) -> str:
        """The name of the environment inside."""
        return self.env.name

    @property
    def num_observations(self) -> int:
        """As inside."""
        return self.env.num_observations

    @property
    def num_actions(self) -> int:
        """As inside."""
        return self.env.num_actions

    @property
    def reset_noise(self) -> int:
        """As inside, although the start is given."""
        return self.env.reset_noise

    @property
    def step_noise(self) -> int:
        """As inside."""
        return self.env.step_noise

    @cached_property
    def _example(self) -> State:
        space = self.env.context_space
        return jax.eval_shape(
            lambda context, noise: self.env.reset(space.unpack(context), tuple(noise)),
            jax.ShapeDtypeStruct((space.num_coordinates,), jnp.float32),
            jax.ShapeDtypeStruct((self.env.reset_noise,), jnp.float32),
        )

    @cached_property
    def context_space(self) -> ContextSpace:
        """The contexts inside, then the fields of the state, then the action."""
        space = self.env.context_space
        fields = len(jax.tree.leaves(self._example))
        extra = (*(f"start_{i}" for i in range(fields)), *(f"first_action_{i}" for i in range(self.num_actions)))
        unbounded = (float(np.finfo(np.float32).max),) * len(extra)  # a space's bounds are finite
        low = (*space.low, *(-bound for bound in unbounded))
        return ContextSpace((*space.names, *extra), low, (*space.high, *unbounded))

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Started:
        """The given state."""
        leaves, structure = jax.tree.flatten(self._example)
        fields = [getattr(context, f"start_{i}") for i in range(len(leaves))]
        return Started(jnp.bool_(True), jax.tree.unflatten(structure, fields))

    def observe(self, context: Context, state: Started) -> tuple[Array, ...]:
        """As inside."""
        return self.env.observe(context, state.inner)

    def step(self, context: Context, state: Started, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """The given action first, the policy's afterwards."""
        forced = tuple(
            jnp.where(state.first, getattr(context, f"first_action_{i}"), value) for i, value in enumerate(action)
        )
        after = self.env.step(context, state.inner, forced, noise)
        return Step(Started(jnp.bool_(False), after.state), after.reward, after.terminated)


class Difference(NamedTuple):
    """Means of paired differences, second context minus first, with their standard errors."""

    mean: Floats  # (pairs, ...)
    standard_error: Floats  # (pairs, ...)
    num_episodes: int


class TaskDifferences(NamedTuple):
    """What changes between the tasks of each pair."""

    of_return: Difference  # (pairs,)
    of_gradient: Difference  # (pairs, parameters)


@partial(jax.jit, static_argnums=(0, 1))
def _episodes(rollout: Rollout, with_gradient: bool, theta: Array, contexts: Array, key: Array) -> tuple[Array, Array]:
    """Per-episode returns (contexts, episodes) and gradient samples (contexts, parameters, episodes), same noise in all."""
    weight = rollout.discount ** jnp.arange(rollout.horizon, dtype=jnp.float32)

    def one(context: Array) -> tuple[Array, Array]:
        steps = trajectories(rollout, theta[None], context[None], key)
        payoff = weight[:, None] * steps.reward[..., 0]  # (horizon, episodes)
        if not with_gradient:
            return jnp.sum(payoff, axis=0), jnp.zeros((0, rollout.num_episodes), jnp.float32)
        observation, noise = (tuple(jnp.moveaxis(array[..., 0], 1, 0)) for array in (steps.observation, steps.noise))
        score = jnp.stack(rollout.policy.score(theta[:, None], observation, noise))  # (parameters, horizon, episodes)
        running = jnp.cumsum(jnp.where(steps.alive[..., 0], score, 0.0), axis=1)
        # A baseline from the other episodes only: (n / (n - 1)) (x - mean) leaves the mean where it was.
        centred = (payoff - jnp.mean(payoff, axis=1, keepdims=True)) * (
            rollout.num_episodes / (rollout.num_episodes - 1)
        )
        return jnp.sum(payoff, axis=0), jnp.sum(running * centred, axis=1)

    return lax.map(one, contexts)


def measure_differences(
    rollout: Rollout, theta: ArrayLike, pairs: ArrayLike, *, num_blocks: int, seed: int
) -> TaskDifferences:
    """Differences of the return and of its gradient between the contexts of each pair.

    The gradient is GPOMDP with a leave-one-out mean baseline, which is unbiased.

    Args:
        rollout: environment, linear policy, episodes of a block, horizon and discount.
        theta: (parameters,).
        pairs: (pairs, 2, coordinates).
        num_blocks: independent blocks of `rollout.num_episodes` episodes.
        seed: of the noise, which all contexts share.
    """
    contexts = np.asarray(pairs, np.float32)
    of_return, of_gradient = _Accumulator(), _Accumulator()
    flat = contexts.reshape(2 * len(contexts), -1)
    for returns, gradients in _blocks(rollout, True, theta, flat, num_blocks, seed):
        of_return.add(_paired(returns))
        of_gradient.add(_paired(gradients))
    return TaskDifferences(of_return.finish(), of_gradient.finish())


def measure_return_differences(
    rollout: Rollout, theta: ArrayLike, pairs: ArrayLike, *, num_blocks: int, seed: int
) -> Difference:
    """Differences of the return alone, for any policy; of Q where the environment is a `FromPair`."""
    contexts = np.asarray(pairs, np.float32)
    total = _Accumulator()
    for returns, _ in _blocks(rollout, False, theta, contexts.reshape(2 * len(contexts), -1), num_blocks, seed):
        total.add(_paired(returns))
    return total.finish()


def _blocks(
    rollout: Rollout, with_gradient: bool, theta: ArrayLike, contexts: NDArray[np.float32], num_blocks: int, seed: int
) -> Iterator[tuple[Floats, Floats]]:
    """Returns (contexts, episodes) and gradients (contexts, parameters or 0, episodes) of every block."""
    if num_blocks < 1 or rollout.num_episodes < 2:
        raise InputError(f"num_blocks: {num_blocks} and num_episodes: {rollout.num_episodes} must be at least 1 and 2.")
    for block in range(num_blocks):
        key = jax.random.fold_in(jax.random.key(seed), block)
        returns, gradients = _episodes(
            rollout, with_gradient, jnp.asarray(theta, jnp.float32), jnp.asarray(contexts), key
        )
        yield np.asarray(returns, np.float64), np.asarray(gradients, np.float64)


def _paired(values: Floats) -> Floats:
    """Second minus first of every two rows."""
    return np.asarray(values[1::2] - values[::2])


class _Accumulator:
    """Sums and sums of squares over the last axis, block by block."""

    def __init__(self) -> None:
        self._num = 0
        self._sum: Any = 0.0
        self._square: Any = 0.0

    def add(self, values: Floats) -> None:
        self._num += values.shape[-1]
        self._sum = self._sum + values.sum(axis=-1)
        self._square = self._square + (values**2).sum(axis=-1)

    def finish(self) -> Difference:
        mean = self._sum / self._num
        variance = np.maximum(self._square / self._num - mean**2, 0.0)
        return Difference(mean, np.sqrt(variance / self._num), self._num)

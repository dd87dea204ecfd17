"""Differences between tasks, measured with common random numbers: the same noise runs through every context.

A pair of contexts shares reset noise, environment noise and action noise episode by episode, so what differs is the task. The
mean of the paired differences has an interval from their own spread.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import PyTreeDef
from numpy.typing import ArrayLike

from metastep.envs.base import Context, Env, State, Step
from metastep.envs.contexts import ContextSpace
from metastep.envs.wrapper import Wrapper
from metastep.experiments.coverage import Difference, paired_difference
from metastep.simulation.rollouts import Rollout, trajectories


def state_structure(env: Env) -> PyTreeDef:
    """How an environment's states are made of numbers."""
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

    env: Env

    def __post_init__(self) -> None:
        super().__post_init__()
        space, fields = self.env.context_space, range(state_structure(self.env).num_leaves)
        extra = (*(f"start_{i}" for i in fields), *(f"first_action_{i}" for i in range(self.num_actions)))
        largest = (float(np.finfo(np.float32).max),) * len(extra)  # a space's bounds are finite
        low = (*space.low, *(-bound for bound in largest))
        wider = ContextSpace((*space.names, *extra), low, (*space.high, *largest))
        object.__setattr__(self, "context_space", wider)

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

    env: Env
    coordinate: int = 0

    def reset(self, context: Context, noise: tuple[Array, ...]) -> State:
        return self.env.reset(context, noise)

    def observe(self, context: Context, state: State) -> tuple[Array, ...]:
        return self.env.observe(context, state)

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

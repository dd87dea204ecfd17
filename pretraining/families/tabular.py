"""Random Markov decision processes with 16 states and 4 actions: the task is the seed that draws their tables."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

STATES, CHOICES = 16, 4
SHARPNESS = 3.0  # of the transitions: with a larger one an action leads to fewer states


class TabularState(NamedTuple):
    """Which of the states it is."""

    number: Array


@dataclass(frozen=True)
class Tabular:
    """Every state and action has a reward drawn from N(0, 1), and transitions softmax(3 z) with z drawn from N(0, 1).

    An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(("seed",), (0.0,), (1.0,))  # the bits of the number seed the tables

    name, packages = "tabular", ()
    num_observations, num_actions, reset_noise, step_noise = STATES, 1, 1, 1
    num_choices = CHOICES

    def reset(self, context: Context, noise: tuple[Array, ...]) -> TabularState:
        """In any state."""
        return TabularState(jnp.clip(to_uniform(noise[0], 0.0, float(STATES)).astype(jnp.int32), 0, STATES - 1))

    def observe(self, context: Context, state: TabularState) -> tuple[Array, ...]:
        """One number for each state, 1 where it is."""
        return tuple((state.number == index).astype(jnp.float32) for index in range(STATES))

    def step(self, context: Context, state: TabularState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        key = jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32))
        row = jax.random.normal(jax.random.fold_in(key, state.number * CHOICES + action[0]), (STATES + 1,), jnp.float32)
        reached = jnp.cumsum(jax.nn.softmax(SHARPNESS * row[1:]))
        after = jnp.sum(to_uniform(noise[0], 0.0, 1.0) > reached[:-1])
        return Step(TabularState(after.astype(jnp.int32)), row[0], jnp.bool_(False))

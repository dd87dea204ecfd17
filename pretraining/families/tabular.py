"""Random Markov decision processes: the task is the seed that draws their tables."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

SHARPNESS = 3.0  # of the transitions: with a larger one an action leads to fewer states


class TabularState(NamedTuple):
    """Which of the states it is."""

    number: Array


@dataclass(frozen=True)
class Tabular:
    """Every state and action has a reward drawn from N(0, 1), and transitions softmax(3 z) with z drawn from N(0, 1).

    Args:
        states, num_choices: how many states and actions there are.
        sparse: whether only reaching the last state pays, 1 and nothing else, and ends the episode.
    """

    context_space: ContextSpace = ContextSpace(("seed",), (0.0,), (1.0,))  # the bits of the number seed the tables
    states: int = 16
    num_choices: int = 4
    sparse: bool = False

    name, packages, num_actions, reset_noise, step_noise = "tabular", (), 1, 1, 1
    num_observations = property(lambda self: self.states)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> TabularState:
        """In any state, but not in the last one where that ends."""
        num = self.states - self.sparse
        return TabularState(jnp.clip(to_uniform(noise[0], 0.0, float(num)).astype(jnp.int32), 0, num - 1))

    def observe(self, context: Context, state: TabularState) -> tuple[Array, ...]:
        """One number for each state, 1 where it is."""
        return tuple((state.number == index).astype(jnp.float32) for index in range(self.states))

    def row(self, context: Context, state: TabularState, action: Array) -> tuple[Array, Array]:
        """Return the reward of an action, and the probabilities (states,) of what it leads to."""
        key = jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32))
        key = jax.random.fold_in(key, state.number * self.num_choices + action)
        row = jax.random.normal(key, (self.states + 1,), jnp.float32)
        return row[0], jax.nn.softmax(SHARPNESS * row[1:])

    def step(self, context: Context, state: TabularState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        reward, chances = self.row(context, state, action[0])
        after = jnp.sum(to_uniform(noise[0], 0.0, 1.0) > jnp.cumsum(chances)[:-1]).astype(jnp.int32)
        is_last = (after == self.states - 1) & self.sparse
        return Step(TabularState(after), is_last.astype(jnp.float32) if self.sparse else reward, is_last)

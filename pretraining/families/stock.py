"""Order goods that arrive two steps later, to sell them in seasons of random demand."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

MOST = 4.0  # units, of a place in the store


class StockState(NamedTuple):
    """What is in store, what arrives in one step and in two, and the time."""

    store: Array
    soon: Array
    later: Array
    time: Array


@dataclass(frozen=True)
class Stock:
    """Order between nothing (-1) and 2 units (1); a step pays what is sold, less costs of ordering, storing and lost sales."""

    context_space: ContextSpace = ContextSpace(
        ("demand", "season", "cost", "storing", "period"), (0.5, 0.0, 0.2, 0.02, 10.0), (1.0, 0.5, 0.7, 0.2, 40.0)
    )

    name, packages = "stock", ()
    num_observations, num_actions, reset_noise, step_noise = 5, 1, 2, 1
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> StockState:
        store, time = to_uniform(noise[0], 0.0, 2.0), to_uniform(noise[1], 0.0, context.period)
        return StockState(store, jnp.zeros_like(store), jnp.zeros_like(store), time)

    def observe(self, context: Context, state: StockState) -> tuple[Array, ...]:
        """What there is and will be, and the season."""
        phase = 2.0 * jnp.pi * state.time / context.period
        return *state[:3], jnp.sin(phase), jnp.cos(phase)

    def step(self, context: Context, state: StockState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        ordered = 1.0 + jnp.clip(action[0], *self.action_range)
        season = 1.0 + context.season * jnp.sin(2.0 * jnp.pi * state.time / context.period)
        wanted = jnp.maximum(context.demand * season * (1.0 + 0.4 * noise[0]), 0.0)
        there = jnp.minimum(state.store + state.soon, MOST)
        sold = jnp.minimum(there, wanted)
        store = there - sold
        reward = sold - context.cost * ordered - context.storing * store - 0.2 * (wanted - sold)
        return Step(StockState(store, state.later, ordered, state.time + 1.0), reward, jnp.bool_(False))

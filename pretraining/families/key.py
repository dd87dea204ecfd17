"""A grid world where a key opens the exit: the reward comes after both."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

SIZE = 6


class KeyState(NamedTuple):
    """Column and row, from 0, and 1 with the key or 0 without."""

    column: Array
    row: Array
    key: Array


@dataclass(frozen=True)
class Key:
    """Move left (0), right (1), down (2) or up (3); the exit pays 1 and ends once the key's cell was visited.

    Args:
        cost: what every step costs.
    """

    context_space: ContextSpace = ContextSpace(
        ("key_column", "key_row", "exit_column", "exit_row"), (-0.49,) * 4, (SIZE - 0.51,) * 4
    )
    cost: float = 0.0

    name, packages = "key", ()
    num_observations, num_actions, reset_noise, step_noise = 7, 1, 2, 0
    num_choices = 4

    def reset(self, context: Context, noise: tuple[Array, ...]) -> KeyState:
        """In any cell, without the key."""
        column, row = (jnp.clip(jnp.floor(to_uniform(z, 0.0, float(SIZE))), 0.0, SIZE - 1.0) for z in noise)
        return KeyState(column, row, jnp.zeros_like(column))

    def observe(self, context: Context, state: KeyState) -> tuple[Array, ...]:
        """Whether it has the key, the cell, and where key and exit are from here."""
        places = (context.key_column, context.key_row, context.exit_column, context.exit_row)
        beside = (jnp.round(place) - at for place, at in zip(places, (*state[:2], *state[:2]), strict=True))
        return state.key, *(2.0 * at / (SIZE - 1.0) - 1.0 for at in state[:2]), *(far / SIZE for far in beside)

    def step(self, context: Context, state: KeyState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        way = (2 * (action[0] % 2) - 1).astype(jnp.float32)
        column = jnp.clip(state.column + jnp.where(action[0] < 2, way, 0.0), 0.0, SIZE - 1.0)
        row = jnp.clip(state.row + jnp.where(action[0] < 2, 0.0, way), 0.0, SIZE - 1.0)
        at_key = (column == jnp.round(context.key_column)) & (row == jnp.round(context.key_row))
        key = jnp.where(at_key, 1.0, state.key)
        is_out = (column == jnp.round(context.exit_column)) & (row == jnp.round(context.exit_row)) & (key == 1.0)
        return Step(KeyState(column, row, key), is_out.astype(jnp.float32) - self.cost, is_out)

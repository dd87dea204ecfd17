"""A grid world with a goal, and ice on which the agent slips."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

SIZE = 7


class Cell(NamedTuple):
    """Column and row, whole numbers from 0."""

    column: Array
    row: Array


@dataclass(frozen=True)
class Grid:
    """Move left (0), right (1), down (2) or up (3) on 7 x 7 cells; every step pays -1, and reaching the goal 0, which ends.

    With the probability `slip` the move is another one, each as likely.
    """

    context_space: ContextSpace = ContextSpace(("goal_column", "goal_row", "slip"), (0.0, 0.0, 0.0), (6.0, 6.0, 0.3))

    name, packages = "grid", ()
    num_observations, num_actions, reset_noise, step_noise = 2, 1, 2, 1
    num_choices = 4

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Cell:
        """In any cell."""
        return Cell(*(jnp.clip(jnp.floor(to_uniform(normal, 0.0, float(SIZE))), 0.0, SIZE - 1.0) for normal in noise))

    def observe(self, context: Context, state: Cell) -> tuple[Array, ...]:
        """The cell, from -1 to 1; the goal has to be found."""
        return tuple(2.0 * at / (SIZE - 1.0) - 1.0 for at in state)

    def step(self, context: Context, state: Cell, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        chance = to_uniform(noise[0], 0.0, 1.0)
        other = 1 + jnp.clip(jnp.floor(3.0 * chance / jnp.maximum(context.slip, 1e-6)), 0.0, 2.0).astype(jnp.int32)
        move = jnp.where(chance < context.slip, (action[0] + other) % 4, action[0])
        way = (2 * (move % 2) - 1).astype(jnp.float32)
        steps = jnp.where(move < 2, way, 0.0), jnp.where(move < 2, 0.0, way)
        after = Cell(*(jnp.clip(at + step, 0.0, SIZE - 1.0) for at, step in zip(state, steps, strict=True)))
        is_there = (after.column == jnp.round(context.goal_column)) & (after.row == jnp.round(context.goal_row))
        return Step(after, jnp.where(is_there, 0.0, -1.0), is_there)

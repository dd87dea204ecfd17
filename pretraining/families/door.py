"""Two rooms and a door between them: a goal on the other side is all that pays."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

HALF = 0.25  # of the door's width


class DoorState(NamedTuple):
    """Where the agent is."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Door:
    """Move by up to `speed` along each axis; reaching the goal pays 1 and ends, and nothing else pays.

    Args:
        wall: whether there is a wall at x = 0, open around the height `door`.
        dense: whether every step pays how much nearer the goal is than before, too.
    """

    context_space: ContextSpace = ContextSpace(
        ("door", "goal_x", "goal_y", "speed", "drift"), (-0.7, 0.3, -0.8, 0.1, -0.02), (0.7, 0.9, 0.8, 0.2, 0.02)
    )
    wall: bool = True
    dense: bool = False

    name, packages = "door", ()
    num_observations, num_actions, reset_noise, step_noise = 4, 2, 2, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> DoorState:
        """In the left room."""
        return DoorState(to_uniform(noise[0], -0.9, -0.1), to_uniform(noise[1], -0.9, 0.9))

    def observe(self, context: Context, state: DoorState) -> tuple[Array, ...]:
        """Place, how high the door is from here, and how far the goal is."""
        return state.x, state.y, context.door - state.y, self.distance(context, state)

    def distance(self, context: Context, state: DoorState) -> Array:
        """Return how far the goal is, as the crow flies."""
        return jnp.hypot(context.goal_x - state.x, context.goal_y - state.y)

    def step(self, context: Context, state: DoorState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        pushes = [context.speed * jnp.clip(part, *self.action_range) for part in action]
        x = jnp.clip(state.x + pushes[0], -1.0, 1.0)
        y = jnp.clip(state.y + pushes[1] + context.drift, -1.0, 1.0)
        if self.wall:
            is_stopped = (x * state.x <= 0.0) & (jnp.abs(y - context.door) > HALF)
            x = jnp.where(is_stopped, jnp.where(state.x < 0.0, -0.01, 0.01), x)
        after = DoorState(x, y)
        is_there = self.distance(context, after) < 0.2
        nearer = self.distance(context, state) - self.distance(context, after) if self.dense else 0.0
        return Step(after, is_there.astype(jnp.float32) + nearer, is_there)

"""A room with a round obstacle between the start and a goal, crossed by an agent that slides."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

DT = 0.1


class RoomState(NamedTuple):
    """Where the agent is, and how fast it moves."""

    x: Array
    y: Array
    x_speed: Array
    y_speed: Array


@dataclass(frozen=True)
class Room:
    """Push the agent, along each axis by -1 to 1 times its power, from the left wall to a goal at the right wall.

    A step pays minus the distance to the goal, and -1 more where the agent runs into the obstacle, which stops it. Walls stop
    it, too. An episode ends within 0.1 of the goal.
    """

    context_space: ContextSpace = ContextSpace(
        ("goal", "obstacle", "radius", "power", "drag"), (-0.8, -0.4, 0.2, 1.0, 0.2), (0.8, 0.4, 0.4, 3.0, 1.0)
    )

    name, packages = "room", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 2, 1, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> RoomState:
        """At rest at the left wall."""
        y = to_uniform(noise[0], -0.8, 0.8)
        return RoomState(jnp.full_like(y, -0.9), y, jnp.zeros_like(y), jnp.zeros_like(y))

    def observe(self, context: Context, state: RoomState) -> tuple[Array, ...]:
        """The state, how high the goal is from here, and how far the edge of the obstacle."""
        return *state, context.goal - state.y, jnp.hypot(state.x, state.y - context.obstacle) - context.radius

    def step(self, context: Context, state: RoomState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        pushes = [context.power * jnp.clip(part, *self.action_range) for part in action]
        speeds = [speed + DT * (push - context.drag * speed) for speed, push in zip(state[2:], pushes, strict=True)]
        x, y = (jnp.clip(at + DT * speed, -1.0, 1.0) for at, speed in zip(state[:2], speeds, strict=True))
        hits = jnp.hypot(x, y - context.obstacle) < context.radius
        x, y = jnp.where(hits, state.x, x), jnp.where(hits, state.y, y)
        stops = [hits | (jnp.abs(at) >= 1.0) for at in (x, y)]
        x_speed, y_speed = (jnp.where(stop, 0.0, speed) for stop, speed in zip(stops, speeds, strict=True))
        distance = jnp.hypot(x - 0.9, y - context.goal)
        return Step(RoomState(x, y, x_speed, y_speed), -distance - hits.astype(jnp.float32), distance < 0.1)

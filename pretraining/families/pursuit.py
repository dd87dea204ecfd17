"""Catch somebody who runs away within walls."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform


class PursuitState(NamedTuple):
    """Where both are, from -1 to 1."""

    x: Array
    y: Array
    other_x: Array
    other_y: Array


@dataclass(frozen=True)
class Pursuit:
    """Stay (0) or run left (1), right (2), down (3) or up (4); a step pays minus the distance, a catch 5, which ends.

    The other one runs straight away, slower by the factor `pace`, and stumbles about.
    """

    context_space: ContextSpace = ContextSpace(("speed", "pace", "stumble"), (0.08, 0.3, 0.0), (0.16, 0.8, 0.05))

    name, packages = "pursuit", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 1, 4, 2
    num_choices = 5

    def reset(self, context: Context, noise: tuple[Array, ...]) -> PursuitState:
        return PursuitState(*(to_uniform(normal, -0.9, 0.9) for normal in noise))

    def observe(self, context: Context, state: PursuitState) -> tuple[Array, ...]:
        return *state, state.other_x - state.x, state.other_y - state.y

    def step(self, context: Context, state: PursuitState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        way = jnp.where(action[0] % 2 == 0, context.speed, -context.speed) * (action[0] > 0)
        x, y = state.x + jnp.where(action[0] < 3, way, 0.0), state.y + jnp.where(action[0] < 3, 0.0, way)
        far = jnp.hypot(state.other_x - x, state.other_y - y) + 1e-6
        run = context.pace * context.speed / far
        other_x = state.other_x + run * (state.other_x - x) + context.stumble * noise[0]
        other_y = state.other_y + run * (state.other_y - y) + context.stumble * noise[1]
        after = PursuitState(*(jnp.clip(at, -1.0, 1.0) for at in (x, y, other_x, other_y)))
        far = jnp.hypot(after.other_x - after.x, after.other_y - after.y)
        is_caught = far < 0.15
        return Step(after, jnp.where(is_caught, 5.0, -far), is_caught)

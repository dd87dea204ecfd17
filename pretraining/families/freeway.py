"""Cross a road with eight lanes of cars, after MinAtar's Freeway."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

LANES, WIDTH = 8, 10.0


class FreewayState(NamedTuple):
    """The row of the walker, from 0 to 9, and where the cars are, from it."""

    row: Array
    cars: tuple[Array, ...]


@dataclass(frozen=True)
class Freeway:
    """Go back (0), stay (1) or go ahead (2); the other side pays 1 and a car pays nothing, and both lead back to the start.

    Cars of neighbouring lanes differ in speed and direction. An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(("speed", "phase", "length"), (0.3, 0.0, 0.5), (0.9, 6.0, 1.5))

    name, packages = "freeway", ()
    num_observations, num_actions, reset_noise, step_noise = 1 + LANES, 1, LANES, 0
    num_choices = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> FreewayState:
        cars = tuple(to_uniform(normal, -0.5 * WIDTH, 0.5 * WIDTH) for normal in noise)
        return FreewayState(jnp.zeros_like(cars[0]), cars)

    def observe(self, context: Context, state: FreewayState) -> tuple[Array, ...]:
        return state.row / (LANES + 1.0), *(2.0 * car / WIDTH for car in state.cars)

    def step(self, context: Context, state: FreewayState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        speeds = [context.speed * (1.0 + 0.5 * jnp.sin(context.phase + 2.4 * lane)) for lane in range(LANES)]
        cars = [car + speed * (-1) ** lane for lane, (car, speed) in enumerate(zip(state.cars, speeds, strict=True))]
        cars = [car - WIDTH * jnp.round(car / WIDTH) for car in cars]
        row = jnp.clip(state.row + action[0].astype(jnp.float32) - 1.0, 0.0, LANES + 1.0)
        is_hit = jnp.bool_(False)
        for lane, car in enumerate(cars, 1):
            is_hit = is_hit | ((row == lane) & (jnp.abs(car) < 0.5 * context.length))
        is_over = row > LANES
        return Step(
            FreewayState(jnp.where(is_hit | is_over, 0.0, row), tuple(cars)),
            is_over.astype(jnp.float32),
            jnp.bool_(False),
        )

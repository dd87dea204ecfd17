"""Gymnasium's MountainCarContinuous-v0 with the motor's power and gravity as context."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import sincos, to_uniform
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace

LEFT_END, RIGHT_END = -1.2, 0.6
GOAL = 0.45
MAX_SPEED = 0.07


class CarState(NamedTuple):
    """Where the car is, and how fast it moves."""

    position: Array
    speed: Array


@dataclass(frozen=True)
class MountainCar:
    """Rock a weak car out of a valley, as in Gymnasium's MountainCarContinuous-v0.

    The action is the throttle, cut off at -1 and 1. Every step pays -0.1 times its square, before the cut, and reaching the
    goal pays 100 and ends.
    """

    context_space: ContextSpace = ContextSpace(("power", "gravity"), (0.00075, 0.00125), (0.00225, 0.00375))

    name: ClassVar[str] = "mountaincar"
    packages: ClassVar[tuple[str, ...]] = ()
    num_observations, num_actions = 2, 1
    reset_noise, step_noise = 1, 0
    action_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CarState:
        """At rest near the bottom."""
        return CarState(to_uniform(noise[0], -0.6, -0.4), jnp.float32(0.0))

    def observe(self, context: Context, state: CarState) -> tuple[Array, ...]:
        return tuple(state)

    def step(self, context: Context, state: CarState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        slope = sincos(3.0 * state.position)[1]
        pull = jnp.clip(action[0], -1.0, 1.0) * context.power - context.gravity * slope
        speed = jnp.clip(state.speed + pull, -MAX_SPEED, MAX_SPEED)
        position = jnp.clip(state.position + speed, LEFT_END, RIGHT_END)
        speed = jnp.where(position <= LEFT_END, jnp.maximum(speed, 0.0), speed)  # a wall
        is_there = (position >= GOAL) & (speed >= 0.0)
        return Step(CarState(position, speed), jnp.where(is_there, 100.0, 0.0) - 0.1 * action[0] ** 2, is_there)

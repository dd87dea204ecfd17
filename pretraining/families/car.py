"""Drive a car with a steering wheel to a parking place."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, sincos, to_uniform, wrap

DT, EDGE = 0.1, 4.0


class CarState(NamedTuple):
    """Place from the goal, heading and speed."""

    x: Array
    y: Array
    heading: Array
    speed: Array


@dataclass(frozen=True)
class Car:
    """Set throttle and steering; a step pays how much nearer the goal is, less 0.02, and parking slowly near it 5 and ends.

    The heading turns by speed * tan(angle) / base. Leaving the field, 4 m away, costs 5 and ends.
    """

    context_space: ContextSpace = ContextSpace(
        ("base", "angle", "power", "drag"), (0.3, 0.4, 1.0, 0.2), (0.8, 0.8, 3.0, 1.0), ("m", "rad", "m/s^2", "1/s")
    )

    name, packages = "car", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 2, 3, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CarState:
        """At rest, up to 2 m away along each axis."""
        x, y, heading = (to_uniform(z, -reach, reach) for z, reach in zip(noise, (2.0, 2.0, math.pi), strict=True))
        return CarState(x, y, heading, jnp.zeros_like(x))

    def observe(self, context: Context, state: CarState) -> tuple[Array, ...]:
        """The goal seen from the car, its heading and its speed."""
        sin, cos = sincos(state.heading)
        ahead, left = -(cos * state.x + sin * state.y), sin * state.x - cos * state.y
        return ahead, left, cos, sin, state.speed, jnp.hypot(ahead, left)

    def step(self, context: Context, state: CarState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        throttle, wheel = (jnp.clip(part, *self.action_range) for part in action)
        speed = state.speed + DT * (context.power * throttle - context.drag * state.speed)
        heading = wrap(state.heading + DT * speed * jnp.tan(context.angle * wheel) / context.base)
        sin, cos = sincos(heading)
        x, y = state.x + DT * speed * cos, state.y + DT * speed * sin
        distance = jnp.hypot(x, y)
        is_parked, is_off = (distance < 0.3) & (jnp.abs(speed) < 0.7), distance > EDGE
        nearer = jnp.hypot(state.x, state.y) - distance - 0.02
        reward = nearer + jnp.where(is_parked, 5.0, 0.0) - jnp.where(is_off, 5.0, 0.0)
        return Step(CarState(x, y, heading, speed), reward, is_parked | is_off)

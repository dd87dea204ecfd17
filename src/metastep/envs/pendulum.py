"""Gymnasium's Pendulum-v1 with mass, length and gravity as context."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import sincos, to_uniform, wrap
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace

DT = 0.05
MAX_TORQUE = 2.0
MAX_SPEED = 8.0


class PendulumState(NamedTuple):
    """Angle from the upright position, not wrapped, and angular speed."""

    angle: Array
    speed: Array


@dataclass(frozen=True)
class Pendulum:
    """Swing a rod up and hold it there with a torque of at most 2 Nm, as in Gymnasium's Pendulum-v1.

    A step pays -(angle^2 + 0.1 speed^2 + 0.001 torque^2) of the state it starts from, with the angle in [-pi, pi]. An episode has
    no end but its time limit. The speed is bounded, too, so that under much more gravity no torque allowed here lifts a heavy,
    short rod.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass", "length", "gravity"), (0.5, 0.5, 8.0), (1.5, 1.5, 12.0), ("kg", "m", "m/s^2")
    )

    name: ClassVar[str] = "pendulum"
    packages: ClassVar[tuple[str, ...]] = ()
    num_observations, num_actions = 3, 1
    reset_noise, step_noise = 2, 0
    action_range: ClassVar[tuple[float, float]] = (-MAX_TORQUE, MAX_TORQUE)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> PendulumState:
        """Anywhere, at up to 1 rad/s."""
        return PendulumState(to_uniform(noise[0], -math.pi, math.pi), to_uniform(noise[1], -1.0, 1.0))

    def observe(self, context: Context, state: PendulumState) -> tuple[Array, ...]:
        """Cosine and sine of the angle, and the speed."""
        sin, cos = sincos(state.angle)
        return cos, sin, state.speed

    def step(self, context: Context, state: PendulumState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        torque = jnp.clip(action[0], -MAX_TORQUE, MAX_TORQUE)
        reward = -(wrap(state.angle) ** 2 + 0.1 * state.speed**2 + 0.001 * torque**2)
        weight = 1.5 * context.gravity / context.length * sincos(state.angle)[0]
        acceleration = weight + 3.0 * torque / (context.mass * context.length**2)
        speed = jnp.clip(state.speed + acceleration * DT, -MAX_SPEED, MAX_SPEED)
        return Step(PendulumState(state.angle + speed * DT, speed), reward, jnp.bool_(False))

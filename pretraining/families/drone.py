"""A drone with two rotors in a plane that flies to a target and hovers there."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, sincos, to_uniform

DT, GRAVITY, EDGE = 0.05, 9.81, 3.0


class DroneState(NamedTuple):
    """Place from the target, tilt to the left, and their speeds."""

    x: Array
    y: Array
    tilt: Array
    x_speed: Array
    y_speed: Array
    spin: Array


@dataclass(frozen=True)
class Drone:
    """Set the thrust of both rotors, each from nothing (-1) to half of `power` times the weight (1).

    A step pays 1 less the distance, capped at 1, and a tenth of the spin squared; a place 3 m away or a tilt over 1.5 rad ends.
    """

    context_space: ContextSpace = ContextSpace(
        ("power", "arm", "inertia", "drag", "wind"), (1.6, 0.1, 0.01, 0.0, -0.5), (2.4, 0.2, 0.03, 0.5, 0.5)
    )

    name, packages = "drone", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 2, 4, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> DroneState:
        x, y, tilt, spin = (to_uniform(z, -reach, reach) for z, reach in zip(noise, (1.0, 1.0, 0.1, 0.1), strict=True))
        return DroneState(x, y, tilt, jnp.zeros_like(x), jnp.zeros_like(x), spin)

    def observe(self, context: Context, state: DroneState) -> tuple[Array, ...]:
        return state.x, state.y, state.tilt, 0.5 * state.x_speed, 0.5 * state.y_speed, 0.3 * state.spin

    def step(self, context: Context, state: DroneState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        left, right = (0.25 * GRAVITY * context.power * (1.0 + jnp.clip(part, *self.action_range)) for part in action)
        sin, cos = sincos(state.tilt)
        x_push = -(left + right) * sin - context.drag * state.x_speed + context.wind
        y_push = (left + right) * cos - context.drag * state.y_speed - GRAVITY
        turn = 0.02 * context.arm * (right - left) / context.inertia - 0.5 * state.spin
        x_speed, y_speed = state.x_speed + DT * x_push, state.y_speed + DT * y_push
        spin = state.spin + DT * turn
        x, y, tilt = state.x + DT * x_speed, state.y + DT * y_speed, state.tilt + DT * spin
        distance = jnp.hypot(x, y)
        is_lost = (distance > EDGE) | (jnp.abs(tilt) > 1.5)
        reward = 1.0 - jnp.minimum(distance, 1.0) - 0.1 * jnp.minimum(spin**2, 1.0)
        return Step(DroneState(x, y, tilt, x_speed, y_speed, spin), reward, is_lost)

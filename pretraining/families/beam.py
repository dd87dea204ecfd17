"""A ball on a beam, held in the middle by tilting the beam."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, sincos, to_uniform

DT = 0.05


class BeamState(NamedTuple):
    """Where the ball is on the beam, from -1 to 1, the tilt, and their speeds."""

    ball: Array
    tilt: Array
    speed: Array
    spin: Array


@dataclass(frozen=True)
class Beam:
    """Turn the beam left or right by a torque; every step pays 1 less the squared place of the ball, which ends beyond 1.

    The ball rolls without slipping: its acceleration is 5/7 g sin(tilt), and x spin^2 outwards.
    """

    context_space: ContextSpace = ContextSpace(
        ("gravity", "torque", "damping", "roughness"), (3.0, 2.0, 0.5, 0.0), (10.0, 5.0, 2.0, 0.5)
    )

    name, packages = "beam", ()
    num_observations, num_actions, reset_noise, step_noise = 4, 1, 4, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> BeamState:
        return BeamState(*(to_uniform(z, -reach, reach) for z, reach in zip(noise, (0.5, 0.1, 0.1, 0.1), strict=True)))

    def observe(self, context: Context, state: BeamState) -> tuple[Array, ...]:
        return tuple(state)

    def step(self, context: Context, state: BeamState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        turn = context.torque * jnp.clip(action[0], *self.action_range) - context.damping * state.spin
        push = 5.0 / 7.0 * (context.gravity * sincos(state.tilt)[0] + state.ball * state.spin**2)
        speed = state.speed + DT * (push - context.roughness * state.speed)
        spin = state.spin + DT * turn
        tilt = jnp.clip(state.tilt + DT * spin, -0.8, 0.8)
        spin = jnp.where(jnp.abs(tilt) >= 0.8, 0.0, spin)
        after = BeamState(state.ball + DT * speed, tilt, speed, spin)
        return Step(after, 1.0 - after.ball**2, jnp.abs(after.ball) > 1.0)

"""Gymnasium's Acrobot-v1, three discrete actions, with masses and lengths of its two links as context."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.numerics import runge_kutta, sincos, to_uniform, wrap
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace

DT = 0.2
GRAVITY = 9.8
INERTIA = 1.0  # kg m^2, of each link about its centre of mass, whatever its mass and length
MAX_SPEEDS = float(4.0 * np.pi), float(9.0 * np.pi)


class AcrobotState(NamedTuple):
    """Angle of the first link from hanging, of the second one from the first, and their speeds."""

    first: Array
    second: Array
    first_speed: Array
    second_speed: Array


def _derivative(context: Context, state: AcrobotState, torque: Array) -> AcrobotState:
    """Of the state with respect to time, by the equations of Sutton and Barto's book."""
    centre_1, centre_2 = 0.5 * context.length_1, 0.5 * context.length_2
    (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
    lever = context.mass_2 * context.length_1 * centre_2
    own = context.mass_2 * centre_2**2 + INERTIA
    coupling = own + lever * cos_2
    both = context.mass_1 * centre_1**2 + context.mass_2 * context.length_1**2 + INERTIA + own + 2.0 * lever * cos_2
    weight_2 = context.mass_2 * centre_2 * GRAVITY * (sin_1 * cos_2 + cos_1 * sin_2)
    weight_1 = (context.mass_1 * centre_1 + context.mass_2 * context.length_1) * GRAVITY * sin_1
    swing = lever * state.second_speed * (state.second_speed + 2.0 * state.first_speed) * sin_2
    load = weight_1 + weight_2 - swing
    push = torque + coupling / both * load - lever * state.first_speed**2 * sin_2 - weight_2
    second = push / (own - coupling**2 / both)
    first = -(coupling * second + load) / both
    return AcrobotState(state.first_speed, state.second_speed, first, second)


@dataclass(frozen=True)
class Acrobot:
    """Swing two hanging links up, pushing their joint with -1 (0), 0 (1) or 1 Nm (2), as in Gymnasium's Acrobot-v1.

    Every step pays -1 until the tip of links of length 1 would be 1 above the axis, which pays 0 and ends. The mass of a link
    sits in its middle. As in Gymnasium its moment of inertia is 1 in every task, and the height that ends depends on the
    angles alone.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass_1", "mass_2", "length_1", "length_2"), (0.5,) * 4, (1.5,) * 4, ("kg", "kg", "m", "m")
    )

    name: ClassVar[str] = "acrobot"
    packages: ClassVar[tuple[str, ...]] = ()
    num_observations, num_actions = 6, 1
    reset_noise, step_noise = 4, 0
    num_choices: ClassVar[int] = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> AcrobotState:
        return AcrobotState(*(to_uniform(normal, -0.1, 0.1) for normal in noise))

    def observe(self, context: Context, state: AcrobotState) -> tuple[Array, ...]:
        """Cosine and sine of both angles, and the speeds."""
        (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
        return cos_1, sin_1, cos_2, sin_2, state.first_speed, state.second_speed

    def step(self, context: Context, state: AcrobotState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """One step of the classical Runge-Kutta method; what leaves the bounds is wrapped or cut off after it."""
        torque = action[0].astype(jnp.float32) - 1.0
        moved = runge_kutta(lambda state: _derivative(context, state, torque), state, DT)
        after = AcrobotState(
            wrap(moved.first),
            wrap(moved.second),
            jnp.clip(moved.first_speed, -MAX_SPEEDS[0], MAX_SPEEDS[0]),
            jnp.clip(moved.second_speed, -MAX_SPEEDS[1], MAX_SPEEDS[1]),
        )
        is_up = -sincos(after.first)[1] - sincos(after.first + after.second)[1] > 1.0
        return Step(after, jnp.where(is_up, 0.0, -1.0), is_up)

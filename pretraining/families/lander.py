"""A lander in two dimensions with a main and two side engines, after Gymnasium's LunarLander, without a contact solver."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, sincos, to_uniform

DT = 0.05
SIDE_POWER = 0.1  # of a side engine, as a share of the main one
LEVER = 0.5  # m, how far above the centre of mass the side engines push
FOOT = 0.5  # m, how far beside and below the centre of mass the feet are
WIDTH, HEIGHT = 10.0, 8.0  # m, where the field ends on either side, and where episodes begin
SPEED = 5.0  # m/s, the unit of speeds
GENTLE = 1.0, 0.3, 0.5  # m/s, rad and rad/s: a landing may be as fast, as tilted and turning as fast
FUEL = 0.3, 0.03  # what a step of the main engine costs, and of a side engine


class LanderState(NamedTuple):
    """Where the centre of mass is, beside the pad and above the ground, the angle to the left from upright, and their speeds."""

    x: Array
    y: Array
    angle: Array
    x_speed: Array
    y_speed: Array
    spin: Array


def _potential(state: LanderState) -> Array:
    """Return how near to a rest on the pad a state is, at most 0: far, fast and tilted states cost."""
    distance = jnp.sqrt(state.x**2 + (state.y - FOOT) ** 2) / WIDTH
    speed = jnp.sqrt(state.x_speed**2 + state.y_speed**2) / SPEED
    return -100.0 * (distance + speed + jnp.abs(state.angle))


@dataclass(frozen=True)
class Lander:
    """Land softly and upright, with no engine (0), the left (1), the main (2) or the right one (3) on.

    A side engine pushes away from its side and, above the centre of mass, turns the body, which tilts the main engine. Forces
    are constant over a step, whose motion is exact. A step pays the change of a potential of distance, speed and angle, less
    fuel. The episode ends where a foot touches the ground, with 100 for a soft landing, wherever it is, and -100 otherwise or
    where the lander leaves the field.
    """

    context_space: ContextSpace = ContextSpace(
        ("gravity", "power", "mass", "inertia", "wind"),
        (1.0, 4.5, 0.75, 0.2, -0.2),
        (2.5, 7.5, 1.25, 0.4, 0.2),
        ("m/s^2", "N", "kg", "kg m^2", "N"),
    )

    name, packages = "lander", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 1, 5, 0
    num_choices = 4

    def reset(self, context: Context, noise: tuple[Array, ...]) -> LanderState:
        """High above the pad, falling and drifting a little."""
        reach = ((-2.0, 2.0), (-0.1, 0.1), (-1.0, 1.0), (-1.0, 0.0), (-0.1, 0.1))
        x, angle, *speeds = (to_uniform(normal, *bounds) for normal, bounds in zip(noise, reach, strict=True))
        return LanderState(x, jnp.float32(HEIGHT), angle, *speeds)

    def observe(self, context: Context, state: LanderState) -> tuple[Array, ...]:
        """Place in units of the field, speeds in units of 5 m/s, angle and spin."""
        x_speed, y_speed = state.x_speed / SPEED, state.y_speed / SPEED
        return state.x / WIDTH, state.y / WIDTH, x_speed, y_speed, state.angle, state.spin

    def step(self, context: Context, state: LanderState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        is_main, is_left, is_right = action[0] == 2, action[0] == 1, action[0] == 3
        main = jnp.where(is_main, context.power, 0.0)
        side = SIDE_POWER * context.power * (is_left.astype(jnp.float32) - is_right.astype(jnp.float32))
        sin, cos = sincos(state.angle)
        x_push = (side * cos - main * sin + context.wind) / context.mass
        y_push = (side * sin + main * cos) / context.mass - context.gravity
        turn = -side * LEVER / context.inertia
        moved = LanderState(
            state.x + DT * (state.x_speed + 0.5 * DT * x_push),
            state.y + DT * (state.y_speed + 0.5 * DT * y_push),
            state.angle + DT * (state.spin + 0.5 * DT * turn),
            state.x_speed + DT * x_push,
            state.y_speed + DT * y_push,
            state.spin + DT * turn,
        )
        sin, cos = sincos(moved.angle)
        touches = moved.y <= FOOT * (cos + jnp.abs(sin))  # the lower foot
        leaves = (jnp.abs(moved.x) > WIDTH) | (moved.y > 2.0 * HEIGHT)
        speed = jnp.maximum(jnp.abs(moved.x_speed), jnp.abs(moved.y_speed))
        is_soft = (speed < GENTLE[0]) & (jnp.abs(moved.angle) < GENTLE[1]) & (jnp.abs(moved.spin) < GENTLE[2])
        fuel = jnp.where(is_main, FUEL[0], jnp.where(is_left | is_right, FUEL[1], 0.0))
        shaped = _potential(moved) - _potential(state) - fuel
        ended = jnp.where(touches & is_soft & ~leaves, 100.0, -100.0)
        return Step(moved, jnp.where(touches | leaves, ended, shaped), touches | leaves)

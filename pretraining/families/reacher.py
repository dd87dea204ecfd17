"""A two-link arm that reaches for a target, after Gymnasium's Reacher, with the arm's equations of motion in closed form."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, sincos, to_uniform

DT = 0.02
CONTROL_COST = 0.1


class ReacherState(NamedTuple):
    """Angle of the first link, of the second one from the first, their speeds, and where the target is."""

    first: Array
    second: Array
    first_speed: Array
    second_speed: Array
    target_x: Array
    target_y: Array


def mass_matrix(context: Context, cos: Array) -> tuple[Array, Array, Array]:
    """Return the entries (1, 1), (1, 2) and (2, 2) at the cosine of the second angle; links are thin rods."""
    lever = 0.5 * context.mass_2 * context.length_1 * context.length_2 * cos
    last = context.mass_2 * context.length_2**2 / 3.0
    first = (context.mass_1 / 3.0 + context.mass_2) * context.length_1**2
    return first + last + 2.0 * lever, last + lever, last


def derivative(context: Context, state: ReacherState, torque: tuple[Array, Array]) -> ReacherState:
    """Return the time derivative of the state: M(q) q'' = torque - damping q' - C(q, q')."""
    sin, cos = sincos(state.second)
    both, coupling, last = mass_matrix(context, cos)
    bend = 0.5 * context.mass_2 * context.length_1 * context.length_2 * sin
    first, second = state.first_speed, state.second_speed
    load_1 = torque[0] - context.damping * first + bend * second * (2.0 * first + second)
    load_2 = torque[1] - context.damping * second - bend * first**2
    determinant = both * last - coupling**2
    pushes = (last * load_1 - coupling * load_2) / determinant, (both * load_2 - coupling * load_1) / determinant
    still = jnp.zeros_like(first)
    return ReacherState(first, second, *pushes, still, still)


def _to_target(context: Context, state: ReacherState) -> tuple[Array, Array]:
    """Return the vector from the target to the tip of the arm."""
    (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.first + state.second)
    x = context.length_1 * cos_1 + context.length_2 * cos_2 - state.target_x
    return x, context.length_1 * sin_1 + context.length_2 * sin_2 - state.target_y


@dataclass(frozen=True)
class Reacher:
    """Move the tip of a two-link arm in a horizontal plane to a target with torques at both joints, each from -1 to 1.

    As in Gymnasium's Reacher-v5 a step pays minus the distance to the target, after it, and minus 0.1 times the squared action,
    after the cut, and the target is anywhere within reach of the stretched arm. Unlike there, links have no armature, so that
    they move one another, and joints have no limits. An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass_1", "mass_2", "length_1", "length_2", "damping", "torque"),
        (0.7, 0.7, 0.08, 0.08, 0.003, 0.035),
        (1.3, 1.3, 0.12, 0.12, 0.008, 0.065),
        ("kg", "kg", "m", "m", "N m s", "N m"),
    )

    name, packages = "reacher", ()
    num_observations, num_actions, reset_noise, step_noise = 10, 2, 6, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> ReacherState:
        """Nearly stretched and at rest; the target is uniform on the disc."""
        first, second = (to_uniform(normal, -0.1, 0.1) for normal in noise[:2])
        first_speed, second_speed = (to_uniform(normal, -0.005, 0.005) for normal in noise[2:4])
        radius = (context.length_1 + context.length_2) * jnp.sqrt(to_uniform(noise[4], 0.0, 1.0))
        sin, cos = sincos(to_uniform(noise[5], -math.pi, math.pi))
        return ReacherState(first, second, first_speed, second_speed, radius * cos, radius * sin)

    def observe(self, context: Context, state: ReacherState) -> tuple[Array, ...]:
        """Cosines and sines of the angles, the target, the speeds, and the vector from the target to the tip.

        Lengths are in units of 0.1 m, speeds in units of 10 rad/s.
        """
        (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
        lengths = (10.0 * value for value in (state.target_x, state.target_y, *_to_target(context, state)))
        return cos_1, cos_2, sin_1, sin_2, 0.1 * state.first_speed, 0.1 * state.second_speed, *lengths

    def step(self, context: Context, state: ReacherState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        pushes = [jnp.clip(part, -1.0, 1.0) for part in action]
        torque = context.torque * pushes[0], context.torque * pushes[1]
        moved = runge_kutta(lambda state: derivative(context, state, torque), state, DT)
        x, y = _to_target(context, moved)
        reward = -jnp.sqrt(x**2 + y**2) - CONTROL_COST * (pushes[0] ** 2 + pushes[1] ** 2)
        return Step(moved, reward, jnp.bool_(False))

"""Cart-pole balancing and swing-up (paper, appendices B.3 and C), and Gymnasium's CartPole-v1 with two discrete actions.

The physics are Gymnasium's CartPole: explicit Euler, and `pole_length` is what Gymnasium calls `length`, half of the pole's.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.numerics import sincos, to_uniform
from metastep._core.settings import check_fields
from metastep.envs.base import Context, FullyObserved, Step
from metastep.envs.contexts import ContextSpace

GRAVITY = 9.8
MAX_ANGLE = float(np.deg2rad(12.0))
MAX_POSITION = 2.4


class CartPoleState(NamedTuple):
    """Cart position and speed, pole angle from the vertical and angular speed."""

    position: Array
    velocity: Array
    angle: Array
    angular_velocity: Array


def euler_step(
    state: CartPoleState, force: Array, pole_mass: Array, pole_length: Array, dt: float, cart_mass: float | Array = 1.0
) -> CartPoleState:
    """Advance a cart with a pole by one explicit Euler step of `dt` seconds under a horizontal force."""
    sin, cos = sincos(state.angle)
    total_mass = cart_mass + pole_mass
    mass_length = pole_mass * pole_length
    push = (force + mass_length * state.angular_velocity**2 * sin) / total_mass
    angular_acceleration = (GRAVITY * sin - cos * push) / (pole_length * (4.0 / 3.0 - pole_mass * cos**2 / total_mass))
    acceleration = push - mass_length * angular_acceleration * cos / total_mass
    rates = state.velocity, acceleration, state.angular_velocity, angular_acceleration
    return CartPoleState(*(value + dt * rate for value, rate in zip(state, rates, strict=True)))


def has_fallen(state: CartPoleState, max_angle: float = MAX_ANGLE, max_position: float = MAX_POSITION) -> Array:
    """Whether the pole leans too far or the cart has left the track."""
    return (jnp.abs(state.angle) > max_angle) | (jnp.abs(state.position) > max_position)


class Cart(FullyObserved):
    """What the tasks of carts have in common: four numbers, all of them seen, that start near zero."""

    start_range: float
    num_observations, num_actions, reset_noise, step_noise = 4, 1, 4, 0

    def __post_init__(self) -> None:
        check_fields(self, "env")

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CartPoleState:
        """All four numbers uniform within `start_range`."""
        return CartPoleState(*(to_uniform(normal, -self.start_range, self.start_range) for normal in noise))


@dataclass(frozen=True)
class CartPole(Cart):
    """Keep the pole within 12 degrees and the cart within 2.4 m; every step pays 1."""

    context_space: ContextSpace = ContextSpace(("pole_mass", "pole_length"), (0.1, 0.5), (2.0, 1.5), ("kg", "m"))
    # "bang-bang" pushes right with 10 N when the action exceeds 0.5 and left otherwise; "continuous" applies 10 N times the
    # action clipped to [-1, 1]; "newtons" takes the action itself as a force, clipped to ±10 N. The paper has a Gaussian policy
    # and an action between 0 and 1 that pushes left or right, and leaves open how they fit.
    force: Literal["bang-bang", "continuous", "newtons"] = "bang-bang"
    force_newton: float = 10.0
    dt: float = 0.02
    max_angle: float = MAX_ANGLE
    max_position: float = MAX_POSITION
    start_range: float = 0.05

    name = "cartpole"

    def step(self, context: Context, state: CartPoleState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        if self.force == "bang-bang":
            force = jnp.where(action[0] > 0.5, self.force_newton, -self.force_newton)
        elif self.force == "continuous":
            force = self.force_newton * jnp.clip(action[0], -1.0, 1.0)
        else:
            force = jnp.clip(action[0], -self.force_newton, self.force_newton)
        after = euler_step(state, force, context.pole_mass, context.pole_length, self.dt)
        return Step(after, jnp.float32(1.0), has_fallen(after, self.max_angle, self.max_position))


@dataclass(frozen=True)
class SwingUp(Cart):
    """Start hanging, swing the pole up: every step pays cos(angle); leaving the track of ±3 m costs 100 and ends.

    The observed angle is not wrapped.
    """

    context_space: ContextSpace = ContextSpace(("pole_mass",), (0.1,), (2.0,), ("kg",))
    pole_length: float = 0.5
    max_force: float = 10.0
    # Newtons for each unit of the action, before the clip to `max_force`; 10 makes the actions in [-1, 1] all forces there are,
    # as rllab's normalised environments have it. The paper does not say.
    action_scale: float = 1.0
    dt: float = 0.05
    max_position: float = 3.0
    # "hanging" starts at rest, `start_range` around the lowest point; "wide" within 1 m, 2 m/s, 1 rad of it and 3 rad/s, as in
    # rllab. The paper refers to rllab's environment and does not describe the start.
    start: Literal["hanging", "wide"] = "hanging"
    start_range: float = 0.05

    name = "swingup"

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CartPoleState:
        start = super().reset(context, noise)
        if self.start == "wide":  # half the ranges of position, speed, angle (about pi) and angular speed
            halves = zip(noise, (1.0, 2.0, 1.0, 3.0), strict=True)
            start = CartPoleState(*(to_uniform(normal, -half, half) for normal, half in halves))
        return start._replace(angle=start.angle + np.float32(np.pi))

    def step(self, context: Context, state: CartPoleState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        force = jnp.clip(self.action_scale * action[0], -self.max_force, self.max_force)
        after = euler_step(state, force, context.pole_mass, jnp.float32(self.pole_length), self.dt)
        off_track = jnp.abs(after.position) > self.max_position
        return Step(after, jnp.where(off_track, -100.0, sincos(after.angle)[1]), off_track)


@dataclass(frozen=True)
class CartPoleV1(Cart):
    """Push a cart left (0) or right (1) so that its pole stays up; every step pays 1, as in Gymnasium's CartPole-v1."""

    _names, _units = ("cart_mass", "pole_mass", "pole_length", "force"), ("kg", "kg", "m", "N")
    context_space: ContextSpace = ContextSpace(_names, (0.5, 0.05, 0.25, 5.0), (1.5, 0.15, 0.75, 15.0), _units)
    start_range: float = 0.05

    name = "cartpole-v1"
    num_choices = 2

    def step(self, context: Context, state: CartPoleState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        force = jnp.where(action[0] == 1, context.force, -context.force)
        after = euler_step(state, force, context.pole_mass, context.pole_length, 0.02, context.cart_mass)
        return Step(after, jnp.float32(1.0), has_fallen(after))

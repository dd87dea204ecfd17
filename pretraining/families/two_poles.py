"""A cart that balances two poles of different lengths side by side (Wieland, 1991)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, sincos, to_uniform

GRAVITY = 9.8


class TwoPolesState(NamedTuple):
    """Where the cart and both poles are, from upright, and their speeds."""

    position: Array
    angles: tuple[Array, Array]
    speed: Array
    spins: tuple[Array, Array]


def derivative(context: Context, state: TwoPolesState, force: Array) -> TwoPolesState:
    """Return the time derivative: each pole adds a force on the cart, and less than its mass."""
    push, mass, lengths = force, context.cart_mass, (context.length_1, context.length_2)
    turns = [(*sincos(angle), length) for angle, length in zip(state.angles, lengths, strict=True)]
    for (sin, cos, length), spin, own in zip(turns, state.spins, (context.mass_1, context.mass_2), strict=True):
        push = push + own * (length * spin**2 * sin - 0.75 * GRAVITY * sin * cos)
        mass = mass + own * (1.0 - 0.75 * cos**2)
    pull = push / mass
    first, second = (0.75 / length * (GRAVITY * sin - pull * cos) for sin, cos, length in turns)
    return TwoPolesState(state.speed, state.spins, pull, (first, second))


@dataclass(frozen=True)
class TwoPoles:
    """Push the cart left (0) or right (1); every step pays 1, until a pole leans 36 degrees or the cart leaves 2.4 m."""

    context_space: ContextSpace = ContextSpace(
        ("cart_mass", "mass_1", "mass_2", "length_1", "length_2", "force"),
        (0.7, 0.08, 0.01, 0.4, 0.04, 8.0),
        (1.3, 0.12, 0.03, 0.6, 0.15, 12.0),
        ("kg", "kg", "kg", "m", "m", "N"),
    )

    name, packages = "two-poles", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 1, 2, 0
    num_choices = 2

    def reset(self, context: Context, noise: tuple[Array, ...]) -> TwoPolesState:
        first, second = (to_uniform(normal, -0.05, 0.05) for normal in noise)
        still = jnp.zeros_like(first)
        return TwoPolesState(still, (first, second), still, (still, still))

    def observe(self, context: Context, state: TwoPolesState) -> tuple[Array, ...]:
        return state.position, *state.angles, state.speed, *state.spins

    def step(self, context: Context, state: TwoPolesState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        force = jnp.where(action[0] == 1, context.force, -context.force)
        moved = runge_kutta(lambda state: derivative(context, state, force), state, 0.01)
        leans = jnp.maximum(*map(jnp.abs, moved.angles)) > math.radians(36.0)
        return Step(moved, jnp.float32(1.0), leans | (jnp.abs(moved.position) > 2.4))

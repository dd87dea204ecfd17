"""Gymnasium's CartPole-v1, two discrete actions, with the masses, the pole's length and the force as context."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep.envs.base import Context, Step
from metastep.envs.cartpole import Cart, CartPoleState, euler_step, has_fallen
from metastep.envs.contexts import ContextSpace


@dataclass(frozen=True)
class CartPoleV1(Cart):
    """Push a cart left (0) or right (1) so that its pole stays up; every step pays 1, as in Gymnasium's CartPole-v1.

    As in Gymnasium, `pole_length` is half the length of the pole.
    """

    context_space: ContextSpace = ContextSpace(
        ("cart_mass", "pole_mass", "pole_length", "force"),
        (0.5, 0.05, 0.25, 5.0),
        (1.5, 0.15, 0.75, 15.0),
        ("kg", "kg", "m", "N"),
    )
    start_range: float = 0.05

    name: ClassVar[str] = "cartpole-v1"
    num_choices: ClassVar[int] = 2

    def step(self, context: Context, state: CartPoleState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        force = jnp.where(action[0] == 1, context.force, -context.force)
        after = euler_step(state, force, context.pole_mass, context.pole_length, 0.02, context.cart_mass)
        return Step(after, jnp.float32(1.0), has_fallen(after))

"""A cart that swings its pole up and keeps it there; the angle is seen as cosine and sine."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, sincos, to_uniform
from metastep.envs.cartpole import CartPoleState, euler_step

TRACK = 2.5  # m, on either side


@dataclass(frozen=True)
class Swing:
    """Push the cart with up to `force`; a step pays how high the pole is, 0 to 1, less 0.1 times the squared distance.

    Args:
        start: angle from upright around which the pole starts, at rest.
        ends: whether leaving the track ends the episode; otherwise a wall stops the cart.
    """

    context_space: ContextSpace = ContextSpace(
        ("cart_mass", "pole_mass", "length", "force"),
        (0.5, 0.1, 0.3, 8.0),
        (1.5, 0.5, 0.8, 16.0),
        ("kg", "kg", "m", "N"),
    )
    start: float = math.pi
    ends: bool = True

    name, packages = "swing", ()
    num_observations, num_actions, reset_noise, step_noise = 5, 1, 2, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CartPoleState:
        at, angle = (to_uniform(normal, -0.1, 0.1) for normal in noise)
        return CartPoleState(at, jnp.zeros_like(at), self.start + angle, jnp.zeros_like(at))

    def observe(self, context: Context, state: CartPoleState) -> tuple[Array, ...]:
        sin, cos = sincos(state.angle)
        return state.position, state.velocity, cos, sin, 0.2 * state.angular_velocity

    def step(self, context: Context, state: CartPoleState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        force = context.force * jnp.clip(action[0], *self.action_range)
        for _ in range(4):
            state = euler_step(state, force, context.pole_mass, context.length, 0.01, context.cart_mass)
        is_off = jnp.abs(state.position) > TRACK
        if not self.ends:
            inside = jnp.clip(state.position, -TRACK, TRACK)
            state = state._replace(position=inside, velocity=jnp.where(is_off, 0.0, state.velocity))
        state = state._replace(angular_velocity=jnp.clip(state.angular_velocity, -30.0, 30.0))
        reward = 0.5 + 0.5 * sincos(state.angle)[1] - 0.1 * state.position**2
        return Step(state, reward, is_off & self.ends)

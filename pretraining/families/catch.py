"""Catch a falling ball with a paddle, after bsuite's Catch, with wind and without a grid."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform


class CatchState(NamedTuple):
    """Where ball and paddle are, from -1 to 1, and how high the ball is, from 1 down to 0."""

    ball: Array
    height: Array
    paddle: Array


@dataclass(frozen=True)
class Catch:
    """Move the paddle left (0), not at all (1) or right (2); the ball that reaches it pays 1, one that does not -1, and ends."""

    context_space: ContextSpace = ContextSpace(
        ("fall", "wind", "speed", "width"), (0.05, -0.03, 0.06, 0.1), (0.1, 0.03, 0.15, 0.25)
    )

    name, packages = "catch", ()
    num_observations, num_actions, reset_noise, step_noise = 3, 1, 2, 0
    num_choices = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CatchState:
        """The ball anywhere at the top, the paddle near the middle."""
        ball = to_uniform(noise[0], -1.0, 1.0)
        return CatchState(ball, jnp.ones_like(ball), to_uniform(noise[1], -0.3, 0.3))

    def observe(self, context: Context, state: CatchState) -> tuple[Array, ...]:
        return tuple(state)

    def step(self, context: Context, state: CatchState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        push = context.speed * (action[0].astype(jnp.float32) - 1.0)
        ball, paddle = (jnp.clip(at, -1.0, 1.0) for at in (state.ball + context.wind, state.paddle + push))
        height = state.height - context.fall
        is_down, is_caught = height <= 0.0, jnp.abs(ball - paddle) < context.width
        reward = jnp.where(is_down, jnp.where(is_caught, 1.0, -1.0), 0.0)
        return Step(CatchState(ball, height, paddle), reward, is_down)

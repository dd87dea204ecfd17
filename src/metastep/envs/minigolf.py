"""Minigolf: putt a ball into a hole on a flat green (paper, appendix B.2; physics after Penner 2002)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import to_truncated_normal, to_uniform
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace


class Ball(NamedTuple):
    """The ball's distance to the hole, in metres."""

    distance: Array


@dataclass(frozen=True)
class Minigolf:
    """Each stroke ends in the hole (0, end), beyond the green (-100, end) or short of the hole (-1, play on).

    The ball decelerates by `d = 5/7 rho g`; it falls in when its speed at the start lies between `v_min = sqrt(2 d x)` (it
    just reaches the hole) and `v_max = sqrt((2D - r)^2 g / (2r) + v_min^2)` (it just does not jump over it).

    Args:
        noise_scale: standard deviation of the noise on a stroke, as a share of its speed; it is cut off where the ball would
            roll backwards. The paper has N(0, 0.25) and does not say whether 0.25 is the variance, as here, or the deviation.
    """

    context_space: ContextSpace = ContextSpace(("putter_length", "friction"), (0.7, 0.065), (1.0, 0.196), ("m", ""))
    max_distance: float = 20.0
    hole_diameter: float = 0.10
    ball_radius: float = 0.02135
    gravity: float = 9.81
    min_action: float = 1e-5
    max_action: float = 10.0
    noise_scale: float = 0.5

    name, packages = "minigolf", ()
    num_observations, num_actions, reset_noise, step_noise = 1, 1, 1, 1

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Ball:
        return Ball(to_uniform(noise[0], 0.0, self.max_distance))

    def observe(self, context: Context, state: Ball) -> tuple[Array, ...]:
        return (state.distance,)

    def step(self, context: Context, state: Ball, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """One stroke; the noise is truncated to ±1, so the ball never rolls backwards."""
        epsilon = self.noise_scale * to_truncated_normal(noise[0], 1.0 / self.noise_scale)
        stroke = jnp.clip(action[0], self.min_action, self.max_action)
        speed = stroke * context.putter_length**2 * (1.0 + epsilon)
        deceleration = 5.0 / 7.0 * context.friction * self.gravity
        slowest_squared = 2.0 * deceleration * state.distance
        capture = (2.0 * self.hole_diameter - self.ball_radius) ** 2 * self.gravity / (2.0 * self.ball_radius)
        short = speed < jnp.sqrt(slowest_squared)
        beyond = speed > jnp.sqrt(capture + slowest_squared)
        reward = jnp.where(short, -1.0, jnp.where(beyond, -100.0, 0.0))
        distance = jnp.where(short, state.distance - speed**2 / (2.0 * deceleration), state.distance)
        # Rounding may carry a ball that stops at the very edge past the hole; a negative distance has no square root.
        return Step(Ball(jnp.maximum(distance, 0.0)), reward, ~short)

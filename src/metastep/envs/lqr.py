"""A small linear-quadratic regulator whose return and gradients are known in closed form: the probe of the estimators.

    s' = scale * A s + B a + noise * z,    r = -(s^T Q s + R a^2),    s_0 ~ N(start, start_scale^2 I)

with a state of two numbers and one action. The context `scale` stretches the dynamics. Rewards are paid on the state and
action of the step. With the policy a ~ N(b + w s, sigma^2) every moment of the state follows a linear recursion.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace


class Point(NamedTuple):
    """The two state coordinates."""

    first: Array
    second: Array


@dataclass(frozen=True)
class LQR:
    """A damped, slightly coupled pair of coordinates, of which the second is pushed."""

    context_space: ContextSpace = ContextSpace(("scale",), (0.5,), (1.1,))
    dynamics: tuple[tuple[float, float], tuple[float, float]] = ((0.9, 0.3), (-0.1, 0.8))
    control: tuple[float, float] = (0.1, 0.5)
    state_cost: tuple[float, float] = (1.0, 0.5)
    action_cost: float = 0.1
    noise: float = 0.1
    start: tuple[float, float] = (1.0, -0.5)
    start_scale: float = 0.3

    name, packages = "lqr", ()
    num_observations, num_actions, reset_noise, step_noise = 2, 1, 2, 2

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Point:
        return Point(*(mean + self.start_scale * normal for mean, normal in zip(self.start, noise, strict=True)))

    def observe(self, context: Context, state: Point) -> tuple[Array, ...]:
        return tuple(state)

    def step(self, context: Context, state: Point, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        cost = self.state_cost[0] * state.first**2 + self.state_cost[1] * state.second**2
        reward = -(cost + self.action_cost * action[0] ** 2)
        drift = [context.scale * (first * state.first + second * state.second) for first, second in self.dynamics]
        parts = zip(drift, self.control, noise, strict=True)
        after = Point(*(moved + gain * action[0] + self.noise * normal for moved, gain, normal in parts))
        return Step(after, reward, jnp.bool_(False))

"""A small linear-quadratic regulator whose return and gradients are known in closed form: the probe of the estimators.

    s' = scale * A s + B a + noise * z,    r = -(s^T Q s + R a^2),    s_0 ~ N(start, start_scale^2 I)

with a state of two numbers and one action. The context `scale` stretches the dynamics. Rewards are paid on the state and
action of the step. With the policy a ~ N(b + w s, sigma^2) every moment of the state follows a linear recursion.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep.contexts import ContextSpace
from metastep.envs.base import Context, Step

Matrix = NDArray[np.float64]


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

    name: ClassVar[str] = "lqr"
    packages: ClassVar[tuple[str, ...]] = ()
    num_observations, num_actions = 2, 1
    reset_noise, step_noise = 2, 2

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Point:
        return Point(*(mean + self.start_scale * normal for mean, normal in zip(self.start, noise, strict=True)))

    def observe(self, context: Context, state: Point) -> tuple[Array, ...]:
        return tuple(state)

    def step(self, context: Context, state: Point, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        reward = -(
            self.state_cost[0] * state.first**2
            + self.state_cost[1] * state.second**2
            + self.action_cost * action[0] ** 2
        )
        after = Point(
            *(
                context.scale * (row[0] * state.first + row[1] * state.second) + gain * action[0] + self.noise * normal
                for row, gain, normal in zip(self.dynamics, self.control, noise, strict=True)
            )
        )
        return Step(after, reward, jnp.bool_(False))


class Exact(NamedTuple):
    """What an infinite batch would estimate."""

    mean_return: float
    gradient: Matrix  # (3,)
    natural_gradient: Matrix  # (3,), without damping


def exact(env: LQR, theta: ArrayLike, scale: float, *, sigma: float, horizon: int, discount: float) -> Exact:
    """Closed-form return, gradient and natural gradient of the policy theta = (b, w_1, w_2) in the task `scale`.

    Forward: phi = (1, s) has second moment `M_t = E[phi phi^T]`, and the closed loop is linear in it. Backward: the value is
    quadratic, `V_t(s) = phi^T P_t phi`. As Q_t is quadratic in the action, the policy gradient theorem gives
    `grad = sum_t gamma^t E[phi dQ_t/da]` with the derivative taken at the policy's mean, which is linear in phi.
    The Fisher matrix is the mean of `M_t` over the steps, divided by sigma^2.
    """
    gain = np.asarray(theta, np.float64)  # mean action = gain . phi
    drift = np.zeros((3, 3))
    drift[0, 0] = 1.0
    drift[1:, 1:] = scale * np.asarray(env.dynamics)
    push = np.concatenate([[0.0], env.control])
    spread = np.diag([0.0, env.noise**2, env.noise**2])
    state_cost = np.diag([0.0, *env.state_cost])
    closed = drift + np.outer(push, gain)

    start = np.concatenate([[1.0], env.start])
    moment = np.outer(start, start) + np.diag([0.0, env.start_scale**2, env.start_scale**2])
    moments = [moment]
    for _ in range(horizon - 1):
        moment = closed @ moment @ closed.T + spread + sigma**2 * np.outer(push, push)
        moments.append(moment)

    cost = state_cost + env.action_cost * np.outer(gain, gain)
    mean_return = sum(
        -(discount**t) * (np.sum(cost * moment) + env.action_cost * sigma**2) for t, moment in enumerate(moments)
    )
    value = np.zeros((3, 3))
    gradient = np.zeros(3)
    for t in reversed(range(horizon)):
        slope = -2.0 * env.action_cost * gain + 2.0 * discount * push @ value @ closed  # dQ_t/da = slope . phi
        gradient += discount**t * moments[t] @ slope
        constant = -env.action_cost * sigma**2 + discount * np.sum(value * (spread + sigma**2 * np.outer(push, push)))
        value = -cost + discount * closed.T @ value @ closed
        value[0, 0] += constant
    fisher = np.mean(moments, axis=0) / sigma**2
    return Exact(float(mean_return), gradient, np.linalg.solve(fisher, gradient))

"""Three small families: the paper's Nav2D (appendix B.1; after MAML's point robot) and minigolf (B.2), and an LQR."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import to_truncated_normal, to_uniform
from metastep._core.settings import Positive, check_fields
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace


class Position(NamedTuple):
    """Where the agent is."""

    x: Array
    y: Array


_GOALS = ContextSpace(("goal_x", "goal_y"), (-0.5, -0.5), (0.5, 0.5))


@dataclass(frozen=True)
class Nav2D:
    """Start at the origin, move at most 0.1 along each axis, pay the distance to the goal after every move.

    Args:
        goal_range: the goals' coordinates are uniform on plus and minus this. The paper's prose has 1, its list of parameters
            0.5.
        goal_radius: an episode ends this near to the goal; the paper does not say how near.
    """

    context_space: ContextSpace = _GOALS
    goal_range: Positive = field(default=0.5, metadata={"of": "tasks"})  # another range is the same environment
    max_move: float = 0.1
    goal_radius: float = 0.01

    name, packages = "nav2d", ()
    num_observations, num_actions, reset_noise, step_noise = 2, 2, 0, 0

    def __post_init__(self) -> None:
        check_fields(self, "env")
        if self.context_space == _GOALS:
            ends = (self.goal_range, self.goal_range)
            space = ContextSpace(_GOALS.names, (-ends[0], -ends[1]), ends)
            object.__setattr__(self, "context_space", space)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Position:
        return Position(jnp.float32(0.0), jnp.float32(0.0))

    def observe(self, context: Context, state: Position) -> tuple[Array, ...]:
        """The position; the goal has to be found."""
        return state.x, state.y

    def step(self, context: Context, state: Position, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        x = state.x + jnp.clip(action[0], -self.max_move, self.max_move)
        y = state.y + jnp.clip(action[1], -self.max_move, self.max_move)
        distance = jnp.sqrt((x - context.goal_x) ** 2 + (y - context.goal_y) ** 2)
        return Step(Position(x, y), -distance, distance < self.goal_radius)


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


class Point(NamedTuple):
    """The two state coordinates."""

    first: Array
    second: Array


@dataclass(frozen=True)
class LQR:
    """A small linear-quadratic regulator whose return and gradients are known in closed form: the probe of the estimators.

        s' = scale * A s + B a + noise * z,    r = -(s^T Q s + R a^2),    s_0 ~ N(start, start_scale^2 I)

    A damped, slightly coupled pair of coordinates, of which the second is pushed; the context `scale` stretches the dynamics.
    Rewards are paid on the state and action of the step. With the policy a ~ N(b + w s, sigma^2) every moment of the state
    follows a linear recursion.
    """

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

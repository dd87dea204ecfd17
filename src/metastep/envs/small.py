"""Small families: the paper's Nav2D (appendix B.1; after MAML) and minigolf (B.2), an LQR, and three of Gymnasium's."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import runge_kutta, sincos, to_truncated_normal, to_uniform, wrap
from metastep._core.settings import Positive, check_fields
from metastep.envs.base import Context, FullyObserved, Step
from metastep.envs.contexts import ContextSpace

GRAVITY = 9.8
INERTIA = 1.0  # kg m^2, of each link of Acrobot about its centre of mass, whatever its mass and length


class Position(NamedTuple):
    """Where the agent is; the two coordinates of the LQR's state."""

    x: Array
    y: Array


_GOALS = ContextSpace(("goal_x", "goal_y"), (-0.5, -0.5), (0.5, 0.5))


@dataclass(frozen=True)
class Nav2D(FullyObserved):
    """Start at the origin, move at most 0.1 along each axis, pay the distance to a goal, which is not seen, after every move."""

    context_space: ContextSpace = _GOALS
    # Goals are uniform on plus and minus this; the paper's prose has 1, its list 0.5. Another range is the same environment.
    goal_range: Positive = field(default=0.5, metadata={"of": "tasks"})
    max_move: float = 0.1
    goal_radius: float = 0.01  # an episode ends this near to the goal; the paper does not say how near

    name = "nav2d"
    num_observations, num_actions, reset_noise, step_noise = 2, 2, 0, 0

    def __post_init__(self) -> None:
        check_fields(self, "env")
        if self.context_space == _GOALS:
            space = ContextSpace(_GOALS.names, (-self.goal_range,) * 2, (self.goal_range,) * 2)
            object.__setattr__(self, "context_space", space)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Position:
        return Position(jnp.float32(0.0), jnp.float32(0.0))

    def step(self, context: Context, state: Position, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        x = state.x + jnp.clip(action[0], -self.max_move, self.max_move)
        y = state.y + jnp.clip(action[1], -self.max_move, self.max_move)
        distance = jnp.sqrt((x - context.goal_x) ** 2 + (y - context.goal_y) ** 2)
        return Step(Position(x, y), -distance, distance < self.goal_radius)


class Ball(NamedTuple):
    """The ball's distance to the hole, in metres."""

    distance: Array


@dataclass(frozen=True)
class Minigolf(FullyObserved):
    """Each stroke ends in the hole (0, end), beyond the green (-100, end) or short of the hole (-1, play on).

    The ball decelerates by `d = 5/7 rho g`; it falls in when its speed at the start lies between `v_min = sqrt(2 d x)` (it
    just reaches the hole) and `v_max = sqrt((2D - r)^2 g / (2r) + v_min^2)` (it just does not jump over it).
    """

    context_space: ContextSpace = ContextSpace(("putter_length", "friction"), (0.7, 0.065), (1.0, 0.196), ("m", ""))
    max_distance: float = 20.0
    hole_diameter: float = 0.10
    ball_radius: float = 0.02135
    gravity: float = 9.81
    min_action: float = 1e-5
    max_action: float = 10.0
    # Standard deviation of the noise on a stroke, as a share of its speed; it is cut off where the ball would roll backwards. The
    # paper has N(0, 0.25) and does not say whether 0.25 is the variance, as here, or the deviation.
    noise_scale: float = 0.5

    name = "minigolf"
    num_observations, num_actions, reset_noise, step_noise = 1, 1, 1, 1

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Ball:
        return Ball(to_uniform(noise[0], 0.0, self.max_distance))

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


@dataclass(frozen=True)
class LQR(FullyObserved):
    """A small linear-quadratic regulator whose return and gradients are known in closed form: the probe of the estimators.

        s' = scale * A s + B a + noise * z,    r = -(s^T Q s + R a^2),    s_0 ~ N(start, start_scale^2 I)

    A damped, slightly coupled pair of coordinates, of which the second is pushed; the context `scale` stretches the dynamics.
    Rewards are paid on the state and action of the step. With a ~ N(b + w s, sigma^2) all moments follow linear recursions.
    """

    context_space: ContextSpace = ContextSpace(("scale",), (0.5,), (1.1,))
    dynamics: tuple[tuple[float, float], tuple[float, float]] = ((0.9, 0.3), (-0.1, 0.8))
    control: tuple[float, float] = (0.1, 0.5)
    state_cost: tuple[float, float] = (1.0, 0.5)
    action_cost: float = 0.1
    noise: float = 0.1
    start: tuple[float, float] = (1.0, -0.5)
    start_scale: float = 0.3

    name = "lqr"
    num_observations, num_actions, reset_noise, step_noise = 2, 1, 2, 2

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Position:
        return Position(*(mean + self.start_scale * normal for mean, normal in zip(self.start, noise, strict=True)))

    def step(self, context: Context, state: Position, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        cost = self.state_cost[0] * state.x**2 + self.state_cost[1] * state.y**2
        reward = -(cost + self.action_cost * action[0] ** 2)
        drift = [context.scale * (x * state.x + y * state.y) for x, y in self.dynamics]
        parts = zip(drift, self.control, noise, strict=True)
        after = Position(*(moved + gain * action[0] + self.noise * normal for moved, gain, normal in parts))
        return Step(after, reward, jnp.bool_(False))


class PendulumState(NamedTuple):
    """Angle from the upright position, not wrapped, and angular speed."""

    angle: Array
    speed: Array


@dataclass(frozen=True)
class Pendulum:
    """Swing a rod up and hold it there with a torque of at most 2 Nm, as in Gymnasium's Pendulum-v1.

    A step pays -(angle^2 + 0.1 speed^2 + 0.001 torque^2) of the state it starts from, with the angle in [-pi, pi]. Only its time
    limit ends an episode. The speed is bounded, too: under much more gravity no torque allowed here lifts a heavy, short rod.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass", "length", "gravity"), (0.5, 0.5, 8.0), (1.5, 1.5, 12.0), ("kg", "m", "m/s^2")
    )

    name, packages = "pendulum", ()
    num_observations, num_actions, reset_noise, step_noise = 3, 1, 2, 0
    action_range = (-2.0, 2.0)
    dt, max_speed = 0.05, 8.0

    def reset(self, context: Context, noise: tuple[Array, ...]) -> PendulumState:
        """Anywhere, at up to 1 rad/s."""
        return PendulumState(to_uniform(noise[0], -math.pi, math.pi), to_uniform(noise[1], -1.0, 1.0))

    def observe(self, context: Context, state: PendulumState) -> tuple[Array, ...]:
        sin, cos = sincos(state.angle)
        return cos, sin, state.speed

    def step(self, context: Context, state: PendulumState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        torque = jnp.clip(action[0], *self.action_range)
        reward = -(wrap(state.angle) ** 2 + 0.1 * state.speed**2 + 0.001 * torque**2)
        weight = 1.5 * context.gravity / context.length * sincos(state.angle)[0]
        acceleration = weight + 3.0 * torque / (context.mass * context.length**2)
        speed = jnp.clip(state.speed + acceleration * self.dt, -self.max_speed, self.max_speed)
        return Step(PendulumState(state.angle + speed * self.dt, speed), reward, jnp.bool_(False))


class AcrobotState(NamedTuple):
    """Angle of the first link from hanging, of the second one from the first, and their speeds."""

    first: Array
    second: Array
    first_speed: Array
    second_speed: Array


def _derivative(context: Context, state: AcrobotState, torque: Array) -> AcrobotState:
    """Of the state with respect to time, by the equations of Sutton and Barto's book."""
    centre_1, centre_2 = 0.5 * context.length_1, 0.5 * context.length_2
    (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
    lever = context.mass_2 * context.length_1 * centre_2
    own = context.mass_2 * centre_2**2 + INERTIA
    coupling = own + lever * cos_2
    both = context.mass_1 * centre_1**2 + context.mass_2 * context.length_1**2 + INERTIA + own + 2.0 * lever * cos_2
    weight_2 = context.mass_2 * centre_2 * GRAVITY * (sin_1 * cos_2 + cos_1 * sin_2)
    weight_1 = (context.mass_1 * centre_1 + context.mass_2 * context.length_1) * GRAVITY * sin_1
    swing = lever * state.second_speed * (state.second_speed + 2.0 * state.first_speed) * sin_2
    load = weight_1 + weight_2 - swing
    push = torque + coupling / both * load - lever * state.first_speed**2 * sin_2 - weight_2
    second = push / (own - coupling**2 / both)
    first = -(coupling * second + load) / both
    return AcrobotState(state.first_speed, state.second_speed, first, second)


@dataclass(frozen=True)
class Acrobot:
    """Swing two hanging links up, pushing their joint with -1 (0), 0 (1) or 1 Nm (2), as in Gymnasium's Acrobot-v1.

    Every step pays -1 until the tip of links of length 1 would be 1 above the axis, which pays 0 and ends. The mass of a link
    sits in its middle. As in Gymnasium its moment of inertia is 1 in every task, and only the angles decide about the height.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass_1", "mass_2", "length_1", "length_2"), (0.5,) * 4, (1.5,) * 4, ("kg", "kg", "m", "m")
    )

    name, packages = "acrobot", ()
    num_observations, num_actions, reset_noise, step_noise = 6, 1, 4, 0
    num_choices = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> AcrobotState:
        return AcrobotState(*(to_uniform(normal, -0.1, 0.1) for normal in noise))

    def observe(self, context: Context, state: AcrobotState) -> tuple[Array, ...]:
        (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
        return cos_1, sin_1, cos_2, sin_2, state.first_speed, state.second_speed

    def step(self, context: Context, state: AcrobotState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """One step of the classical Runge-Kutta method; what leaves the bounds is wrapped or cut off after it."""
        torque = action[0].astype(jnp.float32) - 1.0
        moved = runge_kutta(lambda state: _derivative(context, state, torque), state, 0.2)
        limits = zip(moved[2:], (4.0 * math.pi, 9.0 * math.pi), strict=True)
        speeds = (jnp.clip(speed, -limit, limit) for speed, limit in limits)
        after = AcrobotState(wrap(moved.first), wrap(moved.second), *speeds)
        is_up = -sincos(after.first)[1] - sincos(after.first + after.second)[1] > 1.0
        return Step(after, jnp.where(is_up, 0.0, -1.0), is_up)


class CarState(NamedTuple):
    """Where the car is, and how fast it moves."""

    position: Array
    speed: Array


@dataclass(frozen=True)
class MountainCar(FullyObserved):
    """Rock a weak car out of a valley, as in Gymnasium's MountainCarContinuous-v0.

    A step pays -0.1 times the square of the throttle, which is then cut off at -1 and 1; reaching the goal pays 100 and ends.
    """

    context_space: ContextSpace = ContextSpace(("power", "gravity"), (0.00075, 0.00125), (0.00225, 0.00375))

    name = "mountaincar"
    num_observations, num_actions, reset_noise, step_noise = 2, 1, 1, 0
    action_range = (-1.0, 1.0)
    ends, goal, max_speed = (-1.2, 0.6), 0.45, 0.07

    def reset(self, context: Context, noise: tuple[Array, ...]) -> CarState:
        """At rest near the bottom."""
        return CarState(to_uniform(noise[0], -0.6, -0.4), jnp.float32(0.0))

    def step(self, context: Context, state: CarState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        slope = sincos(3.0 * state.position)[1]
        pull = jnp.clip(action[0], *self.action_range) * context.power - context.gravity * slope
        speed = jnp.clip(state.speed + pull, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + speed, *self.ends)
        speed = jnp.where(position <= self.ends[0], jnp.maximum(speed, 0.0), speed)  # a wall
        is_there = (position >= self.goal) & (speed >= 0.0)
        return Step(CarState(position, speed), jnp.where(is_there, 100.0, 0.0) - 0.1 * action[0] ** 2, is_there)

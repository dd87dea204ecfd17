"""Bodies on springs, tracks and beams: swing, balance and follow."""

import math
from collections import namedtuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, sincos, to_uniform
from metastep.envs.base import State
from metastep.envs.cartpole import CartPoleState, euler_step
from pretraining.families.base import Family, Scalars, clipped, tasks

SpringsState = namedtuple("SpringsState", "place_1 place_2 place_3 speed_1 speed_2 speed_3")  # places from rest
IntegratorState = namedtuple("IntegratorState", "axes time")  # for every axis the place and its derivatives
TwoPolesState = namedtuple("TwoPolesState", "position angle_1 angle_2 speed spin_1 spin_2")  # angles from upright
BeamState = namedtuple("BeamState", "ball tilt speed spin")  # the ball is between -1 and 1
# Angle of the first link, of the second one from the first, their speeds, and where the target is.
ReacherState = namedtuple("ReacherState", "first second first_speed second_speed target_x target_y")


class Springs(Family):
    """Push the first of three masses between two walls, joined by springs, so that the last one rests at a target.

    A step pays minus the squared distance of the last mass to the target, and minus 0.01 times the squared action.
    """

    context_space: ContextSpace = tasks("mass 0.5 1.5, stiffness 2 8, damping 0.1 0.5, force 2 4, target -0.5 0.5")
    name, state, starts, num_observations = "springs", SpringsState, ((-0.2, 0.2),) * 3 + (0.0,) * 3, 7

    def observe(self, context: Context, state: State) -> Scalars:
        return *state, state.place_3 - context.target

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        (share,) = clipped(action)

        def derivative(state: State) -> State:
            left, middle, right, *speeds = state
            pulls = (middle - 2.0 * left, left - 2.0 * middle + right, middle - 2.0 * right)
            parts = zip(pulls, speeds, (context.force * share, 0.0, 0.0), strict=True)
            rates = ((context.stiffness * a - context.damping * b + c) / context.mass for a, b, c in parts)
            return SpringsState(*speeds, *rates)

        moved = runge_kutta(derivative, state, 0.1)
        return Step(moved, -((moved.place_3 - context.target) ** 2) - 0.01 * share**2, jnp.bool_(False))


class Integrator(Family):
    """Follow a target that moves on a circle; a step pays minus the mean squared distance, less 0.01 times the squared action."""

    context_space: ContextSpace = tasks("gain 1 3, drag 0 1, radius 0 0.8, pace 0.2 1")
    order: int = 2  # which derivative of the place the action is, up to `gain`
    axes: int = 1  # how many there are
    ends: bool = False  # whether being 3 away from the origin, where all numbers are cut off, ends and costs 20
    name, num_observations = "integrator", property(lambda self: self.axes * (self.order + 1))
    num_actions = reset_noise = property(lambda self: self.axes)

    def reset(self, context: Context, noise: Scalars) -> IntegratorState:
        """At rest."""
        rest = (jnp.float32(0.0),) * (self.order - 1)
        return IntegratorState(tuple((to_uniform(normal, -1.0, 1.0), *rest) for normal in noise), jnp.float32(0.0))

    def errors(self, context: Context, state: State) -> list[Array]:
        """Return the way to the target along each axis."""
        turns = (context.pace * state.time + 1.5 * axis for axis in range(self.axes))
        return [context.radius * jnp.sin(turn) - axis[0] for turn, axis in zip(turns, state.axes, strict=True)]

    def observe(self, context: Context, state: State) -> Scalars:
        """Place and derivatives, axis by axis, and the ways to the target."""
        return *(number for axis in state.axes for number in axis), *self.errors(context, state)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        axes, pushes = [], clipped(action)
        for axis, push in zip(state.axes, pushes, strict=True):
            rates = zip(axis, (*axis[1:], context.gain * push - context.drag * axis[-1]), strict=True)
            axes.append(tuple(jnp.clip(value + 0.1 * rate, -3.0, 3.0) for value, rate in rates))
        after = IntegratorState(tuple(axes), state.time + 0.1)
        errors = zip(self.errors(context, after), pushes, strict=True)
        cost = jnp.mean(jnp.stack([error**2 + 0.01 * push**2 for error, push in errors]))
        is_out = jnp.any(jnp.stack([jnp.abs(axis[0]) >= 3.0 for axis in axes])) & self.ends
        return Step(after, jnp.where(is_out, -20.0, -cost), is_out)


class Swing(Family):
    """Push a cart with up to `force`; a step pays how high its pole is, 0 to 1, less 0.1 times the squared distance."""

    context_space: ContextSpace = tasks("cart_mass 0.5 1.5, pole_mass 0.1 0.5, length 0.3 0.8, force 8 16")
    start: float = math.pi  # angle from upright around which the pole starts, at rest
    ends: bool = True  # whether leaving the track of 2.5 m on either side ends; otherwise a wall stops the cart
    name, state, num_observations = "swing", CartPoleState, 5
    starts = property(lambda self: ((-0.1, 0.1), 0.0, (self.start - 0.1, self.start + 0.1), 0.0))

    def observe(self, context: Context, state: State) -> Scalars:
        sin, cos = sincos(state.angle)
        return state.position, state.velocity, cos, sin, 0.2 * state.angular_velocity

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        force = context.force * clipped(action)[0]
        for _ in range(4):
            state = euler_step(state, force, context.pole_mass, context.length, 0.01, context.cart_mass)
        at, speed, angle, spin = state
        is_off = jnp.abs(at) > 2.5
        if not self.ends:
            at, speed, is_off = jnp.clip(at, -2.5, 2.5), jnp.where(is_off, 0.0, speed), jnp.bool_(False)
        reward = 0.5 + 0.5 * sincos(angle)[1] - 0.1 * at**2
        return Step(CartPoleState(at, speed, angle, jnp.clip(spin, -30.0, 30.0)), reward, is_off)


class TwoPoles(Family):
    """Push a cart with two poles left (0) or right (1); every step pays 1, until one leans 36 degrees or the cart leaves 2.4 m.

    The poles stand side by side and have different lengths (Wieland, 1991).
    """

    context_space: ContextSpace = tasks(
        "cart_mass 0.7 1.3, mass_1 0.08 0.12, mass_2 0.01 0.03, length_1 0.4 0.6, length_2 0.04 0.15, force 8 12"
    )
    name, state, num_choices = "two-poles", TwoPolesState, 2
    starts = (0.0, (-0.05, 0.05), (-0.05, 0.05), 0.0, 0.0, 0.0)

    def derivative(self, context: Context, state: State, force: Array) -> State:
        """Return the time derivative: each pole adds a force on the cart, and less than its mass."""
        push, mass, turns = force, context.cart_mass, []
        own = (context.mass_1, context.length_1), (context.mass_2, context.length_2)
        for angle, spin, (pole, length) in zip(state[1:3], state[4:], own, strict=True):
            sin, cos = sincos(angle)
            push = push + pole * (length * spin**2 * sin - 0.75 * 9.8 * sin * cos)
            mass = mass + pole * (1.0 - 0.75 * cos**2)
            turns.append((sin, cos, length))
        pull = push / mass
        first, second = (0.75 / length * (9.8 * sin - pull * cos) for sin, cos, length in turns)
        return TwoPolesState(state.speed, state.spin_1, state.spin_2, pull, first, second)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        force = jnp.where(action[0] == 1, context.force, -context.force)
        moved = runge_kutta(lambda state: self.derivative(context, state, force), state, 0.01)
        leans = jnp.maximum(jnp.abs(moved.angle_1), jnp.abs(moved.angle_2)) > math.radians(36.0)
        return Step(moved, jnp.float32(1.0), leans | (jnp.abs(moved.position) > 2.4))


class Beam(Family):
    """Turn a beam with a ball by a torque; every step pays 1 less the squared place of the ball, which falls off beyond 1.

    The ball rolls without slipping: it is accelerated by 5/7 of what a sliding one would be.
    """

    context_space: ContextSpace = tasks("gravity 3 10, torque 2 5, damping 0.5 2, roughness 0 0.5")
    name, state, starts = "beam", BeamState, ((-0.5, 0.5), (-0.1, 0.1), (-0.1, 0.1), (-0.1, 0.1))

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        push = 5.0 / 7.0 * (context.gravity * sincos(state.tilt)[0] + state.ball * state.spin**2)
        speed = state.speed + 0.05 * (push - context.roughness * state.speed)
        spin = state.spin + 0.05 * (context.torque * clipped(action)[0] - context.damping * state.spin)
        tilt = jnp.clip(state.tilt + 0.05 * spin, -0.8, 0.8)
        ball = state.ball + 0.05 * speed
        after = BeamState(ball, tilt, speed, jnp.where(jnp.abs(tilt) >= 0.8, 0.0, spin))
        return Step(after, 1.0 - ball**2, jnp.abs(ball) > 1.0)


class Reacher(Family):
    """Move the tip of a two-link arm in a horizontal plane to a target with torques at both joints, each from -1 to 1.

    As in Gymnasium's Reacher-v5 a step pays minus the distance to the target, after it, and minus 0.1 times the squared action,
    after the cut, and the target is anywhere within reach of the stretched arm. Unlike there, links have no armature, so that
    they move one another, and joints have no limits. An episode has no end but its time limit.
    """

    context_space: ContextSpace = tasks(
        "mass_1 .7 1.3 kg, mass_2 .7 1.3 kg, length_1 .08 .12 m, length_2 .08 .12 m, "
        "damping .003 .008 N m s, torque .035 .065 N m"
    )
    name, num_observations, num_actions, reset_noise = "reacher", 10, 2, 6

    def reset(self, context: Context, noise: Scalars) -> ReacherState:
        """Nearly stretched and at rest; the target is uniform on the disc."""
        first, second = (to_uniform(normal, -0.1, 0.1) for normal in noise[:2])
        first_speed, second_speed = (to_uniform(normal, -0.005, 0.005) for normal in noise[2:4])
        radius = (context.length_1 + context.length_2) * jnp.sqrt(to_uniform(noise[4], 0.0, 1.0))
        sin, cos = sincos(to_uniform(noise[5], -math.pi, math.pi))
        return ReacherState(first, second, first_speed, second_speed, radius * cos, radius * sin)

    def mass_matrix(self, context: Context, cos: Array) -> Scalars:
        """Return the entries (1, 1), (1, 2) and (2, 2) at the cosine of the second angle; links are thin rods."""
        lever = 0.5 * context.mass_2 * context.length_1 * context.length_2 * cos
        last = context.mass_2 * context.length_2**2 / 3.0
        first = (context.mass_1 / 3.0 + context.mass_2) * context.length_1**2
        return first + last + 2.0 * lever, last + lever, last

    def derivative(self, context: Context, state: State, torque: Scalars) -> State:
        """Return the time derivative of the state: M(q) q'' = torque - damping q' - C(q, q')."""
        sin, cos = sincos(state.second)
        both, coupling, last = self.mass_matrix(context, cos)
        bend = 0.5 * context.mass_2 * context.length_1 * context.length_2 * sin
        first, second = state.first_speed, state.second_speed
        load_1 = torque[0] - context.damping * first + bend * second * (2.0 * first + second)
        load_2 = torque[1] - context.damping * second - bend * first**2
        determinant, still = both * last - coupling**2, jnp.zeros_like(first)
        pushes = (last * load_1 - coupling * load_2) / determinant, (both * load_2 - coupling * load_1) / determinant
        return ReacherState(first, second, *pushes, still, still)

    def to_target(self, context: Context, state: State) -> tuple[Array, Array]:
        """Return the vector from the target to the tip of the arm."""
        (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.first + state.second)
        x = context.length_1 * cos_1 + context.length_2 * cos_2 - state.target_x
        return x, context.length_1 * sin_1 + context.length_2 * sin_2 - state.target_y

    def observe(self, context: Context, state: State) -> Scalars:
        """Cosines and sines of the angles, the target, the speeds, and the vector from the target to the tip.

        Lengths are in units of 0.1 m, speeds in units of 10 rad/s.
        """
        (sin_1, cos_1), (sin_2, cos_2) = sincos(state.first), sincos(state.second)
        lengths = (10.0 * value for value in (state.target_x, state.target_y, *self.to_target(context, state)))
        return cos_1, cos_2, sin_1, sin_2, 0.1 * state.first_speed, 0.1 * state.second_speed, *lengths

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        pushes = clipped(action)
        torque = context.torque * pushes[0], context.torque * pushes[1]
        moved = runge_kutta(lambda state: self.derivative(context, state, torque), state, 0.02)
        x, y = self.to_target(context, moved)
        return Step(moved, -jnp.sqrt(x**2 + y**2) - 0.1 * (pushes[0] ** 2 + pushes[1] ** 2), jnp.bool_(False))

"""Populations, tanks, a store, random networks and vehicles."""

import math
from collections import namedtuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, sincos, wrap
from metastep.envs.base import State
from pretraining.families.base import Family, Scalars, clipped, tasks
from pretraining.families.tables import Seen, key_of, one_hot

PreyState = namedtuple("PreyState", "prey predators")  # in units of their balance without hunting
TanksState = namedtuple("TanksState", "first second third")  # levels
StockState = namedtuple("StockState", "store soon later phase")  # what is there and arrives, and the season from 0 to 1
DroneState = namedtuple("DroneState", "x y tilt x_speed y_speed spin")  # from the target; the tilt is to the left
CarState = namedtuple("CarState", "x y heading speed")  # from the goal
# Of the lander: time of a step (s), share of a side engine in the main one, how far above the centre of mass side engines push
# and beside and below it feet are (m), where the field ends on either side and episodes begin (m), the unit of speeds (m/s), how
# fast, tilted and turning a landing may be, and what a step of the main and of a side engine costs.
TICK, SIDE_POWER, LEVER, FOOT, WIDTH, HEIGHT, SPEED = 0.05, 0.1, 0.5, 0.5, 10.0, 8.0, 5.0
GENTLE, FUEL = (1.0, 0.3, 0.5), (0.3, 0.03)
LanderState = namedtuple("LanderState", "x y angle x_speed y_speed spin")  # from the pad; the angle is to the left


class Prey(Family):
    """Hunt prey and predators (Lotka and Volterra's equations), with efforts between none (-1) and full (1).

    A step pays how near both are to a target, up to 1. An episode ends where either is below a twentieth.
    """

    context_space: ContextSpace = tasks("growth 0.5 1.5, death 0.5 1.5, effort 0.5 1, target 0.6 1.4")
    name, state, starts, num_actions, step_noise = "prey", PreyState, ((0.3, 2.0),) * 2, 2, 2

    def observe(self, context: Context, state: State) -> Scalars:
        """Logarithms."""
        return jnp.log(state.prey), jnp.log(state.predators)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        efforts = [context.effort * 0.5 * (1.0 + part) for part in clipped(action)]

        def derivative(state: State) -> State:
            prey = state.prey * (context.growth * (1.0 - state.predators) - efforts[0])
            return PreyState(prey, state.predators * (context.death * (state.prey - 1.0) - efforts[1]))

        moved = zip(runge_kutta(derivative, state, 0.1), noise, strict=True)
        after = PreyState(*(jnp.clip(number * (1.0 + 0.02 * normal), 0.01, 20.0) for number, normal in moved))
        missed = (after.prey - context.target) ** 2 + (after.predators - 0.7) ** 2
        return Step(after, jnp.exp(-missed), jnp.minimum(after.prey, after.predators) < 0.05)


class Tanks(Family):
    """Set a pump between off (-1) and full power (1); a step pays minus the distance of the last tank's level to the target.

    A tank loses the square root of its level times its leak, into the next one; what overflows at 2 is lost.
    """

    context_space: ContextSpace = tasks("power 1.2 2, leak_1 0.6 1, leak_2 0.6 1, leak_3 0.6 1, target 0.4 1")
    name, state, starts, num_observations = "tanks", TanksState, ((0.0, 1.0),) * 3, 4

    def observe(self, context: Context, state: State) -> Scalars:
        return *state, context.target - state.third

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        flow, levels = 0.5 * context.power * (1.0 + clipped(action)[0]), []
        for level, leak in zip(state, (context.leak_1, context.leak_2, context.leak_3), strict=True):
            lost = jnp.minimum(leak * jnp.sqrt(level), 10.0 * level)
            levels.append(jnp.clip(level + 0.1 * (flow - lost), 0.0, 2.0))
            flow = lost
        return Step(TanksState(*levels), -jnp.abs(levels[2] - context.target), jnp.bool_(False))


class Stock(Family):
    """Order between nothing (-1) and 2 units (1), which arrive two steps later, to meet random demand that has seasons.

    A step pays what is sold, less costs of ordering, storing and lost sales. The store holds 4 units.
    """

    context_space: ContextSpace = tasks("demand 0.5 1, season 0 0.5, cost 0.2 0.7, storing 0.02 0.2, pace 0.02 0.1")
    name, state, starts = "stock", StockState, ((0.0, 2.0), 0.0, 0.0, (0.0, 1.0))
    num_observations, step_noise = 5, 1

    def observe(self, context: Context, state: State) -> Scalars:
        return *state[:3], *sincos(2.0 * math.pi * state.phase)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        ordered, season = 1.0 + clipped(action)[0], 1.0 + context.season * sincos(2.0 * math.pi * state.phase)[0]
        wanted = jnp.maximum(context.demand * season * (1.0 + 0.4 * noise[0]), 0.0)
        there = jnp.minimum(state.store + state.soon, 4.0)
        sold = jnp.minimum(there, wanted)
        reward = sold - context.cost * ordered - context.storing * (there - sold) - 0.2 * (wanted - sold)
        after = StockState(there - sold, state.later, ordered, state.phase + context.pace)
        return Step(after, reward, jnp.bool_(False))


class RandomNetwork(Family):
    """Move s' = s + 0.1 (gain W_2 tanh(W_1 (s, a)) - s); a step pays tanh(w s') - 0.01 |a|^2, with weights of N(0, 1/inputs)."""

    context_space: ContextSpace = tasks("seed 0 1, gain 1 3")
    size: int = 4  # how many numbers a state has
    ends: bool = False  # whether a number beyond 1.5 ends the episode, where every other step pays 1 more
    name, num_actions = "network", 2
    num_observations = reset_noise = property(lambda self: self.size)

    def reset(self, context: Context, noise: Scalars) -> Seen:
        return Seen(tuple(0.5 * normal for normal in noise))

    def observe(self, context: Context, state: State) -> Scalars:
        return state.numbers

    def inputs(self, action: Scalars) -> Array:
        """Return what the network sees of an action."""
        return jnp.stack(clipped(action))

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        numbers, pushed = jnp.stack(state.numbers), self.inputs(action)
        shapes = (8, self.size + pushed.size), (self.size, 8), (1, self.size)
        keys = zip(jax.random.split(key_of(context), 3), shapes, strict=True)
        first, second, pay = (jax.random.normal(key, shape, jnp.float32) / shape[1] ** 0.5 for key, shape in keys)
        drift = context.gain * (second @ jnp.tanh(first @ jnp.concatenate([numbers, pushed]))) - numbers
        after = numbers + 0.1 * drift
        reward = jnp.tanh(pay @ after)[0] - 0.01 * jnp.sum(pushed**2)
        is_out = (jnp.max(jnp.abs(after)) > 1.5) & self.ends
        return Step(Seen(tuple(after)), reward + jnp.where(is_out, 0.0, float(self.ends)), is_out)


class DiscreteNetwork(RandomNetwork):
    """The same with four actions, each an input of its own."""

    name, num_actions, num_choices = "network-discrete", 1, 4

    def inputs(self, action: Scalars) -> Array:
        return jnp.stack(one_hot(action[0], 4))


class Drone(Family):
    """Set the thrust of two rotors, each from nothing (-1) to half of `power` times the weight (1), to hover at a target.

    A step pays 1 less the distance and a tenth of the spin squared, each up to 1; 3 m away or tilted by 1.5 rad, it is lost.
    """

    context_space: ContextSpace = tasks("power 1.6 2.4, turn 0.1 0.4, drag 0 0.5, wind -0.5 0.5")
    name, state, num_actions = "drone", DroneState, 2
    starts = ((-1.0, 1.0), (-1.0, 1.0), (-0.1, 0.1), 0.0, 0.0, (-0.1, 0.1))

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        left, right = (0.25 * 9.81 * context.power * (1.0 + part) for part in clipped(action))
        sin, cos = sincos(state.tilt)
        x_speed = state.x_speed + 0.05 * (context.wind - (left + right) * sin - context.drag * state.x_speed)
        y_speed = state.y_speed + 0.05 * ((left + right) * cos - context.drag * state.y_speed - 9.81)
        spin = state.spin + 0.05 * (context.turn * (right - left) - 0.5 * state.spin)
        x, y, tilt = state.x + 0.05 * x_speed, state.y + 0.05 * y_speed, state.tilt + 0.05 * spin
        distance = jnp.hypot(x, y)
        reward = 1.0 - jnp.minimum(distance, 1.0) - 0.1 * jnp.minimum(spin**2, 1.0)
        return Step(DroneState(x, y, tilt, x_speed, y_speed, spin), reward, (distance > 3.0) | (jnp.abs(tilt) > 1.5))


class Car(Family):
    """Set throttle and steering; a step pays how much nearer the goal is, less 0.02, and parking slowly near it 5 and ends.

    The heading turns by speed * tan(angle) / base. Leaving the field, 4 m away, costs 5 and ends.
    """

    context_space: ContextSpace = tasks("base 0.3 0.8, angle 0.4 0.8, power 1 3, drag 0.2 1")
    name, state, num_actions, num_observations = "car", CarState, 2, 6
    starts = ((-2.0, 2.0), (-2.0, 2.0), (-math.pi, math.pi), 0.0)

    def observe(self, context: Context, state: State) -> Scalars:
        """The goal seen from the car, its heading and its speed."""
        sin, cos = sincos(state.heading)
        ahead, left = -(cos * state.x + sin * state.y), sin * state.x - cos * state.y
        return ahead, left, cos, sin, state.speed, jnp.hypot(ahead, left)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        throttle, wheel = clipped(action)
        speed = state.speed + 0.1 * (context.power * throttle - context.drag * state.speed)
        heading = wrap(state.heading + 0.1 * speed * jnp.tan(context.angle * wheel) / context.base)
        sin, cos = sincos(heading)
        x, y = state.x + 0.1 * speed * cos, state.y + 0.1 * speed * sin
        distance = jnp.hypot(x, y)
        is_parked, is_off = (distance < 0.3) & (jnp.abs(speed) < 0.7), distance > 4.0
        reward = jnp.hypot(state.x, state.y) - distance - 0.02 + jnp.where(is_parked, 5.0, jnp.where(is_off, -5.0, 0.0))
        return Step(CarState(x, y, heading, speed), reward, is_parked | is_off)


class Lander(Family):
    """Land softly and upright, with no engine (0), the left (1), the main (2) or the right one (3) on.

    After Gymnasium's LunarLander, without a contact solver. A side engine pushes away from its side and, above the centre of
    mass, turns the body, which tilts the main engine. Forces are constant over a step, whose motion is exact. A step pays the
    change of a potential of distance, speed and angle, less fuel. The episode ends where a foot touches the ground, with 100 for
    a soft landing, wherever it is, and -100 otherwise or where the lander leaves the field.
    """

    context_space: ContextSpace = tasks(
        "gravity 1 2.5 m/s^2, power 4.5 7.5 N, mass .75 1.25 kg, inertia .2 .4 kg m^2, wind -.2 .2 N"
    )
    name, state, num_choices = "lander", LanderState, 4
    starts = ((-2.0, 2.0), HEIGHT, (-0.1, 0.1), (-1.0, 1.0), (-1.0, 0.0), (-0.1, 0.1))  # high above the pad

    def observe(self, context: Context, state: State) -> Scalars:
        """Place in units of the field, speeds in units of 5 m/s, angle and spin."""
        x_speed, y_speed = state.x_speed / SPEED, state.y_speed / SPEED
        return state.x / WIDTH, state.y / WIDTH, x_speed, y_speed, state.angle, state.spin

    def potential(self, state: State) -> Array:
        """Return how near to a rest on the pad a state is, at most 0: far, fast and tilted states cost."""
        distance = jnp.sqrt(state.x**2 + (state.y - FOOT) ** 2) / WIDTH
        speed = jnp.sqrt(state.x_speed**2 + state.y_speed**2) / SPEED
        return -100.0 * (distance + speed + jnp.abs(state.angle))

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        is_main, is_left, is_right = action[0] == 2, action[0] == 1, action[0] == 3
        main = jnp.where(is_main, context.power, 0.0)
        side = SIDE_POWER * context.power * (is_left.astype(jnp.float32) - is_right.astype(jnp.float32))
        sin, cos = sincos(state.angle)
        x_push = (side * cos - main * sin + context.wind) / context.mass
        y_push = (side * sin + main * cos) / context.mass - context.gravity
        turn = -side * LEVER / context.inertia
        parts = [*zip(state[:3], state[3:], (x_push, y_push, turn), strict=True)]
        places = (at + TICK * (speed + 0.5 * TICK * push) for at, speed, push in parts)
        moved = LanderState(*places, *(speed + TICK * push for _, speed, push in parts))
        sin, cos = sincos(moved.angle)
        touches = moved.y <= FOOT * (cos + jnp.abs(sin))  # the lower foot
        leaves = (jnp.abs(moved.x) > WIDTH) | (moved.y > 2.0 * HEIGHT)
        speed = jnp.maximum(jnp.abs(moved.x_speed), jnp.abs(moved.y_speed))
        is_soft = (speed < GENTLE[0]) & (jnp.abs(moved.angle) < GENTLE[1]) & (jnp.abs(moved.spin) < GENTLE[2])
        fuel = jnp.where(is_main, FUEL[0], jnp.where(is_left | is_right, FUEL[1], 0.0))
        shaped = self.potential(moved) - self.potential(state) - fuel
        ended = jnp.where(touches & is_soft & ~leaves, 100.0, -100.0)
        return Step(moved, jnp.where(touches | leaves, ended, shaped), touches | leaves)

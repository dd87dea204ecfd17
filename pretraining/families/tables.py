"""Random tables, a river, bandits and queues: few states, or none that matter later, and much chance."""

from collections import namedtuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs.base import State
from pretraining.families.base import Family, Scalars, cell_of, clipped, tasks

Number = namedtuple("Number", "number")  # of a state
Seen = namedtuple("Seen", "numbers")
Waiting = namedtuple("Waiting", "first second third")


def key_of(context: Context) -> Array:
    """Return the random key of a task: the bits of its coordinate `seed`."""
    return jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32))


def one_hot(number: Array, size: int) -> Scalars:
    """Return 1 for a number and 0 for the others below `size`."""
    return tuple((number == index).astype(jnp.float32) for index in range(size))


class Tabular(Family):
    """Every state and action has a reward drawn from N(0, 1), and transitions softmax(3 z) with z drawn from N(0, 1)."""

    context_space: ContextSpace = tasks("seed 0 1")
    states: int = 16  # how many states and actions there are
    num_choices: int = 4  # how many states and actions there are
    sparse: bool = False  # whether only reaching the last state pays, 1 and nothing else, and ends the episode
    name, reset_noise, step_noise, num_observations = "tabular", 1, 1, property(lambda self: self.states)

    def reset(self, context: Context, noise: Scalars) -> Number:
        """In any state, but not in the last one where that ends."""
        return Number(cell_of(noise[0], self.states - self.sparse).astype(jnp.int32))

    def observe(self, context: Context, state: State) -> Scalars:
        return one_hot(state.number, self.states)

    def row(self, context: Context, state: State, action: Array) -> tuple[Array, Array]:
        """Return the reward of an action, and the probabilities (states,) of what it leads to."""
        key = jax.random.fold_in(key_of(context), state.number * self.num_choices + action)
        row = jax.random.normal(key, (self.states + 1,), jnp.float32)
        return row[0], jax.nn.softmax(3.0 * row[1:])

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        reward, chances = self.row(context, state, action[0])
        after = jnp.sum(to_uniform(noise[0], 0.0, 1.0) > jnp.cumsum(chances)[:-1]).astype(jnp.int32)
        is_last = (after == self.states - 1) & self.sparse
        return Step(Number(after), is_last.astype(jnp.float32) if self.sparse else reward, is_last)


class River(Family):
    """Drift left (0) or swim right (1), which succeeds with the probability `strength`; after Strehl and Littman (2008).

    The `current` is the probability to drift in spite of swimming. Drifting at the left end pays `near`, swimming at the right
    one 1. An episode has no end but its time limit.
    """

    context_space: ContextSpace = tasks("strength 0.35 0.7, current 0.02 0.1, near 0.005 0.05")
    name, num_choices, reset_noise, step_noise, num_observations = "river", 2, 1, 1, 8

    def reset(self, context: Context, noise: Scalars) -> Number:
        """At one of the two leftmost places."""
        return Number(cell_of(noise[0], 2).astype(jnp.int32))

    def observe(self, context: Context, state: State) -> Scalars:
        return one_hot(state.number, self.num_observations)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        chance, last = to_uniform(noise[0], 0.0, 1.0), self.num_observations - 1
        swum = jnp.where(chance < context.strength, 1, jnp.where(chance > 1.0 - context.current, -1, 0))
        after = jnp.clip(state.number + jnp.where(action[0] == 1, swum, -1), 0, last)
        is_near, is_far = (action[0] == 0) & (state.number == 0), (action[0] == 1) & (state.number + after == 2 * last)
        return Step(Number(after), jnp.where(is_near, context.near, is_far.astype(jnp.float32)), jnp.bool_(False))


class Bandit(Family):
    """Choose one of five arms; arm i pays w_i s with weights drawn from N(0, 1/4), and noise; s is new in every step."""

    context_space: ContextSpace = tasks("seed 0 1, noise 0.1 1")
    name, num_choices, num_observations, reset_noise, step_noise = "bandit", 5, 4, 4, 5

    def reset(self, context: Context, noise: Scalars) -> Seen:
        return Seen(noise)

    def observe(self, context: Context, state: State) -> Scalars:
        return state.numbers

    def pay(self, scores: Array, action: Scalars) -> Array:
        """Return the mean reward of an action, where w_i s are given."""
        return scores[action[0]]

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        weights = jax.random.normal(key_of(context), (5, 4), jnp.float32)
        reward = self.pay(0.5 * weights @ jnp.stack(state.numbers), action) + context.noise * noise[4]
        return Step(Seen(noise[:4]), reward, jnp.bool_(False))


class ContinuousBandit(Bandit):
    """Choose two numbers; a step pays minus their mean squared distance from tanh(w_1 s) and tanh(w_2 s), and noise."""

    name, num_actions = "bandit-continuous", 2
    num_choices = None  # type: ignore[assignment]

    def pay(self, scores: Array, action: Scalars) -> Array:
        return -jnp.mean((jnp.stack(clipped(action)) - jnp.tanh(scores[:2])) ** 2)


class Queues(Family):
    """Choose the queue to serve; a step pays minus a tenth of the sum of those who wait, each times the cost of its queue.

    Somebody arrives at queue i with the probability `arrival_i`, and a served one leaves with `service_i`. Ten may wait.
    """

    context_space: ContextSpace = tasks(
        "arrival_1 0.1 0.35, arrival_2 0.1 0.35, arrival_3 0.1 0.35, service_1 0.4 1, service_2 0.4 1, "
        "service_3 0.4 1, cost_1 0.2 3, cost_2 0.2 3"
    )
    name, num_choices, num_observations, reset_noise, step_noise = "queues", 3, 3, 3, 4

    def reset(self, context: Context, noise: Scalars) -> Waiting:
        return Waiting(*(cell_of(normal, 5) for normal in noise))

    def observe(self, context: Context, state: State) -> Scalars:
        return tuple(waiting / 10.0 for waiting in state)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        *chances, luck = (to_uniform(normal, 0.0, 1.0) for normal in noise)
        after, cost = [], jnp.float32(0.0)
        rows = zip(state, chances, (context.cost_1, context.cost_2, 1.0), strict=True)
        for number, (now, chance, price) in enumerate(rows):
            rates = getattr(context, f"arrival_{number + 1}"), getattr(context, f"service_{number + 1}")
            leaves, comes = (action[0] == number) & (luck < rates[1]), chance < rates[0]
            after.append(jnp.clip(now + comes.astype(jnp.float32) - leaves.astype(jnp.float32), 0.0, 10.0))
            cost = cost + 0.1 * price * after[-1]
        return Step(Waiting(*after), -cost, jnp.bool_(False))

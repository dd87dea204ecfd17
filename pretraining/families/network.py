"""Dynamics of a random network with one hidden layer: the task is the seed that draws its weights, and its gain."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step

SIZE, HIDDEN = 4, 8


class NetworkState(NamedTuple):
    """Four numbers, all of them seen."""

    numbers: tuple[Array, ...]


@dataclass(frozen=True)
class RandomNetwork:
    """Move s' = s + 0.1 (gain W_2 tanh(W_1 (s, a)) - s); a step pays tanh(w s') - 0.01 |a|^2, with weights of N(0, 1/inputs).

    Actions are cut off at -1 and 1. An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(
        ("seed", "gain"), (0.0, 1.0), (1.0, 3.0)
    )  # the bits of the number are the seed

    name, packages = "network", ()
    num_observations, num_actions, reset_noise, step_noise = SIZE, 2, SIZE, 0
    num_inputs = 2  # numbers of the action that the network sees
    action_range: tuple[float, float] | None = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> NetworkState:
        return NetworkState(tuple(0.5 * normal for normal in noise))

    def observe(self, context: Context, state: NetworkState) -> tuple[Array, ...]:
        return state.numbers

    def inputs(self, action: tuple[Array, ...]) -> Array:
        """Return what the network sees of an action."""
        return jnp.clip(jnp.stack(action), -1.0, 1.0)

    def step(self, context: Context, state: NetworkState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        keys = jax.random.split(jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32)), 3)
        shapes = (HIDDEN, SIZE + self.num_inputs), (SIZE, HIDDEN), (1, SIZE)
        first, second, pay = (
            jax.random.normal(key, shape, jnp.float32) / jnp.sqrt(jnp.float32(shape[1]))
            for key, shape in zip(keys, shapes, strict=True)
        )
        numbers, pushed = jnp.stack(state.numbers), self.inputs(action)
        drift = context.gain * (second @ jnp.tanh(first @ jnp.concatenate([numbers, pushed]))) - numbers
        after = numbers + 0.1 * drift
        reward = jnp.tanh(pay @ after)[0] - 0.01 * jnp.sum(pushed**2)
        return Step(NetworkState(tuple(after)), reward, jnp.bool_(False))


@dataclass(frozen=True)
class DiscreteNetwork(RandomNetwork):
    """The same with four actions, each an input of its own."""

    name, num_actions, num_choices, num_inputs, action_range = "network-discrete", 1, 4, 4, None

    def inputs(self, action: tuple[Array, ...]) -> Array:
        return (jnp.arange(4) == action[0]).astype(jnp.float32)

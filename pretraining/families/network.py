"""Dynamics of a random network with one hidden layer: the task is the seed that draws its weights, and its gain."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step

HIDDEN = 8


class NetworkState(NamedTuple):
    """Numbers, all of them seen."""

    numbers: tuple[Array, ...]


@dataclass(frozen=True)
class RandomNetwork:
    """Move s' = s + 0.1 (gain W_2 tanh(W_1 (s, a)) - s); a step pays tanh(w s') - 0.01 |a|^2, with weights of N(0, 1/inputs).

    Actions are cut off at -1 and 1.

    Args:
        size: how many numbers a state has.
        ends: whether a number beyond 1.5 ends the episode, where every other step pays 1 more.
    """

    context_space: ContextSpace = ContextSpace(
        ("seed", "gain"), (0.0, 1.0), (1.0, 3.0)
    )  # the bits of the number are the seed
    size: int = 4
    ends: bool = False

    name, packages = "network", ()
    num_actions, step_noise = 2, 0
    num_observations = reset_noise = property(lambda self: self.size)
    num_inputs = 2  # numbers of the action that the network sees
    action_range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> NetworkState:
        return NetworkState(tuple(0.5 * normal for normal in noise))

    def observe(self, context: Context, state: NetworkState) -> tuple[Array, ...]:
        return state.numbers

    def inputs(self, action: tuple[Array, ...]) -> Array:
        """Return what the network sees of an action."""
        return jnp.clip(jnp.stack(action), -1.0, 1.0)

    def step(self, context: Context, state: NetworkState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        keys = jax.random.split(jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32)), 3)
        shapes = (HIDDEN, self.size + self.num_inputs), (self.size, HIDDEN), (1, self.size)
        first, second, pay = (
            jax.random.normal(key, shape, jnp.float32) / jnp.sqrt(jnp.float32(shape[1]))
            for key, shape in zip(keys, shapes, strict=True)
        )
        numbers, pushed = jnp.stack(state.numbers), self.inputs(action)
        drift = context.gain * (second @ jnp.tanh(first @ jnp.concatenate([numbers, pushed]))) - numbers
        after = numbers + 0.1 * drift
        reward = jnp.tanh(pay @ after)[0] - 0.01 * jnp.sum(pushed**2)
        is_out = (jnp.max(jnp.abs(after)) > 1.5) & self.ends
        return Step(NetworkState(tuple(after)), reward + jnp.where(is_out, 0.0, float(self.ends)), is_out)


@dataclass(frozen=True)
class DiscreteNetwork(RandomNetwork):
    """The same with four actions, each an input of its own."""

    name, num_actions, num_choices, num_inputs, action_range = "network-discrete", 1, 4, 4, None

    def inputs(self, action: tuple[Array, ...]) -> Array:
        return (jnp.arange(4) == action[0]).astype(jnp.float32)

"""Contextual bandits: what is seen is drawn in every step, and the action decides the reward alone."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step

SIZE, ARMS = 4, 5


class BanditState(NamedTuple):
    """What is seen."""

    seen: tuple[Array, ...]


@dataclass(frozen=True)
class Bandit:
    """Choose one of five arms; arm i pays w_i s with weights drawn from N(0, 1/4), and noise; the task is their seed."""

    context_space: ContextSpace = ContextSpace(("seed", "noise"), (0.0, 0.1), (1.0, 1.0))  # the bits are the seed

    name, packages = "bandit", ()
    num_observations, num_actions, reset_noise, step_noise = SIZE, 1, SIZE, SIZE + 1
    num_choices: ClassVar[int | None] = ARMS
    action_range: ClassVar[tuple[float, float] | None] = None

    def reset(self, context: Context, noise: tuple[Array, ...]) -> BanditState:
        return BanditState(noise)

    def observe(self, context: Context, state: BanditState) -> tuple[Array, ...]:
        return state.seen

    def scores(self, context: Context, state: BanditState, num: int) -> Array:
        """Return w_i s for a number of weight vectors."""
        key = jax.random.key(jax.lax.bitcast_convert_type(context.seed, jnp.uint32))
        return jax.random.normal(key, (num, SIZE), jnp.float32) @ jnp.stack(state.seen) / SIZE**0.5

    def pay(self, context: Context, state: BanditState, action: tuple[Array, ...]) -> Array:
        """Return the mean reward of an action."""
        return self.scores(context, state, ARMS)[action[0]]

    def step(self, context: Context, state: BanditState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        reward = self.pay(context, state, action) + context.noise * noise[SIZE]
        return Step(BanditState(noise[:SIZE]), reward, jnp.bool_(False))


@dataclass(frozen=True)
class ContinuousBandit(Bandit):
    """Choose two numbers; a step pays minus their mean squared distance from tanh(w_1 s) and tanh(w_2 s)."""

    name, num_actions, num_choices, action_range = "bandit-continuous", 2, None, (-1.0, 1.0)

    def pay(self, context: Context, state: BanditState, action: tuple[Array, ...]) -> Array:
        made = jnp.clip(jnp.stack(action), -1.0, 1.0)
        return -jnp.mean((made - jnp.tanh(self.scores(context, state, 2))) ** 2)

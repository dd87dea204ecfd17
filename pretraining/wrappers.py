"""Variations of any family: other scales, noise, delays, time limits and actions than it has by itself."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs.base import Wrapper

Scalars = tuple[Array, ...]
Wrapped = namedtuple("Wrapped", "inside own")  # the state of the environment inside, and numbers of the wrapper's own


@dataclass_transform(frozen_default=True)
class Varied(Wrapper):
    """A wrapper; its classes become frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


def _zeros(num: int) -> Any:
    return lambda _: (jnp.float32(0.0),) * num


class Stateful(Varied):
    """A wrapper with numbers of its own, which start as `own_start` says."""

    def own_start(self) -> tuple[Any, ...]:
        """Return the numbers at the start of an episode: by default, an action that does nothing, or the first one."""
        return (jnp.float32(0.0) if self.num_choices is None else jnp.int32(0),) * self.num_actions

    def reset(self, context: Context, noise: Scalars) -> Wrapped:
        return Wrapped(self.env.reset(context, noise), self.own_start())

    def observe(self, context: Context, state: Wrapped) -> Scalars:
        return self.env.observe(context, state.inside)


def with_coordinate(space: ContextSpace, name: str, reach: float) -> ContextSpace:
    """Return the tasks with one more coordinate, from -reach to reach."""
    return ContextSpace((*space.names, name), (*space.low, -reach), (*space.high, reach), (*space.units, ""))


class ScaledRewards(Varied):
    """Multiply rewards by a power of ten, uniform on [-power, power] over tasks, and add a constant."""

    power: float = 1.5
    shift: float = 0.0
    context_space = property(lambda self: with_coordinate(self.env.context_space, "reward_power", self.power))

    def step(self, context: Context, state: Any, action: Scalars, noise: Scalars) -> Step:
        after = self.env.step(context, state, action, noise)
        return after._replace(reward=10.0**context.reward_power * after.reward + self.shift)


class ScaledObservations(Varied):
    """Multiply every observation by a power of ten of its own: a number of the task times a fixed one, each in [-1, 1]."""

    power: float = 0.4
    seed: int = 0
    context_space = property(lambda self: with_coordinate(self.env.context_space, "observation_power", self.power))

    def observe(self, context: Context, state: Any) -> Scalars:
        shares = np.random.default_rng(self.seed).uniform(-1.0, 1.0, self.num_observations).tolist()
        pairs = zip(shares, self.env.observe(context, state), strict=True)
        return tuple(10.0 ** (context.observation_power * share) * each for share, each in pairs)


class MixedObservations(Varied):
    """Turn the observations by a random rotation, the same in all tasks."""

    seed: int = 0

    def observe(self, context: Context, state: Any) -> Scalars:
        size = self.num_observations
        rows = np.linalg.qr(np.random.default_rng(self.seed).standard_normal((size, size)))[0].tolist()
        seen = self.env.observe(context, state)
        return tuple(sum(share * each for share, each in zip(row, seen, strict=True)) for row in rows)


class NoisyObservations(Varied):
    """Add normal noise of a standard deviation to every observation."""

    sigma: float = 0.1
    reset_noise = property(lambda self: self.env.reset_noise + self.num_observations)
    step_noise = property(lambda self: self.env.step_noise + self.num_observations)

    def reset(self, context: Context, noise: Scalars) -> Wrapped:
        return Wrapped(self.env.reset(context, noise[: self.env.reset_noise]), noise[self.env.reset_noise :])

    def observe(self, context: Context, state: Wrapped) -> Scalars:
        seen = self.env.observe(context, state.inside)
        return tuple(each + self.sigma * normal for each, normal in zip(seen, state.own, strict=True))

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        after = self.env.step(context, state.inside, action, noise[: self.env.step_noise])
        return after._replace(state=Wrapped(after.state, noise[self.env.step_noise :]))


class RepeatedActions(Varied):
    """Take every action so many times, until the episode ends; rewards add up."""

    times: int = 4
    step_noise = property(lambda self: self.times * self.env.step_noise)

    def step(self, context: Context, state: Any, action: Scalars, noise: Scalars) -> Step:
        num = self.env.step_noise
        after = self.env.step(context, state, action, noise[:num])
        for index in range(1, self.times):
            more = self.env.step(context, after.state, action, noise[index * num : (index + 1) * num])
            more = more._replace(reward=after.reward + more.reward)
            after = jax.tree.map(lambda new, old, over=after.terminated: jnp.where(over, old, new), more, after)
        return after


class DelayedActions(Stateful):
    """Make every action some steps after it was chosen; the first ones are 0."""

    steps: int = 1

    def own_start(self) -> tuple[Any, ...]:
        return (super().own_start(),) * self.steps

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        after = self.env.step(context, state.inside, state.own[0], noise)
        return after._replace(state=Wrapped(after.state, (*state.own[1:], action)))


class DelayedObservations(Varied):
    """Show what was there some steps ago; at first, the first state."""

    steps: int = 1

    def reset(self, context: Context, noise: Scalars) -> Wrapped:
        first = self.env.reset(context, noise)
        return Wrapped(first, (self.env.observe(context, first),) * self.steps)

    def observe(self, context: Context, state: Wrapped) -> Scalars:
        return state.own[0]

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        seen, after = self.env.observe(context, state.inside), self.env.step(context, state.inside, action, noise)
        return after._replace(state=Wrapped(after.state, (*state.own[1:], seen)))


class DelayedRewards(Stateful):
    """Pay the rewards of so many steps together at the last of them, or where the episode ends."""

    steps: int = 10
    own_start = _zeros(2)

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        after = self.env.step(context, state.inside, action, noise)
        owed, elapsed = state.own[0] + after.reward, state.own[1] + 1.0
        pays = after.terminated | (elapsed >= self.steps)
        own = jnp.where(pays, 0.0, owed), jnp.where(pays, 0.0, elapsed)
        return Step(Wrapped(after.state, own), jnp.where(pays, owed, 0.0), after.terminated)


class TimeLimit(Stateful):
    """End episodes after so many steps, and show the share of them that is left as the last observation."""

    steps: int = 100
    num_observations = property(lambda self: self.env.num_observations + 1)
    own_start = _zeros(1)

    def observe(self, context: Context, state: Wrapped) -> Scalars:
        return *super().observe(context, state), 1.0 - state.own[0] / self.steps

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        after, elapsed = self.env.step(context, state.inside, action, noise), state.own[0] + 1.0
        return Step(Wrapped(after.state, (elapsed,)), after.reward, after.terminated | (elapsed >= self.steps))


class StickyActions(Stateful):
    """Take the last action again with a probability; the first one is 0."""

    chance: float = 0.1
    step_noise = property(lambda self: self.env.step_noise + 1)

    def step(self, context: Context, state: Wrapped, action: Scalars, noise: Scalars) -> Step:
        sticks = to_uniform(noise[-1], 0.0, 1.0) < self.chance
        taken = tuple(jnp.where(sticks, old, new) for old, new in zip(state.own, action, strict=True))
        after = self.env.step(context, state.inside, taken, noise[:-1])
        return after._replace(state=Wrapped(after.state, taken))


class DiscreteActions(Varied):
    """Offer the lowest, middle and highest value of each number of an action, in all combinations."""

    num_actions, action_range = 1, None
    num_choices = property(lambda self: 3**self.env.num_actions)

    def step(self, context: Context, state: Any, action: Scalars, noise: Scalars) -> Step:
        low, high = self.env.action_range  # type: ignore[attr-defined]
        digits = [action[0] // 3**place % 3 for place in range(self.env.num_actions)]
        made = tuple(low + 0.5 * (high - low) * digit.astype(jnp.float32) for digit in digits)
        return self.env.step(context, state, made, noise)


class Named(Varied):
    """The same under another name."""

    name: str = ""

"""Running moments of one learner that normalise observations and rewards, as Stable-Baselines3's VecNormalize does."""

from collections.abc import Collection
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

_LARGEST, _EPSILON, _FIRST_COUNT = 10.0, 1e-8, 1e-4  # normalised numbers are cut at the first; all as there


class Running(NamedTuple):
    """Moments of all numbers so far."""

    mean: Array
    variance: Array
    number: Array

    def after(self, numbers: Array) -> "Running":
        """Add numbers (envs, ...) (Chan and others, 1979)."""
        num, mean = float(len(numbers)), jnp.mean(numbers, axis=0)
        total, apart = self.number + num, mean - self.mean
        squares = self.variance * self.number + jnp.var(numbers, axis=0) * num + apart**2 * (self.number * num / total)
        return Running(self.mean + apart * (num / total), squares / total, total)

    def over_spread(self, numbers: Array) -> Array:
        """Return numbers over the standard deviation, cut off where they are large."""
        return jnp.clip(numbers / jnp.sqrt(self.variance + _EPSILON), -_LARGEST, _LARGEST)


class Scales(NamedTuple):
    """What normalises observations and rewards; None for those that stay as they are."""

    observation: Running | None
    reward: Running | None  # of the discounted sums of rewards up to now, whose spread rewards are divided by
    sums: Array  # (envs,): these sums

    def after(self, seen: Array, reward: Array, ended: Array, discount: float) -> "Scales":
        """Add a step of every environment: where it led, a new episode perhaps, its reward, and whether one ended."""
        sums = discount * self.sums + reward
        observation = None if self.observation is None else self.observation.after(seen)
        paid = None if self.reward is None else self.reward.after(sums)
        return Scales(observation, paid, jnp.where(ended, 0.0, sums))

    def observations(self, seen: Array) -> Array:
        """Return observations as the policy sees them."""
        return seen if self.observation is None else self.observation.over_spread(seen - self.observation.mean)

    def rewards(self, reward: Array) -> Array:
        """Return rewards as the critic sees them."""
        return reward if self.reward is None else self.reward.over_spread(reward)


def first_scales(normalises: Collection[str], seen: Array) -> Scales:
    """Return the scales after the first observations (envs, observations)."""
    count, nothing = jnp.float32(_FIRST_COUNT), jnp.zeros_like(seen[0])
    observation = Running(nothing, nothing + 1.0, count).after(seen) if "observations" in normalises else None
    reward = Running(jnp.float32(0.0), jnp.float32(1.0), count) if "rewards" in normalises else None
    return Scales(observation, reward, jnp.zeros_like(seen[:, 0]))

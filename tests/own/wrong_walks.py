"""Walks with one mistake each, and walks that only look as if they had one; for `ridge_walk.toml`."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from ridge_walk import Walk

import metastep
from metastep.envs.base import Step
from metastep.envs.host import HostStep


class PaysNan(Walk):
    def step(self, *arguments):
        after = super().step(*arguments)
        return after._replace(reward=jnp.sqrt(after.reward))


class SaysLittle(Walk):
    num_observations = None


class NanFarOut(Walk):
    """Where actions are larger than what most policies choose."""

    def step(self, context, state, action, noise):
        return super().step(context, state, (jnp.sqrt(3.0 - jnp.abs(action[0])),), noise)


class Cut(NanFarOut):
    """And says so."""

    action_range = (-0.2, 0.2)

    def step(self, context, state, action, noise):
        return super().step(context, state, (14.0 * action[0],), noise)


class Idle(Walk):
    """Neither the goal nor the normal changes anything within a few steps."""

    step_noise = 1

    def step(self, context, state, action, noise):
        place = state[0] + action[0]
        return Step((place,), jnp.where(jnp.abs(place) > 1e6, context.goal, 0.0), jnp.bool_(False))


class Places:
    def __init__(self, place, reward):
        self.place, self.reward = place, reward

    def observe(self):
        return self.place

    def step(self, action, noise, alive):
        self.place = self.place + action
        return HostStep(self.reward + self.place[..., 0], np.zeros(alive.shape, np.bool_))


@dataclass(frozen=True)
class OnHost:
    context_space = Walk.context_space
    name, num_observations, num_actions, packages, reset_noise, step_noise = "host walk", 1, 1, (), 1, 0
    reward: float = 0.0

    def start_episodes(self, context, noise, seeds):
        return Places(noise.astype(np.float64), self.reward)


class CutPlaces(Places):
    def step(self, action, noise, alive):
        return super().step(np.sqrt(0.25 - np.abs(action)), noise, alive)


class CutOnHost(OnHost):
    action_range = (-0.2, 0.2)

    def start_episodes(self, context, noise, seeds):
        return CutPlaces(noise.astype(np.float64), self.reward)


for env in [OnHost, CutOnHost, Cut, *Walk.__subclasses__()]:
    metastep.envs.register(env.__name__, env)
metastep.envs.register("NanOnHost", lambda: OnHost(reward=float("nan")))

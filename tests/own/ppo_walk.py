"""An environment and a feature for PPO, one class and one line each; `ppo_walk.toml` extends the shared PPO settings."""

from dataclasses import dataclass

import jax.numpy as jnp

import metastep
from metastep.envs.base import Step
from metastep.envs.contexts import ContextSpace


@dataclass(frozen=True)
class Walk:
    context_space: ContextSpace = ContextSpace(("goal",), (-1.0,), (1.0,))
    name, num_observations, num_actions, packages, reset_noise, step_noise = "walk", 1, 1, (), 1, 0

    def reset(self, context, noise):
        return (0.1 * noise[0],)

    def observe(self, context, state):
        return state

    def step(self, context, state, action, noise):
        place = state[0] + jnp.clip(action[0], -0.3, 0.3)
        return Step((place,), -jnp.abs(place - context.goal), jnp.bool_(False))


class Certainty(metastep.features.Feature):
    name, needs = "certainty", ("entropy", "approx_kl")

    def __call__(self, seen):
        return seen["approx_kl"] - seen["entropy"]


metastep.envs.register("ppo-walk", Walk)
metastep.features.register("certainty", Certainty)

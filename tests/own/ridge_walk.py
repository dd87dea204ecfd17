"""One part of every kind, from outside the package; `ridge_walk.toml` names them all."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

import metastep


@dataclass(frozen=True)
class Walk:
    context_space: metastep.envs.ContextSpace = metastep.envs.ContextSpace(("goal",), (-1.0,), (1.0,))
    name, num_observations, num_actions, packages, reset_noise, step_noise = "walk", 1, 1, (), 1, 0

    def reset(self, context, noise):
        return (0.1 * noise[0],)

    def observe(self, context, state):
        return state

    def step(self, context, state, action, noise):
        place = state[0] + jnp.clip(action[0], -0.3, 0.3)
        return metastep.envs.Step((place,), -jnp.abs(place - context.goal), jnp.bool_(False))


@dataclass(frozen=True)
class SignAscent(metastep.rules.Rule):
    name: ClassVar[str] = "sign"

    def direction(self, estimate):
        return estimate.gradient

    def apply(self, theta, estimate, values, state):
        moved = theta + values["stepsize"][:, None] * jnp.sign(estimate.gradient)
        return metastep.rules.guard(theta, moved, estimate.gradient)


class Slope(metastep.features.Feature):
    name, needs = "slope", ("gradient",)

    def __call__(self, seen):
        return seen.xp.sum(seen.xp.abs(seen["gradient"]), axis=-1)


@dataclass(frozen=True, eq=False)
class Halving(metastep.controllers.Controller):
    first: float
    name: ClassVar[str] = "halving"

    def init(self, mdp, learners):
        return jnp.broadcast_to(jnp.asarray(self.first, jnp.float32).reshape(-1, 1), (len(learners.theta), 1))

    def propose(self, state, learners):
        return state / 2.0 ** learners.update.astype(jnp.float32)


class Bagged(metastep.regressors.ExtraTrees):
    name = "bagged"

    def fit(self, inputs, targets, *, seed, threads=None):
        rows = np.random.default_rng(seed).integers(len(inputs), size=len(inputs))
        return super().fit(inputs[rows], targets[rows], seed=seed, threads=threads)


metastep.envs.register("walk", Walk, label="Walk")
metastep.policies.register("small-linear", partial(metastep.policies.LinearGaussian, sigma=0.3))
metastep.rules.register("sign", SignAscent, label="sign ascent")
metastep.features.register("slope", Slope)
metastep.controllers.register("halving", Halving)
metastep.regressors.register("bagged", Bagged)
halving = partial(metastep.MethodSpec, controller="halving", grid={"first": (0.1, 0.3)})
metastep.baselines.register("halving", halving, label="halving", colour="#884488")

"""One part of every kind, from outside the package; `ridge_walk.toml` names them all."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

import metastep
from metastep.envs.base import Step
from metastep.envs.contexts import ContextSpace
from metastep.evaluation.methods import MethodSpec
from metastep.policies import LinearGaussian


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


class Line(NamedTuple):
    weights: np.ndarray
    importances: None = None

    @property
    def num_features(self):
        return len(self.weights) - 1

    def predict(self, inputs):
        return inputs @ self.weights[1:] + self.weights[0]

    def arrays(self):
        return {"weights": self.weights}


@dataclass(frozen=True)
class LeastSquares:
    ridge: float = 1e-3
    name: ClassVar[str] = "ridge"

    def fit(self, inputs, targets, *, seed, threads=None):
        x = np.column_stack([np.ones(len(inputs)), inputs])
        return Line(np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ targets))

    def load(self, arrays):
        if set(arrays) != {"weights"}:
            raise metastep.InputError(f"ridge: {sorted(arrays)} must be weights alone.")
        return Line(arrays["weights"])


metastep.envs.register("walk", Walk, label="Walk")
metastep.policies.register("small-linear", partial(LinearGaussian, sigma=0.3))
metastep.rules.register("sign", SignAscent, label="sign ascent")
metastep.features.register("slope", Slope)
metastep.controllers.register("halving", Halving)
metastep.regressors.register("ridge", LeastSquares)
metastep.baselines.register(
    "halving", partial(MethodSpec, controller="halving", grid={"first": (0.1, 0.3)}), label="halving", colour="#884488"
)

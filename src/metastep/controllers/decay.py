"""Decaying step sizes (paper, appendix: comparison with learning-rate schedules)."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep.controllers.per_learner import PerLearner, check, column
from metastep.mdp import Learners, MetaMDP
from metastep.meta.controller import Controller, require_one_coordinate


@dataclass(frozen=True, eq=False)
class Decay(Controller):
    """h_t = alpha / t, t = 1, 2, ...

    Args:
        alpha: the first step size; it may lie outside the space H, as the paper's choice for Minigolf does.
    """

    alpha: PerLearner

    name: ClassVar[str] = "decay"

    def __post_init__(self) -> None:
        check("decay.alpha", self.alpha)

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        return column("decay.alpha", self.alpha, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        return state / (learners.update.astype(jnp.float32) + 1.0)


@dataclass(frozen=True, eq=False)
class GeometricDecay(Controller):
    """h_t = alpha h_{t-1}.

    Args:
        stepsize: h of the first update.
        alpha: the factor; above 1 the step sizes grow.
    """

    stepsize: PerLearner
    alpha: PerLearner

    name: ClassVar[str] = "geometric-decay"

    def __post_init__(self) -> None:
        check("geometric_decay.stepsize", self.stepsize)
        check("geometric_decay.alpha", self.alpha, least=0.0)

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        return column("geometric_decay.stepsize", self.stepsize, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        return state

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        return state * column("geometric_decay.alpha", self.alpha, state.shape[0])

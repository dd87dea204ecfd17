"""Constant step sizes: one for all updates."""

from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from metastep.controllers.per_learner import PerLearner, check, column
from metastep.mdp import Learners, MetaMDP
from metastep.meta.controller import Controller, require_one_coordinate


@dataclass(frozen=True, eq=False)
class Fixed(Controller):
    """h_t = h; with Adam or RMSprop as the rule it is their learning rate.

    Args:
        stepsize: h, for all learners or one for each; it may lie outside the space H.
    """

    stepsize: PerLearner

    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        check("fixed.stepsize", self.stepsize)

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        return column("fixed.stepsize", self.stepsize, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        return state


@dataclass(frozen=True, eq=False)
class RandomConstant(Controller):
    """Every learner draws one step size from U(H) and keeps it: what the data of `SingleAction` are made of."""

    name: ClassVar[str] = "random-constant"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        return mdp.space.sample(learners.controller_key, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        return state

"""Constant step sizes: one for all updates."""

from dataclasses import dataclass

from jax import Array

from metastep.controllers.lanes import PerLearner, check, column
from metastep.errors import InputError
from metastep.meta.mdp import Learners, MetaMDP


def require_one_coordinate(name: str, mdp: MetaMDP) -> None:
    """Refuse a space of several hyperparameters where a controller knows only a step size."""
    if mdp.space.num_coordinates != 1:
        raise InputError(
            f"controller: {name!r} chooses one number an update, but the rule {mdp.rule.name!r} takes "
            f"{', '.join(mdp.space.names)}."
        )


@dataclass(frozen=True, eq=False)
class Fixed:
    """h_t = h; with Adam or RMSprop as the rule it is their learning rate.

    Args:
        stepsize: h, for all learners or one a learner; it may lie outside the space H.
    """

    stepsize: PerLearner
    name: str = "fixed"

    def __post_init__(self) -> None:
        check("fixed.stepsize", self.stepsize)

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        """The step sizes themselves: (learners, 1)."""
        require_one_coordinate(self.name, mdp)
        return column("fixed.stepsize", self.stepsize, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        """Always the same."""
        return state

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        """Nothing changes."""
        return state


@dataclass(frozen=True, eq=False)
class RandomConstant:
    """Every learner draws one step size from U(H) and keeps it: what the data of `SingleAction` are made of."""

    name: str = "random-constant"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        """The draws: (learners, coordinates)."""
        return mdp.space.sample(learners.controller_key, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        """Always the same."""
        return state

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        """Nothing changes."""
        return state

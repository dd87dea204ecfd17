"""Step sizes that do not look at the learner: constant or decaying (paper, appendix: comparison with schedules)."""

import math
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep.controllers.per_learner import PerLearner, check, column
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.controller import Controller, require_one_coordinate


class _Schedule(Controller):
    """The state is a number for each learner, (learners, 1), at first that of the field `first`; it is what is proposed."""

    first: ClassVar[str] = "stepsize"

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]  # those that have settings are dataclasses
            check(self._field(entry.name), getattr(self, entry.name))

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        return self._column(self.first, learners.theta.shape[0])

    def propose(self, state: Array, learners: Learners) -> Array:
        return state

    def _field(self, name: str) -> str:
        return f"{self.name.replace('-', '_')}.{name}"

    def _column(self, name: str, num_learners: int) -> Array:
        return column(self._field(name), getattr(self, name), num_learners)


@dataclass(frozen=True, eq=False)
class Fixed(_Schedule):
    """h_t = h; with Adam or RMSprop as the rule it is their learning rate.

    Args:
        stepsize: h, for all learners or one for each; it may lie outside the space H.
    """

    stepsize: PerLearner

    name: ClassVar[str] = "fixed"


@dataclass(frozen=True, eq=False)
class RandomConstant(_Schedule):
    """Every learner draws one step size from U(H) and keeps it: what the data of `SingleAction` are made of."""

    name: ClassVar[str] = "random-constant"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        return mdp.space.sample(learners.controller_key, learners.theta.shape[0])


@dataclass(frozen=True, eq=False)
class Decay(_Schedule):
    """h_t = alpha / t, t = 1, 2, ...

    Args:
        alpha: the first step size; it may lie outside the space H, as the paper's choice for Minigolf does.
    """

    alpha: PerLearner

    name: ClassVar[str] = "decay"
    first: ClassVar[str] = "alpha"

    def propose(self, state: Array, learners: Learners) -> Array:
        return state / (learners.update.astype(jnp.float32) + 1.0)


@dataclass(frozen=True, eq=False)
class GeometricDecay(_Schedule):
    """h_t = alpha h_{t-1}.

    Args:
        stepsize: h of the first update.
        alpha: the factor; above 1 the step sizes grow.
    """

    stepsize: PerLearner
    alpha: PerLearner

    name: ClassVar[str] = "geometric-decay"

    def __post_init__(self) -> None:
        super().__post_init__()
        check("geometric_decay.alpha", self.alpha, least=0.0)

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        return state * self._column("alpha", state.shape[0])


class _Annealing(_Schedule):
    """A share of the first step size, by the updates made of those that there will be."""

    num_updates: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self._field("num_updates"), self.num_updates, least=1.0)

    def propose(self, state: Array, learners: Learners) -> Array:
        """The last update is made with what is left then, later ones with the same."""
        last = float(self.num_updates - 1) / self.num_updates
        return state * self._share(jnp.minimum(learners.update.astype(jnp.float32) / self.num_updates, last))

    @abstractmethod
    def _share(self, done: Array) -> Array:
        """Of the first step size, by the share of the updates that are made."""


@dataclass(frozen=True, eq=False)
class LinearAnnealing(_Annealing):
    """h_t = h (1 - t / T), t = 0, ..., T - 1.

    Args:
        stepsize: h of the first update.
        num_updates: T; in an experiment that of the comparison.
    """

    stepsize: PerLearner
    num_updates: int

    name: ClassVar[str] = "linear-annealing"

    def _share(self, done: Array) -> Array:
        return 1.0 - done


@dataclass(frozen=True, eq=False)
class CosineAnnealing(_Annealing):
    """h_t = h (1 + cos(pi t / T)) / 2, t = 0, ..., T - 1.

    Args:
        stepsize: h of the first update.
        num_updates: T; in an experiment that of the comparison.
    """

    stepsize: PerLearner
    num_updates: int

    name: ClassVar[str] = "cosine-annealing"

    def _share(self, done: Array) -> Array:
        return 0.5 * (1.0 + jnp.cos(math.pi * done))

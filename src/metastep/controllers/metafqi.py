"""Greedy on the learned Q function: the step size of metaFQI."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep.controllers.fixed import require_one_coordinate
from metastep.meta.mdp import Learners, MetaMDP, meta_observation


class Greedy(Protocol):
    """What is needed of a fitted model; `metastep.fqi` provides it."""

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """The best step size of each meta-observation (learners, features): (learners,)."""
        ...


@dataclass(frozen=True, eq=False)
class MetaFQIController:
    """h = argmax_h Q_N(x, h).

    Args:
        model: a fitted model.
        iteration: N; None takes the one the model selected, or its last.
    """

    model: Greedy
    iteration: int | None = None
    name: str = "metafqi"

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        """Remember what the meta-observation consists of."""
        require_one_coordinate(self.name, mdp)
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """The forests live on the host: one transfer there and one back an update."""
        best = self.model.act(np.asarray(meta_observation(state, learners)), self.iteration)
        return jnp.asarray(best, jnp.float32).reshape(-1, 1)

    def observe(self, state: MetaMDP, before: Learners, hyperparameters: Array, after: Learners) -> MetaMDP:
        """The model was learned offline."""
        return state

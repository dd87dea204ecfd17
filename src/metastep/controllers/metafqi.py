"""Greedy on the learned Q function: the step size of metaFQI."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep.controllers.fixed import require_one_coordinate
from metastep.errors import InputError
from metastep.meta.mdp import Learners, MetaMDP, meta_observation


class Greedy(Protocol):
    """What is needed of a fitted model; `metastep.fqi` provides it."""

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """The best step size of each meta-observation (learners, features): (learners,)."""
        ...


@dataclass(frozen=True, eq=False)
class MetaFQIController:
    """h = argmax_h Q_N(x, h); a learner whose observation is not finite gets the smallest step size of H.

    A model that carries a record is held to it: environment, meta-observation and step sizes must be those it was fitted for.

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
        record = getattr(self.model, "record", None)
        if record is not None:
            _require_fit(record, mdp, learners)
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """The forests live on the host: one transfer there and one back an update."""
        observation = np.asarray(meta_observation(state, learners))
        # A diverged learner: no step would bring it back, and a regressor may refuse what is not finite.
        finite = np.isfinite(observation).all(axis=1)
        best = self.model.act(np.where(finite[:, None], observation, np.float32(0.0)), self.iteration)
        return jnp.asarray(np.where(finite, best, state.space.low[0]), jnp.float32).reshape(-1, 1)

    def observe(self, state: MetaMDP, before: Learners, hyperparameters: Array, after: Learners) -> MetaMDP:
        """The model was learned offline."""
        return state


def _require_fit(record: Any, mdp: MetaMDP, learners: Learners) -> None:
    """Refuse a model that was fitted for something else; it would act on numbers that mean something else."""
    sizes = {
        "theta": mdp.num_parameters,
        "gradient": mdp.num_parameters,
        "context": learners.context.shape[1],
        "return": 1,
    }
    expected = {
        "environment": (record.environment, mdp.estimator.rollout.env.name),
        "meta-observation": (
            _listed((part.name, part.size) for part in record.observation),
            _listed((name, sizes[name]) for name in mdp.observation),
        ),
        "range of step sizes": (
            f"[{record.stepsize_low:g}, {record.stepsize_high:g}]",
            f"[{mdp.space.low[0]:g}, {mdp.space.high[0]:g}]",
        ),
    }
    for what, (trained, wanted) in expected.items():
        if trained != wanted:
            raise InputError(f"model: it was fitted for the {what} {trained}, but the meta-MDP has {wanted}.")


def _listed(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({size})" for name, size in parts)

"""The controller `searched`: a network maps features to a point of the unit cube, which the space turns into hyperparameters."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, TaskSource
from metastep.search.network import Network


@dataclass(frozen=True, eq=False)
class Searched(Controller):
    """h = from_unit(network(x)) for the features x that the network observes.

    Args:
        network: form and constants of the controller.
        weights: (num_weights,), or (learners, num_weights) for a controller of its own for every learner of a block.
        contexts: the task list that it was searched on, if any.
    """

    network: Network | None = None
    weights: NDArray[np.float32] | None = None
    contexts: NDArray[np.float32] | None = None

    name: ClassVar[str] = "searched"
    is_memoryless: ClassVar[bool] = True
    needs_model: ClassVar[bool] = True

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """Searched on the training tasks; generation and level were selected on the validation tasks."""
        return TaskSource("trained", Stream.TRAIN, self.contexts), TaskSource("selected", Stream.VALIDATION)

    def init(self, mdp: MetaMDP, learners: Learners) -> tuple[MetaMDP, Network, Array]:
        network, weights = self.network, self.weights
        if network is None or weights is None:
            raise InputError("controller: 'searched' needs a model.")
        if len(network.base) != mdp.space.num_coordinates:
            names = ", ".join(mdp.space.names)
            raise InputError(f"network: it has {len(network.base)} outputs, but the space has {names}.")
        shapes = [(network.num_weights,), (len(learners.theta), network.num_weights)]
        if weights.shape not in shapes:
            raise InputError(f"weights: their shape is {weights.shape}, allowed are {shapes[0]} and {shapes[1]}.")
        places(mdp, network)  # refuses unknown features
        return mdp, network, jnp.asarray(weights, jnp.float32)

    def propose(self, state: tuple[MetaMDP, Network, Array], learners: Learners) -> Array:
        return _proposed(*state, learners)


def places(mdp: MetaMDP, network: Network) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the features to compute, and where among their numbers the network finds its own."""
    known = [name for name in features.names() if set(features.make(name).needs) <= set(mdp.diagnosed)]
    owners = {column: name for name in (*known, *mdp.observation) for column in features.columns(mdp, (name,))}
    for column in network.features:
        if column not in owners:
            raise InputError(f"network: the feature {column!r} is not known where the rule is {mdp.rule.name!r}.")
    wanted = tuple(dict.fromkeys(owners[column] for column in network.features))
    columns = features.columns(mdp, wanted)
    return wanted, np.array([columns.index(column) for column in network.features], np.intp)


@partial(jax.jit, static_argnums=(0, 1))
def _proposed(mdp: MetaMDP, network: Network, weights: Array, learners: Learners) -> Array:
    wanted, where = places(mdp, network)
    num, found = len(learners.theta), features.compute(mdp, wanted, learners)
    # A constant observes nothing.
    seen = jnp.concatenate([jnp.zeros((num, 0), jnp.float32), *(found[name] for name in wanted)], axis=1)[:, where]
    unit = network(network.split(weights), seen, jnp)
    return mdp.space.from_unit(jnp.broadcast_to(unit, (num, len(network.base))))

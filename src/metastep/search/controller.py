"""The controller `searched`: a network maps features to a point of the unit cube, which the space turns into hyperparameters."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import features
from metastep._core.errors import InputError
from metastep._core.provenance import describe, first_difference
from metastep.mdp import ActorCriticMDP, Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, Resources, TaskSource
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import HyperparameterSpace
from metastep.search.model import SearchedModel, places
from metastep.search.network import Network


@dataclass(frozen=True, eq=False)
class Searched(Controller):
    """h = from_unit(network(x)) for features x; a model that was searched for another rule, space or features is an error."""

    network: Network | None = None  # form and constants of the controller, in place of a model
    weights: NDArray[np.float32] | None = None  # (num_weights,), or (learners, num_weights): one for each of a block
    model: SearchedModel | None = None  # None takes the experiment's, unless there is a network
    level: Literal["", "constant", "schedule", "feedback"] = ""  # in place of the experiment's that was selected

    name: ClassVar[str] = "searched"
    is_memoryless: ClassVar[bool] = True
    needs_model: ClassVar[bool] = True

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """Searched on the training tasks; generation and level of a model were selected on the validation tasks."""
        trained = TaskSource("trained", Stream.TRAIN)
        return (trained,) if self.model is None else (trained, TaskSource("selected", Stream.VALIDATION))

    def prepared(self, run: Resources) -> "Searched":
        if self.model is not None or self.network is not None:
            return self
        if not isinstance(model := run.model(self.level), SearchedModel):
            raise InputError("controller: 'searched' follows a searched model, that of the experiment was fitted.")
        return replace(self, model=model)

    def init(self, mdp: MetaMDP, learners: Learners) -> tuple[MetaMDP, Network, Array]:
        network, weights = self.network, self.weights
        if self.model is not None:
            network, weights = model_parts(self.model, mdp)
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


def model_parts(model: SearchedModel, mdp: MetaMDP, place: str = "model") -> tuple[Network, NDArray[np.float32]]:
    """Return the network of a model and its flat weights; refuse a meta-MDP of another rule, space or features."""
    record = model.record
    sizes = {part.name: part.size for part in record.observation}
    known = [name for name in sizes if name.rpartition(":")[2] in features.names()]
    searched = {"features": sizes, "rule.name": record.rule_name, "space": describe(space_in(model, mdp))}
    own = {"features": features.sizes(mdp, known), "rule.name": mdp.rule.name, "space": describe(mdp.space)}
    if found := first_difference(searched, own):
        raise InputError(f"{place}: it was searched for {found[0]} = {found[1]}, but the meta-MDP has {found[2]}.")
    return model.network, np.concatenate([array.ravel() for array in model.weights])


def space_in(model: SearchedModel, mdp: MetaMDP) -> HyperparameterSpace:
    """Return what a model chooses from in the training loop of a meta-MDP."""
    if isinstance(mdp, ActorCriticMDP) and isinstance(mdp.rule, PPO):
        return model.record.space_in(mdp.rule.own_steps(mdp.sampler.batch_size))
    return model.record.space


@partial(jax.jit, static_argnums=(0, 1))
def _proposed(mdp: MetaMDP, network: Network, weights: Array, learners: Learners) -> Array:
    wanted, where = places(mdp, network)
    num, found = len(learners.theta), features.compute(mdp, wanted, learners)
    # A constant observes nothing.
    seen = jnp.concatenate([jnp.zeros((num, 0), jnp.float32), *(found[name] for name in wanted)], axis=1)[:, where]
    unit = network(network.split(weights), seen, jnp)
    return mdp.space.from_unit(jnp.broadcast_to(unit, (num, len(network.base))))

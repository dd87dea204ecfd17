"""Features: what a meta-observation can contain, and the registry that names them.

The same function serves collection, control, the Gymnasium environment and the record of a model.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from metastep.features.base import ANY, Feature
from metastep.features.learner import Context, Gradient, NaturalGradient, Return, ReturnError, Theta, UpdateIndex
from metastep.mdp import Learners, MetaMDP
from metastep.registry import Registry

REGISTRY: Registry[Feature] = Registry("meta.observation")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

for _feature in (Theta, Gradient, NaturalGradient, Context, Return, ReturnError, UpdateIndex):
    register(_feature.name, _feature)


@partial(jax.jit, static_argnums=(0, 1))
def compute(mdp: MetaMDP, wanted: tuple[str, ...], learners: Learners) -> dict[str, Array]:
    """Some features of every learner by name, each (learners, size)."""
    return {name: make(name)(mdp, learners) for name in wanted}


def meta_observation(mdp: MetaMDP, learners: Learners) -> Array:
    """x = <theta, g, omega> or what `mdp.observation` asks for: (learners, features)."""
    found = compute(mdp, mdp.observation, learners)
    return jnp.concatenate([found[name] for name in mdp.observation], axis=1)


def sizes(mdp: MetaMDP, wanted: Sequence[str]) -> dict[str, int]:
    """How many numbers each of some features has."""
    return {name: make(name).size(mdp) for name in wanted}


def columns(mdp: MetaMDP, wanted: Sequence[str]) -> tuple[str, ...]:
    """A name for every number of some features, side by side."""
    return tuple(column for name in wanted for column in make(name).columns(mdp))


__all__ = ["ANY", "Feature", "columns", "compute", "meta_observation", "sizes"]
__all__ += ["REGISTRY", "make", "names", "register"]

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
from metastep.features.update import (
    ChangeInErrors,
    Cosines,
    Curvatures,
    Gains,
    LastCosines,
    LastDivergence,
    LastStep,
    LogNorms,
    RelativeError,
    ReturnChange,
    Slopes,
    Steps,
)
from metastep.mdp import DEFAULT_OBSERVATION, Learners, MetaMDP
from metastep.registry import Registry

REGISTRY: Registry[Feature] = Registry("meta.observation")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_OF_THE_LEARNER = (Theta, Gradient, NaturalGradient, Context, Return, ReturnError, UpdateIndex)
_OF_THE_UPDATE = (Steps, LogNorms, Slopes, Curvatures, Gains, Cosines, LastCosines, LastStep, LastDivergence)
_OF_THE_RETURN = (ReturnChange, ChangeInErrors, RelativeError)
for _feature in (*_OF_THE_LEARNER, *_OF_THE_UPDATE, *_OF_THE_RETURN):
    register(_feature.name, _feature)

SETS = {
    "paper": DEFAULT_OBSERVATION,
    "full": ("theta", "context", "return", "steps", "log_norms"),
    # Neither grows with the policy nor carries a unit.
    "unit-free": (
        "gains",
        "cosines",
        "last_cosines",
        "last_divergence",
        "change_in_errors",
        "relative_error",
        "update",
    ),
}
"""Observations with a name of their own."""


def expanded(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The features that a list names, each once; a set stands for its features."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return tuple(dict.fromkeys(feature for name in names for feature in SETS.get(name, (name,))))


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


__all__ = ["ANY", "SETS", "Feature", "columns", "compute", "expanded", "meta_observation", "sizes"]
__all__ += ["REGISTRY", "make", "names", "register"]

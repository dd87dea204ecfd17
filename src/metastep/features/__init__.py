"""Features: what a meta-observation can contain, and the registry that names them.

The same function serves collection, control, the Gymnasium environment and the record of a model.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep._core.registry import Registry
from metastep.features.base import ANY, Feature
from metastep.features.learner import Context, Gradient, NaturalGradient, Return, ReturnError, Theta, UpdateIndex
from metastep.features.training import (
    Budget,
    ClipFraction,
    EntropyChange,
    ExplainedVariance,
    FirstEntropy,
    LastRate,
    StepCosine,
    StepRatio,
)
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
from metastep.mdp import DEFAULT_OBSERVATION, ActorCriticMDP, Learners, Process

REGISTRY: Registry[Feature] = Registry("meta.observation")
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_OF_THE_LEARNER = (Theta, Gradient, NaturalGradient, Context, Return, ReturnError, UpdateIndex)
_OF_THE_UPDATE = (Steps, LogNorms, Slopes, Curvatures, Gains, Cosines, LastCosines, LastStep, LastDivergence)
_OF_THE_RETURN = (ReturnChange, ChangeInErrors, RelativeError)
_OF_TRAINING = (ClipFraction, EntropyChange, FirstEntropy, ExplainedVariance, StepRatio, StepCosine, LastRate, Budget)
for _feature in (*_OF_THE_LEARNER, *_OF_THE_UPDATE, *_OF_THE_RETURN, *_OF_TRAINING):
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
    # What any loop with an actor and a critic can compute.
    "training": (
        "last_rate",
        "last_divergence",
        "clip_fraction",
        "entropy_change",
        "explained_variance",
        "change_in_errors",
        "relative_error",
        "step_ratio",
        "step_cosine",
        "budget",
        "first_entropy",
    ),
}
"""Observations with a name of their own."""


def expanded(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The features that a list names, each once; a set stands for its features."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return tuple(dict.fromkeys(feature for name in names for feature in SETS.get(name, (name,))))


@partial(jax.jit, static_argnums=(0, 1))
def compute(mdp: Process, wanted: tuple[str, ...], learners: Learners) -> dict[str, Array]:
    """Some features of every learner by name, each (learners, size)."""
    return {name: make(name)(mdp, learners) for name in wanted}


def meta_observation(mdp: Process, learners: Learners) -> Array:
    """x = <theta, g, omega> or what `mdp.observation` asks for: (learners, features)."""
    found = compute(mdp, mdp.observation, learners)
    return jnp.concatenate([found[name] for name in mdp.observation], axis=1)


def require_known(mdp: Process) -> None:
    """Refuse an observation with names that nobody registered, or with features that the meta-MDP does not know."""
    kind = "steps" if isinstance(mdp, ActorCriticMDP) else "episodes"
    for name in mdp.observation:
        if make(name).batches not in ("any", kind):
            known = [other for other in names() if make(other).batches in ("any", kind)]
            raise InputError(
                f"meta.observation: {name!r} is not known where the rule is {mdp.rule.name!r}, allowed are {', '.join(known)}."
            )


def sizes(mdp: Process, wanted: Sequence[str]) -> dict[str, int]:
    """How many numbers each of some features has."""
    return {name: make(name).size(mdp) for name in wanted}


def columns(mdp: Process, wanted: Sequence[str]) -> tuple[str, ...]:
    """A name for every number of some features, side by side."""
    return tuple(column for name in wanted for column in make(name).columns(mdp))


__all__ = ["ANY", "SETS", "Feature", "columns", "compute", "expanded", "meta_observation", "require_known", "sizes"]
__all__ += ["REGISTRY", "make", "names", "register"]

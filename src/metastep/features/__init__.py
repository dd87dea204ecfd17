"""Features: what a meta-observation can contain, and the registry that names them.

Each formula stands once: collection, control, the Gymnasium environment and steppers in other frameworks call the same function.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep.features import formulas as formulas  # which registers them
from metastep.features.diagnostics import ANY, REGISTRY, Feature, Memory, Seen

register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

SETS: dict[str, tuple[str, ...]] = {
    "paper": ("theta", "natural_gradient", "context"),
    "full": ("theta", "context", "return", "steps", "log_norms"),
    # Neither grows with the policy nor has a unit.
    "unit-free": (
        *("gains", "cosines", "last_cosines"),
        *("last_divergence", "change_in_errors", "relative_error", "update"),
    ),
    # What any loop with an actor and a critic can compute.
    "training": (
        *("last_rate", "last_divergence", "clip_fraction", "entropy_change", "explained_variance", "change_in_errors"),
        *("relative_error", "step_ratio", "step_cosine", "budget", "first_entropy"),
    ),
    # More of that: with the set above, what a controller of the whole update observes.
    "progress": (
        *("last_clip_fraction", "relative_step", "gradient_change", "actor_gradient", "target_change"),
        *("smoothed_change", "drop_in_errors", "gradient_steps"),
    ),
}
"""Observations with a name of their own."""


def expanded(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Return the features that a list names, each once; a set stands for its features."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return tuple(dict.fromkeys(feature for name in names for feature in SETS.get(name, (name,))))


def evaluate(feature: Feature, seen: Seen, num_learners: int) -> Array:
    """Return one feature of simulated learners: (learners, size)."""
    found = jnp.asarray(feature(seen))
    return found if found.ndim == 2 else jnp.broadcast_to(found, (num_learners,))[:, None]


@partial(jax.jit, static_argnums=(0, 1))
def compute(mdp: Any, wanted: tuple[str, ...], learners: Any) -> dict[str, Array]:
    """Return some features of every learner by name, each (learners, size)."""
    seen = mdp.diagnostics(learners)
    return {name: evaluate(make(name), seen, len(learners.theta)) for name in wanted}


def meta_observation(mdp: Any, learners: Any) -> Array:
    """Return x = <theta, g, omega>, or what `mdp.observation` names: (learners, features)."""
    found = compute(mdp, mdp.observation, learners)
    return jnp.concatenate([found[name] for name in mdp.observation], axis=1)


def require_known(mdp: Any, place: str = "meta.observation") -> None:
    """Refuse an observation with unregistered names, or with features that the meta-MDP lacks the diagnostics for."""

    def is_known(name: str) -> bool:
        return set(make(name).needs) <= set(mdp.diagnosed)

    for name in mdp.observation:
        if not is_known(name):
            allowed = f"where the rule is {mdp.rule.name!r}, allowed are {', '.join(filter(is_known, names()))}"
            raise InputError(f"{place}: {name!r} is not known {allowed}.")


def sizes(mdp: Any, wanted: Sequence[str]) -> dict[str, int]:
    """Return how many numbers each of some features has."""
    return {name: make(name).size(mdp) for name in wanted}


def columns(mdp: Any, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return a name for every number of some features, side by side."""
    return tuple(column for name in wanted for column in make(name).columns(mdp))


__all__ = ["ANY", "REGISTRY", "SETS", "Feature", "Memory", "Seen", "columns", "compute", "evaluate", "expanded"]
__all__ += ["make", "meta_observation", "names", "register", "require_known", "sizes"]

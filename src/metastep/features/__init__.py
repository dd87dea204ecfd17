"""Features of meta-observations and their registry; collection, control, Gymnasium and steppers call the same functions."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep.features import formulas as formulas  # registers the features
from metastep.features.diagnostics import ANY, REGISTRY, Feature, Memory, Seen

register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

_SETS = {
    "paper": "theta natural_gradient context",
    "full": "theta context return steps log_norms",
    # Features without a unit, whose number does not depend on the policy's size.
    "unit-free": "gains cosines last_cosines last_divergence change_in_errors relative_error update",
    # Diagnostics of any training loop with an actor and a critic.
    "training": "last_rate last_divergence clip_fraction entropy_change explained_variance change_in_errors "
    "relative_error step_ratio step_cosine budget first_entropy",
    # Further diagnostics: a controller of the whole update observes both sets.
    "progress": "last_clip_fraction relative_step gradient_change actor_gradient target_change smoothed_change "
    "drop_in_errors gradient_steps",
}
SETS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _SETS.items()}
"""Named sets of features."""


def expanded(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """Return the features in a list of features and sets, each once."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return tuple(dict.fromkeys(feature for name in names for feature in SETS.get(name, (name,))))


def evaluate(feature: Feature, seen: Seen, num_learners: int) -> Array:
    """Return one feature of simulated learners: (learners, size)."""
    values = jnp.asarray(feature(seen))
    return values if values.ndim == 2 else jnp.broadcast_to(values, (num_learners,))[:, None]


@partial(jax.jit, static_argnums=(0, 1))
def compute(mdp: Any, wanted: tuple[str, ...], learners: Any) -> dict[str, Array]:
    """Return some features of every learner by name, each (learners, size)."""
    seen = mdp.diagnostics(learners)
    return {name: evaluate(make(name), seen, len(learners.theta)) for name in wanted}


def meta_observation(mdp: Any, learners: Any) -> Array:
    """Return the features that `mdp.observation` names, in the paper x = <theta, g, omega>: (learners, columns)."""
    by_name = compute(mdp, mdp.observation, learners)
    return jnp.concatenate([by_name[name] for name in mdp.observation], axis=1)


def require_known(mdp: Any, place: str = "meta.observation") -> None:
    """Raise an error if a feature of the observation is not registered, or the meta-MDP lacks its diagnostics."""

    def is_known(name: str) -> bool:
        return set(make(name).needs) <= set(mdp.diagnosed)

    for name in mdp.observation:
        if not is_known(name):
            allowed = f"where the rule is {mdp.rule.name!r}, allowed are {', '.join(filter(is_known, names()))}"
            raise InputError(f"{place}: {name!r} is not known {allowed}.")


def sizes(mdp: Any, wanted: Sequence[str]) -> dict[str, int]:
    """Return the number of columns of each feature."""
    return {name: make(name).size(mdp) for name in wanted}


def columns(mdp: Any, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return a name for every column of some features, concatenated."""
    return tuple(column for name in wanted for column in make(name).columns(mdp))


__all__ = ["ANY", "REGISTRY", "SETS", "Feature", "Memory", "Seen", "columns", "compute", "evaluate", "expanded"]
__all__ += ["make", "meta_observation", "names", "register", "require_known", "sizes"]

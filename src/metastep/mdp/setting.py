"""What a model is fitted for, and may be used for: everything that changes what its numbers mean."""

import dataclasses
from typing import Any

from metastep import features
from metastep._core.provenance import describe
from metastep.mdp import Process


def setting_of(mdp: Process) -> dict[str, Any]:
    """The facts of a meta-MDP that a model must share, as JSON holds them.

    Left out is what only changes how much is known, like the tasks at hand.
    """
    observed: dict[str, Any] = describe(features.sizes(mdp, mdp.observation))
    return {
        "env": mdp.env.name,
        "env_options": _options(mdp.env),
        "policy": describe(mdp.policy),
        "rule": {"name": mdp.rule.name, **describe(mdp.rule)},
        "observation": [[name, size] for name, size in observed.items()],
        # The rule, which is described as well, says what a menu's categories are.
        "space": {name: value for name, value in describe(mdp.space).items() if name not in ("category", "numbers")},
        **mdp.facts,
    }


def _options(env: Any) -> dict[str, Any]:
    """The fields of an environment that make it another one: neither its range of tasks nor how its physics are computed."""
    fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
    shaping = (entry.name for entry in fields if entry.compare and not entry.metadata and entry.name != "context_space")
    return {name: describe(getattr(env, name)) for name in shaping}

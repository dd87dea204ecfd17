"""What a model is fitted for, and may be used for: everything that changes what its numbers mean."""

import dataclasses
from typing import Any

from metastep import features
from metastep.mdp import MetaMDP
from metastep.provenance import describe


def setting_of(mdp: MetaMDP) -> dict[str, Any]:
    """The facts of a meta-MDP that a model must share, as JSON holds them.

    Left out is what only changes how much is known: the number of episodes, their length, the tasks at hand.
    """
    rollout, solver = mdp.estimator.rollout, mdp.estimator
    # Named only where it is not the usual one, so that models of before are still taken.
    is_usual = solver.solver != "truncated" and solver.damping_kind == "relative"
    natural = {} if is_usual else {"natural_gradient": [solver.solver, solver.damping_kind, solver.cg_iterations]}
    observed: dict[str, Any] = describe(features.sizes(mdp, mdp.observation))
    return {
        "env": rollout.env.name,
        "env_options": _options(rollout.env),
        "policy": describe(rollout.policy),
        "rule": {"name": mdp.rule.name, **describe(mdp.rule)},
        "damping": describe(mdp.estimator.damping),
        "discount": rollout.discount,
        "baseline": rollout.baseline,
        "observation": [[name, size] for name, size in observed.items()],
        "space": describe(mdp.space),
        **natural,
    }


def _options(env: Any) -> dict[str, Any]:
    """The fields of an environment that make it another one: neither its range of tasks nor how its physics are computed."""
    fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
    shaping = (entry.name for entry in fields if entry.compare and not entry.metadata and entry.name != "context_space")
    return {name: describe(getattr(env, name)) for name in shaping}

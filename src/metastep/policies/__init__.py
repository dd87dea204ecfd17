"""Policies and the registry that names them: `make(name, num_observations, num_actions, **options)`."""

from collections.abc import Mapping
from typing import Any

from metastep._core.settings import Registry
from metastep.envs.base import TaskFamily, choices_of
from metastep.policies.actor_critic import ActorCritic
from metastep.policies.gaussian import Arrays, LinearGaussian, MLPGaussian, Policy, flatten

_GIVEN = ("num_observations", "num_actions", "num_choices")  # by the environment, so they are no options
REGISTRY: Registry[Policy | ActorCritic] = Registry("policy.name", "policy", hidden=_GIVEN)
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

register("linear", LinearGaussian)
register("mlp", MLPGaussian)
register("actor-critic", ActorCritic, label="actor and critic")


def build(name: str, options: Mapping[str, Any], env: TaskFamily) -> Policy | ActorCritic:
    """Build a registered policy for an environment; those that take `num_choices` learn whether actions are discrete."""
    sizes: tuple[Any, ...] = (env.num_observations, env.num_actions)
    if "num_choices" in REGISTRY.parameters(name):
        sizes += (choices_of(env),)
    return REGISTRY.build(name, options, given=sizes)


__all__ = ["REGISTRY", "ActorCritic", "Arrays", "LinearGaussian", "MLPGaussian", "Policy"]
__all__ += ["build", "flatten", "make", "names", "register"]

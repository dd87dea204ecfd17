"""Policies, one in each file, and the registry that names them: `make(name, num_observations, num_actions, **options)`."""

from metastep.policies.base import Pieces, Policy, flatten
from metastep.policies.linear import LinearGaussian
from metastep.policies.network import MLPGaussian
from metastep.registry import Registry

REGISTRY: Registry[Policy] = Registry("policy.name", "policy", hidden=("num_observations", "num_actions"))
register, names, make = REGISTRY.register, REGISTRY.names, REGISTRY.make

register("linear", LinearGaussian)
register("mlp", MLPGaussian)

__all__ = ["REGISTRY", "LinearGaussian", "MLPGaussian", "Pieces", "Policy", "flatten", "make", "names", "register"]

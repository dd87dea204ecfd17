"""The distribution of initial policies."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep._core.settings import Float, check_fields
from metastep.policies import ActorCritic, Policy

PerParameter = tuple[Float, ...]

_NEEDS: dict[str, tuple[str, ...]] = {"normal": ("mean", "variance"), "uniform": ("low", "high"), "orthogonal": ()}


@dataclass(frozen=True)
class InitialPolicy:
    """The distribution rho of theta_0: every parameter independent, in theta's order, (b, W) for a linear policy.

    Args:
        kind: the form of the distribution; "orthogonal" is the usual one of actor-critic networks, and takes no numbers.
        mean: means of the normal, one for all parameters or one for each.
        variance: variances of the normal, one for all or one for each.
        low: lower bounds of the uniform, one for all or one for each.
        high: upper bounds of the uniform, one for all or one for each.
    """

    kind: Literal["normal", "uniform", "orthogonal"] = "normal"
    mean: PerParameter | None = None
    variance: PerParameter | None = None
    low: PerParameter | None = None
    high: PerParameter | None = None

    def __post_init__(self) -> None:
        check_fields(self, "initial")
        for name in ("mean", "variance", "low", "high"):
            value = getattr(self, name)
            if (value is not None) != (name in _NEEDS[self.kind]):
                must = "be set" if value is None else "not be set"
                raise InputError(f"initial.{name}: {_listed(value)} must {must} where kind is {self.kind!r}.")
        if self.kind == "orthogonal":
            return
        first, second = self._numbers
        if not first or not second or (1 not in (len(first), len(second)) and len(first) != len(second)):
            one, other = _NEEDS[self.kind]
            raise InputError(f"initial.{other}: {_listed(second)} must have one number, or as many as {one}.")
        if self.kind == "normal" and min(second) < 0.0:
            raise InputError(f"initial.variance: {_listed(second)} must not be negative.")
        if self.kind == "uniform" and bool(np.any(np.asarray(first) > np.asarray(second))):
            raise InputError(f"initial.low: {_listed(first)} must not exceed high, which is {_listed(second)}.")

    @property
    def _numbers(self) -> tuple[PerParameter, PerParameter]:
        first, second = (getattr(self, name) for name in _NEEDS[self.kind])
        return first, second

    def require_for(self, policy: Policy | ActorCritic) -> None:
        """Refuse a distribution that does not suit a policy."""
        if self.kind == "orthogonal" and not isinstance(policy, ActorCritic):
            raise InputError(
                f"initial.kind: 'orthogonal' is for policies with an actor and a critic, {type(policy).__name__} is not one."
            )
        for name in _NEEDS[self.kind]:
            values, num = getattr(self, name), policy.num_parameters
            if len(values) not in (1, num):
                raise InputError(
                    f"initial.{name}: {_listed(values)} must hold one number, or one for each of the {num} parameters."
                )

    def sample(self, key: Array, num: int, policy: Policy | ActorCritic) -> Array:
        """Draw (num, parameters)."""
        self.require_for(policy)
        if isinstance(policy, ActorCritic) and self.kind == "orthogonal":
            return policy.initial(key, num)
        num_parameters = policy.num_parameters
        first, second = (jnp.asarray(values, jnp.float32) for values in self._numbers)
        if self.kind == "normal":
            return first + jnp.sqrt(second) * jax.random.normal(key, (num, num_parameters), jnp.float32)
        return first + (second - first) * jax.random.uniform(key, (num, num_parameters), jnp.float32)


def _listed(values: PerParameter | None) -> str:
    return str(None if values is None else list(values))

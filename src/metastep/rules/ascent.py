"""Steps along a gradient: the paper's natural gradient of unit length, and the plain one."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep.rules.base import GradientRule, Rule, Update, guard
from metastep.rules.spaces import Values
from metastep.simulation.gradients import DAMPING, Estimate


def _step(theta: Array, direction: Array, stepsize: Array, normalised: bool) -> Update:
    if normalised:
        # Divide by the largest entry first: squares of large or small float32 numbers leave its range.
        largest = jnp.max(jnp.abs(direction), axis=-1, keepdims=True)
        # XLA multiplies by the reciprocal, which is zero for the very largest: the guard sees what is left.
        direction = direction / jnp.where(largest > 0.0, largest, 1.0)
        norm = jnp.sqrt(jnp.sum(direction * direction, axis=-1, keepdims=True))
        moved = theta + stepsize * (direction / jnp.where(norm > 0.0, norm, 1.0))
    else:
        moved = theta + stepsize * direction
    return guard(theta, moved, direction)


@dataclass(frozen=True)
class NGA(Rule):
    """theta' = theta + h g / ||g||_2, g the natural gradient.

    Args:
        damping: added to the Fisher matrix's diagonal, as a share of the mean of that diagonal unless rollout.damping_kind
            says otherwise. It decides how far directions that hardly vary in the batch (a cart that has not moved yet) are
            stretched: too little, and their noise is.
    """

    damping: float = DAMPING

    name: ClassVar[str] = "nga"
    is_along_a_line: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 < self.damping < 1.0:
            raise InputError(f"meta.rule.damping: {self.damping} must lie in (0, 1).")

    def direction(self, estimate: Estimate) -> Array:
        return estimate.natural_gradient

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: None) -> Update:
        return _step(theta, estimate.natural_gradient, values["stepsize"][:, None], normalised=True)


@dataclass(frozen=True)
class GradientAscent(GradientRule):
    """theta' = theta + h g, g the plain gradient.

    Args:
        normalised: whether g is brought to unit length first.
    """

    normalised: bool = False

    name: ClassVar[str] = "gradient"

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: None) -> Update:
        return _step(theta, estimate.gradient, values["stepsize"][:, None], self.normalised)

"""Rules that follow a gradient: the paper's natural gradient of unit length, gradient ascent, RMSprop and Adam."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import optax
from annotated_types import Gt, Lt
from jax import Array

from metastep.rules.base import Rule, Update, guard
from metastep.rules.spaces import Values
from metastep.simulation.gradients import DAMPING, Estimate

Followed = Literal["gradient", "natural_gradient"]


class GradientRule(Rule):
    """theta' = theta + h g, g the plain or the natural gradient, perhaps brought to unit length."""

    is_along_a_line: ClassVar[bool] = True
    follows: Followed = "gradient"
    normalised: bool = False

    def direction(self, estimate: Estimate) -> Array:
        return estimate.gradient if self.follows == "gradient" else estimate.natural_gradient

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: Any) -> Update:
        direction, stepsize = self.direction(estimate), values["stepsize"][:, None]
        if not self.normalised:
            return guard(theta, theta + stepsize * direction, direction)
        # Divide by the largest entry first: squares of large or small float32 numbers leave its range.
        largest = jnp.max(jnp.abs(direction), axis=-1, keepdims=True)
        # XLA multiplies by the reciprocal, which is zero for the very largest: the guard sees what is left.
        direction = direction / jnp.where(largest > 0.0, largest, 1.0)
        norm = jnp.sqrt(jnp.sum(direction * direction, axis=-1, keepdims=True))
        return guard(theta, theta + stepsize * (direction / jnp.where(norm > 0.0, norm, 1.0)), direction)


@dataclass(frozen=True)
class NGA(GradientRule):
    """theta' = theta + h g / ||g||_2, g the natural gradient.

    Args:
        damping: added to the Fisher matrix's diagonal, as a share of the mean of that diagonal unless rollout.damping_kind
            says otherwise. It limits how far directions that hardly vary in the batch (a cart that has not moved yet) are
            stretched: with too little damping the step follows their noise.
    """

    damping: Annotated[float, Gt(0.0), Lt(1.0)] = DAMPING

    name: ClassVar[str] = "nga"
    follows = "natural_gradient"
    normalised = True


@dataclass(frozen=True)
class GradientAscent(GradientRule):
    """theta' = theta + h g, g the plain gradient.

    Args:
        normalised: whether g is brought to unit length first.
    """

    normalised: bool = False

    name: ClassVar[str] = "gradient"


@dataclass(frozen=True)
class RMSProp(GradientRule):
    """RMSprop on the plain gradient: `theta += h g / sqrt(v + eps)`; Keras' formula, and optax's with `eps_in_sqrt`.

    Args:
        decay: of the running mean of the squared gradient.
        epsilon: added to that mean.
        follows: which g; the paper found the natural gradient to serve poorly here and took the plain one.
    """

    decay: float = 0.9
    epsilon: float = 1e-7
    follows: Followed = "gradient"

    name: ClassVar[str] = "rmsprop"

    def init(self, theta: Array) -> optax.ScaleByRmsState:
        return optax.ScaleByRmsState(jnp.zeros_like(theta))

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: optax.ScaleByRmsState) -> Update:
        scaling = optax.scale_by_rms(decay=self.decay, eps=self.epsilon, eps_in_sqrt=True)
        gradient = self.direction(estimate)
        direction, after = scaling.update(gradient, state)
        moved = theta + values["stepsize"][:, None] * direction
        return guard(theta, moved, gradient, state, after)


class AdamState(NamedTuple):
    """Running moments of the gradient and the number of updates made."""

    first: Array  # (learners, parameters)
    second: Array  # (learners, parameters)
    updates: Array  # (learners,)


@dataclass(frozen=True)
class Adam(GradientRule):
    """Adam on the plain gradient, with Keras' formula.

    `theta += h sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps)`. optax corrects v's bias before adding eps, Keras after: the
    two differ by a factor sqrt(1 - b2^t) on eps, so optax's Adam cannot serve here.

    Args:
        first_decay, second_decay: of the running moments of the gradient.
        epsilon: added to the root of the second moment.
        follows: as of `RMSProp`.
    """

    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-7
    follows: Followed = "gradient"

    name: ClassVar[str] = "adam"

    def init(self, theta: Array) -> AdamState:
        return AdamState(jnp.zeros_like(theta), jnp.zeros_like(theta), jnp.zeros(theta.shape[:1], jnp.float32))

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: AdamState) -> Update:
        gradient = self.direction(estimate)
        first = self.first_decay * state.first + (1.0 - self.first_decay) * gradient
        second = self.second_decay * state.second + (1.0 - self.second_decay) * gradient**2
        count = state.updates + 1.0
        correction = jnp.sqrt(1.0 - self.second_decay**count) / (1.0 - self.first_decay**count)
        moved = theta + values["stepsize"][:, None] * correction[:, None] * first / (jnp.sqrt(second) + self.epsilon)
        return guard(theta, moved, gradient, state, AdamState(first, second, count))

"""Adam on the plain gradient, or on the natural one."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.rules.base import Followed, GradientRule, Update, guard
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate


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
        follows: which gradient; the paper found the natural one to serve poorly here and took the plain one.
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

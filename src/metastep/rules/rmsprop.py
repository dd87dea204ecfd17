"""RMSprop on the plain gradient, or on the natural one."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from metastep.rules.base import Followed, GradientRule, Update, guard
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate


class RMSPropState(NamedTuple):
    """The running mean of the squared gradient."""

    square: Array  # (learners, parameters)


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

    def init(self, theta: Array) -> RMSPropState:
        return RMSPropState(jnp.zeros_like(theta))

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: RMSPropState) -> Update:
        scaling = optax.scale_by_rms(decay=self.decay, eps=self.epsilon, eps_in_sqrt=True)
        gradient = self.direction(estimate)
        direction, after = scaling.update(gradient, optax.ScaleByRmsState(nu=state.square))
        moved = theta + values["stepsize"][:, None] * direction
        return guard(theta, moved, gradient, state, RMSPropState(after.nu))

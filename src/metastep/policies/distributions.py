"""What a network's outputs say about the next action: a normal distribution, or one over choices.

Written for any leading axes; the last one holds the numbers of an action, or the choices.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.noise import to_uniform

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Normal(NamedTuple):
    """Numbers that are independent of each other, with standard deviations that no state changes."""

    mean: Array  # (..., actions)
    log_std: Array  # (actions,)

    def sample(self, normals: Array) -> Array:
        """Actions (..., actions) from as many standard normals."""
        return self.mean + jnp.exp(self.log_std) * normals

    def log_density(self, action: Array) -> Array:
        """log pi(action): (...,)."""
        standard = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * standard**2 - self.log_std - _LOG_ROOT_TWO_PI, axis=-1)

    def entropy(self) -> Array:
        """In nats: (...,)."""
        return jnp.broadcast_to(jnp.sum(self.log_std + 0.5 + _LOG_ROOT_TWO_PI), self.mean.shape[:-1])

    def divergence(self, other: Any) -> Array:
        """KL(self, other), the other of the same kind: (...,)."""
        shift = (self.mean - other.mean) * jnp.exp(-other.log_std)
        ratio = self.log_std - other.log_std
        return jnp.sum(0.5 * (jnp.exp(2.0 * ratio) + shift**2 - 1.0) - ratio, axis=-1)


class Categorical(NamedTuple):
    """One of several choices; an action is its position, in an axis of length 1."""

    logits: Array  # (..., choices)

    @property
    def _log_shares(self) -> Array:
        return jax.nn.log_softmax(self.logits, axis=-1)

    def sample(self, normals: Array) -> Array:
        """A uniform number, which the normal gives, falls into one of the shares."""
        bounds = jnp.cumsum(jnp.exp(self._log_shares), axis=-1)[..., :-1]
        return jnp.sum(to_uniform(normals, 0.0, 1.0) > bounds, axis=-1, keepdims=True, dtype=jnp.int32)

    def log_density(self, action: Array) -> Array:
        """log pi(action): (...,)."""
        # A comparison rather than an index: its derivative needs no scatter, and there are few choices.
        chosen = action == jnp.arange(self.logits.shape[-1], dtype=jnp.int32)
        return jnp.sum(jnp.where(chosen, self._log_shares, 0.0), axis=-1)

    def entropy(self) -> Array:
        """In nats: (...,)."""
        log_shares = self._log_shares
        return -jnp.sum(jnp.exp(log_shares) * log_shares, axis=-1)

    def divergence(self, other: Any) -> Array:
        """KL(self, other), the other of the same kind: (...,)."""
        log_shares = self._log_shares
        return jnp.sum(jnp.exp(log_shares) * (log_shares - other._log_shares), axis=-1)


Distribution = Normal | Categorical

"""Distributions of the next action: normal, or over choices.

Written for any leading axes; the last one holds the numbers of an action, or the choices.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.numerics import to_uniform

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Normal(NamedTuple):
    """Independent normal numbers, with standard deviations that are the same in all states."""

    mean: Array  # (..., actions)
    log_std: Array  # (actions,)

    def sample(self, normals: Array) -> Array:
        """Draw actions (..., actions) from as many standard normals."""
        return self.mean + jnp.exp(self.log_std) * normals

    def log_density(self, action: Array) -> Array:
        """Return log pi(action): (...,)."""
        standard = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * standard**2 - self.log_std - _LOG_ROOT_TWO_PI, axis=-1)

    def entropy(self) -> Array:
        """Return the entropy in nats: (...,)."""
        return jnp.broadcast_to(jnp.sum(self.log_std + 0.5 + _LOG_ROOT_TWO_PI), self.mean.shape[:-1])

    def divergence(self, other: Any) -> Array:
        """Return KL(self, other), the other of the same kind: (...,)."""
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
        """Draw choices (..., 1): a uniform number, from the normal, falls into one of the shares."""
        bounds = jnp.cumsum(jnp.exp(self._log_shares), axis=-1)[..., :-1]
        return jnp.sum(to_uniform(normals, 0.0, 1.0) > bounds, axis=-1, keepdims=True, dtype=jnp.int32)

    def log_density(self, action: Array) -> Array:
        """Return log pi(action): (...,)."""
        # A comparison rather than an index: its derivative needs no scatter, and there are few choices.
        chosen = action == jnp.arange(self.logits.shape[-1], dtype=jnp.int32)
        return jnp.sum(jnp.where(chosen, self._log_shares, 0.0), axis=-1)

    def entropy(self) -> Array:
        """Return the entropy in nats: (...,)."""
        log_shares = self._log_shares
        return -jnp.sum(jnp.exp(log_shares) * log_shares, axis=-1)

    def divergence(self, other: Any) -> Array:
        """Return KL(self, other), the other of the same kind: (...,)."""
        log_shares = self._log_shares
        return jnp.sum(jnp.exp(log_shares) * (log_shares - other._log_shares), axis=-1)


Distribution = Normal | Categorical

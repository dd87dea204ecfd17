"""What a policy is: actions drawn around a mean with a fixed standard deviation; `theta` is a flat vector.

Batched layout: `theta` is (parameters, learners); every observation coordinate is (episodes, learners). A score, the
derivative of log pi with respect to theta, is a tuple of arrays of shape (..., episodes, learners) that `flatten` brings into
theta's order once the episodes are summed out; keeping the pieces apart spares a copy in every step.
"""

from typing import Protocol

import jax.numpy as jnp
from jax import Array

Pieces = tuple[Array, ...]


class Policy(Protocol):
    """a ~ N(mean(theta, s), sigma^2 I)."""

    @property
    def num_observations(self) -> int:
        """Numbers the policy sees."""

    @property
    def num_actions(self) -> int:
        """Numbers it chooses."""

    @property
    def num_parameters(self) -> int:
        """Length of theta."""

    @property
    def sigma(self) -> float:
        """Standard deviation of every action coordinate."""

    @property
    def is_linear(self) -> bool:
        """Whether the mean is b + W s, so that the Fisher matrix has its closed form."""

    def mean(self, theta: Array, observation: Pieces) -> Pieces:
        """The mean action: `num_actions` arrays of shape (episodes, learners)."""

    def score(self, theta: Array, observation: Pieces, noise: Pieces) -> Pieces:
        """d log pi / d theta at the action `mean + sigma * noise`, in pieces."""


def flatten(pieces: Pieces) -> Array:
    """Pieces of shape (..., learners) as one (parameters, learners) array in theta's order."""
    return jnp.concatenate([piece.reshape(-1, piece.shape[-1]) for piece in pieces])

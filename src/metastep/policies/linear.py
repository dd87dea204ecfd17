"""The paper's policy: a mean that is linear in the observation."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Count, Positive, check_fields
from metastep.policies.base import Pieces

# Up to here the score is one array for each parameter: fastest for a few, but many take the compiler half a minute.
_FEW_PARAMETERS = 32


@dataclass(frozen=True)
class LinearGaussian:
    """mean = b + W s; theta = (b, W) with W row by row.

    Args:
        num_observations, num_actions: how many numbers the policy sees, and chooses.
        sigma: standard deviation of the actions, fixed.
    """

    num_observations: Count
    num_actions: Count
    sigma: Positive

    is_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, "policy")

    @property
    def num_parameters(self) -> int:
        return self.num_actions * (1 + self.num_observations)

    def mean(self, theta: Array, observation: Pieces) -> Pieces:
        """Written out term by term: a matrix product over the small axis would not vectorise over learners."""
        means = []
        for action in range(self.num_actions):
            mean = theta[action]
            for index, value in enumerate(observation):
                mean = mean + theta[self.num_actions + action * self.num_observations + index] * value
            means.append(mean)
        return tuple(means)

    def score(self, theta: Array, observation: Pieces, noise: Pieces) -> Pieces:
        """d log pi / d b_i = z_i / sigma, d log pi / d W_ij = z_i s_j / sigma."""
        if self.num_parameters > _FEW_PARAMETERS:
            stacked = jnp.stack(noise) / self.sigma
            return stacked, stacked[:, None] * jnp.stack(observation)
        biases = [normal / self.sigma for normal in noise]
        return (*biases, *(bias * value for bias in biases for value in observation))

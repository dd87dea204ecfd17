"""Gaussian policies: actions drawn around a mean with a fixed standard deviation; `theta` is a flat vector.

Batched layout: `theta` is (parameters, learners); every observation coordinate is (episodes, learners). A score, the
derivative of log pi with respect to theta, is a tuple of arrays of shape (..., episodes, learners) that `flatten` brings into
theta's order once the episodes are summed out; keeping the arrays apart spares a copy in every step.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Count, Layers, Positive, check_fields

Arrays = tuple[Array, ...]

# Up to here the score of a linear policy is one array for each parameter: fastest, but many compile for half a minute.
_FEW_PARAMETERS = 32


@dataclass(frozen=True)
class Policy(ABC):
    """a ~ N(mean(theta, s), sigma^2 I). A policy of your own inherits from this, or has the same members."""

    num_observations: Count  # numbers the policy sees
    num_actions: Count  # numbers it chooses
    sigma: Positive  # standard deviation of every action coordinate

    is_linear: ClassVar[bool] = False  # whether the mean is b + W s, so that the Fisher matrix has its closed form

    def __post_init__(self) -> None:
        check_fields(self, "policy")

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """Length of theta."""

    @abstractmethod
    def mean(self, theta: Array, observation: Arrays) -> Arrays:
        """The mean action: `num_actions` arrays of shape (episodes, learners)."""

    @abstractmethod
    def score(self, theta: Array, observation: Arrays, noise: Arrays) -> Arrays:
        """d log pi / d theta at the action `mean + sigma * noise`, in pieces."""


def flatten(pieces: Arrays) -> Array:
    """Arrays of shape (..., learners) as one (parameters, learners) array in theta's order."""
    return jnp.concatenate([piece.reshape(-1, piece.shape[-1]) for piece in pieces])


@dataclass(frozen=True)
class LinearGaussian(Policy):
    """The paper's policy: mean = b + W s; theta = (b, W) with W row by row.

    Args:
        sigma: standard deviation of the actions, fixed.
    """

    is_linear: ClassVar[bool] = True

    @property
    def num_parameters(self) -> int:
        return self.num_actions * (1 + self.num_observations)

    def mean(self, theta: Array, observation: Arrays) -> Arrays:
        """Written out term by term: a matrix product over the small axis would not vectorise over learners."""
        means = []
        for action in range(self.num_actions):
            mean = theta[action]
            for index, value in enumerate(observation):
                mean = mean + theta[self.num_actions + action * self.num_observations + index] * value
            means.append(mean)
        return tuple(means)

    def score(self, theta: Array, observation: Arrays, noise: Arrays) -> Arrays:
        """d log pi / d b_i = z_i / sigma, d log pi / d W_ij = z_i s_j / sigma."""
        if self.num_parameters > _FEW_PARAMETERS:
            stacked = jnp.stack(noise) / self.sigma
            return stacked, stacked[:, None] * jnp.stack(observation)
        biases = [normal / self.sigma for normal in noise]
        return (*biases, *(bias * value for bias in biases for value in observation))


@dataclass(frozen=True)
class MLPGaussian(Policy):
    """A tanh network; theta = (W_1, b_1, W_2, b_2, ...), each W row by row (outputs first).

    Args:
        sigma: standard deviation of the actions, fixed.
        hidden: sizes of the hidden layers.
    """

    hidden: Layers = (16,)

    @cached_property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise((self.num_observations, *self.hidden, self.num_actions)))

    @property
    def num_parameters(self) -> int:
        return sum(outputs * (inputs + 1) for inputs, outputs in self._layers)

    def _unflatten(self, theta: Array) -> list[tuple[Array, Array]]:
        layers, start = [], 0
        for inputs, outputs in self._layers:
            middle = start + outputs * inputs
            layers.append((theta[start:middle].reshape(outputs, inputs, -1), theta[middle : middle + outputs]))
            start = middle + outputs
        return layers

    def _activations(self, layers: list[tuple[Array, Array]], observation: Arrays) -> list[Array]:
        """Inputs of every layer, then the output; each (units, episodes, learners)."""
        values = [jnp.stack(observation)]
        for index, (weights, bias) in enumerate(layers):
            terms = (weights[:, unit, None, :] * values[-1][unit] for unit in range(weights.shape[1]))
            total = bias[:, None, :] + sum(terms)
            values.append(total if index + 1 == len(layers) else jnp.tanh(total))
        return values

    def mean(self, theta: Array, observation: Arrays) -> Arrays:
        return tuple(self._activations(self._unflatten(theta), observation)[-1])

    def score(self, theta: Array, observation: Arrays, noise: Arrays) -> Arrays:
        """Back-propagation of z / sigma, one outer product for each layer."""
        layers, pieces = self._unflatten(theta), list[Array]()
        values, error = self._activations(layers, observation), jnp.stack(noise) / self.sigma
        for index in reversed(range(len(layers))):
            pieces = [error[:, None] * values[index][None], error, *pieces]
            if index:
                weights = layers[index][0]
                back = sum(weights[unit, :, None, :] * error[unit] for unit in range(weights.shape[0]))
                error = back * (1.0 - values[index] ** 2)
        return tuple(pieces)

"""A tanh network as the mean of a Gaussian policy."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Count, Layers, Positive, check_fields
from metastep.policies.base import Pieces


@dataclass(frozen=True)
class MLPGaussian:
    """A tanh network; theta = (W_1, b_1, W_2, b_2, ...), each W row by row (outputs first).

    Args:
        num_observations, num_actions, sigma: as of `LinearGaussian`.
        hidden: sizes of the hidden layers.
    """

    num_observations: Count
    num_actions: Count
    sigma: Positive
    hidden: Layers = (16,)

    is_linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, "policy")

    @cached_property
    def _layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(pairwise((self.num_observations, *self.hidden, self.num_actions)))

    @property
    def num_parameters(self) -> int:
        return sum(outputs * (inputs + 1) for inputs, outputs in self._layers)

    def _unflatten(self, theta: Array) -> list[tuple[Array, Array]]:
        layers, start = [], 0
        for inputs, outputs in self._layers:
            weights = theta[start : start + outputs * inputs].reshape(outputs, inputs, -1)
            start += outputs * inputs
            layers.append((weights, theta[start : start + outputs]))
            start += outputs
        return layers

    def _activations(self, layers: list[tuple[Array, Array]], observation: Pieces) -> list[Array]:
        """Inputs of every layer, then the output; each (units, episodes, learners)."""
        values = [jnp.stack(observation)]
        for index, (weights, bias) in enumerate(layers):
            total = bias[:, None, :] + sum(
                weights[:, unit, None, :] * values[-1][unit] for unit in range(weights.shape[1])
            )
            values.append(total if index + 1 == len(layers) else jnp.tanh(total))
        return values

    def mean(self, theta: Array, observation: Pieces) -> Pieces:
        return tuple(self._activations(self._unflatten(theta), observation)[-1])

    def score(self, theta: Array, observation: Pieces, noise: Pieces) -> Pieces:
        """Back-propagation of z / sigma, one outer product for each layer."""
        layers = self._unflatten(theta)
        values = self._activations(layers, observation)
        error = jnp.stack(noise) / self.sigma
        pieces: list[Array] = []
        for index in reversed(range(len(layers))):
            pieces = [error[:, None] * values[index][None], error, *pieces]
            if index:
                weights = layers[index][0]
                back = sum(weights[unit, :, None, :] * error[unit] for unit in range(weights.shape[0]))
                error = back * (1.0 - values[index] ** 2)
        return tuple(pieces)

"""Hyperparameter spaces: the actions of the meta-MDP."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.errors import InputError

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class HyperparameterSpace:
    """A box whose coordinates have a linear or a logarithmic scale; the paper's experiments have one linear step size.

    Args:
        low, high: bounds; a logarithmic coordinate needs a positive lower one.
        scales: how a coordinate is sampled and gridded.
        names: as the update rule calls them.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    scales: tuple[Scale, ...] = ("linear",)
    names: tuple[str, ...] = ("stepsize",)

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.scales) == len(self.names):
            raise InputError(
                "HyperparameterSpace: low, high, scales and names must have one entry for each coordinate."
            )
        for name, low, high, scale in zip(self.names, self.low, self.high, self.scales, strict=True):
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise InputError(f"meta.{name}_low: {low} must lie below {name}_high = {high}, and both be finite.")
            if scale not in ("linear", "log"):
                raise InputError(f"{name}: the scale {scale!r} must be linear or log.")
            if scale == "log" and low <= 0.0:
                raise InputError(f"meta.{name}_low: {low} must be positive on a log scale.")

    @property
    def num_coordinates(self) -> int:
        """How many numbers a controller proposes for an update."""
        return len(self.names)

    def from_unit(self, unit: Array) -> Array:
        """Map (..., coordinates) in [0, 1] onto the box, along each coordinate's scale."""
        columns = []
        for index, (low, high, scale) in enumerate(zip(self.low, self.high, self.scales, strict=True)):
            share = unit[..., index]
            if scale == "linear":
                columns.append(low + (high - low) * share)
            else:
                columns.append(jnp.exp(np.log(low) + (np.log(high) - np.log(low)) * share))
        return self.clip(jnp.stack(columns, axis=-1))

    def sample(self, key: Array, num: int) -> Array:
        """Uniform along each scale: (num, coordinates)."""
        return self.from_unit(jax.random.uniform(key, (num, self.num_coordinates), jnp.float32))

    def clip(self, hyperparameters: Array) -> Array:
        """The nearest point of the box."""
        return jnp.clip(hyperparameters, jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32))

    def grid(self, num: int) -> NDArray[np.float32]:
        """`num` evenly spaced values of a one-coordinate space, along its scale: (num,)."""
        if self.num_coordinates != 1:
            raise InputError(f"grid: needs a space of one coordinate, this one has {', '.join(self.names)}.")
        space = np.linspace if self.scales[0] == "linear" else np.geomspace
        return space(self.low[0], self.high[0], num).astype(np.float32)

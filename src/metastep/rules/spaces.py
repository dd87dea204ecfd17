"""Hyperparameter spaces: the actions of the meta-MDP."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.rules.ranges import Range
from metastep.rules.ranges import Scale as Scale

_NEAR = 0.1


class Space(Protocol):
    """What a controller may propose for an update."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the update rule calls the coordinates."""
        ...

    @property
    def num_coordinates(self) -> int:
        """How many numbers a controller proposes for an update."""
        ...

    @property
    def branches(self) -> "dict[str, Range]":
        """The range of the step along each direction, by the direction's name; one without a name where there is no choice."""
        ...

    def sample(self, key: Array, num: int) -> Array:
        """Uniform along each scale, and among the directions: (num, coordinates)."""
        ...

    def near(self, key: Array, hyperparameters: Array) -> Array:
        """Proposals a little away from others along their scales: (num, coordinates)."""
        ...

    def clip(self, hyperparameters: Array) -> Array:
        """The nearest point of the space."""
        ...

    def from_unit(self, unit: Array) -> Array:
        """Map (..., coordinates) in [0, 1] onto the space, along each coordinate's scale."""
        ...

    def candidates(self, num: int) -> NDArray[np.float32]:
        """`num` evenly spaced steps along every direction: (candidates, coordinates)."""
        ...


@dataclass(frozen=True)
class HyperparameterSpace:
    """A box whose coordinates have scales of their own; the paper's experiments have one linear step size.

    Args:
        low, high: bounds; all scales but the linear one need a positive lower one.
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
        _ = self.ranges  # which refuse what cannot be

    @property
    def ranges(self) -> tuple[Range, ...]:
        """One for each coordinate."""
        return tuple(map(Range, self.low, self.high, self.scales, self.names))

    @property
    def branches(self) -> dict[str, Range]:
        """The range of the step, which is the first coordinate."""
        return {"": self.ranges[0]}

    @property
    def num_coordinates(self) -> int:
        """How many numbers a controller proposes for an update."""
        return len(self.names)

    def from_unit(self, unit: Array) -> Array:
        """Map (..., coordinates) in [0, 1] onto the box, along each coordinate's scale."""
        columns = [_from_unit(bounds, unit[..., index]) for index, bounds in enumerate(self.ranges)]
        return self.clip(jnp.stack(columns, axis=-1))

    def sample(self, key: Array, num: int) -> Array:
        """Uniform along each scale: (num, coordinates)."""
        return self.from_unit(jax.random.uniform(key, (num, self.num_coordinates), jnp.float32))

    def near(self, key: Array, hyperparameters: Array) -> Array:
        """Normal around others along each scale, with a tenth of its length as the deviation: (num, coordinates)."""
        shifts = _NEAR * jax.random.normal(key, hyperparameters.shape, jnp.float32)
        columns = [_shifted(bounds, hyperparameters[:, i], shifts[:, i]) for i, bounds in enumerate(self.ranges)]
        return self.clip(jnp.stack(columns, axis=-1))

    def clip(self, hyperparameters: Array) -> Array:
        """The nearest point of the box."""
        return jnp.clip(hyperparameters, jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32))

    def grid(self, num: int) -> NDArray[np.float32]:
        """`num` evenly spaced values of a one-coordinate space, along its scale: (num,)."""
        if self.num_coordinates != 1:
            raise InputError(f"grid: needs a space of one coordinate, this one has {', '.join(self.names)}.")
        return self.ranges[0].grid(num)

    def candidates(self, num: int) -> NDArray[np.float32]:
        """The grid as proposals: (num, 1)."""
        return self.grid(num)[:, np.newaxis]


@dataclass(frozen=True)
class MenuSpace:
    """A direction, by its position, and a step along it, which has a range of its own for each direction.

    Args:
        directions: their names.
        ranges: of the step, one for each direction.
    """

    directions: tuple[str, ...]
    ranges: tuple[Range, ...]

    names = ("direction", "stepsize")
    num_coordinates = 2

    def __post_init__(self) -> None:
        if not self.directions or len(self.directions) != len(self.ranges):
            raise InputError(
                f"MenuSpace: {len(self.directions)} directions and {len(self.ranges)} ranges, allowed are as many, and one at "
                "least."
            )
        if len(set(self.directions)) < len(self.directions):
            raise InputError(f"MenuSpace: directions {list(self.directions)} must be named once each.")

    @property
    def low(self) -> tuple[float, ...]:
        """The smallest number of each coordinate, along any direction."""
        return 0.0, min(bounds.low for bounds in self.ranges)

    @property
    def high(self) -> tuple[float, ...]:
        """The largest number of each coordinate, along any direction."""
        return float(len(self.ranges) - 1), max(bounds.high for bounds in self.ranges)

    @property
    def branches(self) -> dict[str, Range]:
        """The range of the step along each direction."""
        return dict(zip(self.directions, self.ranges, strict=True))

    def from_unit(self, unit: Array) -> Array:
        """Map (..., 2) in [0, 1]: equal shares of the first coordinate are the directions, the second follows the scale."""
        last = len(self.directions) - 1
        direction = jnp.minimum(jnp.floor(unit[..., 0] * len(self.directions)), float(last)).astype(jnp.int32)
        steps = jnp.stack([_from_unit(bounds, unit[..., 1]) for bounds in self.ranges])
        chosen = jnp.take_along_axis(steps, direction[None], axis=0)[0]
        return self.clip(jnp.stack([direction.astype(jnp.float32), chosen], axis=-1))

    def sample(self, key: Array, num: int) -> Array:
        """A direction at random, and a step uniform along its scale: (num, 2)."""
        return self.from_unit(jax.random.uniform(key, (num, 2), jnp.float32))

    def near(self, key: Array, hyperparameters: Array) -> Array:
        """The same directions; steps normal around others, a tenth of the scale's length being the deviation: (num, 2)."""
        index, step = position_of(hyperparameters, len(self.directions)), hyperparameters[:, 1]
        shift = _NEAR * jax.random.normal(key, step.shape, jnp.float32)
        steps = jnp.stack([_shifted(bounds, step, shift) for bounds in self.ranges])
        chosen = jnp.take_along_axis(steps, index[None], axis=0)[0]
        return self.clip(jnp.stack([index.astype(jnp.float32), chosen], axis=-1))

    def clip(self, hyperparameters: Array) -> Array:
        """The nearest direction, and the nearest step that is allowed along it."""
        index = position_of(hyperparameters, len(self.directions))
        low, high = (
            jnp.asarray([getattr(bounds, side) for bounds in self.ranges], jnp.float32) for side in ("low", "high")
        )
        step = jnp.clip(hyperparameters[..., 1], low[index], high[index])
        return jnp.stack([index.astype(jnp.float32), step], axis=-1)

    def candidates(self, num: int) -> NDArray[np.float32]:
        """`num` evenly spaced steps along every direction: (directions * num, 2)."""
        rows = [np.stack([np.full(num, index), bounds.grid(num)], 1) for index, bounds in enumerate(self.ranges)]
        return np.concatenate(rows).astype(np.float32)


def position_of(hyperparameters: Array, num: int) -> Array:
    """The direction that the first coordinate stands for, the nearest of `num`: (...,)."""
    return jnp.clip(jnp.round(hyperparameters[..., 0]), 0.0, float(num - 1)).astype(jnp.int32)


def _from_unit(bounds: Range, share: Array) -> Array:
    if bounds.is_linear:
        return bounds.low + (bounds.high - bounds.low) * share
    return jnp.exp(np.log(bounds.low) + (np.log(bounds.high) - np.log(bounds.low)) * share)


def _shifted(bounds: Range, step: Array, share: Array) -> Array:
    """Steps moved by a share of the length of their scale."""
    if bounds.is_linear:
        return step + (bounds.high - bounds.low) * share
    return step * jnp.exp((np.log(bounds.high) - np.log(bounds.low)) * share)

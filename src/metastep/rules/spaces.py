"""Hyperparameter spaces: the actions of the meta-MDP, with named coordinates that map to the unit cube.

A point of a space is a row of numbers, one for each coordinate, as in datasets; `named` returns the values by name, for rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError, shown

Scale = Literal["linear", "log", "divergence"]
"""A step is a length, on a linear or logarithmic scale, or the KL divergence of the update, on a logarithmic scale."""

Values = dict[str, Array]
"""Hyperparameters of an update by name, each (learners,)."""

_NEAR = 0.1  # standard deviation of `Space.near`, as a share of a scale's length


@dataclass(frozen=True)
class Range:
    """The interval of one coordinate and its scale."""

    low: float  # positive on all scales except "linear"
    high: float
    scale: Scale = "linear"  # of sampling, grids and regressors' inputs
    name: str = "stepsize"  # of the coordinate, for error messages

    def __post_init__(self) -> None:
        place, before = ("meta.", "stepsize_") if self.name == "stepsize" else (f"meta.choices.{self.name}.", "")
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            must = f"must lie below {before}high = {self.high}, and both be finite"
            raise InputError(f"{place}{before}low: {self.low} {must}.")
        if self.scale not in get_args(Scale):
            raise InputError(f"{self.name}: the scale {self.scale!r} must be one of {', '.join(get_args(Scale))}.")
        if self.scale != "linear" and self.low <= 0.0:
            raise InputError(f"{place}{before}low: {self.low} must be positive on a {self.scale} scale.")

    @property
    def axis(self) -> tuple[float, float]:
        """The bounds on the scale that regressors use: the numbers, or their decimal logarithms."""
        low, high = (self.low, self.high) if self.scale == "linear" else np.log10((self.low, self.high))
        return float(low), float(high)

    def to_axis(self, values: ArrayLike) -> NDArray[np.float32]:
        """Return numbers on the scale that regressors use: unchanged, or their decimal logarithms."""
        numbers: NDArray[Any] = np.asarray(values, np.float32)
        if self.scale == "linear":
            return numbers
        with np.errstate(divide="ignore", invalid="ignore"):  # numbers that are not positive are outside the interval
            return np.clip(np.log10(numbers.astype(np.float64)), *self.axis).astype(np.float32)

    def from_axis(self, coordinates: ArrayLike) -> NDArray[np.float32]:
        """Invert `to_axis`."""
        points: NDArray[Any] = np.asarray(coordinates, np.float32)
        if self.scale == "linear":
            return points
        # The ends are exact, although their logarithms are not.
        first, last = np.asarray(self.axis, np.float32)
        between = np.clip(10.0 ** points.astype(np.float64), self.low, self.high)
        return np.where(points <= first, self.low, np.where(points >= last, self.high, between)).astype(np.float32)

    def grid(self, num: int) -> NDArray[np.float32]:
        """Return `num` numbers, evenly spaced along the scale."""
        return self.from_axis(np.linspace(*self.axis, num))

    def from_unit(self, share: Any, xp: Any = jnp) -> Any:
        """Map [0, 1] onto the interval, along the scale; xp is numpy or jax.numpy."""
        if self.scale == "linear":
            return self.low + (self.high - self.low) * share
        return xp.exp(np.log(self.low) + (np.log(self.high) - np.log(self.low)) * share)

    def to_unit(self, number: float) -> float:
        """Invert `from_unit`; numbers outside the interval are clipped."""
        along = (lambda value: value) if self.scale == "linear" else np.log
        low, high, point = (along(value) for value in (self.low, self.high, np.clip(number, self.low, self.high)))
        return float((point - low) / (high - low))

    def shifted(self, number: Array, share: Array) -> Array:
        """Move numbers along the scale by a share of its length."""
        if self.scale == "linear":
            return number + (self.high - self.low) * share
        return number * jnp.exp((np.log(self.high) - np.log(self.low)) * share)


class _UnitCube(ABC):
    """Base class of spaces, whose coordinates map to the unit cube."""

    names: tuple[str, ...]  # of the coordinates, as the update rule calls them; one of them is "stepsize"
    directions: tuple[str, ...]  # names of the categories to choose from, if any

    @property
    def num_coordinates(self) -> int:
        """The number of coordinates, that is, of numbers that a controller proposes for an update."""
        return len(self.names)

    @abstractmethod
    def from_unit(self, unit: Array) -> Array:
        """Map (..., coordinates) in [0, 1] to points of the space, along each coordinate's scale."""

    def position(self, rows: Array) -> Array:
        """Return the index of the category of each point: (...,); 0 without categories."""
        return jnp.clip(jnp.round(rows[..., 0]), 0.0, float(max(len(self.directions) - 1, 0))).astype(jnp.int32)

    def sample(self, key: Array, num: int) -> Array:
        """Draw points uniformly on the unit cube: (num, coordinates)."""
        return self.from_unit(jax.random.uniform(key, (num, self.num_coordinates), jnp.float32))


@dataclass(frozen=True)
class HyperparameterSpace(_UnitCube):
    """A box with a scale for each coordinate; the paper's experiments have one coordinate, a linear step size."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    scales: tuple[Scale, ...] = ("linear",)
    names: tuple[str, ...] = ("stepsize",)  # as the update rule calls them

    directions: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]  # a field in the menu

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.scales) == len(self.names):
            raise InputError("HyperparameterSpace: low, high, scales and names must have as many entries.")
        _ = self.ranges  # validates the bounds

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The range of each coordinate."""
        return tuple(map(Range, self.low, self.high, self.scales, self.names))

    @property
    def branches(self) -> dict[str, Range]:
        """The range of the step along each direction, by the direction's name; the name is "" without a choice."""
        return {"": self.ranges[self.names.index("stepsize")]}

    def without_bounds(self) -> Self:
        """Return the space with all bounds the same, to select one compiled program for updates from any of them."""
        return replace(self, low=(1.0,) * len(self.low), high=(2.0,) * len(self.high))

    def named(self, rows: Array) -> Values:
        """Return points (..., coordinates) as values by name."""
        return {name: rows[..., index] for index, name in enumerate(self.names)}

    def from_unit(self, unit: Any, xp: Any = jnp) -> Any:
        columns = [bounds.from_unit(unit[..., index], xp) for index, bounds in enumerate(self.ranges)]
        return self.clip(xp.stack(columns, axis=-1), xp)

    def near(self, key: Array, rows: Array) -> Array:
        """Draw points around given ones, with a standard deviation of a tenth of each scale's length: (num, coordinates)."""
        shifts = _NEAR * jax.random.normal(key, rows.shape, jnp.float32)
        columns = [bounds.shifted(rows[:, i], shifts[:, i]) for i, bounds in enumerate(self.ranges)]
        return self.clip(jnp.stack(columns, axis=-1))

    def clip(self, rows: Any, xp: Any = jnp) -> Any:
        """Return the nearest points of the space."""
        return xp.clip(rows, xp.asarray(self.low, xp.float32), xp.asarray(self.high, xp.float32))

    def candidates(self, num: int) -> NDArray[np.float32]:
        """Return a grid with `num` numbers for each coordinate: (num ** coordinates, coordinates)."""
        grids = np.meshgrid(*(bounds.grid(num) for bounds in self.ranges), indexing="ij")
        return np.stack([grid.ravel() for grid in grids], axis=1)


@dataclass(frozen=True)
class MenuSpace(_UnitCube):
    """A category, given by its index, and a step, with a separate range for each category."""

    directions: tuple[str, ...]
    ranges: tuple[Range, ...]  # of the step, one for each category
    category: str = "direction"  # the name of the first coordinate
    numbers: tuple[float, ...] = ()  # values of the categories, if these are numbers (PPO's clip ranges)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # a field in the box
        """The category, then the step."""
        return self.category, "stepsize"

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
        """The range of the step along each direction, by the direction's name; the name is "" without a choice."""
        return dict(zip(self.directions, self.ranges, strict=True))

    def without_bounds(self) -> Self:
        """Return the space with all bounds the same, to select one compiled program for updates from any of them."""
        return replace(self, ranges=tuple(replace(bounds, low=1.0, high=2.0) for bounds in self.ranges))

    def named(self, rows: Array) -> Values:
        """Return points (..., coordinates) as values by name."""
        position = self.position(rows)
        chosen = jnp.asarray(self.numbers, jnp.float32)[position] if self.numbers else position
        return {self.category: chosen, "stepsize": rows[..., 1]}

    def from_unit(self, unit: Array) -> Array:
        """Map (..., 2) in [0, 1]: the first coordinate is divided evenly among the categories, the second maps to the step."""
        num = len(self.directions)
        position = jnp.minimum(jnp.floor(unit[..., 0] * num), float(num - 1)).astype(jnp.int32)
        return self._joined(position, [bounds.from_unit(unit[..., 1]) for bounds in self.ranges])

    def near(self, key: Array, rows: Array) -> Array:
        """Draw steps around given ones, along their scales, with the same categories."""
        shift = _NEAR * jax.random.normal(key, rows[:, 1].shape, jnp.float32)
        return self._joined(self.position(rows), [bounds.shifted(rows[:, 1], shift) for bounds in self.ranges])

    def _joined(self, position: Array, steps: list[Array]) -> Array:
        """Return points with these categories; `steps` has a candidate for each category."""
        chosen = jnp.take_along_axis(jnp.stack(steps), position[None], axis=0)[0]
        return self.clip(jnp.stack([position.astype(jnp.float32), chosen], axis=-1))

    def clip(self, rows: Array) -> Array:
        """Return the nearest points of the space."""
        position = self.position(rows)
        low, high = jnp.asarray([(bounds.low, bounds.high) for bounds in self.ranges], jnp.float32).T
        step = jnp.clip(rows[..., 1], low[position], high[position])
        return jnp.stack([position.astype(jnp.float32), step], axis=-1)

    def candidates(self, num: int) -> NDArray[np.float32]:
        """Return `num` evenly spaced steps along every direction: (candidates, coordinates)."""
        rows = [np.stack([np.full(num, index), bounds.grid(num)], 1) for index, bounds in enumerate(self.ranges)]
        return np.concatenate(rows).astype(np.float32)


Space = HyperparameterSpace | MenuSpace
"""The hyperparameters that a controller may propose."""


def usual_values(rule: Any, space: HyperparameterSpace) -> dict[str, float]:
    """Return the values of those coordinates that are fields of the rule, by name; None counts as the largest value."""
    largest = {name: high for name, high in zip(space.names, space.high, strict=True) if hasattr(rule, name)}
    fields = ((name, getattr(rule, name), high) for name, high in largest.items())
    return {name: high if value is None else float(np.ravel(value)[0]) for name, value, high in fields}


def space_for(rule: Any, step: Range, along: Mapping[str, Range], choices: Mapping[str, Range]) -> Space:
    """Return a rule's space, with the range of its step, other ranges `along` named directions, and further `choices`."""
    tables = (("ranges", along, rule.directions, "a direction"), ("choices", choices, rule.choices, "a hyperparameter"))
    for table, ranges, allowed, what in tables:
        if unknown := [name for name in ranges if name not in allowed]:
            listed = ", ".join(allowed) or "there is none"
            raise InputError(f"meta.{table}: {shown(unknown[0])} must be {what} of the rule {rule.name!r}, {listed}.")
    if rule.directions:
        if choices:
            raise InputError(f"meta.choices: {next(iter(choices))!r} cannot be chosen beside a direction.")
        steps = tuple(along.get(direction, step) for direction in rule.directions)
        return MenuSpace(rule.directions, steps, rule.hyperparameters[0], rule.numbers)
    for name, bounds in choices.items():  # constructing the rule checks the bounds
        for number in (bounds.low, bounds.high):
            with_ends: Any = (number,) if isinstance(getattr(rule, name), tuple) else number
            replace(rule, **{name: round(number) if name == "gradient_steps" else with_ends})
    # In the rule's order, because a configuration that was read from JSON may have another.
    named = {"stepsize": step} | {name: choices[name] for name in rule.choices if name in choices}
    low, high, scales = zip(*((bounds.low, bounds.high, bounds.scale) for bounds in named.values()), strict=True)
    return HyperparameterSpace(low, high, scales, tuple(named))

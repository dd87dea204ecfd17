"""Where one number that is chosen for an update lies, and on which scale. NumPy only: fitted models use it without JAX."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError

Scale = Literal["linear", "log", "divergence"]
"""Of a step: its length, evenly or by its logarithm, or (by its logarithm) the divergence between policies that it may cost."""


@dataclass(frozen=True)
class Range:
    """An interval and its scale.

    Args:
        low, high: bounds; all scales but the linear one need a positive lower one.
        scale: how the interval is sampled, gridded and shown to a regressor: along its numbers, or along their logarithm. On
            the scale "divergence" a number is no length but the KL divergence between the policies before and after.
        name: of the number, for sentences about it.
    """

    low: float
    high: float
    scale: Scale = "linear"
    name: str = "stepsize"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise InputError(
                f"meta.{self.name}_low: {self.low} must lie below {self.name}_high = {self.high}, and both be finite."
            )
        if self.scale not in get_args(Scale):
            raise InputError(f"{self.name}: the scale {self.scale!r} must be one of {', '.join(get_args(Scale))}.")
        if self.scale != "linear" and self.low <= 0.0:
            raise InputError(f"meta.{self.name}_low: {self.low} must be positive on a {self.scale} scale.")

    @property
    def is_linear(self) -> bool:
        """Whether numbers are their own coordinates."""
        return self.scale == "linear"

    @property
    def axis(self) -> tuple[float, float]:
        """The bounds as coordinates."""
        return (self.low, self.high) if self.is_linear else (float(np.log10(self.low)), float(np.log10(self.high)))

    def to_axis(self, values: ArrayLike) -> NDArray[np.float32]:
        """Coordinates of numbers: themselves, or their decimal logarithm."""
        numbers: NDArray[Any] = np.asarray(values, np.float32)
        if self.is_linear:
            return numbers
        with np.errstate(divide="ignore", invalid="ignore"):  # what is not positive is outside, and not finite
            return np.clip(np.log10(numbers.astype(np.float64)), *self.axis).astype(np.float32)

    def from_axis(self, coordinates: ArrayLike) -> NDArray[np.float32]:
        """The numbers at these coordinates."""
        given: NDArray[Any] = np.asarray(coordinates, np.float32)
        if self.is_linear:
            return given
        # The ends are exact, although their logarithms are not.
        first, last = np.asarray(self.axis, np.float32)
        between = np.clip(10.0 ** given.astype(np.float64), self.low, self.high)
        return np.where(given <= first, self.low, np.where(given >= last, self.high, between)).astype(np.float32)

    def grid(self, num: int) -> NDArray[np.float32]:
        """`num` numbers, evenly spaced along the scale."""
        return self.from_axis(np.linspace(*self.axis, num))

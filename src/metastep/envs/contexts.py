"""Context spaces: what differs between the tasks of a family, and how tasks are drawn."""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError

_record: Any = cache(namedtuple)  # one class for the same names


@dataclass(frozen=True)
class ContextSpace:
    """A box of independent physical quantities with the uniform distribution over it.

    Args:
        names: one identifier a coordinate; environments read `context.<name>`.
        low, high: bounds of the task distribution.
        units: for labels of figures and tables; an empty string where there is none.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.units:
            object.__setattr__(self, "units", ("",) * len(self.names))
        lengths = [len(part) for part in (self.names, self.low, self.high, self.units)]
        if len(set(lengths)) > 1:
            raise InputError(f"ContextSpace: names, low, high and units have {lengths} entries, they must be equal.")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"ContextSpace: the names {', '.join(self.names)} must differ from each other.")
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
                raise InputError(f"ContextSpace: {name!r} must be a Python identifier without leading underscore.")
            if not low <= high or not (isfinite(low) and isfinite(high)):
                raise InputError(f"ContextSpace: {name} has bounds [{low}, {high}], they must be finite and in order.")

    @property
    def num_coordinates(self) -> int:
        """How many numbers describe a task."""
        return len(self.names)

    def sample(self, key: Array, num: int) -> Array:
        """Draw `num` tasks uniformly: (num, coordinates), float32."""
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        unit = jax.random.uniform(key, (num, self.num_coordinates), jnp.float32)
        return low + (high - low) * unit

    def fixed(self, values: Sequence[float]) -> "ContextSpace":
        """The same coordinates, every task equal to `values` (the fixed-context experiments)."""
        checked = self.validate(np.asarray([values], np.float32), "context")
        point = tuple(float(value) for value in checked[0])
        return ContextSpace(self.names, point, point, self.units)

    def unpack(self, contexts: Array) -> Any:
        """Name the coordinates of (..., coordinates): a record with one array of shape (...) a field."""
        return _record("Context", self.names)(*(contexts[..., index] for index in range(self.num_coordinates)))

    def validate(self, contexts: NDArray[Any], field: str = "contexts") -> NDArray[np.float32]:
        """Return the tasks as float32 (num, coordinates), or say which coordinate of which task is out of bounds."""
        array = np.asarray(contexts, dtype=np.float32)
        if array.ndim != 2 or array.shape[1] != self.num_coordinates:
            expected = f"(tasks, {self.num_coordinates}) with columns {', '.join(self.names)}"
            raise InputError(f"{field}: got an array of shape {array.shape}, expected {expected}.")
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        wrong = ~((array >= low) & (array <= high))
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            name, allowed = self.names[column], f"[{self.low[column]:g}, {self.high[column]:g}]"
            raise InputError(f"{field}: task {row} has {name} = {array[row, column]:g}, allowed is {allowed}.")
        return array

"""Context spaces: what differs between the tasks of a family, how tasks are drawn, and lists of tasks from a file."""

import csv
import json
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import MinLen
from jax import Array
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from metastep._core.errors import InputError, shown
from metastep._core.settings import plainly
from metastep._core.storage import read_bytes

_record: Any = cache(namedtuple)  # one class for the same names
_TASKS = TypeAdapter(Annotated[list[dict[str, float]], MinLen(1)])


@dataclass(frozen=True)
class ContextSpace:
    """A box of independent physical quantities with the uniform distribution over it."""

    names: tuple[str, ...]  # one identifier a coordinate; environments read `context.<name>`
    low: tuple[float, ...]  # bounds of the task distribution
    high: tuple[float, ...]
    units: tuple[str, ...] = ()  # for labels of figures and tables; an empty string where there is none

    def __post_init__(self) -> None:
        if not self.units:
            object.__setattr__(self, "units", ("",) * len(self.names))
        lengths = [len(part) for part in (self.names, self.low, self.high, self.units)]
        if len(set(lengths)) > 1:
            raise InputError(f"ContextSpace: names, low, high and units have {lengths} entries, they must be equal.")
        try:
            _record("Context", self.names)
        except ValueError as error:
            raise InputError(f"ContextSpace: names are {', '.join(self.names)}. {error}.") from None
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not low <= high or not (isfinite(low) and isfinite(high)):
                raise InputError(f"ContextSpace: {name} has bounds [{low}, {high}], they must be finite and in order.")

    @property
    def num_coordinates(self) -> int:
        """How many numbers describe a task."""
        return len(self.names)

    def sample(self, key: Array, num: int) -> Array:
        """Draw `num` tasks uniformly: (num, coordinates), float32."""
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        return low + (high - low) * jax.random.uniform(key, (num, self.num_coordinates), jnp.float32)

    def fixed(self, values: Sequence[float]) -> "ContextSpace":
        """The same coordinates, every task equal to `values` (the fixed-context experiments)."""
        point = tuple(self.validate([values], "context")[0].tolist())
        return ContextSpace(self.names, point, point, self.units)

    def unpack(self, contexts: Array) -> Any:
        """Name the coordinates of (..., coordinates): a record with one array of shape (...) a field."""
        return _record("Context", self.names)(*(contexts[..., index] for index in range(self.num_coordinates)))

    def validate(self, contexts: ArrayLike, field: str = "contexts") -> NDArray[np.float32]:
        """Return the tasks as float32 (num, coordinates), or say which coordinate of which task is out of bounds."""
        # Compared in float32, the simulation's type: 0.196 is within a bound that was itself rounded from 0.196.
        with np.errstate(over="ignore"):
            array, low, high = (np.asarray(values, np.float32) for values in (contexts, self.low, self.high))
        if array.ndim != 2 or array.shape[1] != self.num_coordinates:
            expected = f"(tasks, {self.num_coordinates}) with columns {', '.join(self.names)}"
            raise InputError(f"{field}: got an array of shape {array.shape}, expected {expected}.")
        wrong = ~((array >= low) & (array <= high))
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            name, allowed = self.names[column], f"[{self.low[column]:g}, {self.high[column]:g}]"
            raise InputError(f"{field}: task {row} has {name} = {array[row, column]:g}, allowed is {allowed}.")
        return array


def load_tasks(path: str | Path, space: ContextSpace) -> NDArray[np.float32]:
    """Read contexts (tasks, coordinates) from CSV with a header, or a JSON list of objects; the space names columns or keys."""
    where, kind = f"Task file {path}", Path(path).suffix.lower()
    if kind not in (".csv", ".json"):
        raise InputError(f"{where} ends in {kind!r}, allowed are .csv and .json.")
    try:
        # Spreadsheets put a byte order mark in front of the first name.
        text = read_bytes(Path(path)).decode("utf-8-sig")
        if kind == ".json":
            tasks = _TASKS.validate_python(json.loads(text, parse_int=float), strict=True)
        else:
            rows = csv.DictReader(StringIO(text, newline=""), strict=True, skipinitialspace=True, restkey="more values")
            rows.fieldnames = header = [name.strip() for name in rows.fieldnames or ()]
            if len(set(header)) < len(header):
                raise InputError(f"{where} has the columns {', '.join(header)}, they must differ from each other.")
            tasks = _TASKS.validate_python(list(rows))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ": task " + ", ".join(map(shown, problem["loc"])) if problem["loc"] else ""
        raise InputError(f"{where}{place}: {shown(problem['input'])} {plainly(problem)}.") from None
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{where} is not valid {kind[1:].upper()}: {error}.") from error
    for number, task in enumerate(tasks):
        if set(task) != set(space.names):
            found, needed = shown([*task]), ", ".join(space.names)
            raise InputError(f"{where}: task {number} has the fields {found}, needed are {needed}.")
    return space.validate([[task[name] for name in space.names] for task in tasks], where)

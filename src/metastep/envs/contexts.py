"""Context spaces: what differs between the tasks of a family, how tasks are drawn, and lists of tasks from a file."""

import csv
import difflib
import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from keyword import iskeyword
from math import isfinite
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError, shown
from metastep._core.storage import read_bytes

_record: Any = cache(namedtuple)  # one class for the same names


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


def load_tasks(
    path: str | Path, names: Sequence[str], low: Sequence[float], high: Sequence[float]
) -> NDArray[np.float32]:
    """Read contexts (tasks, coordinates) from a CSV file with a header, or from a JSON list of objects.

    Columns or keys are the names of the context space, in any order; every value must lie within its bounds.
    """
    path = Path(path)
    where, kind = f"Task file {path}", path.suffix.lower()
    if kind not in (".csv", ".json"):
        raise InputError(f"{where} ends in {path.suffix!r}, allowed are .csv and .json.")
    try:
        text = read_bytes(path).decode("utf-8-sig")  # spreadsheets put a byte order mark in front of the first name
        if kind == ".json":
            rows = json.loads(text, parse_int=float)  # a whole number may be too long for anything but a float
        else:
            lines = list(filter(None, csv.reader(StringIO(text, newline=""), strict=True, skipinitialspace=True)))
            header = [name.strip() for name in lines[0]] if lines else []
            if repeated := [name for name in header if header.count(name) > 1]:
                raise InputError(f"{where} has the column {repeated[0]!r} more than once.")
            for number, line in enumerate(lines[1:], start=1):
                if len(line) != len(header):
                    raise InputError(f"{where}, row {number} has {len(line)} values, the header has {len(header)}.")
            rows = [dict(zip(header, map(_number, line), strict=True)) for line in lines[1:]]
    except InputError:
        raise
    except (ValueError, csv.Error, RecursionError) as error:
        raise InputError(f"{where} is not valid {kind[1:].upper()}: {error}.") from error
    if not isinstance(rows, list):
        raise InputError(f"{where} holds a {type(rows).__name__}, allowed is a list of objects.")
    if not rows:
        raise InputError(f"{where} holds no tasks, at least one is needed.")
    tasks = []
    for number, row in enumerate(rows, start=1):
        here = f"{where}, row {number}"
        if not isinstance(row, Mapping):
            raise InputError(f"{here} is {shown(row)}, allowed is an object with {', '.join(names)}.")
        if unknown := [name for name in row if name not in names]:
            nearest = difflib.get_close_matches(unknown[0], names, n=1, cutoff=0.0)
            raise InputError(f"{here} has the unknown field {shown(unknown[0])}, did you mean {nearest[0]!r}?")
        for name in names:
            if name not in row:
                raise InputError(f"{here} lacks the field {name!r}, needed are {', '.join(names)}.")
            if not isinstance(row[name], float):
                raise InputError(f"{here} has {name} = {shown(row[name])}, allowed is a number.")
        tasks.append([row[name] for name in names])
    # Compared in float32, the simulation's type: 0.196 is within a bound that was itself rounded from 0.196.
    with np.errstate(over="ignore"):
        contexts, lowest, highest = (np.asarray(values, np.float32) for values in (tasks, low, high))
    wrong = ~((contexts >= lowest) & (contexts <= highest))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        value, allowed = shown(tasks[row][column]), f"[{low[column]:g}, {high[column]:g}]"
        raise InputError(f"{where}, row {row + 1} has {names[column]} = {value}, allowed is {allowed}.")
    return contexts


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text

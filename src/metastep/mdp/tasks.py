"""Task lists from a file, in place of the sampled task distribution."""

import csv
import difflib
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError, shown
from metastep._core.storage import read_bytes


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

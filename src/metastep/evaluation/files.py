"""A comparison on disk: one file that a report reads, and a long table for data frames."""

import csv
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.evaluation.comparison import Comparison
from metastep.evaluation.methods import MethodRecord
from metastep.evaluation.statistics import Difference
from metastep.evaluation.tuning import TuningTable

_KIND = "comparison"
_REMEDY = "compare again with `metastep compare` or `metastep run`"
_ARRAYS = {
    "context": np.dtype(np.float32),
    "returns": np.dtype(np.float32),
    "hyperparameters": np.dtype(np.float32),
    "direction": np.dtype(np.int8),
    "flagged": np.dtype(np.bool_),
    "num_steps": np.dtype(np.float64),
    "theta": np.dtype(np.float32),
}
_TABLE_ARRAYS = ("points", "mean", "standard_error", "num_diverged")


def save(path: str | Path, comparison: Comparison) -> str:
    """Write a comparison, whole or not at all; returns the file's SHA-256. The same content gives the same bytes."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(comparison, name) for name in _ARRAYS}
    arrays |= {f"diagnostics/{name}": array for name, array in comparison.diagnostics.items()}
    for index, table in enumerate(comparison.tuning):
        arrays |= {f"tuning/{index}/{name}": getattr(table, name) for name in _TABLE_ARRAYS}
    metadata = {
        **storage.stamp(_KIND),
        "methods": [method._asdict() for method in comparison.methods],
        "context_names": list(comparison.context_names),
        "tuning": [
            {name: value for name, value in table._asdict().items() if name not in _TABLE_ARRAYS}
            for table in comparison.tuning
        ],
        "settings": comparison.settings,
        "made_from": comparison.made_from,
    }
    return storage.write_tensors(path, arrays, metadata)


def load(path: str | Path) -> Comparison:
    """Read a comparison; refuse a damaged or foreign file with one sentence."""
    arrays, metadata = storage.read_tensors(path)
    storage.require_stamp(metadata, _KIND, path, _REMEDY)
    try:
        comparison = _assembled(arrays, metadata)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"File {path} is not a whole comparison: {type(error).__name__} {error}.") from error
    if complaint := _complaint(comparison):
        raise InputError(f"File {path} is not a whole comparison: {complaint}.")
    return comparison


def _assembled(arrays: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> Comparison:
    tables = [
        TuningTable(
            method=str(facts["method"]),
            parameters=tuple(facts["parameters"]),
            num_tasks=int(facts["num_tasks"]),
            seed=int(facts["seed"]),
            num_steps=float(facts["num_steps"]),
            **{name: arrays[f"tuning/{index}/{name}"] for name in _TABLE_ARRAYS},
        )
        for index, facts in enumerate(metadata["tuning"])
    ]
    return Comparison(
        methods=tuple(
            MethodRecord(**facts | {"directions": tuple(facts["directions"])}) for facts in metadata["methods"]
        ),
        context_names=tuple(metadata["context_names"]),
        diagnostics={
            name.removeprefix("diagnostics/"): array
            for name, array in arrays.items()
            if name.startswith("diagnostics/")
        },
        tuning=tuple(tables),
        settings=dict(metadata["settings"]),
        made_from={str(name): str(value) for name, value in metadata["made_from"].items()},
        **{name: arrays[name] for name in _ARRAYS},
    )


def _complaint(comparison: Comparison) -> str:
    """Return what is wrong with the arrays: a type, shapes that do not fit each other, or values."""
    num_methods, num_tasks = len(comparison.methods), len(comparison.context)
    if comparison.returns.ndim != 3 or comparison.hyperparameters.ndim != 4:
        return "returns need 3 axes and hyperparameters 4"
    num_updates, coordinates = comparison.returns.shape[2] - 1, comparison.hyperparameters.shape[3]
    shapes = {
        "context": (num_tasks, len(comparison.context_names)),
        "returns": (num_methods, num_tasks, num_updates + 1),
        "hyperparameters": (num_methods, num_tasks, num_updates, coordinates),
        "direction": (num_methods, num_tasks, num_updates),
        "flagged": (num_methods, num_tasks, num_updates + 1),
        "num_steps": (num_methods, num_tasks),
        "theta": (num_methods, num_tasks, *comparison.theta.shape[2:3]),
    }
    for name, shape in shapes.items():
        array = getattr(comparison, name)
        if array.shape != shape or array.dtype != _ARRAYS[name]:
            return f"{name} is {array.dtype} {array.shape}, expected is {_ARRAYS[name]} {shape}"
    if len(set(comparison.names)) != num_methods:
        return "a method is named twice"
    for record, chosen in zip(comparison.methods, comparison.direction, strict=True):
        last = max(0, len(record.directions) - 1)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() <= last:
            return f"directions of {record.name} are {chosen.min()} to {chosen.max()}, allowed is 0 to {last}"
    for table in comparison.tuning:
        if not 0.0 <= table.num_steps < np.inf:
            return f"tuning took {table.num_steps} steps"
    return ""


def differences_to_csv(rows: Iterable[Difference], path: str | Path) -> None:
    """Write paired differences as a table, a row for every pair of methods and metric; numbers to ten digits."""
    sink = StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(Difference._fields)
    for row in rows:
        writer.writerow(f"{value:.10g}" if isinstance(value, float) else value for value in row)
    storage.write_atomically(path, sink.getvalue().encode())


def to_parquet(comparison: Comparison, path: str | Path) -> None:
    """Write the curves as one long table, a row for every method, task and update from 0 to T.

    Columns: `method`, `label`, `task`, `context_<name>`, `update`, `return` (after that many updates), `stepsize` (of the
    update that led there, null at 0; a list where there are several hyperparameters), `flagged`, and where a method chose
    among directions `direction` (the name, null for other methods and at 0).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shape = comparison.returns.shape
    method, task, update = (axis.reshape(-1) for axis in np.indices(shape))
    columns: dict[str, Any] = {
        "method": pa.array(comparison.names).take(pa.array(method)),
        "label": pa.array([record.label for record in comparison.methods]).take(pa.array(method)),
        "task": task,
    }
    chosen = comparison.hyperparameters  # null at update 0, which has none
    padded = np.pad(chosen, ((0, 0), (0, 0), (1, 0), (0, 0))).reshape(-1)
    if chosen.shape[3] == 1:
        stepsizes = pa.array(padded, mask=update == 0)
    else:
        stepsizes = pa.FixedSizeListArray.from_arrays(pa.array(padded), chosen.shape[3], mask=pa.array(update == 0))
    directions: list[str | None] = []
    for record, tasks in zip(comparison.methods, comparison.direction, strict=True):
        for positions in tasks:
            directions += [None, *((record.directions[place] if record.directions else None) for place in positions)]
    for index, name in enumerate(comparison.context_names):
        columns[f"context_{name}"] = comparison.context[task, index]
    columns |= {
        "update": update,
        "return": comparison.returns.reshape(-1),
        "stepsize": stepsizes,
        "flagged": comparison.flagged.reshape(-1),
    }
    if any(record.directions for record in comparison.methods):
        columns["direction"] = pa.array(directions, pa.string())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    storage.write_atomically(path, sink.getvalue().to_pybytes())

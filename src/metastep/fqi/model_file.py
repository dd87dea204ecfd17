"""Model files: the arrays of all heads as tensors `iteration/head/array`, the record as metadata.

The heads of an iteration are counted from 0; those of a menu follow one another by direction.

What a file says is checked as if it came from anywhere: its checksum, the record, and by each regressor its own arrays.
"""

import os
import re
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.storage import read_tensors, require_stamp, stamp, write_tensors
from metastep.fqi.forest import Forest
from metastep.fqi.model import Model, model_of_heads, require_names
from metastep.fqi.packed import pack
from metastep.fqi.record import record_from_json, record_to_json
from metastep.fqi.regressors import REGISTRY, Regressor

_FILE = "model.safetensors"
_TENSOR = re.compile(r"([1-9][0-9]{0,3})/(0|[1-9][0-9]{0,3})/(.+)", re.ASCII)


def save_model(model: Model, path: str | os.PathLike[str], *, packed: bool = False) -> None:
    """Write a model file; the path holds either the whole new file or what it held before.

    `packed`, forests take an eighth of the space; their numbers are rounded.
    """
    _regressor(model.record.regressor.name, model.record.regressor.options)
    arrays = {
        f"{iteration}/{head}/{name}": array
        for iteration, function in enumerate(model.q_functions, 1)
        for head, fitted in enumerate(function.heads)
        for name, array in (pack(fitted) if packed and isinstance(fitted, Forest) else fitted.arrays()).items()
    }
    write_tensors(Path(path), arrays, stamp("model") | {"record": record_to_json(model.record)})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read and check a model file, or that in the folder of a run; anything wrong with it is an `InputError`."""
    path = Path(path)
    path = path / _FILE if path.is_dir() else path
    arrays, metadata = read_tensors(path)
    require_stamp(metadata, "model", path, "fit it again")
    try:
        record = record_from_json(metadata.get("record"))
        regressor = _regressor(record.regressor.name, record.regressor.options)
        require_names(record)
        return model_of_heads(
            record, [tuple(map(regressor.load, parts)) for parts in _grouped(arrays, len(record.branches))]
        )
    except InputError as error:
        raise InputError(f"File {path}: {error}") from None


def _regressor(name: str, options: dict[str, Any]) -> Regressor:
    """The regressor of a record. A file does not decide which modules are imported: `module:name` must be registered."""
    own = name.rpartition(":")[2]
    if own not in REGISTRY.names():
        raise InputError(
            f"fqi.regressor: {name!r:.200} is not registered, allowed in a model file are {', '.join(REGISTRY.names())}; "
            "import the module that registers it first."
        )
    return REGISTRY.build(own, options)


def _grouped(arrays: dict[str, NDArray[Any]], branches: int) -> list[list[dict[str, NDArray[Any]]]]:
    """The arrays of each head of each iteration: one or two for each direction."""
    found: dict[tuple[int, int], dict[str, NDArray[Any]]] = {}
    for tensor, array in arrays.items():
        if not (parts := _TENSOR.fullmatch(tensor)):
            raise InputError(f"tensor {tensor!r:.60} is not named iteration/head/array.")
        found.setdefault((int(parts[1]), int(parts[2])), {})[parts[3]] = array
    keys, heads = sorted(found), branches * (2 if (1, branches) in found else 1)
    if keys != [(1 + index // heads, index % heads) for index in range(len(keys))] or len(keys) % heads:
        raise InputError(f"tensors: {len(keys)} heads, allowed are {heads} of every iteration from 1 on.")
    return [[found[key] for key in keys[first : first + heads]] for first in range(0, len(keys), heads)]

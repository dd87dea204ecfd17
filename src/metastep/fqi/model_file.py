"""Model files: one safetensors file, arrays of all forests plus the record as JSON in its header.

    8 bytes   length of the header, little endian
    header    ASCII JSON, {"__metadata__": {"sha256": ..., "format": ..., "version": ..., "record": ...}, tensors...}
    tensors   little endian, one after the other, 8-byte aligned

The checksum comes first in the header, at a fixed place, and covers every other byte of the file (its own 64 characters
count as zeros): any changed, missing or added byte is detected before anything else is read. Any safetensors reader can
open the file.

A checksum stops accidents, not intent. So nothing in the file is trusted after it either: sizes are compared with the
file's own before use, arrays are views of the one buffer the file was read into, and `check_structure` makes sure that
every walk ends. Reading allocates the file's size, a few bytes per node, and what the header's JSON needs.
"""

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.errors import InputError
from metastep.fqi.forest import Forest, check_structure
from metastep.fqi.model import Model, ModelRecord, record_from_json, record_to_json, stepsizes_of
from metastep.fqi.qfunction import QFunction
from metastep.storage import write_atomically

FORMAT = "metastep-model"
VERSION = "1"

_BEFORE_CHECKSUM = b'{"__metadata__":{"sha256":"'
_CHECKSUM_START = 8 + len(_BEFORE_CHECKSUM)
_CHECKSUM_STOP = _CHECKSUM_START + 64
_LARGEST_HEADER = 1 << 20
_BYTES_PER_JSON_ITEM = 128
_DTYPES = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4"}
# Eight-byte types first keeps every tensor aligned.
_TENSORS = {
    "value": "F64",  # (nodes of all forests,)
    "importances": "F64",  # (iterations, heads, features)
    "offsets": "I64",  # (iterations, heads, trees + 1), each forest from 0
    "threshold": "F32",  # (nodes of all forests,)
    "feature": "I32",  # (nodes of all forests,)
    "left": "I32",  # (nodes of all forests,), indices within the forest
    "right": "I32",  # (nodes of all forests,)
}


def save_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model file; the path holds either the whole new file or what it held before."""
    forests = [head for function in model.q_functions for head in function.heads]
    grid = (len(model.q_functions), len(model.q_functions[0].heads))
    if len(forests) != grid[0] * grid[1] or len({forest.num_trees for forest in forests}) != 1:
        raise InputError("model: every iteration must have the same number of forests and trees.")
    arrays: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(forest, name) for forest in forests])
        for name in ("value", "threshold", "feature", "left", "right")
    }
    for name in ("importances", "offsets"):
        arrays[name] = np.stack([getattr(forest, name) for forest in forests]).reshape(*grid, -1)
    data = [np.ascontiguousarray(arrays[name], dtype=_DTYPES[kind]) for name, kind in _TENSORS.items()]
    header = _header(record_to_json(model.record), dict(zip(_TENSORS, data, strict=True)))
    chunks = [len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in data)]
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    chunks[1] = header.replace(b"0" * 64, digest.hexdigest().encode("ascii"), 1)
    write_atomically(Path(path), b"".join(chunks))


def _header(record: str, arrays: dict[str, NDArray[Any]]) -> bytes:
    metadata = {"sha256": "0" * 64, "format": FORMAT, "version": VERSION, "record": record}
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, array in arrays.items():
        stop = start + array.nbytes
        header[name] = {"dtype": _TENSORS[name], "shape": list(array.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    if len(text) > _LARGEST_HEADER - 8:
        raise InputError(f"model record has {len(text)} bytes, allowed are {_LARGEST_HEADER - 8}.")
    return text + b" " * (-len(text) % 8)


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read and check a model file; anything wrong with it is an `InputError`."""
    try:
        buffer = _read(path)
        header = _checked_header(buffer)
        record = _checked_record(header)
        return _model(record, _tensors(buffer, header))
    except InputError as error:
        raise InputError(f"model file {os.fspath(path)}: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe would otherwise wait for a writer, for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    try:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError("is not a regular file.")
            buffer = np.empty(status.st_size, dtype=np.uint8)
            view, filled = buffer.data, 0
            while filled < len(buffer) and (count := file.readinto(view[filled:])):
                filled += count
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.") from None
    except MemoryError:
        raise InputError("is larger than the memory.") from None
    if filled < len(buffer):
        raise InputError(f"ends after {filled} of {len(buffer)} bytes.")
    return buffer


def _checked_header(buffer: NDArray[np.uint8]) -> dict[str, Any]:
    """The parsed header, once the checksum over the whole file is right."""
    size = len(buffer)
    if size < _CHECKSUM_STOP or buffer[8:_CHECKSUM_START].tobytes() != _BEFORE_CHECKSUM:
        raise InputError("is not a metastep model.")
    digest = hashlib.sha256(buffer[:_CHECKSUM_START].data)
    digest.update(b"0" * 64)
    digest.update(buffer[_CHECKSUM_STOP:].data)
    if buffer[_CHECKSUM_START:_CHECKSUM_STOP].tobytes() != digest.hexdigest().encode("ascii"):
        raise InputError("is damaged: its checksum does not match its content.")
    length = int.from_bytes(buffer[:8].tobytes(), "little")
    if length > min(size - 8, _LARGEST_HEADER) or length % 8:
        raise InputError(f"header length is {length}, allowed is a multiple of 8 within the file, at most 1 MiB.")
    text = buffer[8 : 8 + length].tobytes()
    # A short text can describe many small objects: bound them before the parser makes them.
    items = sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))
    if items * _BYTES_PER_JSON_ITEM > max(size, _LARGEST_HEADER):
        raise InputError(f"header has {items} items, too many for a file of {size} bytes.")
    if not text.isascii():
        raise InputError("header is not ASCII.")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("header is not JSON.") from None
    if not isinstance(header, dict):
        raise InputError("header is not a JSON object.")
    return header


def _checked_record(header: dict[str, Any]) -> ModelRecord:
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or set(metadata) != {"sha256", "format", "version", "record"}:
        raise InputError("metadata must have sha256, format, version and record, and nothing else.")
    if metadata["format"] != FORMAT:
        raise InputError(f"format is {metadata['format']!r:.40}, allowed is {FORMAT!r}.")
    if metadata["version"] != VERSION:
        raise InputError(f"version is {metadata['version']!r:.40}, allowed is {VERSION!r}.")
    if not isinstance(metadata["record"], str):
        raise InputError("record must be a string of JSON.")
    return record_from_json(metadata["record"])


def _tensors(buffer: NDArray[np.uint8], header: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Views of the buffer; together they must cover exactly what follows the header."""
    if list(header) != list(_TENSORS):
        raise InputError(f"tensors are {list(header)!r:.200}, allowed are {list(_TENSORS)}, in this order.")
    length = int.from_bytes(buffer[:8].tobytes(), "little")
    content = buffer[8 + length :]
    found, start = {}, 0
    for name, kind in _TENSORS.items():
        entry = header[name]
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] != kind:
            raise InputError(f"{name}: must have dtype {kind}, shape and data_offsets.")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2 and 1 <= len(shape) <= 3):
            raise InputError(f"{name}: shape and data_offsets must be lists of whole numbers.")
        dtype = np.dtype(_DTYPES[kind])
        stop = start + dtype.itemsize * math.prod(shape)
        if offsets != [start, stop] or stop > len(content):
            raise InputError(f"{name}: shape {shape} and data_offsets {offsets} do not fit each other and the file.")
        found[name] = content[start:stop].view(dtype).reshape(shape)
        start = stop
    if start != len(content):
        raise InputError(f"has {len(content) - start} bytes after the last tensor.")
    return found


def _are_counts(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 2**48 for number in numbers)


def _model(record: ModelRecord, tensors: dict[str, NDArray[Any]]) -> Model:
    nodes, offsets, importances = len(tensors["feature"]), tensors["offsets"], tensors["importances"]
    if any(tensors[name].shape != (nodes,) for name in ("value", "threshold", "feature", "left", "right")):
        raise InputError("value, threshold, feature, left and right must be lists of the same length.")
    if offsets.ndim != 3 or importances.ndim != 3 or importances.shape[:2] != offsets.shape[:2]:
        raise InputError("offsets and importances must be (iterations, heads, ...).")
    if offsets.shape[0] < 1 or offsets.shape[1] not in (1, 2) or offsets.shape[2] < 2:
        raise InputError(f"offsets has shape {offsets.shape}, allowed is (iterations, 1 or 2, trees + 1).")
    stepsizes = stepsizes_of(record)
    q_functions, start = [], 0
    for iteration in range(offsets.shape[0]):
        heads = []
        for head in range(offsets.shape[1]):
            stop = start + int(offsets[iteration, head, -1])
            if not start < stop <= nodes:
                raise InputError(f"offsets: iteration {iteration + 1} ends at node {stop} of {nodes}.")
            part = {name: tensors[name][start:stop] for name in ("feature", "threshold", "left", "right", "value")}
            forest = Forest(**part, offsets=offsets[iteration, head], importances=importances[iteration, head])
            check_structure(forest)
            heads.append(forest)
            start = stop
        q_functions.append(QFunction(tuple(heads), stepsizes, record.lam))
    if start != nodes:
        raise InputError(f"has {nodes - start} nodes after the last forest.")
    return Model(record, tuple(q_functions))

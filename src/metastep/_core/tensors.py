"""Named arrays and JSON metadata as the bytes of one safetensors file, and back.

    8 bytes   length of the header, little endian
    header    JSON: {"__metadata__": {"metastep": TEXT}, NAME: {"dtype": ..., "shape": ..., "data_offsets": ...}, ...}
    tensors   little endian, one after the other without gaps

TEXT is the canonical JSON of the caller's metadata and of a checksum over it and the tensors. Unlike safetensors' own reader,
this one returns views of the mapped file, not copies, and verifies the checksum. A checksum finds accidents, not intent: nothing
in a header is used before it was compared with the size of the file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save

from metastep._core.errors import InputError

_DTYPES = {"BOOL": np.dtype("bool")} | {
    f"{kind[0].upper()}{8 * int(kind[1])}": np.dtype(f"<{kind}")
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}
_METADATA_KEY = "metastep"  # the only one: safetensors writes several in no fixed order
_LARGEST_HEADER = 16 << 20


class Tensors(NamedTuple):
    """Content of a tensor file."""

    arrays: dict[str, NDArray[Any]]  # read-only, mapped from the file
    metadata: dict[str, Any]


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, two spaces, a newline at the end, no NaN or infinity."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError for what `canonical_json` cannot write."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
        canonical_json(value)  # refuses NaN, infinity and half of a surrogate pair
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def encode(arrays: Mapping[str, ArrayLike], metadata: Mapping[str, Any]) -> bytes:
    """Return the file of these arrays and metadata; the same content gives the same bytes."""
    tensors = {}
    for name, given in sorted(arrays.items()):
        array = np.asarray(given)
        tensors[name] = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        if tensors[name].dtype not in _DTYPES.values():
            allowed = ", ".join(map(str, _DTYPES.values()))
            raise InputError(f"Tensor {name} has type {array.dtype}, allowed are {allowed}.")
    sealed = {"checksum": _checksum(tensors, metadata), "metadata": dict(metadata)}
    return save(tensors, metadata={_METADATA_KEY: canonical_json(sealed).decode()})


def _checksum(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    digest = hashlib.sha256(canonical_json({"metadata": dict(metadata), "tensors": described}))
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def decode(content: NDArray[np.uint8], *, verify: bool) -> Tensors:
    """Return the content of a file as views of it; ValueError if it is damaged or another kind of file."""
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if start > min(len(content), _LARGEST_HEADER):
        raise ValueError(f"its header would end at byte {start} of {len(content)}")
    header = parse_json(content[8:start].tobytes())
    try:
        text = header.pop("__metadata__")[_METADATA_KEY]
        arrays: dict[str, NDArray[Any]] = {}
        offset, size = 0, len(content) - start
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, offsets = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            counts = all(type(number) is int and number >= 0 for number in (*shape, *offsets))
            if not counts or offsets != [offset, offset + dtype.itemsize * math.prod(shape)] or offsets[1] > size:
                raise ValueError(f"shape and data_offsets of {name!r:.60} do not fit each other and the file")
            arrays[name] = np.ndarray(shape, dtype, buffer=content, offset=start + offset)
            offset = offsets[1]
        sealed = parse_json(text)
        metadata, checksum = sealed["metadata"], sealed["checksum"]
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its header is not one of ours ({type(error).__name__} {error})") from error
    if offset != size:
        raise ValueError(f"{size - offset} bytes follow the last tensor")
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is not a table")
    # The text must be canonical, because a changed byte may leave the meaning as it is: 1e5 is 1E5.
    if verify and (canonical_json(sealed).decode() != text or _checksum(arrays, metadata) != checksum):
        raise ValueError("its content does not match the checksum in its header")
    return Tensors(arrays, metadata)

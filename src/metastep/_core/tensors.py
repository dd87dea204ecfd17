"""Named arrays and JSON metadata as the bytes of one safetensors file, and those bytes as arrays again.

    8 bytes   length of the header, little endian
    header    JSON: {"__metadata__": {"metastep": TEXT}, NAME: {"dtype": ..., "shape": ..., "data_offsets": ...}, ...}
    tensors   little endian, one after the other without gaps

TEXT is the canonical JSON of the caller's metadata and of a checksum over it and over names, types, shapes and values of the
tensors. Any safetensors reader can open the file.

A checksum stops accidents, not intent: nothing that a header says is used before it was compared with the size of the file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save

from metastep._core.errors import InputError

_DTYPES = {"BOOL": np.dtype("bool")} | {
    f"{kind[0].upper()}{8 * int(kind[1])}": np.dtype(f"<{kind}")
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}
# safetensors writes several metadata entries in no fixed order, so everything goes into one.
_METADATA_KEY = "metastep"
_LARGEST_HEADER = 16 << 20


class Tensors(NamedTuple):
    """What a tensor file holds: read-only arrays mapped from the file, and the caller's metadata."""

    arrays: dict[str, NDArray[Any]]
    metadata: dict[str, Any]


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, two spaces, a newline at the end, no NaN or infinity."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError where it is not one that we could write: NaN, infinity, half a character."""
    text = text if isinstance(text, str) else text.decode()
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text:  # may spell half of a surrogate pair, which no file can hold
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def encode(arrays: Mapping[str, ArrayLike], metadata: Mapping[str, Any]) -> bytes:
    """The file of these arrays and metadata; the same content gives the same bytes."""
    tensors = {name: _little_endian(name, np.asarray(array)) for name, array in sorted(arrays.items())}
    sealed = {"checksum": _checksum(tensors, metadata), "metadata": dict(metadata)}
    return save(tensors, metadata={_METADATA_KEY: canonical_json(sealed).decode()})


def _little_endian(name: str, array: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if array.dtype not in _DTYPES.values():
        raise InputError(f"Tensor {name} has type {array.dtype}, allowed are {', '.join(map(str, _DTYPES.values()))}.")
    return array


def _checksum(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    digest = hashlib.sha256(canonical_json({"metadata": dict(metadata), "tensors": described}))
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def decode(content: NDArray[np.uint8], *, verify: bool) -> Tensors | None:
    """The content of a file as views of it; None where it does not match its checksum.

    What is not such a file is a ValueError. Models of metastep 0.1 kept their metadata in another way; of those only what
    they say of themselves is returned.
    """
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    if start > min(len(content), _LARGEST_HEADER):
        raise ValueError(f"its header would end at byte {start} of {len(content)}")
    header = parse_json(content[8:start].tobytes())
    try:
        own = header.pop("__metadata__")
        if _METADATA_KEY not in own and str(own["format"]).startswith("metastep-"):
            return Tensors({}, own)
        arrays = _views(content, start, header)
        sealed = parse_json(own[_METADATA_KEY])
        metadata, checksum = sealed["metadata"], sealed["checksum"]
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its header is not one of ours ({type(error).__name__} {error})") from error
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is not a table")
    # The text must be canonical, because a changed byte may leave the meaning as it is: 1e5 is 1E5.
    if verify and (canonical_json(sealed).decode() != own[_METADATA_KEY] or _checksum(arrays, metadata) != checksum):
        return None
    return Tensors(arrays, metadata)


def _views(content: NDArray[np.uint8], start: int, header: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The tensors that a header describes; together they must cover exactly what follows it."""
    arrays: dict[str, NDArray[Any]] = {}
    offset, size = 0, len(content) - start
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, offsets = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        counts = all(type(number) is int and number >= 0 for number in (*shape, *offsets))
        if not counts or offsets != [offset, offset + dtype.itemsize * math.prod(shape)] or offsets[1] > size:
            raise ValueError(f"shape and data_offsets of {name!r:.60} do not fit each other and the file")
        arrays[name] = np.ndarray(shape, dtype, buffer=content, offset=start + offset)
        offset = offsets[1]
    if offset != size:
        raise ValueError(f"{size - offset} bytes follow the last tensor")
    return arrays

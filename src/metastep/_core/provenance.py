"""Describe what was run, with which software and on which device, and find differences between descriptions."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("metastep", "jax", "numpy", "scikit-learn", "numba")
_NOT_SET = object()


def device_name() -> str:
    """Return the name of the device that simulates; it is recorded with results, because devices differ in the last bits."""
    import jax  # not at the top, because models can be read without it

    device, flags = jax.devices()[0], os.environ.get("XLA_FLAGS", "")
    kind = device.device_kind
    if device.platform == "cpu":  # processors with different vector units differ, too
        kind = platform.processor() or "cpu"
        with suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")
    return f"{device.platform} ({kind}){f' XLA_FLAGS={flags}' if flags else ''}"


def environment_record(device: str | None = None, packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the device and the versions of Python and of packages that affect numbers; `packages` are an env's simulators."""
    record = {"python": platform.python_version(), "device": device_name() if device is None else device}
    for name in (*PACKAGES, *packages):
        try:
            record[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            record[name] = "not installed"
    return record


def describe(value: Any) -> Any:
    """Return a value as JSON; a dataclass becomes an object with its type, a function its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Fields that are not compared, such as a simulator's threads, do not affect numbers. Fields that are newer than files of
        # earlier versions are left out if they have their default, so that the descriptions still agree.
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value) if entry.compare}
        newer = {entry.name: entry.default for entry in dataclasses.fields(value) if "newer" in entry.metadata}
        kept = {name: describe(each) for name, each in fields.items() if name not in newer or each != newer[name]}
        return {"type": type(value).__name__, **kept}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple | list):
        return [describe(entry) for entry in value]
    if isinstance(value, dict):
        return {str(name): describe(entry) for name, entry in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | None):
        return value
    # Not str(value): it may contain an address, and equal comparisons must give equal bytes.
    return getattr(value, "__qualname__", type(value).__name__)


def first_difference(old: Any, new: Any, key: str = "") -> tuple[str, str, str] | None:
    """Return the first dotted key whose values differ, and both values as text; keys are sorted, except that "name" is first."""
    if old == new:
        return None
    before, now = _table(old), _table(new)
    if before is None or now is None:
        first, second = ("not set" if value is _NOT_SET else json.dumps(value) for value in (old, new))
        return key, first, second
    for name in sorted(before.keys() | now.keys(), key=lambda name: (name != "name", name)):
        place, missing = (f"{key}{name}", {}) if name[:1] == "[" else (f"{key}.{name}".lstrip("."), _NOT_SET)
        if difference := first_difference(before.get(name, missing), now.get(name, missing), place):
            return difference
    return None


def _table(value: Any) -> dict[str, Any] | None:
    """Return a dictionary unchanged, a list of dictionaries as one by index, and None for other values."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return {f"[{place}]": entry for place, entry in enumerate(value)}
    return value if isinstance(value, dict) else None

"""Where a result comes from: a description of what was run, of what ran it, and how two descriptions differ."""

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("metastep", "jax", "numpy", "scikit-learn", "numba")
_NOT_SET = object()


def device_name() -> str:
    """What simulates, as recorded with results: results of different devices differ in the last bits."""
    import jax  # here, since a model can be read without it

    device = jax.devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    kind = _cpu_model() if device.platform == "cpu" else device.device_kind
    return f"{device.platform} ({kind}){f' XLA_FLAGS={flags}' if flags else ''}"


def _cpu_model() -> str:
    """The processor's name where the system tells: other processors have other vector units, hence other last bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "cpu"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def environment_record(device: str, packages: Sequence[str] = ()) -> dict[str, str]:
    """What produced a result: versions of Python and of the packages that decide numbers, and the device used.

    `packages` are those that decide numbers in this case only: a simulator that an environment brings.
    """
    versions = {name: _version(name) for name in (*PACKAGES, *packages)}
    return {"python": platform.python_version(), "device": device} | versions


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """What simulates and in which versions; `packages` are those that an environment brings."""
    return environment_record(device_name(), packages)


def describe(value: Any) -> Any:
    """A tree of dataclasses, tuples and numbers as JSON can hold it; a dataclass names its type, a function itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field that does not tell two objects apart decides no number: the threads of a simulator.
        entries = (entry for entry in dataclasses.fields(value) if entry.compare)
        return {"type": type(value).__name__, **{entry.name: describe(getattr(value, entry.name)) for entry in entries}}
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
    # Not str(value): it may hold an address, and the same comparison must give the same bytes.
    return getattr(value, "__qualname__", type(value).__name__)


def first_difference(old: Any, new: Any, key: str = "") -> tuple[str, str, str] | None:
    """The first key, dotted and in alphabetical order, whose values differ, with both values as text.

    Of lists of named tables, as methods are given, it is the first place with another name, or the first entry that differs.
    """
    if old == new:
        return None
    names_before, names_now = _names(old), _names(new)
    if names_before and names_now:
        for place, (before, now) in enumerate(zip_longest(names_before, names_now, fillvalue=_NOT_SET)):
            if before != now:
                return f"{key}[{place}].name", _text(before), _text(now)
        old, new = (dict(zip(names_now, value, strict=True)) for value in (old, new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return key, _text(old), _text(new)
    inner = ((f"{key}.{name}" if key else name, name) for name in sorted(old.keys() | new.keys()))
    differences = (first_difference(old.get(name, _NOT_SET), new.get(name, _NOT_SET), dotted) for dotted, name in inner)
    return next(difference for difference in differences if difference is not None)


def _names(value: Any) -> list[str]:
    """What the tables of a list are called; none unless each is a table of its own name."""
    entries = value if isinstance(value, list) else []
    names = [str(entry["name"]) for entry in entries if isinstance(entry, dict) and "name" in entry]
    return names if len(set(names)) == len(entries) else []


def _text(value: Any) -> str:
    return "not set" if value is _NOT_SET else json.dumps(value)

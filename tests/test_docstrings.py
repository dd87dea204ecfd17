"""Every public method has a docstring, its own or that of the method it overrides (ruff's D102 would ask for both)."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import metastep

METHODS = (property, cached_property, classmethod, staticmethod)


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(metastep.__path__, "metastep."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


CLASSES = [
    member
    for module in modules()
    for name, member in vars(module).items()
    if inspect.isclass(member) and member.__module__ == module.__name__ and not name.startswith("_")
]


def methods(kind: type) -> dict[str, Any]:
    """Return the public methods that the class itself defines."""
    found = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value) or isinstance(value, METHODS)}


PROTOCOLS = [kind for kind in CLASSES if getattr(kind, "_is_protocol", False)]
PROMISED = {name for kind in PROTOCOLS for name, value in methods(kind).items() if inspect.getdoc(value)}


def is_documented(kind: type, name: str) -> bool:
    """Return whether the class, one that it inherits from, or a protocol documents the method."""
    return name in PROMISED or any(inspect.getdoc(vars(base)[name]) for base in kind.__mro__ if name in vars(base))


def test_every_public_method_is_documented():
    found = [(kind, name) for kind in CLASSES for name in methods(kind) if not is_documented(kind, name)]
    assert not [f"{kind.__module__}.{kind.__qualname__}.{name}" for kind, name in found]

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
PROTOCOLS = [kind for kind in CLASSES if getattr(kind, "_is_protocol", False)]


def methods(kind: type) -> dict[str, Any]:
    """Return the public methods that the class itself defines."""
    found = {
        name: value for name, value in vars(kind).items() if inspect.isfunction(value) or isinstance(value, METHODS)
    }
    return {name: value for name, value in found.items() if not name.startswith("_")}


def keeps(kind: type, protocol: type) -> bool:
    """Return whether a class has all members of a protocol; fields without a default are annotations only."""
    has = set(dir(kind)).union(*(inspect.get_annotations(base) for base in kind.__mro__))
    return has >= {name for base in protocol.__mro__ for name in methods(base)}


def is_documented(kind: type, name: str) -> bool:
    """Return whether a class it inherits from, or a protocol that it satisfies, documents the method."""
    kept = [protocol for protocol in PROTOCOLS if keeps(kind, protocol)]
    documents = (base for each in (kind, *kept) for base in each.__mro__)
    return any(inspect.getdoc(vars(base)[name]) for base in documents if name in vars(base))


def test_every_public_method_is_documented():
    bare = [
        f"{kind.__module__}.{kind.__qualname__}.{name}"
        for kind in CLASSES
        for name in methods(kind)
        if not is_documented(kind, name)
    ]
    assert not bare

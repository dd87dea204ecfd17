"""Controllers: whatever proposes the step size of the next update, and the registry that names them."""

import inspect
from collections.abc import Callable
from typing import Any

from metastep.controllers.clip import Clip
from metastep.controllers.decay import Decay, GeometricDecay
from metastep.controllers.fixed import Fixed, RandomConstant
from metastep.controllers.greedy_oracle import GreedyOracle
from metastep.controllers.hoof import HOOF
from metastep.controllers.metafqi import MetaFQIController
from metastep.controllers.metagrad import Metagrad
from metastep.controllers.single_action import SingleAction, fit_single_action
from metastep.errors import InputError, not_registered
from metastep.meta.loop import Controller, Exploration

Uniform = Exploration

_REGISTRY: dict[str, Callable[..., Controller]] = {}


def register(name: str, factory: Callable[..., Controller]) -> None:
    """Make `factory(**options)` available as `make(name, **options)`."""
    if name in _REGISTRY and _REGISTRY[name] is not factory:
        raise InputError(f"controller: the name {name!r} is taken already.")
    _REGISTRY[name] = factory


def names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def make(name: str, **options: Any) -> Controller:
    """Build a registered controller; the options are the fields of its class."""
    if name not in _REGISTRY:
        raise not_registered("controller", name, names())
    try:
        inspect.signature(_REGISTRY[name]).bind(**options)
    except TypeError as error:
        raise InputError(f"controller: {name} cannot be built with {sorted(options)}: {error}.") from None
    return _REGISTRY[name](**options)


register("uniform", Uniform)
register("random-constant", RandomConstant)
register("fixed", Fixed)
register("decay", Decay)
register("geometric-decay", GeometricDecay)
register("hoof", HOOF)
register("metagrad", Metagrad)
register("single-action", SingleAction)
register("metafqi", MetaFQIController)
register("greedy-oracle", GreedyOracle)

__all__ = [
    "HOOF",
    "Clip",
    "Decay",
    "Fixed",
    "GeometricDecay",
    "GreedyOracle",
    "MetaFQIController",
    "Metagrad",
    "RandomConstant",
    "SingleAction",
    "Uniform",
    "fit_single_action",
    "make",
    "names",
    "register",
]

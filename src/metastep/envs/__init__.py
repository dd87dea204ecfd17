"""Contextual MDPs, most of them in pure JAX, and the registry that names them."""

import importlib
from collections.abc import Callable
from typing import Any

from metastep.envs.base import Env, Step, check_options
from metastep.envs.cartpole import CartPole, SwingUp
from metastep.envs.halfcheetah import half_cheetah
from metastep.envs.host.base import HostEnv
from metastep.envs.lqr import LQR
from metastep.envs.minigolf import Minigolf
from metastep.envs.nav2d import Nav2D
from metastep.errors import InputError, not_registered

_REGISTRY: dict[str, Callable[..., Env | HostEnv]] = {}


def register(name: str, factory: Callable[..., Env | HostEnv]) -> None:
    """Make `factory(**options)` available as `make(name, **options)` and in configurations, as long as the process lives.

    In a module of its own, such a line serves the command line, too: `env.name = "module:name"` imports the module first.
    """
    if name in _REGISTRY and _REGISTRY[name] is not factory:
        raise InputError(f"env: the name {name!r} is taken already.")
    _REGISTRY[name] = factory


def names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_REGISTRY))


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except InputError:
        raise
    except Exception as error:  # whatever a user's module does wrong
        text = f"{type(error).__name__}: {error}".rstrip(".")
        raise InputError(
            f"env.name: the module {module!r} cannot be imported, {text}. It must be installed or lie in the folder that "
            "the command is run in."
        ) from error


def make(name: str, **options: Any) -> Env | HostEnv:
    """Build a registered environment; the options are the fields of its class.

    As in Gymnasium, `module:name` imports the module first, which is where it registers the name.
    """
    module, _, name = name.rpartition(":")
    if module:
        _import(module)
    if name not in _REGISTRY:
        raise not_registered("env.name", name, names())
    check_options(name, options, _REGISTRY[name])
    try:
        return _REGISTRY[name](**options)
    except TypeError as error:
        raise InputError(f"env.options: {name} cannot be built with {options}: {error}.") from None


for _env in (Nav2D, Minigolf, CartPole, SwingUp, LQR):
    register(_env.name, _env)
register("halfcheetah", half_cheetah)

__all__ = [
    "LQR",
    "CartPole",
    "Env",
    "HostEnv",
    "Minigolf",
    "Nav2D",
    "Step",
    "SwingUp",
    "half_cheetah",
    "make",
    "names",
    "register",
]

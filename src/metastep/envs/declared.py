"""What environments of both kinds declare, checked the same way: the fields of `TaskFamily`, and that they select a program."""

import copy
from typing import Any

from metastep.contexts import ContextSpace
from metastep.errors import InputError

_COUNTS = (("num_observations", 1), ("num_actions", 1), ("reset_noise", 0), ("step_noise", 0))


def check_declared(env: Any, methods: tuple[str, ...]) -> str:
    """Raise `InputError` unless the declared fields and methods are there and equal copies select one compiled program.

    Returns:
        The name under which further sentences speak of the environment.
    """
    name = getattr(env, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"env: {type(env).__name__} must have a `name`, a non-empty string, got {name!r}.")
    if not isinstance(getattr(env, "context_space", None), ContextSpace):
        raise InputError(f"env {name!r}: `context_space` must be a metastep.contexts.ContextSpace.")
    for field, least in _COUNTS:
        value = getattr(env, field, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"env {name!r}: `{field}` must be a whole number of at least {least}, got {value!r}.")
    for method in methods:
        if not callable(getattr(env, method, None)):
            raise InputError(f"env {name!r}: it has no method `{method}`.")
    _check_hash(env, name)
    return name


def _check_hash(env: Any, name: str) -> None:
    try:
        hash(env)
    except TypeError as error:
        raise InputError(
            f"env {name!r}: it must be hashable to select a compiled program, but {error}; "
            "make it a frozen dataclass with tuples for lists."
        ) from None
    if copy.copy(env) != env or hash(copy.copy(env)) != hash(env):
        raise InputError(
            f"env {name!r}: a copy is not equal to the original, so every new object would compile again; "
            "make it a frozen dataclass."
        )

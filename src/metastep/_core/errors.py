"""The exception for bad input, and helpers for error messages."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """Bad input, in one sentence: field, value and what is allowed; the command line prints it and exits with code 2."""


def not_registered(
    field: str, name: str, allowed: Sequence[str], what: str = "is not registered", hint: str = ""
) -> InputError:
    """Return the error for an unknown name, with the most similar known name, or else a hint."""
    near = get_close_matches(name, allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else hint
    return InputError(f"{field}: {name!r} {what}, allowed are {', '.join(allowed) or 'none'}.{hint}")


def with_all(kind: type[list[Any]] | type[tuple[Any, ...]], value: Any) -> Any:
    """Turn all lists and tuples into lists, as in TOML and JSON, or into tuples, as strict schemas need them."""
    if isinstance(value, Mapping):
        return {key: with_all(kind, item) for key, item in value.items()}
    return kind(with_all(kind, item) for item in value) if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    """Return a value for an error message: short, and with lists for tuples, as in TOML."""
    try:
        text = " ".join(repr(with_all(list, value)).split())
    except Exception:  # a number with too many digits, a recursive list, or an object whose repr fails
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."


def printable(text: str) -> str:
    """Escape text from a file that contains control characters of terminals."""
    return text if text.isprintable() else ascii(text)

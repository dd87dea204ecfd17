"""The exception for bad input, and sentences that several modules need."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """Bad input, in one sentence: field, value and what is allowed; the command line prints it and exits with code 2."""


def not_registered(
    field: str, name: str, allowed: Sequence[str], what: str = "is not registered", hint: str = ""
) -> InputError:
    """Return the error for an unknown name, with the nearest known one, or else a hint."""
    near = get_close_matches(name, allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else hint
    return InputError(f"{field}: {name!r} {what}, allowed are {', '.join(allowed) or 'none'}.{hint}")


def with_all(kind: type[list[Any]] | type[tuple[Any, ...]], value: Any) -> Any:
    """Turn lists and tuples into one of the two: TOML and JSON have lists only, strict schemas take tuples only."""
    if isinstance(value, Mapping):
        return {key: with_all(kind, item) for key, item in value.items()}
    return kind(with_all(kind, item) for item in value) if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    """Return a value as an error message shows it: short, and with lists for tuples, as in TOML."""
    try:
        text = " ".join(repr(with_all(list, value)).split())
    except Exception:  # a number with too many digits, a list that holds itself, or an object that cannot be shown
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."


def printable(text: str) -> str:
    """Escape text of a file that would move a terminal's cursor."""
    return text if text.isprintable() else ascii(text)

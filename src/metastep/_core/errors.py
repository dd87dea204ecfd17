"""The one exception that means: the input is wrong, and here is the sentence that says how; and a sentence that many need."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """Bad input: the message is one sentence naming the field, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


def not_registered(
    field: str, name: str, allowed: Sequence[str], what: str = "is not registered", hint: str = ""
) -> InputError:
    """The refusal of a name that a registry does not know, with the nearest one that it does, or else a hint."""
    near = get_close_matches(name, allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else hint
    return InputError(f"{field}: {name!r} {what}, allowed are {', '.join(allowed) or 'none'}.{hint}")


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    text = repr(_with_lists(value))
    return text if len(text) <= 80 else f"{text[:80]}..."


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_lists(item) for name, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, tuple) else value

"""The one exception that means: the input is wrong, and here is the sentence that says how; and a sentence that many need."""

from collections.abc import Sequence
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: the message is one sentence naming the field, its value and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


def not_registered(field: str, name: str, allowed: Sequence[str], what: str = "is not registered") -> InputError:
    """The refusal of a name that a registry does not know, with the nearest one that it does."""
    near = get_close_matches(name, allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"{field}: {name!r} {what}, allowed are {', '.join(allowed) or 'none'}.{hint}")

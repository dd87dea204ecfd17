"""Broken parts: subclasses of a correct one, made where they are listed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from metastep._core.errors import InputError

RNG = np.random.default_rng(0)


def variant(base: type, *arguments: Any, **members: Any) -> Any:
    """Return an instance of a subclass of `base` with these members."""
    return type("Broken", (base,), members)(*arguments)


def then(method: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that changes the result of another."""
    return lambda self, *given, **settings: change(method(self, *given, **settings))


def refused(check: Callable[..., None], part: Any, sentence: str, *others: Any) -> None:
    """Check that the part is refused with one line that contains the sentence."""
    with pytest.raises(InputError, match=sentence) as caught:
        check(part, *others)
    assert "\n" not in str(caught.value)

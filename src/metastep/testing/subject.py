"""How contracts are stated: a `Subject` calls the part under check and turns each broken promise into one sentence."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError


@dataclass(frozen=True)
class Subject:
    """The part under check, and how sentences name it."""

    part: Any
    title: str  # such as "env 'walk'"

    def require(self, holds: Any, sentence: str) -> None:
        """Raise the sentence unless it holds."""
        if not holds:
            raise InputError(f"{self.title}: {sentence}.")

    def declares(self, **kinds: Any) -> None:
        """Check fields by kind: a number (the least whole number allowed), `bool`, or `tuple` (of strings)."""
        for name, kind in kinds.items():
            value = getattr(self.part, name, None)
            if kind is bool:
                right, wanted = isinstance(value, bool), "True or False"
            elif kind is tuple:
                right = isinstance(value, tuple) and all(isinstance(word, str) and word for word in value)
                wanted = "a tuple of strings"
            else:
                right = isinstance(value, int) and not isinstance(value, bool) and value >= kind
                wanted = f"a whole number of at least {kind}"
            self.require(right, f"`{name}` must be {wanted}, got {value!r}")

    def has_methods(self, *names: str) -> None:
        """Check that methods exist."""
        for name in names:
            self.require(callable(getattr(self.part, name, None)), f"it has no method `{name}`")

    def is_hashable(self) -> None:
        """Check that equal copies select one compiled program."""
        twin = copy.copy(self.part)
        wrong = "a copy is not equal to the original, so every new object would compile again"
        try:
            equal = twin == self.part and hash(twin) == hash(self.part)
        except TypeError as error:
            equal, wrong = False, f"it must be hashable to select a compiled program, but {error}"
        self.require(equal, f"{wrong}; make it a frozen dataclass with tuples for lists")

    def call(self, what: str, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Call a method of the part; any exception becomes a sentence."""
        try:
            return function(*arguments, **settings)
        except InputError:
            raise
        except Exception as error:
            text = f"fails with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if isinstance(error, jax.errors.ConcretizationTypeError):
                text = "depends on a value in Python (an `if`, `float()` or `int()`); use jnp.where."
            raise InputError(f"{self.title}: `{what}` {text}") from error

    def trace(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return shapes and dtypes of a function's result; nothing is computed."""
        return self.call(what, jax.eval_shape, function, *arguments)

    def repeat(self, methods: tuple[str, ...], program: Any, *inputs: Any) -> Any:
        """Return the results of a compiled function, one per method, after checking that the same input gives the same bits."""
        # The same program runs twice, to find callbacks to Python; it is traced twice, to find numbers drawn while tracing.
        # Under the same name, JAX finds it in its cache on disk.
        again = jax.jit(wraps(program)(lambda *given: program.__wrapped__(*given)))
        first, *others = (self.call("jax.jit", each, *inputs) for each in (program, program, again))
        wrong = "gives different results for the same input; randomness must come from what it is given"
        for index, method in enumerate(methods):
            self.require(all(same(first[index], other[index]) for other in others), f"`{method}` {wrong}")
        return first

    def independent(
        self,
        methods: tuple[str, ...],
        function: Callable[..., Any],
        inputs: tuple[Any, ...],
        changed: tuple[Any, ...],
        rest: Callable[[Any], Any] = lambda array: array[1:],
        others: str = "other learners",
    ) -> Any:
        """Do what `repeat` does, and check that the `rest` of the results stays where only others were changed; return both."""
        program = jax.jit(function)
        usual, beside = self.repeat(methods, program, *inputs), program(*changed)
        for method, *results in zip(methods, usual, beside, strict=True):
            alone = same(*(jax.tree.map(rest, each) for each in results))
            self.require(alone, f"what `{method}` gives for a learner must not depend on {others}")
        return usual, beside

    def is_array(self, what: str, value: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        """Check shape and dtype; `np.number` stands for any kind of number."""
        self.require(hasattr(value, "dtype"), f"{what} must be an array, got a {type(value).__name__}")
        self.require(value.shape == shape, f"{what} has shape {value.shape}, it must be {shape or 'a scalar'}")
        wanted = "a number" if dtype is np.number else jnp.dtype(dtype).name
        self.require(jnp.issubdtype(value.dtype, dtype), f"{what} has dtype {value.dtype}, it must be {wanted}")

    def is_tuple(self, method: str, found: Any, field: str, shape: tuple[int, ...], *, pieces: bool = False) -> None:
        """Check a tuple of as many arrays of a shape as a field declares; `pieces` may hold several in further first axes."""
        kind, declared = type(found).__name__, getattr(self.part, field)
        self.require(isinstance(found, tuple), f"`{method}` returns a {kind}, it must return a tuple of arrays")
        leading = [piece.shape[: len(piece.shape) - len(shape)] if pieces else () for piece in found]
        for index, piece in enumerate(found):
            self.is_array(f"array {index} of `{method}`", piece, (*leading[index], *shape))
        num = sum(map(math.prod, leading))
        self.require(num == declared, f"`{method}` returns {num} numbers, but {field} is {declared}")

    def same_state(self, what: str, after: Any, before: Any) -> None:
        """Check that a state keeps its structure, shapes and dtypes."""
        old, new = (str(jax.tree.structure(each)) for each in (before, after))
        self.require(new == old, f"{what} is the state {new}, but the first state is {old}")
        for leaf, first in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
            self.is_array(f"a field of {what}", leaf, first.shape, first.dtype)

    def has_fields(self, what: str, value: Any, kind: str, fields: Sequence[str]) -> None:
        """Check that a method returned a record with these fields."""
        for field in fields:
            self.require(hasattr(value, field), f"`{what}` must return a {kind}, its result has no `{field}`")


def named(kind: str, part: Any) -> Subject:
    """Return the subject of a part that must have a name."""
    name = getattr(part, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{kind}: {type(part).__name__} must have a `name`, a non-empty string, got {name!r}.")
    return Subject(part, f"{kind} {name!r}")


def same(left: Any, right: Any) -> bool:
    """Return whether all arrays of two trees are equal bit by bit."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in pairs)


def read_only(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Return views that cannot be written to, like the arrays that a run passes on."""
    views = [array.view() for array in arrays]
    for view in views:
        view.setflags(write=False)
    return views

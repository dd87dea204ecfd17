"""What all checks share: calls on behalf of the user, and sentences about what came of them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.mdp import MetaMDP, Tasks


@dataclass(frozen=True)
class Subject:
    """The part under check, and how sentences speak of it."""

    part: Any
    title: str  # such as "env 'walk'"

    def require(self, holds: Any, sentence: str) -> None:
        """Raise the sentence unless it holds."""
        if not holds:
            raise InputError(f"{self.title}: {sentence}.")

    def call(self, what: str, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Call on behalf of the user: whatever goes wrong becomes a sentence."""
        try:
            return function(*arguments, **settings)
        except jax.errors.ConcretizationTypeError:
            raise InputError(
                f"{self.title}: `{what}` depends on a value in Python (an `if`, `float()` or `int()`); use jnp.where."
            ) from None
        except InputError:
            raise
        except Exception as error:
            text = str(error).split("\n", maxsplit=1)[0]
            raise InputError(f"{self.title}: `{what}` fails with {type(error).__name__}: {text}") from error

    def trace(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Shapes and dtypes of what a function returns; nothing is computed."""
        return self.call(what, jax.eval_shape, function, *arguments)

    def repeat(self, methods: tuple[str, ...], function: Callable[..., Any], *inputs: Any) -> Any:
        """The results of a compiled function, one for each method, after checking that the same input gives the same bits.

        The same program runs twice, for calls back to Python; traced again, for numbers drawn while tracing.
        """
        program, again = (jax.jit(lambda *given: function(*given)) for _ in range(2))
        first, *others = (self.call("jax.jit", each, *inputs) for each in (program, program, again))
        for index, method in enumerate(methods):
            self.require(
                all(same(first[index], other[index]) for other in others),
                f"`{method}` gives different results for the same input; randomness must come from what it is given",
            )
        return first

    def apart(
        self,
        methods: tuple[str, ...],
        function: Callable[..., Any],
        inputs: tuple[Any, ...],
        changed: tuple[Any, ...],
        rest: Callable[[Any], Any] = lambda array: array[1:],
        others: str = "other learners",
    ) -> Any:
        """The same, after checking that the `rest` of the results stays where only others were changed."""
        usual, beside = self.repeat(methods, function, *inputs), jax.jit(function)(*changed)
        for method, *results in zip(methods, usual, beside, strict=True):
            alone = same(*(jax.tree.map(rest, each) for each in results))
            self.require(alone, f"what `{method}` gives for a learner must not depend on {others}")
        return usual

    def array(self, what: str, value: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        """An array of this shape, and of this dtype or of any kind of number."""
        self.require(hasattr(value, "dtype"), f"{what} must be an array, got a {type(value).__name__}")
        self.require(value.shape == shape, f"{what} has shape {value.shape}, it must be {shape or 'a scalar'}")
        wanted = "a number" if dtype is np.number else jnp.dtype(dtype).name
        self.require(jnp.issubdtype(value.dtype, dtype), f"{what} has dtype {value.dtype}, it must be {wanted}")

    def alike(self, what: str, after: Any, before: Any) -> None:
        """Two trees of the same structure, shapes and dtypes."""
        old, new = (str(jax.tree.structure(each)) for each in (before, after))
        self.require(new == old, f"{what} is the state {new}, but the first state is {old}")
        for leaf, first in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
            self.array(f"a field of {what}", leaf, first.shape, first.dtype)

    def count(self, what: str, value: Any, least: int = 1) -> None:
        """A whole number."""
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        self.require(whole, f"`{what}` must be a whole number of at least {least}, got {value!r}")

    def words(self, what: str, value: Any) -> None:
        """A tuple of strings."""
        right = isinstance(value, tuple) and all(isinstance(word, str) and word for word in value)
        self.require(right, f"`{what}` must be a tuple of strings, got {value!r}")

    def flag(self, field: str) -> None:
        """A field that is True or False."""
        value = getattr(self.part, field, None)
        self.require(isinstance(value, bool), f"`{field}` must be True or False, got {value!r}")

    def methods(self, *names: str) -> None:
        """They are there."""
        for name in names:
            self.require(callable(getattr(self.part, name, None)), f"it has no method `{name}`")

    def returns(self, what: str, value: Any, kind: str, *fields: str) -> None:
        """A record with these fields."""
        for field in fields:
            self.require(hasattr(value, field), f"`{what}` must return a {kind}, its result has no `{field}`")

    def hashable(self) -> None:
        """Equal copies select one compiled program."""
        try:
            hash(self.part)
        except TypeError as error:
            advice = "make it a frozen dataclass with tuples for lists"
            self.require(False, f"it must be hashable to select a compiled program, but {error}; {advice}")
        twin = copy.copy(self.part)
        self.require(
            twin == self.part and hash(twin) == hash(self.part),
            "a copy is not equal to the original, so every new object would compile again; make it a frozen dataclass",
        )


def named(kind: str, part: Any) -> Subject:
    """A part that has a name."""
    name = getattr(part, "name", None)
    if not isinstance(name, str) or not name:
        raise InputError(f"{kind}: {type(part).__name__} must have a `name`, a non-empty string, got {name!r}.")
    return Subject(part, f"{kind} {name!r}")


def same(left: Any, right: Any) -> bool:
    """Whether all arrays of two trees are the same, bit by bit."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in pairs)


def read_only(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Views that cannot be written to, as the views of JAX arrays that a run hands out."""
    views = [array.view() for array in arrays]
    for view in views:
        view.setflags(write=False)
    return views


def other_first(subject: Subject, mdp: MetaMDP, tasks: Tasks) -> Tasks:
    """The same tasks and policies for all learners but the first."""
    subject.require(mdp.block_size >= 2, f"the check needs blocks of at least 2 learners, got {mdp.block_size}")
    return tasks._replace(theta=tasks.theta.at[0].add(0.5), context=tasks.context.at[0].set(tasks.context[1]))

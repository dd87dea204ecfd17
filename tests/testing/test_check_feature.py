"""Every registered feature keeps the contract; each way to break it gets its own sentence."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from metastep import features
from metastep._core.errors import InputError
from metastep.features import Feature
from metastep.testing import check_feature
from tests.controllers.problems import make_mdp, make_training_mdp


@pytest.mark.parametrize("name", features.names())
def test_registered_features_pass(name: str) -> None:
    feature = features.make(name)
    mdp = next(each for each in (make_mdp(), make_training_mdp()) if set(feature.needs) <= set(each.diagnosed))
    check_feature(feature, mdp)


class Lengths(Feature):
    """How long theta and its gradient are."""

    name: ClassVar[Any] = "lengths"
    needs = ("theta", "gradient")

    def size(self, mdp: Any) -> Any:
        return 2

    def __call__(self, seen: Any) -> Any:
        return jnp.stack([jnp.linalg.norm(seen[name], axis=1) for name in self.needs], axis=1)

    def bounds(self, mdp: Any) -> Any:
        return (0.0, 0.0), (features.ANY, features.ANY)


def test_a_feature_of_ones_own_passes() -> None:
    check_feature(Lengths(), make_mdp())


class Nameless(Lengths):
    name: ClassVar[Any] = None


class Sizeless(Lengths):
    def size(self, mdp: Any) -> Any:
        return 0


class OneColumn(Lengths):
    def columns(self, mdp: Any) -> Any:
        return ("length",)


class ColumnsTwice(Lengths):
    def columns(self, mdp: Any) -> Any:
        return ("length", "length")


class ColumnsOfNumbers(Lengths):
    def columns(self, mdp: Any) -> Any:
        return (0, 1)


class OneBound(Lengths):
    def bounds(self, mdp: Any) -> Any:
        return (0.0,), (1.0,)


class BoundForAll(Lengths):
    def bounds(self, mdp: Any) -> Any:
        return 0.0, 1.0


class BoundsTheWrongWay(Lengths):
    def bounds(self, mdp: Any) -> Any:
        return (0.0, 1.0), (1.0, 0.0)


class Flat(Lengths):
    def __call__(self, seen: Any) -> Any:
        return super().__call__(seen).ravel()


class Integers(Lengths):
    def __call__(self, seen: Any) -> Any:
        return super().__call__(seen).astype(jnp.int32)


class Ranked(Lengths):
    def __call__(self, seen: Any) -> Any:
        found = super().__call__(seen)
        return found - jnp.mean(found, axis=0)


class Draws(Lengths):
    generator = np.random.default_rng(0)

    def __call__(self, seen: Any) -> Any:
        return super().__call__(seen) + jnp.float32(self.generator.normal())


class OnHost(Lengths):
    def __call__(self, seen: Any) -> Any:
        return super().__call__(seen) * float(seen["theta"][0, 0])


class Unfinished(Lengths):
    def __call__(self, seen: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("feature", "sentence"),
    [
        (Nameless(), "feature: Nameless must have a `name`, a non-empty string, got None"),
        (Sizeless(), "`size` must be a whole number of at least 1, got 0"),
        (OneColumn(), r"`columns` must give 2 different names, got \('length',\)"),
        (ColumnsTwice(), r"`columns` must give 2 different names, got \('length', 'length'\)"),
        (ColumnsOfNumbers(), r"`columns` must be a tuple of strings, got \(0, 1\)"),
        (OneBound(), "`bounds` must give 2 lower and 2 upper ones"),
        (BoundForAll(), "`bounds` must give 2 lower and 2 upper ones"),
        (BoundsTheWrongWay(), "the lower `bounds` must not exceed the upper ones"),
        (Flat(), "`__call__` fails with ValueError"),
        (Integers(), "what `__call__` returns has dtype int32, it must be float32"),
        (Ranked(), "what `__call__` gives for a learner must not depend on other learners"),
        (Draws(), "`__call__` gives different results for the same input"),
        (OnHost(), "`__call__` depends on a value in Python .*; use jnp.where"),
        (Unfinished(), "`__call__` fails with NotImplementedError"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_feature_gets_a_sentence(feature: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^feature 'lengths': {sentence}" if feature.name else sentence) as caught:
        check_feature(feature, make_mdp())
    assert "\n" not in str(caught.value)


def test_a_single_learner_has_no_neighbour() -> None:
    with pytest.raises(InputError, match="the check needs blocks of at least 2 learners, got 1"):
        check_feature(Lengths(), dataclasses.replace(make_mdp(), block_size=1))

"""Every registered feature keeps the contract; each way to break it gets its own sentence."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import pytest

from metastep import features
from metastep.features import Feature
from metastep.testing import check_feature
from tests.controllers.problems import make_mdp, make_training_mdp
from tests.testing.variants import RNG, refused, then, variant


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


def calls(change: Any) -> Any:
    return variant(Lengths, __call__=then(Lengths.__call__, change))


def test_a_feature_of_ones_own_passes() -> None:
    check_feature(Lengths(), make_mdp())


@pytest.mark.parametrize(
    ("feature", "sentence"),
    [
        (variant(Lengths, size=lambda *_: 0), "^feature 'lengths': `size` must be a whole number of at least 1, got 0"),
        (
            variant(Lengths, columns=lambda *_: ("a", "a")),
            r"`columns` must be a tuple of 2 different names, got \('a', 'a'\)",
        ),
        (variant(Lengths, columns=lambda *_: (0, 1)), r"`columns` must be a tuple of 2 different names, got \(0, 1\)"),
        (variant(Lengths, bounds=lambda *_: ((0.0,), (1.0,))), "`bounds` must be 2 lower ones and 2 upper ones"),
        (variant(Lengths, bounds=lambda *_: ((0.0, 1.0), (1.0, 0.0))), "2 upper ones, at least as high"),
        (calls(jnp.ravel), "`__call__` fails with ValueError"),
        (calls(lambda found: found.astype(jnp.int32)), "what `__call__` returns has dtype int32, it must be float32"),
        (
            calls(lambda found: found - jnp.mean(found, axis=0)),
            "`__call__` gives for a learner must not depend on other",
        ),
        (
            calls(lambda found: found + jnp.float32(RNG.normal())),
            "`__call__` gives different results for the same input",
        ),
    ],
)
def test_a_broken_feature_gets_a_sentence(feature: Any, sentence: str) -> None:
    refused(check_feature, feature, sentence, make_mdp())


def test_a_single_learner_has_no_neighbour() -> None:
    alone = dataclasses.replace(make_mdp(), block_size=1)
    refused(check_feature, Lengths(), "the check needs blocks of at least 2 learners, got 1", alone)

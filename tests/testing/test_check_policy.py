"""Every registered policy keeps the contract; each way to break it gets its own sentence."""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from metastep import policies
from metastep._core.errors import InputError
from metastep.policies import ActorCritic, LinearGaussian, MLPGaussian
from metastep.testing import check_policy


@pytest.mark.parametrize("name", policies.names())
def test_registered_policies_pass(name: str) -> None:
    options = {"sigma": 0.5} if "sigma" in policies.REGISTRY.options(name) else {}
    check_policy(policies.make(name, 3, 2, **options))


@pytest.mark.parametrize(
    "policy",
    [
        LinearGaussian(1, 1, 0.1),
        LinearGaussian(17, 6, 1.001),
        MLPGaussian(2, 2, 0.7, (3, 2)),
        ActorCritic(4, 1, num_choices=3, hidden=(5,)),
    ],
    ids=["smallest", "score in large pieces", "two layers", "choices"],
)
def test_other_sizes_pass(policy: Any) -> None:
    check_policy(policy)


@dataclass(frozen=True)
class Own:
    """mean = theta * s, one parameter; a policy that inherits nothing."""

    num_observations: Any = 1
    num_actions: Any = 1
    num_parameters: Any = 1
    sigma: Any = 0.5
    is_linear: Any = False

    def mean(self, theta: Any, observation: Any) -> Any:
        return (theta[0] * observation[0],)

    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        return (noise[0] * observation[0] / self.sigma,)


def test_a_policy_that_inherits_nothing_passes() -> None:
    check_policy(Own())


@dataclass(frozen=True)
class HoldsList(Own):
    sizes: list[int] = field(default_factory=list)


class PlainClass:
    num_observations, num_actions, num_parameters, sigma, is_linear = 1, 1, 1, 0.5, False
    mean, score = Own.mean, Own.score


class WithoutScore(Own):
    score: Any = None


class ReturnsList(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return list(super().mean(theta, observation))


class ChoosesTwo(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return super().mean(theta, observation) * 2


class MeansOfEpisodes(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return (jnp.mean(super().mean(theta, observation)[0], axis=0),)


class ScoresInteger(Own):
    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        return (jnp.ones(noise[0].shape, jnp.int32),)


class ScoresTwice(Own):
    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        return super().score(theta, observation, noise) * 2


class ForgetsSigma(Own):
    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        return (noise[0] * observation[0],)


class OtherOrder(LinearGaussian):
    """The derivatives of W before those of b."""

    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        return tuple(reversed(super().score(theta, observation, noise)))


class NormalisesTheBatch(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return (theta[0] * (observation[0] - jnp.mean(observation[0], axis=0)),)


class SharesTheta(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return (jnp.mean(theta[0]) * observation[0],)


class Draws(Own):
    generator = np.random.default_rng(0)

    def mean(self, theta: Any, observation: Any) -> Any:
        return (theta[0] * observation[0] + jnp.float32(self.generator.normal()),)


class Branches(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return super().mean(theta, observation) if theta[0, 0] > 0 else observation


class ReadsTooMuch(Own):
    def mean(self, theta: Any, observation: Any) -> Any:
        return (theta[0] * observation[1],)


class Quadratic(LinearGaussian):
    """Not linear, but says so."""

    def mean(self, theta: Any, observation: Any) -> Any:
        return tuple(mean**2 for mean in super().mean(theta, observation))

    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        inner = super().mean(theta, observation)
        return super().score(theta, observation, tuple(2.0 * m * z for m, z in zip(inner, noise, strict=True)))


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Own(num_actions=0), "`num_actions` must be a whole number of at least 1, got 0"),
        (Own(num_parameters=2.0), "`num_parameters` must be a whole number of at least 1, got 2.0"),
        (Own(sigma=0.0), "`sigma` must be a positive number, got 0.0"),
        (Own(sigma=None), "`sigma` must be a positive number, got None"),
        (Own(is_linear=None), "`is_linear` must be True or False, got None"),
        (WithoutScore(), "it has no method `score`"),
        (HoldsList(), "it must be hashable .* make it a frozen dataclass"),
        (PlainClass(), "a copy is not equal to the original"),
        (ReturnsList(), "`mean` returns a list, it must return a tuple of arrays"),
        (ChoosesTwo(), "`mean` returns 2 numbers, but num_actions is 1"),
        (MeansOfEpisodes(), r"array 0 of `mean` has shape \(3,\), it must be \(5, 3\)"),
        (ScoresInteger(), "array 0 of `score` has dtype int32, it must be float32"),
        (ScoresTwice(), "`score` returns 2 numbers, but num_parameters is 1"),
        (ForgetsSigma(), "`score` is not the derivative of log pi with respect to parameter 0"),
        (OtherOrder(2, 1, 0.5), "`score` is not the derivative of log pi with respect to parameter 0"),
        (NormalisesTheBatch(), "what `mean` gives for a learner must not depend on other learners or episodes"),
        (SharesTheta(), "what `mean` gives for a learner must not depend on other learners"),
        (Draws(), "`mean` gives different results for the same input"),
        (Branches(), "`mean` depends on a value in Python .*; use jnp.where"),
        (ReadsTooMuch(), "`mean` fails with IndexError: tuple index out of range"),
        (Quadratic(2, 1, 0.5), r"`is_linear` is True, but the mean is not b \+ W s"),
        (Own(is_linear=True), r"`is_linear` is True, but the mean is not b \+ W s"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_policy_gets_a_sentence(policy: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^policy {type(policy).__name__}: {sentence}") as caught:
        check_policy(policy)
    assert "\n" not in str(caught.value)

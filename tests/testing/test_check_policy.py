"""Every registered policy keeps the contract; each way to break it gets its own sentence."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import pytest

from metastep import policies
from metastep.policies import ActorCritic, LinearGaussian, MLPGaussian
from metastep.testing import check_policy
from tests.testing.variants import RNG, refused, then, variant


@pytest.mark.parametrize("name", policies.names())
def test_registered_policies_pass(name: str) -> None:
    options = {"sigma": 0.5} if "sigma" in policies.REGISTRY.options(name) else {}
    check_policy(policies.make(name, 3, 2, **options))


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


@pytest.mark.parametrize(
    "policy",
    [
        LinearGaussian(1, 1, 0.1),
        LinearGaussian(17, 6, 1.001),
        MLPGaussian(2, 2, 0.7, (3, 2)),
        ActorCritic(4, 1, num_choices=3, hidden=(5,)),
        Own(),
    ],
    ids=["smallest", "score in large pieces", "two layers", "choices", "inherits nothing"],
)
def test_other_policies_pass(policy: Any) -> None:
    check_policy(policy)


class Quadratic(LinearGaussian):
    """Not linear, but says so."""

    def mean(self, theta: Any, observation: Any) -> Any:
        return tuple(mean**2 for mean in super().mean(theta, observation))

    def score(self, theta: Any, observation: Any, noise: Any) -> Any:
        inner = super().mean(theta, observation)
        return super().score(theta, observation, tuple(2.0 * m * z for m, z in zip(inner, noise, strict=True)))


def means(function: Any) -> Any:
    return variant(Own, mean=lambda _, theta, seen: function(theta, seen))


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Own(num_actions=0), "^policy Own: `num_actions` must be a whole number of at least 1, got 0"),
        (Own(sigma=0.0), "`sigma` must be a positive number, got 0.0"),
        (Own(is_linear=None), "`is_linear` must be True or False, got None"),
        (variant(Own, score=None), "it has no method `score`"),
        (variant(Own, mean=then(Own.mean, list)), "`mean` returns a list, it must return a tuple of arrays"),
        (
            means(lambda theta, seen: (jnp.mean(seen[0], axis=0),)),
            r"array 0 of `mean` has shape \(3,\), it must be \(5, 3\)",
        ),
        (variant(Own, score=then(Own.score, lambda s: s * 2)), "`score` returns 2 numbers, but num_parameters is 1"),
        (
            variant(Own, score=then(Own.score, lambda s: (2.0 * s[0],))),
            "`score` is not the derivative of log pi with respect to parameter 0",
        ),
        (
            variant(LinearGaussian, 2, 1, 0.5, score=then(LinearGaussian.score, lambda s: s[::-1])),
            "`score` is not the derivative of log pi with respect to parameter 0",
        ),
        (
            means(lambda theta, seen: (theta[0] * (seen[0] - jnp.mean(seen[0], axis=0)),)),
            "what `mean` gives for a learner must not depend on other learners or episodes",
        ),
        (
            means(lambda theta, seen: (theta[0] * seen[0] + jnp.float32(RNG.normal()),)),
            "`mean` gives different results for the same input",
        ),
        (Quadratic(2, 1, 0.5), r"`is_linear` is True, but the mean is not b \+ W s"),
    ],
)
def test_a_broken_policy_gets_a_sentence(policy: Any, sentence: str) -> None:
    refused(check_policy, policy, sentence)

"""Every registered feature, policy and rule keeps its contract; each way to break one gets its own sentence."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import pytest
from jax import Array

from metastep import features, policies, rules
from metastep.features import Feature
from metastep.policies import ActorCritic, LinearGaussian, MLPGaussian
from metastep.rules import GradientAscent, Rule, Update, guard
from metastep.testing import check_feature, check_policy, check_rule
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
        (variant(Lengths, bounds=lambda *_: ((0.0,), (1.0,))), "`bounds` must be 2 lower and 2 upper ones"),
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


class Velocity(NamedTuple):
    velocity: Array


@dataclass(frozen=True)
class Momentum(Rule):
    """Heavy ball, whose decay is chosen at every update: two hyperparameters and a state, not along a line."""

    name: ClassVar[Any] = "momentum"
    hyperparameters: ClassVar[Any] = ("stepsize", "decay")

    def direction(self, estimate: Any) -> Any:
        return estimate.gradient

    def init(self, theta: Any) -> Any:
        return Velocity(jnp.zeros_like(theta))

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        after = Velocity(values["decay"][:, None] * state.velocity + estimate.gradient)
        return guard(theta, theta + values["stepsize"][:, None] * after.velocity, estimate.gradient, state, after)


@pytest.mark.parametrize("rule", [*map(rules.make, rules.names()), GradientAscent(normalised=True), Momentum()])
def test_registered_and_other_rules_pass(rule: Any) -> None:
    check_rule(rule)


class SharesVelocity(Momentum):
    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        shared = Velocity(jnp.broadcast_to(jnp.mean(state.velocity, axis=0), theta.shape))
        return super().apply(theta, estimate, values, shared)


class LosesItsWay(Momentum):
    """Claims to follow the signs, which are finite, but follows the gradient."""

    def direction(self, estimate: Any) -> Any:
        return jnp.ones_like(estimate.gradient)

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        moved = theta + values["stepsize"][:, None] * estimate.gradient
        return Update(moved, state, jnp.zeros(len(theta), bool))


class Squares(GradientAscent):
    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        return super().apply(theta, estimate, {"stepsize": values["stepsize"] ** 2}, state)


class Shrinks(GradientAscent):
    """Weight decay: the move depends on theta."""

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        after = super().apply(theta, estimate, values, state)
        return after._replace(
            theta=jnp.where(after.flagged[:, None], theta, after.theta - 0.1 * values["stepsize"][:, None] * theta)
        )


def applies(change: Any) -> Any:
    return variant(Momentum, apply=then(Momentum.apply, change))


UNUSABLE = "a direction that is zero or not finite must leave theta and state, and be flagged"
LINE = "`is_along_a_line` is True, but theta' - theta is not h times a vector that depends on neither h nor theta"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (variant(Momentum, hyperparameters=()), "^rule 'momentum': `hyperparameters` must name one identifier or more"),
        (variant(Momentum, hyperparameters="step"), "`hyperparameters` must be a tuple of strings, got 'step'"),
        (
            variant(Momentum, hyperparameters=("step size",)),
            "`hyperparameters` must name one identifier or more, each once, got",
        ),
        (variant(Momentum, is_along_a_line=True), "is True, which needs one hyperparameter, but there are 2"),
        (
            variant(Momentum, direction=lambda _, estimate: estimate.gradient[:, 0]),
            r"what `direction` returns has shape \(5,\), it must be \(5, 3\)",
        ),
        (
            variant(Momentum, init=lambda _, theta: Velocity(jnp.zeros_like(theta.T))),
            r"an array of the state has shape \(3, 5\), its first axis must be the learners'",
        ),
        (applies(lambda after: after.theta), "`apply` must return a metastep.rules.Update, its result has no `theta`"),
        (
            applies(lambda after: after._replace(theta=after.theta.astype(jnp.bfloat16))),
            "the theta that `apply` returns has dtype bfloat16, it must be float32",
        ),
        (
            applies(lambda after: after._replace(flagged=jnp.any(after.flagged))),
            r"`flagged` has shape \(\), it must be \(5,\)",
        ),
        (applies(lambda after: after._replace(state=None)), "`apply` returns is the state .*, but the first state is"),
        (SharesVelocity(), "what `apply` gives for a learner must not depend on other learners"),
        (
            applies(lambda after: after._replace(theta=after.theta + jnp.float32(RNG.normal()))),
            "`apply` gives different results for the same input",
        ),
        (applies(lambda after: after._replace(flagged=jnp.zeros_like(after.flagged))), UNUSABLE),
        (
            applies(
                lambda after: after._replace(
                    state=Velocity(jnp.where(after.flagged[:, None], 0.5, 1.0) * after.state.velocity)
                )
            ),
            UNUSABLE,
        ),
        (LosesItsWay(), "theta must stay finite where a gradient is not"),
        (Squares(), LINE),
        (Shrinks(), LINE),
    ],
)
def test_a_broken_rule_gets_a_sentence(rule: Any, sentence: str) -> None:
    refused(check_rule, rule, sentence)

"""Every registered feature, policy, rule and regressor keeps its contract; each way to break one gets its own sentence."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from sklearn.neighbors import KNeighborsRegressor

from metastep import features, policies, rules
from metastep.features import Feature
from metastep.fqi import regressors
from metastep.fqi.regressors import SklearnRegressor
from metastep.policies import ActorCritic, LinearGaussian, MLPGaussian
from metastep.rules import GradientAscent, Rule, Update, guard
from metastep.testing import check_feature, check_policy, check_regressor, check_rule
from tests.controllers.problems import make_mdp, make_training_mdp
from tests.fqi.problems import LeastSquares, Line
from tests.testing.variants import refused, then, variant

MDPS = make_mdp(), make_training_mdp()


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


@pytest.mark.parametrize("feature", [Lengths(), *map(features.make, features.names())], ids=lambda each: each.name)
def test_correct_features_pass(feature: Any) -> None:
    check_feature(feature, next(mdp for mdp in MDPS if set(feature.needs) <= set(mdp.diagnosed)))


@pytest.mark.parametrize(
    ("feature", "sentence"),
    [
        (variant(Lengths, size=lambda *_: 0), "^feature 'lengths': `size` must be a whole number of at least 1, got 0"),
        (variant(Lengths, columns=lambda *_: (0, 1)), r"`columns` must be a tuple of 2 different names, got \(0, 1\)"),
        (variant(Lengths, bounds=lambda *_: ((0.0,), (1.0,))), "`bounds` must be 2 lower and 2 upper ones"),
        (variant(Lengths, bounds=lambda *_: ((0.0, 1.0), (1.0, 0.0))), "2 upper ones, at least as high"),
        (calls(jnp.ravel), "`__call__` fails with ValueError"),
        (calls(lambda found: found.astype(jnp.int32)), "what `__call__` returns has dtype int32, it must be float32"),
        (calls(lambda found: found - jnp.mean(found, axis=0)), "must not depend on other learners"),
    ],
)
def test_a_broken_feature_gets_a_sentence(feature: Any, sentence: str) -> None:
    refused(check_feature, feature, sentence, make_mdp())


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
        *(policies.make(name, 3, 2, **({"sigma": 0.5} if name != "actor-critic" else {})) for name in policies.names()),
        LinearGaussian(17, 6, 1.001),  # its score comes in large pieces
        MLPGaussian(2, 2, 0.7, (3, 2)),
        ActorCritic(4, 1, num_choices=3, hidden=(5,)),
        Own(),  # inherits nothing
    ],
)
def test_correct_policies_pass(policy: Any) -> None:
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
        (means(lambda theta, seen: (jnp.mean(seen[0], axis=0),)), r"array 0 of `mean` has shape \(3,\), it must"),
        (variant(Own, score=then(Own.score, lambda s: s * 2)), "`score` returns 2 numbers, but num_parameters is 1"),
        (variant(Own, score=then(Own.score, lambda s: (2.0 * s[0],))), "`score` is not the derivative of log pi"),
        (
            variant(LinearGaussian, 2, 1, 0.5, score=then(LinearGaussian.score, lambda s: s[::-1])),
            "`score` is not the derivative of log pi with respect to parameter 0",
        ),
        (
            means(lambda theta, seen: (theta[0] * (seen[0] - jnp.mean(seen[0], axis=0)),)),
            "what `mean` gives for a learner must not depend on other learners or episodes",
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
        shrunk = after.theta - 0.1 * values["stepsize"][:, None] * theta
        return after._replace(theta=jnp.where(after.flagged[:, None], theta, shrunk))


def applies(change: Any) -> Any:
    return variant(Momentum, apply=then(Momentum.apply, change))


UNUSABLE = "a direction that is zero or not finite must leave theta and state, and be flagged"
LINE = "`is_along_a_line` is True, but theta' - theta is not h times a vector that depends on neither h nor theta"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (variant(Momentum, hyperparameters=()), "^rule 'momentum': `hyperparameters` must name one identifier or more"),
        (variant(Momentum, hyperparameters="step"), "`hyperparameters` must be a tuple of strings, got 'step'"),
        (variant(Momentum, hyperparameters=("step size",)), "`hyperparameters` must name one identifier"),
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
        (applies(lambda a: a._replace(flagged=jnp.any(a.flagged))), r"`flagged` has shape \(\), it must be \(5,\)"),
        (applies(lambda after: after._replace(state=None)), "`apply` returns is the state .*, but the first state is"),
        (SharesVelocity(), "what `apply` gives for a learner must not depend on other learners"),
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


@pytest.mark.parametrize("own", [LeastSquares(), *(regressors.make(name, trees=3) for name in regressors.names())])
def test_correct_regressors_pass(own: Any) -> None:
    check_regressor(own)


class PlainClass:
    """An option that no file would hold."""

    name, head = "least-squares", Line

    def __init__(self, ridge: float = 1e-3) -> None:
        self.ridge = ridge

    fit, load = LeastSquares.fit, LeastSquares.load


class ScalesInPlace(LeastSquares):
    def fit(self, inputs: Any, targets: Any, **settings: Any) -> Any:
        inputs -= inputs.mean(axis=0)
        return super().fit(inputs, targets, **settings)


class CountsThreads(LeastSquares):
    def fit(self, inputs: Any, targets: Any, *, seed: int, threads: int | None) -> Any:
        return super().fit(inputs, targets * (1.0 + (threads or 0)), seed=seed, threads=threads)


def heads(**members: Any) -> Any:
    """Fits heads with these members."""
    return variant(LeastSquares, head=type("Head", (Line,), members))


def loads(load: Any) -> Any:
    return variant(LeastSquares, load=load)


@pytest.mark.parametrize(
    ("regressor", "sentence"),
    [
        (variant(LeastSquares, load=None), "^regressor 'least-squares': it has no method `load`"),
        (PlainClass(), "one with its options {} is not equal to it; make it a frozen dataclass"),
        (ScalesInPlace(), "`fit` fails with ValueError: output array is read-only"),
        (CountsThreads(), "`fit` gives different heads for the same seed; they must not depend on the threads either"),
        (
            variant(LeastSquares, fit=then(LeastSquares.fit, lambda head: head.weights)),
            "`fit` must return a metastep.fqi.regressors.Head, its result has no `num_features`",
        ),
        (heads(num_features=7), "`num_features` is 7, it must be 4"),
        (
            heads(predict=then(Line.predict, lambda found: found.astype(np.float32))),
            "what `predict` returns has dtype float32, it must be float64",
        ),
        (heads(predict=then(Line.predict, lambda found: found + np.inf)), "what `predict` returns must be finite"),
        (heads(importances=np.ones(1)), r"`importances` has shape \(1,\), it must be \(4,\)"),
        (heads(arrays=lambda self: {}), "`arrays` must return arrays by name"),
        (heads(arrays=lambda self: {"w": self.weights.astype(object)}), "'w' of `arrays` must be a NumPy array of"),
        (loads(then(LeastSquares.load, lambda head: Line(0.0 * head.weights))), "head that is loaded predicts"),
        (loads(lambda self, arrays: Line(next(iter(arrays.values())))), "InputError, but it takes them"),
        (loads(lambda self, arrays: Line(arrays["weights"])), "with an InputError, not a KeyError"),
        (SklearnRegressor(KNeighborsRegressor()), "lives in memory only and cannot be saved"),
    ],
)
def test_a_broken_regressor_gets_a_sentence(regressor: Any, sentence: str) -> None:
    refused(check_regressor, regressor, sentence)

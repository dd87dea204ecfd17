"""Every registered rule keeps the contract; each way to break it gets its own sentence."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import pytest
from jax import Array

from metastep import rules
from metastep.rules import GradientAscent, Rule, Update, guard
from metastep.testing import check_rule
from tests.testing.variants import RNG, refused, then, variant


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

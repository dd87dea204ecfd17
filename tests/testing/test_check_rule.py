"""Every registered rule keeps the contract; each way to break it gets its own sentence."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from metastep import rules
from metastep._core.errors import InputError
from metastep.rules import GradientAscent, Rule, Update, guard
from metastep.testing import check_rule


@pytest.mark.parametrize("name", rules.names())
def test_registered_rules_pass(name: str) -> None:
    check_rule(rules.make(name))


def test_an_option_of_a_rule_passes() -> None:
    check_rule(GradientAscent(normalised=True))


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


def test_a_rule_with_two_hyperparameters_passes() -> None:
    check_rule(Momentum())


class Nameless(Momentum):
    name: ClassVar[Any] = ""


class NamesNothing(Momentum):
    hyperparameters: ClassVar[Any] = ()


class NamesOne(Momentum):
    hyperparameters: ClassVar[Any] = "stepsize"


class NamesTwice(Momentum):
    hyperparameters: ClassVar[Any] = ("stepsize", "stepsize")


class NamesWithSpaces(Momentum):
    hyperparameters: ClassVar[Any] = ("step size", "decay")


class Overdamped(Momentum):
    damping: ClassVar[Any] = 2.0


class Undecided(Momentum):
    is_along_a_line: ClassVar[Any] = None


class SaysSoWithTwo(Momentum):
    is_along_a_line: ClassVar[Any] = True


class PlainClass(Rule):
    """Hashable by identity."""

    name = "momentum"
    hyperparameters = Momentum.hyperparameters
    direction, init, apply = Momentum.direction, Momentum.init, Momentum.apply


class Aimless(Momentum):
    def direction(self, estimate: Any) -> Any:
        raise NotImplementedError


class OneDirection(Momentum):
    def direction(self, estimate: Any) -> Any:
        return estimate.gradient[:, 0]


class LearnersLast(Momentum):
    def init(self, theta: Any) -> Any:
        return Velocity(jnp.zeros_like(theta.T))


class ReturnsTheta(Momentum):
    def apply(self, *given: Any) -> Any:
        return super().apply(*given).theta


class Narrow(Momentum):
    def apply(self, *given: Any) -> Any:
        after = super().apply(*given)
        return after._replace(theta=after.theta.astype(jnp.bfloat16))


class FlagsOnce(Momentum):
    def apply(self, *given: Any) -> Any:
        after = super().apply(*given)
        return after._replace(flagged=jnp.any(after.flagged))


class DropsState(Momentum):
    def apply(self, *given: Any) -> Any:
        return super().apply(*given)._replace(state=None)


class SharesVelocity(Momentum):
    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        shared = Velocity(jnp.broadcast_to(jnp.mean(state.velocity, axis=0), theta.shape))
        return super().apply(theta, estimate, values, shared)


class Draws(Momentum):
    generator = np.random.default_rng(0)

    def apply(self, theta: Any, *given: Any) -> Any:
        return super().apply(theta + jnp.float32(self.generator.normal()), *given)


class Branches(Momentum):
    def apply(self, theta: Any, *given: Any) -> Any:
        return super().apply(theta if theta[0, 0] > 0 else -theta, *given)


class NeverFlags(Momentum):
    def apply(self, *given: Any) -> Any:
        after = super().apply(*given)
        return after._replace(flagged=jnp.zeros_like(after.flagged))


class MovesAnyway(Momentum):
    """The state goes on to decay."""

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        after = super().apply(theta, estimate, values, state)
        return after._replace(state=Velocity(jnp.where(after.flagged[:, None], 0.5, 1.0) * after.state.velocity))


class LosesItsWay(Momentum):
    """Says that it follows the signs, which are finite, but follows the gradient."""

    def direction(self, estimate: Any) -> Any:
        return jnp.ones_like(estimate.gradient)

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        moved = theta + values["stepsize"][:, None] * estimate.gradient
        return Update(moved, state, jnp.zeros(len(theta), bool))


class Line(GradientAscent):
    """Says that it moves along a line."""


class Offset(Line):
    def apply(self, theta: Any, *given: Any) -> Any:
        after = super().apply(theta, *given)
        return after._replace(theta=jnp.where(after.flagged[:, None], after.theta, after.theta + 0.1))


class Squares(Line):
    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        return super().apply(theta, estimate, {"stepsize": values["stepsize"] ** 2}, state)


class Shrinks(Line):
    """Weight decay: the move depends on theta."""

    def apply(self, theta: Any, estimate: Any, values: Any, state: Any) -> Any:
        after = super().apply(theta, estimate, values, state)
        return after._replace(
            theta=jnp.where(after.flagged[:, None], theta, after.theta - 0.1 * values["stepsize"][:, None] * theta)
        )


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (Nameless(), "rule: Nameless must have a `name`, a non-empty string, got ''"),
        (NamesNothing(), r"`hyperparameters` must name one identifier or more, each once, got \(\)"),
        (NamesOne(), "`hyperparameters` must be a tuple of strings, got 'stepsize'"),
        (NamesTwice(), "`hyperparameters` must name one identifier or more, each once, got"),
        (NamesWithSpaces(), "`hyperparameters` must name one identifier or more, each once, got"),
        (Overdamped(), r"`damping` must be None or lie in \(0, 1\), got 2.0"),
        (Undecided(), "`is_along_a_line` must be True or False, got None"),
        (PlainClass(), "a copy is not equal to the original"),
        (Aimless(), "`direction` fails with NotImplementedError"),
        (OneDirection(), r"what `direction` returns has shape \(5,\), it must be \(5, 3\)"),
        (LearnersLast(), r"an array of the state has shape \(3, 5\), its first axis must be the learners'"),
        (ReturnsTheta(), "`apply` must return a metastep.rules.Update, its result has no `theta`"),
        (Narrow(), "the theta that `apply` returns has dtype bfloat16, it must be float32"),
        (FlagsOnce(), r"`flagged` has shape \(\), it must be \(5,\)"),
        (DropsState(), "what `apply` returns is the state PyTreeDef.*, but the first state is PyTreeDef"),
        (SharesVelocity(), "what `apply` gives for a learner must not depend on other learners"),
        (Draws(), "`apply` gives different results for the same input"),
        (Branches(), "`apply` depends on a value in Python .*; use jnp.where"),
        (NeverFlags(), "a direction that is zero or not finite must leave theta and state, and be flagged"),
        (MovesAnyway(), "a direction that is zero or not finite must leave theta and state, and be flagged"),
        (LosesItsWay(), "theta must stay finite where a gradient is not"),
        (SaysSoWithTwo(), "`is_along_a_line` is True, which needs one hyperparameter, but there are 2"),
        (Offset(), "`is_along_a_line` is True, but theta' - theta is not h times a vector"),
        (Squares(), "`is_along_a_line` is True, but theta' - theta is not h times a vector"),
        (
            Shrinks(),
            "`is_along_a_line` is True, but theta' - theta is not h times a vector that depends on neither h nor theta",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_rule_gets_a_sentence(rule: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^rule.*: {sentence}" if rule.name else sentence) as caught:
        check_rule(rule)
    assert "\n" not in str(caught.value)

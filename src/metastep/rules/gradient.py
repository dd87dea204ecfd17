"""Rules that follow a gradient: the paper's natural gradient of unit length, plain ascent, RMSprop, Adam, and a menu of them."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import optax
from annotated_types import Gt, Lt
from jax import Array

from metastep._core.errors import InputError, shown
from metastep.rules.base import Moments, Rule, RuleState, Update, guard, no_moments
from metastep.rules.spaces import Values
from metastep.simulation.gradients import DAMPING, Estimate

Followed = Literal["gradient", "natural_gradient"]


class GradientRule(Rule):
    """theta' = theta + h g, where g is the plain or the natural gradient, optionally normalised to unit length."""

    is_along_a_line: ClassVar[bool] = True
    follows: Followed = "gradient"
    normalised: bool = False

    def direction(self, estimate: Estimate) -> Array:
        return estimate.gradient if self.follows == "gradient" else estimate.natural_gradient

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: Any) -> Update:
        direction, stepsize = self.direction(estimate), values["stepsize"][:, None]
        if not self.normalised:
            return guard(theta, theta + stepsize * direction, direction)
        # Divide by the largest entry first: squares of large or small float32 numbers leave its range.
        largest = jnp.max(jnp.abs(direction), axis=-1, keepdims=True)
        # XLA multiplies by the reciprocal, which is zero for the very largest entries; `guard` handles that.
        direction = direction / jnp.where(largest > 0.0, largest, 1.0)
        norm = jnp.sqrt(jnp.sum(direction * direction, axis=-1, keepdims=True))
        return guard(theta, theta + stepsize * (direction / jnp.where(norm > 0.0, norm, 1.0)), direction)


@dataclass(frozen=True)
class NGA(GradientRule):
    """theta' = theta + h g / ||g||_2, g the natural gradient.

    Args:
        damping: added to the Fisher matrix's diagonal, as a share of the mean of that diagonal unless rollout.damping_kind
            says otherwise. It limits how far directions that hardly vary in the batch (a cart that has not moved yet) are
            stretched: with too little damping the step follows their noise.
    """

    damping: Annotated[float, Gt(0.0), Lt(1.0)] = DAMPING

    name: ClassVar[str] = "nga"
    follows = "natural_gradient"
    normalised = True


@dataclass(frozen=True)
class GradientAscent(GradientRule):
    """theta' = theta + h g, g the plain gradient.

    Args:
        normalised: whether g is brought to unit length first.
    """

    normalised: bool = False

    name: ClassVar[str] = "gradient"


@dataclass(frozen=True)
class RMSProp(GradientRule):
    """RMSprop on the plain gradient: `theta += h g / sqrt(v + eps)`; Keras' formula, and optax's with `eps_in_sqrt`.

    Args:
        decay: of the running mean of the squared gradient.
        epsilon: added to that mean.
        follows: which g; the paper found the natural gradient to serve poorly here and took the plain one.
    """

    decay: float = 0.9
    epsilon: float = 1e-7
    follows: Followed = "gradient"

    name: ClassVar[str] = "rmsprop"

    def init(self, theta: Array) -> optax.ScaleByRmsState:
        return optax.ScaleByRmsState(jnp.zeros_like(theta))

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: optax.ScaleByRmsState) -> Update:
        scaling, gradient = optax.scale_by_rms(self.decay, self.epsilon, eps_in_sqrt=True), self.direction(estimate)
        direction, after = scaling.update(gradient, state)
        return guard(theta, theta + values["stepsize"][:, None] * direction, gradient, state, after)


@dataclass(frozen=True)
class Adam(GradientRule):
    """Adam on the plain gradient, with Keras' formula.

    `theta += h sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps)`. optax corrects v's bias before adding eps, Keras after: the
    two differ by a factor sqrt(1 - b2^t) on eps, so optax's Adam cannot serve here.

    Args:
        first_decay, second_decay: of the running moments of the gradient.
        epsilon: added to the root of the second moment.
        follows: as of `RMSProp`.
    """

    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-7
    follows: Followed = "gradient"

    name: ClassVar[str] = "adam"

    def init(self, theta: Array) -> Moments:
        return no_moments(theta)

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: Moments) -> Update:
        gradient = self.direction(estimate)
        first = self.first_decay * state.first + (1.0 - self.first_decay) * gradient
        second = self.second_decay * state.second + (1.0 - self.second_decay) * gradient**2
        count = state.steps + 1.0
        correction = jnp.sqrt(1.0 - self.second_decay**count) / (1.0 - self.first_decay**count)
        moved = theta + values["stepsize"][:, None] * correction[:, None] * first / (jnp.sqrt(second) + self.epsilon)
        return guard(theta, moved, gradient, state, Moments(first, second, count))


@dataclass(frozen=True)
class Menu(Rule):
    """theta' = theta + h v, v one of several directions, each of them what another rule adds at h = 1.

    Every direction keeps its own state, and moments run on at every update, whichever direction is followed.

    Args:
        directions: the name of a rule that moves along a line, with its options, in words: "nga damping=0.1", "rmsprop".
    """

    directions: tuple[str, ...] = ("nga damping=0.001", "nga damping=0.1", "rmsprop")

    name: ClassVar[str] = "menu"
    hyperparameters: ClassVar[tuple[str, ...]] = ("direction", "stepsize")

    def __post_init__(self) -> None:
        if not self.directions or len(set(self.directions)) < len(self.directions):
            named = shown(list(self.directions))
            raise InputError(f"meta.rule.directions: {named} must name one direction or more, each once.")
        _ = self.rules  # validates them

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of each direction."""
        return tuple(map(_rule_of, self.directions))

    @property
    def damping(self) -> tuple[float, ...] | None:
        """The damping of each natural gradient on the menu, in its order."""
        return tuple(value for rule in self.rules if isinstance(value := rule.damping, float)) or None

    def direction(self, estimate: Estimate) -> Array:
        return estimate.gradient

    def init(self, theta: Array) -> tuple[RuleState, ...]:
        return tuple(rule.init(theta) for rule in self.rules)

    def apply(self, theta: Array, estimate: Estimate, values: Values, state: tuple[RuleState, ...]) -> Update:
        unit = self._unit_updates(estimate, state)
        vectors = jnp.stack([update.theta for update in unit], axis=1)
        vector = jnp.take_along_axis(vectors, values["direction"][:, None, None], axis=1)[:, 0]
        moved = guard(theta, theta + values["stepsize"][:, None] * vector, vector)
        return moved._replace(state=tuple(update.state for update in unit))

    def steps(self, estimate: Estimate, state: tuple[RuleState, ...]) -> Array:
        return jnp.stack([update.theta for update in self._unit_updates(estimate, state)], axis=1)

    def _unit_updates(self, estimate: Estimate, state: tuple[RuleState, ...]) -> list[Update]:
        """Apply every rule from the origin with h = 1, each to the natural gradient with its own damping."""
        origin, one = jnp.zeros_like(estimate.gradient), {"stepsize": jnp.ones(len(estimate.gradient), jnp.float32)}
        naturals = iter((estimate.natural_gradient, *estimate.more))
        updates = []
        for rule, memory in zip(self.rules, state, strict=True):
            view = estimate if rule.damping is None else estimate._replace(natural_gradient=next(naturals), more=())
            updates.append(rule.apply(origin, view, one, memory))
        return updates


def _rule_of(text: str) -> Rule:
    """Build the rule of a direction, such as "nga damping=0.1"."""
    from metastep.rules import REGISTRY  # imports this module

    field, (name, *words) = "meta.rule.directions", text.split() or [""]
    try:
        options = tomllib.loads("\n".join(words))
    except tomllib.TOMLDecodeError:
        must = "must be a rule's name and options like damping=0.1, each once"
        raise InputError(f"{field}: {shown(text)} {must}.") from None
    rule = None if name == Menu.name else REGISTRY.build(name, options, field=field)
    if not isinstance(rule, Rule) or not rule.is_along_a_line:
        raise InputError(f"{field}: {shown(text)} must be a rule that moves along one line, {name!r} does not.")
    return rule

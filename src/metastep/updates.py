"""Update rules: how an estimate and a step size change theta.

A rule is the direction; the step size comes from elsewhere (a controller). All arrays are learners first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax.numpy as jnp
import optax
from jax import Array

from metastep.errors import not_registered
from metastep.gradients import Estimate

RuleState = Any


class Update(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: RuleState
    flagged: Array  # (learners,): the direction was zero or not finite, so theta and state stayed


class UpdateRule(Protocol):
    """theta' = f(theta, h, batch)."""

    @property
    def name(self) -> str:
        """Identifier in the registry."""
        ...

    @property
    def direction(self) -> Literal["gradient", "natural_gradient"]:
        """Which part of the estimate the rule follows."""
        ...

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the numbers a controller chooses for every update."""
        ...

    def init(self, theta: Array) -> RuleState:
        """State before the first update; every leaf is learners first."""
        ...

    def apply(self, theta: Array, estimate: Estimate, hyperparameters: Array, state: RuleState) -> Update:
        """One update of every learner; hyperparameters is (learners, len(self.hyperparameters))."""
        ...


def unusable(direction: Array) -> Array:
    """Which learners (rows) have a direction that is zero or not finite, so that theta must stay."""
    return ~(jnp.all(jnp.isfinite(direction), axis=-1) & jnp.any(direction != 0.0, axis=-1))


def _guard(theta: Array, moved: Array, direction: Array, old: RuleState, new: RuleState) -> Update:
    """Keep theta and state of learners whose direction is zero or not finite, and flag them.

    The same for learners whose theta or state would leave float32's range: an infinite moment would stop them for good.
    """
    usable = ~unusable(direction) & jnp.all(jnp.isfinite(moved), axis=-1)
    for leaf in new or ():
        usable = usable & jnp.all(jnp.isfinite(leaf).reshape(len(leaf), -1), axis=-1)

    def keep(after: Array, before: Array) -> Array:
        shape = usable.shape + (1,) * (after.ndim - 1)
        return jnp.where(usable.reshape(shape), after, before)

    state = None if new is None else type(new)(*(keep(a, b) for a, b in zip(new, old, strict=True)))
    return Update(keep(moved, theta), state, ~usable)


@dataclass(frozen=True)
class Ascent:
    """theta' = theta + h g, or theta + h g/||g||_2, g the natural or the plain gradient; NGA is the normalised natural one."""

    name: str
    direction: Literal["gradient", "natural_gradient"]
    normalised: bool

    hyperparameters: ClassVar[tuple[str, ...]] = ("stepsize",)

    def init(self, theta: Array) -> None:
        """Nothing is remembered."""
        return

    def apply(self, theta: Array, estimate: Estimate, hyperparameters: Array, state: None) -> Update:
        """Step along the direction."""
        direction = getattr(estimate, self.direction)
        step = hyperparameters[:, :1]
        if self.normalised:
            # Divide by the largest entry first: squares of large or small float32 numbers leave its range.
            largest = jnp.max(jnp.abs(direction), axis=-1, keepdims=True)
            # XLA multiplies by the reciprocal, which is zero for the very largest: the guard sees what is left.
            direction = direction / jnp.where(largest > 0.0, largest, 1.0)
            norm = jnp.sqrt(jnp.sum(direction * direction, axis=-1, keepdims=True))
            moved = theta + step * (direction / jnp.where(norm > 0.0, norm, 1.0))
        else:
            moved = theta + step * direction
        return _guard(theta, moved, direction, None, None)


class AdamState(NamedTuple):
    """Running moments of the gradient and the number of updates made."""

    first: Array  # (learners, parameters)
    second: Array  # (learners, parameters)
    updates: Array  # (learners,)


@dataclass(frozen=True)
class Adam:
    """Adam on the plain gradient, with Keras' formula.

    `theta += h sqrt(1 - b2^t)/(1 - b1^t) m / (sqrt(v) + eps)`. optax corrects v's bias before adding eps, Keras after: the
    two differ by a factor sqrt(1 - b2^t) on eps, so optax's Adam cannot serve here.
    """

    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-7

    name: ClassVar[str] = "adam"
    direction: ClassVar[Literal["gradient", "natural_gradient"]] = "gradient"
    hyperparameters: ClassVar[tuple[str, ...]] = ("stepsize",)

    def init(self, theta: Array) -> AdamState:
        """Zero moments."""
        return AdamState(jnp.zeros_like(theta), jnp.zeros_like(theta), jnp.zeros(theta.shape[:1], jnp.float32))

    def apply(self, theta: Array, estimate: Estimate, hyperparameters: Array, state: AdamState) -> Update:
        """One Adam step, uphill."""
        gradient = estimate.gradient
        first = self.first_decay * state.first + (1.0 - self.first_decay) * gradient
        second = self.second_decay * state.second + (1.0 - self.second_decay) * gradient**2
        count = state.updates + 1.0
        correction = jnp.sqrt(1.0 - self.second_decay**count) / (1.0 - self.first_decay**count)
        moved = theta + hyperparameters[:, :1] * correction[:, None] * first / (jnp.sqrt(second) + self.epsilon)
        return _guard(theta, moved, gradient, state, AdamState(first, second, count))


class RMSPropState(NamedTuple):
    """The running mean of the squared gradient."""

    square: Array  # (learners, parameters)


@dataclass(frozen=True)
class RMSProp:
    """RMSprop on the plain gradient: `theta += h g / sqrt(v + eps)`; Keras' formula, and optax's with `eps_in_sqrt`."""

    decay: float = 0.9
    epsilon: float = 1e-7

    name: ClassVar[str] = "rmsprop"
    direction: ClassVar[Literal["gradient", "natural_gradient"]] = "gradient"
    hyperparameters: ClassVar[tuple[str, ...]] = ("stepsize",)

    def init(self, theta: Array) -> RMSPropState:
        """A zero mean square."""
        return RMSPropState(jnp.zeros_like(theta))

    def apply(self, theta: Array, estimate: Estimate, hyperparameters: Array, state: RMSPropState) -> Update:
        """One RMSprop step, uphill."""
        scaling = optax.scale_by_rms(decay=self.decay, eps=self.epsilon, eps_in_sqrt=True)
        direction, after = scaling.update(estimate.gradient, optax.ScaleByRmsState(nu=state.square))
        moved = theta + hyperparameters[:, :1] * direction
        return _guard(theta, moved, estimate.gradient, state, RMSPropState(after.nu))


NGA = Ascent("nga", "natural_gradient", normalised=True)
NORMALISED_GRADIENT = Ascent("normalised-gradient", "gradient", normalised=True)
GRADIENT = Ascent("gradient", "gradient", normalised=False)

_REGISTRY: dict[str, Callable[[], UpdateRule]] = {
    "nga": lambda: NGA,
    "normalised-gradient": lambda: NORMALISED_GRADIENT,
    "gradient": lambda: GRADIENT,
    "adam": Adam,
    "rmsprop": RMSProp,
}


def names() -> tuple[str, ...]:
    """The registered rules."""
    return tuple(_REGISTRY)


def make(name: str) -> UpdateRule:
    """Build a registered rule with its defaults."""
    if name not in _REGISTRY:
        raise not_registered("rule", name, names())
    return _REGISTRY[name]()

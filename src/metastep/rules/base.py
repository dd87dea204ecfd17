"""What an update rule is: the direction in which theta moves; how far comes from elsewhere (a controller).

All arrays are learners first.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate

RuleState = Any


class Update(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: RuleState
    flagged: Array  # (learners,): the direction was zero or not finite, so theta and state stayed


class Rule(ABC):
    """theta' = f(theta, h, batch). A rule of your own is a frozen dataclass that inherits from this."""

    name: ClassVar[str]  # identifier in the registry
    hyperparameters: ClassVar[tuple[str, ...]] = ("stepsize",)  # the numbers a controller chooses for every update
    is_along_a_line: ClassVar[bool] = False  # theta' - theta is h times a vector that depends on neither h nor theta

    optional: ClassVar[tuple[str, ...]] = ()  # fields that a space may have as coordinates, beside the hyperparameters
    numbers: ClassVar[tuple[float, ...]] = ()  # what the directions stand for, where they are numbers

    @property
    def directions(self) -> tuple[str, ...]:
        """What is chosen among before the step, by name; none where there is no choice."""
        return ()

    @property
    def tells_divergence(self) -> bool:
        """Whether it is known what an update cost."""
        return self.is_along_a_line

    @property
    def damping(self) -> float | tuple[float, ...] | None:
        """Damping of the natural gradient that the rule follows, or of each that it may follow; None where there is none."""
        return None

    @abstractmethod
    def direction(self, estimate: Estimate) -> Array:
        """The part of the estimate that the rule follows, (learners, parameters); learners without one are flagged."""

    def init(self, theta: Array) -> RuleState:
        """State before the first update; every leaf is learners first."""
        return None

    @abstractmethod
    def apply(self, theta: Array, estimate: Estimate, values: Values, state: RuleState) -> Update:
        """Update every learner; `values` has one array (learners,) for each of the hyperparameters."""

    def steps(self, estimate: Estimate, state: RuleState) -> Array:
        """What an update adds to theta at h = 1, along each direction there is to choose: (learners, directions, parameters).

        There is no direction where a rule does not move along a line.
        """
        if not self.is_along_a_line:
            return jnp.zeros((len(estimate.gradient), 0, estimate.gradient.shape[1]), jnp.float32)
        one = {"stepsize": jnp.ones(len(estimate.gradient), jnp.float32)}
        return self.apply(jnp.zeros_like(estimate.gradient), estimate, one, state).theta[:, None]


Followed = Literal["gradient", "natural_gradient"]


class GradientRule(Rule):
    """A rule that follows the plain gradient, or where it has such an option the natural one, along a line."""

    is_along_a_line: ClassVar[bool] = True
    follows: Followed = "gradient"

    def direction(self, estimate: Estimate) -> Array:
        return estimate.gradient if self.follows == "gradient" else estimate.natural_gradient


def unusable(direction: Array) -> Array:
    """Which learners (rows) have a direction that is zero or not finite, so that theta must stay."""
    return ~(jnp.all(jnp.isfinite(direction), axis=-1) & jnp.any(direction != 0.0, axis=-1))


def guard(theta: Array, moved: Array, direction: Array, old: RuleState = None, new: RuleState = None) -> Update:
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

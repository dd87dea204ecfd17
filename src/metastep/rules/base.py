"""The interface of update rules: a rule moves theta in a direction, by a step that a controller chooses. Learners come first."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep.rules.spaces import Range, Values
from metastep.simulation.gradients import Estimate

RuleState = Any


class Update(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: RuleState
    flagged: Array  # (learners,): the direction was zero or not finite, so theta and state are unchanged


class Moments(NamedTuple):
    """Running moments of a gradient, and the number of steps in them."""

    first: Array  # (learners, parameters)
    second: Array  # (learners, parameters)
    steps: Array  # (learners,)


def no_moments(theta: Array) -> Moments:
    """Return the moments of learners (learners, parameters) before the first step."""
    return Moments(jnp.zeros_like(theta), jnp.zeros_like(theta), jnp.zeros(len(theta), jnp.float32))


class BaseRule(ABC):
    """What rules declare about their hyperparameters."""

    name: ClassVar[str]  # identifier in the registry
    hyperparameters: ClassVar[tuple[str, ...]] = ("stepsize",)  # coordinates of every space
    choices: ClassVar[dict[str, Range]] = {}  # fields that may be further coordinates, with their default ranges
    numbers: ClassVar[tuple[float, ...]] = ()  # values of the directions, if these are numbers
    is_along_a_line: ClassVar[bool] = False  # theta' - theta is h times a vector that depends on neither h nor theta

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the directions, or other categories, to choose from; empty if there is no choice."""
        return ()

    @property
    def damping(self) -> float | tuple[float, ...] | None:
        """Damping of the natural gradient that the rule uses, or of each of several; None if it uses none."""
        return None


class Rule(BaseRule):
    """theta' = f(theta, h, batch of episodes). Rules of your own are frozen dataclasses that inherit from this."""

    @abstractmethod
    def direction(self, estimate: Estimate) -> Array:
        """Return the gradient that the rule uses, (learners, parameters); learners where it is zero or not finite are flagged."""

    def init(self, theta: Array) -> RuleState:
        """Return the state before the first update; every leaf is learners first."""
        return None

    @abstractmethod
    def apply(self, theta: Array, estimate: Estimate, values: Values, state: RuleState) -> Update:
        """Update every learner; `values` has one array (learners,) for each of the hyperparameters."""

    def steps(self, estimate: Estimate, state: RuleState) -> Array:
        """Return the change of theta at h = 1 along each direction: (learners, directions, parameters), perhaps 0 directions."""
        if not self.is_along_a_line:
            return jnp.zeros((len(estimate.gradient), 0, estimate.gradient.shape[1]), jnp.float32)
        one = {"stepsize": jnp.ones(len(estimate.gradient), jnp.float32)}
        return self.apply(jnp.zeros_like(estimate.gradient), estimate, one, state).theta[:, None]


def unusable(direction: Array) -> Array:
    """Return for which learners (rows) the direction is zero or not finite: (learners,)."""
    return ~(jnp.all(jnp.isfinite(direction), axis=-1) & jnp.any(direction != 0.0, axis=-1))


def finite_rows(tree: Any) -> Array:
    """Return for which learners all arrays of a tree are finite: (learners,)."""
    leaves = [jnp.all(jnp.isfinite(leaf).reshape(len(leaf), -1), axis=1) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(leaves), axis=0)


def chosen_rows(usable: Array, after: Any, before: Any) -> Any:
    """Return the rows of `after` where `usable` (learners,), else those of `before`, for all arrays of two trees."""
    return jax.tree.map(lambda new, old: jnp.where(usable.reshape(-1, *(1,) * (new.ndim - 1)), new, old), after, before)


def guard(theta: Array, moved: Array, direction: Array, old: RuleState = None, new: RuleState = None) -> Update:
    """Keep theta and state of learners whose direction is zero or not finite, and flag them."""
    # Also if theta or state would exceed float32's range: an infinite moment would stop the learner forever.
    usable = ~unusable(direction) & finite_rows((moved, new))
    moved, state = chosen_rows(usable, (moved, new), (theta, old))
    return Update(moved, state, ~usable)

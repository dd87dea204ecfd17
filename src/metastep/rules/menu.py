"""A menu of directions: one batch yields all of them, and a controller chooses one for every update."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError, shown
from metastep.rules.base import Rule, RuleState, Update, guard
from metastep.rules.spaces import Values
from metastep.simulation.gradients import Estimate


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
        """The rule behind each direction."""
        return tuple(map(_rule_of, self.directions))

    @property
    def damping(self) -> tuple[float, ...] | None:
        """Of each natural gradient on the menu, in its order."""
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
        """Apply every rule from the origin with h = 1; rules that follow a natural gradient see their own."""
        origin, one = jnp.zeros_like(estimate.gradient), {"stepsize": jnp.ones(len(estimate.gradient), jnp.float32)}
        naturals = iter((estimate.natural_gradient, *estimate.more))
        updates = []
        for rule, memory in zip(self.rules, state, strict=True):
            view = estimate if rule.damping is None else estimate._replace(natural_gradient=next(naturals), more=())
            updates.append(rule.apply(origin, view, one, memory))
        return updates


def _rule_of(text: str) -> Rule:
    """Build the rule that the words name."""
    from metastep.rules import REGISTRY  # which registers this module's class

    field = "meta.rule.directions"
    name, *words = text.split() or [""]
    try:
        options = tomllib.loads("\n".join(words))
    except tomllib.TOMLDecodeError:
        must = "must be a rule's name and options like damping=0.1, each once"
        raise InputError(f"{field}: {shown(text)} {must}.") from None
    rule = None if name == Menu.name else REGISTRY.build(name, options, field=field)
    if not isinstance(rule, Rule) or not rule.is_along_a_line:
        raise InputError(f"{field}: {shown(text)} must be a rule that moves along one line, {name!r} does not.")
    return rule

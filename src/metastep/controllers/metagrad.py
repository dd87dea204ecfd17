"""Meta-gradient on the step size (paper, appendix: Metagrad implementation; after Xu, van Hasselt and Silver 2018)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.controllers.schedules import PerLearner, check, column
from metastep.mdp import Learners, MetaMDP, whole_episodes
from metastep.mdp.controller import Controller, require_one_coordinate
from metastep.rules import unusable
from metastep.simulation.gradients import Estimate


class MetagradState(NamedTuple):
    """The next step size."""

    mdp: MetaMDP
    direction: Callable[[Estimate], Array]  # of the rule
    stepsize: Array  # (learners, 1)


def _unit(direction: Array) -> Array:
    """Return direction / ||direction||, zeros for a direction that is zero or not finite: (learners, parameters)."""
    usable = ~unusable(direction)[:, None]
    safe = jnp.where(usable, direction, 1.0)
    scaled = safe / jnp.max(jnp.abs(safe), axis=-1, keepdims=True)  # squares of large numbers would overflow
    return jnp.where(usable, scaled / jnp.sqrt(jnp.sum(scaled * scaled, axis=-1, keepdims=True)), 0.0)


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine of the angle between rows (learners, parameters), 0 where one has no direction: (learners, 1)."""
    return jnp.clip(jnp.sum(_unit(first) * _unit(second), axis=-1, keepdims=True), -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Metagrad(Controller):
    """h' = clip(h + beta cos(g', g), H), g the direction of the rule: the trace mu is 0, as in the paper.

    dj(theta + h g/||g||)/dh is the component of the next gradient along g. The paper prints a minus sign, the convention of
    descent; returns are maximised here.

    Args:
        stepsize: h of the first update, clipped to H like all others.
        beta: the meta step size.
    """

    stepsize: PerLearner
    beta: PerLearner

    name: ClassVar[str] = "metagrad"

    def __post_init__(self) -> None:
        check("metagrad.stepsize", self.stepsize)
        check("metagrad.beta", self.beta)

    def init(self, mdp: MetaMDP, learners: Learners) -> MetagradState:
        require_one_coordinate(self.name, mdp)
        first = column("metagrad.stepsize", self.stepsize, learners.theta.shape[0])
        return MetagradState(mdp, whole_episodes(mdp, "controller: 'metagrad'").rule.direction, mdp.space.clip(first))

    def propose(self, state: MetagradState, learners: Learners) -> Array:
        return state.stepsize

    def observe(self, state: MetagradState, before: Learners, hyperparameters: Array, after: Learners) -> MetagradState:
        """Grow while successive directions agree, shrink when they oppose."""
        agreement = cosine(state.direction(before.estimate), state.direction(after.estimate))
        beta = column("metagrad.beta", self.beta, agreement.shape[0])
        return state._replace(stepsize=state.mdp.space.clip(state.stepsize + beta * agreement))

"""The step size that keeps the divergence of an update near a target: the usual rule of PPO implementations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep.controllers.per_learner import PerLearner, check, column
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.controller import Controller, require_one_coordinate

_FACTOR = 1.5


class KLAdaptiveState(NamedTuple):
    """The next step size."""

    stepsize: Array  # (learners, 1)


@dataclass(frozen=True, eq=False)
class KLAdaptive(Controller):
    """h / 1.5 after an update that cost more than twice the target, 1.5 h after one below half of it.

    What an update cost is the mean KL divergence between the policies before and after, over the states visited.

    Args:
        stepsize: h of the first update; like all others it may lie outside the space H.
        target: the divergence aimed at.
        lowest, highest: smallest and largest h, of the first update too; rsl_rl has 1e-5 and 1e-2 for learning rates, rl_games
            1e-6 and 1e-2.
    """

    stepsize: PerLearner
    target: PerLearner
    lowest: PerLearner = 0.0
    highest: PerLearner = 1e9

    name: ClassVar[str] = "kl-adaptive"

    def __post_init__(self) -> None:
        check("kl_adaptive.stepsize", self.stepsize, least=0.0)
        check("kl_adaptive.target", self.target, least=0.0)
        check("kl_adaptive.lowest", self.lowest, least=0.0)
        check("kl_adaptive.highest", self.highest, least=0.0)
        if np.size(self.lowest) in (1, np.size(self.highest)) or np.size(self.highest) == 1:  # else `init` refuses them
            for low, high in np.broadcast(self.lowest, self.highest):
                if low > high:
                    raise InputError(f"kl_adaptive.lowest: {low:g} must not exceed highest, which is {high:g}.")

    def init(self, mdp: MetaMDP, learners: Learners) -> KLAdaptiveState:
        require_one_coordinate(self.name, mdp)
        if not mdp.rule.tells_divergence:
            raise InputError(
                f"controller: {self.name!r} needs a rule that tells what an update cost, {mdp.rule.name!r} does not."
            )
        stepsize, lowest, highest = self._columns(learners, "stepsize", "lowest", "highest")
        return KLAdaptiveState(jnp.clip(stepsize, lowest, highest))

    def propose(self, state: KLAdaptiveState, learners: Learners) -> Array:
        return state.stepsize

    def observe(
        self, state: KLAdaptiveState, before: Learners, hyperparameters: Array, after: Learners
    ) -> KLAdaptiveState:
        """Compare what the update cost with the band around the target."""
        target, lowest, highest = self._columns(before, "target", "lowest", "highest")
        cost = after.previous.divergence[:, None]
        factor = jnp.where(cost > 2.0 * target, 1.0 / _FACTOR, jnp.where(cost < 0.5 * target, _FACTOR, 1.0))
        moved = jnp.any(after.theta != before.theta, axis=1, keepdims=True)  # an update that was not made says nothing
        return KLAdaptiveState(jnp.clip(state.stepsize * jnp.where(moved, factor, 1.0), lowest, highest))

    def _columns(self, learners: Learners, *names: str) -> Iterator[Array]:
        return (column(f"kl_adaptive.{name}", getattr(self, name), learners.theta.shape[0]) for name in names)

"""An upper reference: a line search on fresh episodes at every update."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, simulated, updated, whole_episodes
from metastep.mdp.controller import Controller, Run
from metastep.rules.spaces import Space
from metastep.simulation.rollouts import on_cpu

# Candidates simulated side by side share the random numbers; more of them would leave the processor's cache.
_SIDE_BY_SIDE = 8


def _search(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array) -> Array:
    engine, rollout = mdp.estimator.engine, mdp.estimator.rollout

    def price(candidate: Array) -> Array:
        theta = updated(mdp, learners, jnp.broadcast_to(candidate, (len(learners.theta), len(candidate)))).theta
        return engine.mean_return(rollout, theta, learners.context, learners.controller_key)

    return engine.map(price, candidates, _SIDE_BY_SIDE)


def line_search(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array) -> Array:
    """Return the mean return after an update with each candidate (candidates, coordinates): (candidates, learners).

    The episodes are fresh: they come from the controller's key, so they are neither those of the current nor of the next
    batch; every candidate sees the same random numbers.
    """
    search = partial(mdp.estimator.engine.whole(_search), simulated(mdp), learners)
    if not (mdp.estimator.engine.is_compiled and on_cpu()):
        return search(candidates)
    # On a CPU a block uses one processor; idle ones take some of the candidates.
    few = [candidates[start : start + _SIDE_BY_SIDE] for start in range(0, len(candidates), _SIDE_BY_SIDE)]
    return jnp.concatenate(map_threads(search, few, None))


@dataclass(frozen=True, eq=False)
class GreedyOracle(Controller):
    """The step with the best return on fresh episodes, at each update; it costs another batch for each candidate.

    Args:
        num_stepsizes: evenly spaced candidates along every direction; 0 takes as many as the experiment's model chooses from.
    """

    num_stepsizes: int = 101

    name: ClassVar[str] = "greedy-oracle"
    is_yardstick: ClassVar[bool] = True
    num_batches: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.num_stepsizes < 2 and self.num_stepsizes != 0:
            raise InputError(f"greedy_oracle.num_stepsizes: {self.num_stepsizes} must be at least 2, or 0.")

    def prepared(self, run: Run) -> "GreedyOracle":
        return self if self.num_stepsizes else replace(self, num_stepsizes=run.num_stepsizes)

    def num_trials(self, space: Space) -> int:
        return len(space.candidates(self.num_stepsizes))

    def init(self, mdp: MetaMDP, learners: Learners) -> EpisodicMetaMDP:
        return whole_episodes(mdp, "controller: 'greedy-oracle'")

    def propose(self, state: EpisodicMetaMDP, learners: Learners) -> Array:
        """Try all candidates; ties and returns that are not finite go to the smallest."""
        candidates = jnp.asarray(state.space.candidates(self.num_stepsizes))
        returns = line_search(state, learners, candidates)
        return candidates[jnp.argmax(jnp.where(jnp.isfinite(returns), returns, -jnp.inf), axis=0)]

"""The yardstick: what a line search on fresh episodes buys."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep.controllers.fixed import require_one_coordinate
from metastep.errors import InputError
from metastep.meta.mdp import Learners, MetaMDP
from metastep.simulation.rollouts import discounted_returns

# Candidates simulated side by side share the random numbers; more of them would leave the processor's cache.
_SIDE_BY_SIDE = 8


def _moved(mdp: MetaMDP, learners: Learners, stepsize: Array) -> Array:
    proposal = jnp.full((learners.theta.shape[0], 1), stepsize)
    return mdp.rule.apply(learners.theta, learners.estimate, proposal, learners.rule_state).theta


@partial(jax.jit, static_argnums=0)
def _compiled_search(mdp: MetaMDP, learners: Learners, stepsizes: Array) -> Array:
    def price(stepsize: Array) -> Array:
        theta = _moved(mdp, learners, stepsize)
        returns = discounted_returns(mdp.estimator.rollout, theta, learners.context, learners.controller_key)
        return jnp.mean(returns, axis=0)

    return lax.map(price, stepsizes, batch_size=_SIDE_BY_SIDE)


def line_search(mdp: MetaMDP, learners: Learners, stepsizes: Array) -> Array:
    """Mean return after an update with each of the step sizes, on fresh episodes: (stepsizes, learners).

    The episodes come from the controller's key, so they are neither those the direction was estimated on nor those of the
    next batch; every candidate sees the same random numbers.
    """
    if not mdp.estimator.on_host:
        return _compiled_search(mdp, learners, stepsizes)
    return jnp.stack(
        [
            mdp.estimator(_moved(mdp, learners, stepsize), learners.context, learners.controller_key).mean_return
            for stepsize in stepsizes
        ]
    )


@dataclass(frozen=True, eq=False)
class GreedyOracle:
    """The step size with the best return on fresh episodes, at each update; it costs `num_stepsizes` batches more.

    Args:
        num_stepsizes: evenly spaced candidates over H.
    """

    num_stepsizes: int = 101
    name: str = "greedy-oracle"

    def __post_init__(self) -> None:
        if self.num_stepsizes < 2:
            raise InputError(f"greedy_oracle.num_stepsizes: {self.num_stepsizes} must be at least 2.")

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        """Remember what to simulate."""
        require_one_coordinate(self.name, mdp)
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """Try them all; ties and returns that are not finite go to the smallest."""
        stepsizes = jnp.asarray(state.space.grid(self.num_stepsizes))
        returns = line_search(state, learners, stepsizes)
        best = jnp.argmax(jnp.where(jnp.isfinite(returns), returns, -jnp.inf), axis=0)
        return stepsizes[best][:, None]

    def observe(self, state: MetaMDP, before: Learners, hyperparameters: Array, after: Learners) -> MetaMDP:
        """Nothing is learned."""
        return state

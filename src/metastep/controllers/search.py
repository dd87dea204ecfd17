"""Controllers that search among candidate steps: HOOF with the current batch, the oracle with fresh episodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep.controllers.schedules import NumericController, PerLearner
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, apply_rule, require_episodic, rule_values
from metastep.mdp.controller import Controller, Resources
from metastep.policies import Arrays
from metastep.rules.spaces import Space
from metastep.simulation.engine import compiled, compiled_for, is_compiled, stream
from metastep.simulation.rollouts import Move, Rollout, Trajectories, discounted_returns, fold_over, on_cpu, simulate

_SIDE_BY_SIDE = 8  # candidates simulated at once, with the same random numbers; more would exceed the processor's cache


class Prices(NamedTuple):
    """Estimates for candidates from the current batch, without simulating any of them."""

    value: Array  # (candidates, learners): weighted importance-sampling estimate of the discounted return
    divergence: Array  # (candidates, learners): mean KL(current policy, candidate) over the states visited
    sample_size: Array  # (candidates, learners): effective number of episodes behind the value


class _Tilt(NamedTuple):
    """Effect of a shift u(s) of the mean: log p'(a) / p(a) = u z / sigma - u^2 / (2 sigma^2) at a = mean + sigma z."""

    weight: Array  # gamma^t
    returns: Array  # (episodes, learners)
    cross: Array  # (episodes, learners): A = sum_t u_t z_t / sigma
    square: Array  # (episodes, learners): B = sum_t u_t^2 / sigma^2
    num_steps: Array  # (learners,)


def _tilt(rollout: Rollout, learners: Learners, shift: Callable[[Arrays], Arrays], batch: Trajectories | None) -> _Tilt:
    """Sum over the current batch: stored, or simulated again with the same key."""
    sigma = rollout.policy.sigma

    def on_step(sums: _Tilt, move: Move, alive: Array) -> tuple[_Tilt, None]:
        moved = shift(move.observation)
        cross = sum(u * z for u, z in zip(moved, move.noise, strict=True)) / sigma
        square = sum(u * u for u in moved) / sigma**2
        after = _Tilt(
            weight=sums.weight * rollout.discount,
            returns=sums.returns + sums.weight * move.reward,
            cross=sums.cross + jnp.where(alive, cross, 0.0),
            square=sums.square + jnp.where(alive, square, 0.0),
            num_steps=sums.num_steps + jnp.sum(alive, axis=0, dtype=jnp.float32),
        )
        return after, None

    lanes = jnp.zeros((rollout.num_episodes, learners.theta.shape[0]), jnp.float32)
    start = _Tilt(jnp.float32(1.0), lanes, lanes, lanes, lanes[0])
    if batch is not None:
        return fold_over(batch, start, on_step)
    return simulate(rollout, learners.theta, learners.context, learners.simulation_key, start, on_step)[0]


def _price(tilt: _Tilt, scale: Array) -> Prices:
    """Estimate one candidate, whose shift is `scale` (learners,) times that of `tilt`.

    WIS: `sum_i w_i G_i / sum_i w_i`, `log w_i = h A_i - h^2 B_i / 2`; only ratios of weights matter, so nothing overflows.
    """
    weight = jax.nn.softmax(scale * tilt.cross - 0.5 * scale**2 * tilt.square, axis=0)  # over episodes
    divergence = 0.5 * scale**2 * jnp.sum(tilt.square, axis=0) / tilt.num_steps
    return Prices(jnp.sum(weight * tilt.returns, axis=0), divergence, 1.0 / jnp.sum(weight * weight, axis=0))


def _is_along_a_line(mdp: EpisodicMetaMDP) -> bool:
    """Return whether the policy's mean moves by h u(s): it is linear in theta, and the rule moves theta along a line."""
    return mdp.estimator.rollout.policy.is_linear and mdp.rule.is_along_a_line


def _batch(mdp: EpisodicMetaMDP, learners: Learners) -> Trajectories | None:
    """Return the episodes of the current batch; None if it is cheaper to simulate them again in a compiled function."""
    if learners.episodes is not None:
        return learners.episodes
    if _is_along_a_line(mdp) and is_compiled(mdp.env):
        return None
    return mdp.estimator.trajectories(learners.theta, learners.context, learners.simulation_key)


def _price_all(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array, episodes: Trajectories | None) -> Prices:
    rollout, policy = mdp.estimator.rollout, mdp.estimator.rollout.policy
    if _is_along_a_line(mdp):
        origin, one = jnp.zeros_like(learners.theta), mdp.space.named(jnp.ones_like(candidates[0]))
        direction = mdp.rule.apply(origin, learners.estimate, one, learners.rule_state).theta.T
        tilt = _tilt(rollout, learners, lambda observation: policy.mean(direction, observation), episodes)
        values = jax.vmap(partial(rule_values, mdp, learners))(candidates)
        return jax.vmap(partial(_price, tilt))(values["stepsize"])

    def price_one(candidate: Array) -> Prices:
        theta = apply_rule(mdp, learners, candidate).theta.T

        def shift(observation: Arrays) -> Arrays:
            means = policy.mean(theta, observation), policy.mean(learners.theta.T, observation)
            return tuple(new - old for new, old in zip(*means, strict=True))

        return _price(_tilt(rollout, learners, shift, episodes), jnp.ones(learners.theta.shape[0], jnp.float32))

    return lax.map(price_one, candidates)


def price(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array) -> Prices:
    """Estimate return and divergence of every candidate (candidates, learners, coordinates) on the current batch."""
    return compiled(_price_all)(mdp.simulated(), learners, candidates, _batch(mdp, learners))


def choose(candidates: Array, prices: Prices, max_divergence: Array) -> Array:
    """Return the best feasible candidate, or that of the smallest step (the last coordinate) if none is feasible: (learners,)."""
    feasible = (prices.divergence <= max_divergence) & jnp.isfinite(prices.value)
    best = jnp.argmax(jnp.where(feasible, prices.value, -jnp.inf), axis=0)
    return jnp.where(jnp.any(feasible, axis=0), best, jnp.argmin(candidates[:, :, -1], axis=0))


@partial(jax.jit, static_argnums=(0, 1))
def _best_draw(
    mdp: EpisodicMetaMDP, num_candidates: int, learners: Learners, bound: Array, episodes: Trajectories | None
) -> Array:
    draws = mdp.space.sample(learners.controller_key, num_candidates * len(learners.theta))
    candidates = draws.reshape(num_candidates, -1, mdp.space.num_coordinates)
    best = choose(candidates, _price_all(mdp, learners, candidates, episodes), bound)
    return jnp.take_along_axis(candidates, best[None, :, None], axis=0)[0]


@dataclass(frozen=True, eq=False)
class HOOF(NumericController):
    """The best of many random step sizes by importance sampling (paper, appendix; after Paul, Kurin and Whiteson 2019)."""

    max_divergence: PerLearner  # the largest mean KL(old, new) of a feasible candidate (epsilon in the paper)
    num_candidates: int = 100  # Z, drawn uniformly from H for every learner and update

    name: ClassVar[str] = "hoof"
    keeps_episodes: ClassVar[bool] = True
    num_batches: ClassVar[int] = 3
    least: ClassVar[dict[str, float]] = {"max_divergence": 0.0, "num_candidates": 1.0}

    def init(self, mdp: MetaMDP, learners: Learners) -> tuple[EpisodicMetaMDP, *tuple[Array, ...]]:
        """Return a tuple with the meta-MDP, to which `observe` appends the effective sample sizes (learners,) of every update."""
        return (require_episodic(mdp, "controller: 'hoof'"),)

    def propose(self, state: Any, learners: Learners) -> Array:
        mdp, bound = state[0], self.column("max_divergence", learners)[:, 0]
        return _best_draw(mdp.simulated(), self.num_candidates, learners, bound, _batch(mdp, learners))

    def observe(self, state: Any, before: Learners, hyperparameters: Array, after: Learners) -> Any:
        return (*state, price(state[0], before, hyperparameters[None]).sample_size[0])

    def report(self, state: Any) -> dict[str, Array]:
        return {"effective_sample_size": jnp.stack(state[1:])} if state[1:] else {}


def _search(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array) -> Array:
    rollout = mdp.estimator.rollout

    def price(candidate: Array) -> Array:
        theta = apply_rule(mdp, learners, jnp.broadcast_to(candidate, (len(learners.theta), len(candidate)))).theta
        batch = rollout, theta, learners.context, learners.controller_key
        return jnp.mean(discounted_returns(*batch), axis=0) if is_compiled(mdp.env) else stream(*batch).mean_return

    if is_compiled(mdp.env):
        return lax.map(price, candidates, batch_size=_SIDE_BY_SIDE)
    return jnp.stack([price(candidate) for candidate in candidates])


def line_search(mdp: EpisodicMetaMDP, learners: Learners, candidates: Array) -> Array:
    """Return the mean return after an update with each candidate (candidates, coordinates): (candidates, learners).

    The episodes come from the controller's key, so they are fresh; every candidate sees the same random numbers.
    """
    search = partial(compiled_for(mdp.env, _search), mdp.simulated(), learners)
    if not (is_compiled(mdp.env) and on_cpu()):
        return search(candidates)
    # On a CPU, a block uses one core; idle cores evaluate some of the candidates.
    parts = [candidates[start : start + _SIDE_BY_SIDE] for start in range(0, len(candidates), _SIDE_BY_SIDE)]
    return jnp.concatenate(map_threads(search, parts, None))


@dataclass(frozen=True, eq=False)
class GreedyOracle(Controller):
    """The step with the best return on fresh episodes, at each update; it costs another batch for each candidate."""

    num_stepsizes: int = 101  # evenly spaced along every direction; 0 is as many as the experiment's model has

    name: ClassVar[str] = "greedy-oracle"
    is_yardstick: ClassVar[bool] = True
    num_batches: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.num_stepsizes < 2 and self.num_stepsizes != 0:
            raise InputError(f"greedy_oracle.num_stepsizes: {self.num_stepsizes!r} must be at least 2, or 0.")

    def prepared(self, run: Resources) -> "GreedyOracle":
        return self if self.num_stepsizes else replace(self, num_stepsizes=run.num_stepsizes)

    def num_trials(self, space: Space) -> int:
        return len(space.candidates(self.num_stepsizes))

    def init(self, mdp: MetaMDP, learners: Learners) -> EpisodicMetaMDP:
        return require_episodic(mdp, "controller: 'greedy-oracle'")

    def propose(self, state: EpisodicMetaMDP, learners: Learners) -> Array:
        """Evaluate all candidates; ties, and returns that are not finite, choose the smallest."""
        candidates = jnp.asarray(state.space.candidates(self.num_stepsizes))
        returns = line_search(state, learners, candidates)
        return candidates[jnp.argmax(jnp.where(jnp.isfinite(returns), returns, -jnp.inf), axis=0)]

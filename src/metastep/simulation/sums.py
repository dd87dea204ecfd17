"""The statistics of a batch: return, policy gradient with its baseline, moments for the Fisher matrix.

All are sums over episodes, taken while the batch is simulated (`stream`) or from whole trajectories (`sums_of`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep.policies import Arrays, flatten
from metastep.simulation.rollouts import Baseline, Move, Rollout, Trajectories, fold_over, on_cpu, simulate

# A per-step baseline divides by the mean square of the summed score; where that is zero the baseline is irrelevant.
_TINY = 1e-30

# Up to here second moments are written out entry by entry: fastest for a few, but many take the compiler half a minute.
_FEW_OBSERVATIONS = 8


class Sums(NamedTuple):
    """Per-learner statistics of a batch; learners last."""

    mean_return: Array  # (learners,)
    return_variance: Array  # (learners,), over episodes
    gradient: Array  # (parameters, learners)
    moments: Array | None  # (1 + observations, 1 + observations, learners): sum of phi phi^T over the steps taken
    num_steps: Array  # (learners,): steps before termination, all episodes together


def mean_and_error(returns: Any, xp: Any) -> tuple[Any, Any]:
    """Return the mean return of episodes (..., episodes), and its standard error, which is 0 for a single one."""
    num = returns.shape[-1]
    mean = xp.mean(returns, axis=-1)
    spread = xp.std(returns, axis=-1, ddof=1) if num > 1 else xp.zeros_like(mean)
    return mean, spread / xp.sqrt(xp.float32(num))


def _gpomdp_term(baseline: Baseline, score: Array, payoff: Array) -> Array:
    """Sum over episodes of (payoff - b) * score for one step, with b the best constant for this step and component."""
    if baseline == "none":
        return jnp.sum(score * payoff, axis=-2)
    # A baseline makes the sum blind to what all episodes have in common. Taking that off first makes the term exactly zero
    # where all episodes pay the same, instead of rounding noise that a normalised step would follow.
    payoff = payoff - payoff[..., :1, :]
    total = jnp.sum(score * payoff, axis=-2)
    if baseline == "mean":
        return total - jnp.mean(payoff, axis=-2) * jnp.sum(score, axis=-2)
    square = score * score
    best = jnp.sum(square * payoff, axis=-2) / jnp.maximum(jnp.sum(square, axis=-2), _TINY)
    return total - best * jnp.sum(score, axis=-2)


def _moment_sums(observation: Arrays, alive: Array) -> Array:
    """Sum over live episodes of phi phi^T, phi = (1, s): (1 + observations, 1 + observations, learners)."""
    weight = alive.astype(jnp.float32)
    if len(observation) > _FEW_OBSERVATIONS:
        phi = jnp.stack((jnp.ones_like(weight), *observation))
        return jnp.einsum("iel,jel->ijl", weight * phi, phi, precision=lax.Precision.HIGHEST)
    features = (weight, *(weight * value for value in observation))
    size = len(features)
    upper = {(0, 0): jnp.sum(weight, axis=0)}
    for column in range(1, size):
        upper[0, column] = jnp.sum(features[column], axis=0)
        for row in range(1, column + 1):
            upper[row, column] = jnp.sum(features[column] * observation[row - 1], axis=0)
    return jnp.stack([jnp.stack([upper[min(i, j), max(i, j)] for j in range(size)]) for i in range(size)])


class Accumulator(NamedTuple):
    """Everything an estimate needs of the steps so far."""

    weight: Array  # gamma^t
    scores: Arrays  # sum of the scores of each episode up to now
    returns: Array  # (episodes, learners)
    gradient: Arrays  # summed over episodes
    moments: Array | None
    num_steps: Array


def empty(rollout: Rollout, theta: Array) -> Accumulator:
    """Before the first step; theta is (parameters, learners)."""
    policy, num_learners = rollout.policy, theta.shape[-1]
    lanes = jax.ShapeDtypeStruct((rollout.num_episodes, num_learners), jnp.float32)
    pieces = jax.eval_shape(policy.score, theta, (lanes,) * policy.num_observations, (lanes,) * policy.num_actions)
    size = 1 + policy.num_observations
    return Accumulator(
        weight=jnp.float32(1.0),
        scores=tuple(jnp.zeros(piece.shape, jnp.float32) for piece in pieces),
        returns=jnp.zeros(lanes.shape, jnp.float32),
        gradient=tuple(jnp.zeros((*piece.shape[:-2], num_learners), jnp.float32) for piece in pieces),
        moments=jnp.zeros((size, size, num_learners), jnp.float32) if policy.is_linear else None,
        num_steps=jnp.zeros(num_learners, jnp.float32),
    )


def _follow(
    rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array
) -> tuple[Accumulator, tuple[Arrays, Array, Arrays, Array]]:
    """Carry each episode one step on; return what the sums over episodes need: scores, payoff, observation, alive."""
    score = rollout.policy.score(theta, move.observation, move.noise)
    scores = tuple(s + jnp.where(alive, now, 0.0) for s, now in zip(sums.scores, score, strict=True))
    payoff = sums.weight * move.reward
    after = sums._replace(weight=sums.weight * rollout.discount, scores=scores, returns=sums.returns + payoff)
    return after, (scores, payoff, move.observation, alive)


def _add_sums(sums: Accumulator, terms: Arrays, observation: Arrays, alive: Array) -> Accumulator:
    return sums._replace(
        gradient=tuple(total + term for total, term in zip(sums.gradient, terms, strict=True)),
        moments=None if sums.moments is None else sums.moments + _moment_sums(observation, alive),
        num_steps=sums.num_steps + jnp.sum(alive, axis=0, dtype=jnp.float32),
    )


def accumulate(rollout: Rollout, theta: Array, sums: Accumulator, move: Move, alive: Array) -> tuple[Accumulator, None]:
    """Add one step.

    GPOMDP: `grad = 1/n sum_episodes sum_t (gamma^t r_t - b_t) sum_{k<=t} d log pi(a_k|s_k)`. The baseline b_t of a step needs
    only sums over the episodes at that step, so nothing of the past has to be kept but the running scores.
    """
    after, (scores, payoff, observation, _) = _follow(rollout, theta, sums, move, alive)
    terms = tuple(_gpomdp_term(rollout.baseline, piece, payoff) for piece in scores)
    return _add_sums(after, terms, observation, alive), None


def finish(rollout: Rollout, sums: Accumulator) -> Sums:
    """The statistics of the batch."""
    return Sums(
        mean_return=jnp.mean(sums.returns, axis=0),
        # Of a single episode nothing is known about the spread; its variance of 0 says so no worse than a NaN would.
        return_variance=jnp.var(sums.returns, axis=0) * (rollout.num_episodes / max(rollout.num_episodes - 1, 1)),
        gradient=flatten(sums.gradient) / rollout.num_episodes,
        moments=sums.moments,
        num_steps=sums.num_steps,
    )


def stream(rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
    """Simulate and reduce on the fly: memory does not depend on the horizon.

    On a CPU every step is summed at once, while it is in the cache; a GPU sums several steps together, since it takes few,
    large reductions to keep it busy.
    """
    term = jax.vmap(partial(_gpomdp_term, rollout.baseline))

    def digest(sums: Accumulator, steps: tuple[Arrays, Array, Arrays, Array]) -> Accumulator:
        scores, payoff, observation, alive = steps
        terms = tuple(jnp.sum(term(piece, payoff), axis=0) for piece in scores)
        seen = tuple(piece.reshape(-1, piece.shape[-1]) for piece in observation)
        return _add_sums(sums, terms, seen, alive.reshape(-1, alive.shape[-1]))

    how: tuple[Any, ...] = (accumulate,) if on_cpu() else (_follow, digest)
    follow = partial(how[0], rollout, theta.T)
    return finish(rollout, simulate(rollout, theta, context, key, empty(rollout, theta.T), follow, *how[1:])[0])


def sums_of(rollout: Rollout, theta: Array, episodes: Trajectories) -> Sums:
    """The statistics of whole trajectories: what `stream` gives for the same policy, tasks and key."""
    follow = partial(accumulate, rollout, theta.T)
    return finish(rollout, fold_over(episodes, empty(rollout, theta.T), follow))

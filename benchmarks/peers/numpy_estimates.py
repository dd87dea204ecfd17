"""The estimate in NumPy, as a user of Gymnasium writes it: GPOMDP with the optimal baseline and the natural gradient.

With S_t the sum of the scores up to step t and R_t the discounted reward, both zero after an episode's end,

    b_t = sum_e S_t^2 R_t / sum_e S_t^2,    g = mean_e sum_t S_t (R_t - b_t),    F = mean_t[phi phi^T] / sigma^2

per component of theta; F is averaged over the steps before the end and serves every action.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common import DAMPING, DISCOUNT, SIGMA, SIZES, Estimates, Floats, joined

# From actions (learners, episodes, actions) to observations, rewards and ends, learners and episodes flattened.
StepFunction = Callable[[Floats], tuple[Floats, Floats, NDArray[np.bool_]]]


def roll(
    env: str, first: Floats, step: StepFunction, theta: Floats, episodes: int, horizon: int, rng: np.random.Generator
) -> Estimates:
    """Return estimates of the learners whose policies are the rows of theta.

    Gymnasium starts a new episode after an end. An estimate needs one episode each, so everything after a first end is masked,
    and the loop stops once every episode has ended.
    """
    size, num = SIZES[env], len(theta)
    bias = theta[:, None, : size.num_actions]  # (learners, 1, actions)
    weights = theta[:, size.num_actions :].reshape(num, size.num_actions, size.num_observations).transpose(0, 2, 1)
    shape = (horizon, num, episodes)
    noise = rng.standard_normal((*shape, size.num_actions))
    observations, rewards = np.zeros((*shape, size.num_observations)), np.zeros(shape)
    alive, going = np.zeros(shape, np.bool_), np.ones(shape[1:], np.bool_)
    observation, steps = first, 0
    while steps < horizon and going.any():
        observations[steps] = observation.reshape(num, episodes, -1)
        alive[steps] = going
        observation, reward, ended = step(bias + observations[steps] @ weights + SIGMA * noise[steps])
        rewards[steps] = reward.reshape(num, episodes)
        going = going & ~ended.reshape(num, episodes)
        steps += 1
    arrays = observations[:steps], noise[:steps], rewards[:steps], alive[:steps]
    return joined([_estimate(*(array[:, i] for array in arrays)) for i in range(num)])


def _estimate(observations: Floats, noise: Floats, rewards: Floats, alive: NDArray[np.bool_]) -> Estimates:
    """Return one learner's estimate; arrays are (steps, episodes, ...)."""
    num_steps, num_episodes, num_actions = noise.shape
    bias_score = np.where(alive[..., None], noise, 0.0) / SIGMA
    weight_score = bias_score[..., :, None] * observations[..., None, :]
    scores = np.concatenate([bias_score, weight_score.reshape(num_steps, num_episodes, -1)], axis=-1)
    sums = np.cumsum(scores, axis=0)  # (steps, episodes, parameters)
    discounted = np.where(alive, rewards, 0.0) * (DISCOUNT ** np.arange(num_steps))[:, None]
    squares = sums**2
    below = squares.sum(1)
    above = np.einsum("tep,te->tp", squares, discounted)
    baseline = np.divide(above, below, out=np.zeros_like(above), where=below > 0.0)
    gradient = (np.einsum("tep,te->p", sums, discounted) - (baseline * sums.sum(1)).sum(0)) / num_episodes
    live_steps = int(alive.sum())
    features = np.concatenate([np.ones_like(observations[..., :1]), observations], axis=-1)[alive]
    fisher = features.T @ features / (live_steps * SIGMA**2)
    damped = fisher + DAMPING * np.trace(fisher) / len(fisher) * np.eye(len(fisher))
    # One small solve per action; theta holds the biases first, then W row by row.
    rows = np.concatenate([gradient[:num_actions, None], gradient[num_actions:].reshape(num_actions, -1)], axis=1)
    solved = np.linalg.solve(damped, rows.T).T
    natural = np.concatenate([solved[:, 0], solved[:, 1:].ravel()])
    return Estimates(discounted.sum(0).mean(keepdims=True), gradient[None], natural[None], live_steps)

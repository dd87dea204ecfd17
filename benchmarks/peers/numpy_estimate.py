"""The estimate in NumPy: GPOMDP with the optimal baseline and the natural gradient, from whole trajectories.

What a user of Gymnasium writes around an environment. With S_t the sum of the scores up to step t and R_t the discounted
reward, both frozen once an episode has ended (scores and rewards are zero from then on),

    b_t = sum_e S_t^2 R_t / sum_e S_t^2,    g = mean_e sum_t S_t (R_t - b_t),    F = mean_t[phi phi^T] / sigma^2

per component of theta; F is averaged over the steps before the end and serves every action alike.
"""

from __future__ import annotations

import numpy as np
from common import DAMPING, DISCOUNT, SIGMA, Estimates, Floats
from numpy.typing import NDArray


def estimate(observations: Floats, noise: Floats, rewards: Floats, alive: NDArray[np.bool_]) -> Estimates:
    """One learner's estimate, from the steps that were made.

    Args:
        observations: (steps, episodes, observations), before each action.
        noise: (steps, episodes, actions), the standard normals behind the actions.
        rewards: (steps, episodes).
        alive: (steps, episodes), whether the episode was still going when the step was made.
    """
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
    return Estimates(
        mean_return=discounted.sum(0).mean(keepdims=True),
        gradient=gradient[None],
        natural_gradient=natural_gradient(fisher, gradient, num_actions)[None],
        live_steps=live_steps,
    )


def natural_gradient(fisher: Floats, gradient: Floats, num_actions: int) -> Floats:
    """(F + damping)^-1 g, one small solve for every action; theta holds the biases first, then W row by row."""
    size = fisher.shape[0]
    damped = fisher + DAMPING * np.trace(fisher) / size * np.eye(size)
    rows = np.concatenate([gradient[:num_actions, None], gradient[num_actions:].reshape(num_actions, -1)], axis=1)
    solved = np.linalg.solve(damped, rows.T).T
    return np.concatenate([solved[:, 0], solved[:, 1:].ravel()])

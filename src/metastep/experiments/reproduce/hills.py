"""The paper's figure 1 as a meta-MDP: a low hill on the way, a high one behind it.

    j(theta) = exp(-|theta - (2.5, 2.5)|^2 / 3) + 0.5 exp(-|theta|^2)

The learner follows the normalised gradient from `(-1, 0)`. The best single step has length 1 and ends on the low hill
(`j = 0.5`), where the gradient only leads back to its top. A step of 3.5 across it ends at `(2.5, 0)` with less than it
began with, but from there the gradient points at the high hill (`j = 1`): one step planned ahead is too few, two are
enough. Everything is deterministic and exact: no policy, no sampling.

Two choices keep the claim away from a knife edge. The top of the low hill turns the normalised gradient all around: a
learner that stops a hair before it would be pointed at the high hill by luck. On the coarse grid of step sizes the best
single step is 1.08, clearly past the top. And the discount is below 1, because without it standing still now and leaving
later is worth as much as leaving now.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep.meta.history import Transitions

START = (-1.0, 0.0)
"""Where the learner begins."""
LOCAL_OPTIMUM = (0.0, 0.0)
"""Top of the low hill, to two digits."""
GLOBAL_OPTIMUM = (2.5, 2.5)
"""Top of the high hill."""
STEPSIZE_LOW, STEPSIZE_HIGH = 0.0, 3.6
"""Bounds of the step size: enough to cross the low hill."""
NUM_STEPSIZES = 11
"""Step sizes a greedy learner chooses from: 0, 0.36, ..., 3.6."""
META_DISCOUNT = 0.9
"""Discount of later improvements."""


class Rollout(NamedTuple):
    """What a learner did."""

    theta: NDArray[np.float64]  # (updates + 1, 2)
    stepsize: NDArray[np.float64]  # (updates,)
    returns: NDArray[np.float64]  # (updates + 1,)


def landscape(theta: ArrayLike) -> NDArray[np.float64]:
    """Return `j` of parameters `(..., 2)`."""
    point = np.asarray(theta, dtype=np.float64)
    high = np.exp(-((point - GLOBAL_OPTIMUM) ** 2).sum(-1) / 3)
    low = 0.5 * np.exp(-(point**2).sum(-1))
    return np.asarray(high + low)


def gradient(theta: ArrayLike) -> NDArray[np.float64]:
    """Gradient of `j` at parameters `(..., 2)`."""
    point = np.asarray(theta, dtype=np.float64)
    high = np.exp(-((point - GLOBAL_OPTIMUM) ** 2).sum(-1, keepdims=True) / 3)
    low = 0.5 * np.exp(-(point**2).sum(-1, keepdims=True))
    return np.asarray(-2 / 3 * (point - GLOBAL_OPTIMUM) * high - 2 * point * low)


def update(theta: ArrayLike, stepsize: ArrayLike) -> NDArray[np.float64]:
    """Parameters after a step along the normalised gradient; a zero gradient leaves them where they are."""
    slope = gradient(theta)
    length = np.linalg.norm(slope, axis=-1, keepdims=True)
    direction = np.divide(slope, length, out=np.zeros_like(slope), where=length > 0)
    return np.asarray(theta, dtype=np.float64) + np.asarray(stepsize)[..., None] * direction


def observe(theta: ArrayLike) -> NDArray[np.float32]:
    """Observation `(..., 4)`: parameters and gradient."""
    return np.concatenate([np.asarray(theta), gradient(theta)], axis=-1).astype(np.float32)


def sample_transitions(episodes: int, updates: int, seed: int) -> Transitions:
    """Tuples of episodes with uniform step sizes.

    Half of the episodes begin near `START`, half anywhere in the figure's square, so that the high hill is known from
    all sides.
    """
    draw = np.random.default_rng(seed)
    near = np.array(START) + draw.normal(scale=0.1, size=(episodes, 2))
    anywhere = draw.uniform(-2, 5, size=(episodes, 2))
    theta = np.where(np.arange(episodes)[:, None] % 2 == 0, near, anywhere)
    observations, stepsizes, rewards = [observe(theta)], [], []
    for _ in range(updates):
        stepsize = draw.uniform(STEPSIZE_LOW, STEPSIZE_HIGH, size=episodes)
        following = update(theta, stepsize)
        observations.append(observe(following))
        stepsizes.append(stepsize)
        rewards.append(landscape(following) - landscape(theta))
        theta = following
    return Transitions(
        observation=np.concatenate(observations[:-1]),
        stepsize=np.concatenate(stepsizes).astype(np.float32),
        reward=np.concatenate(rewards).astype(np.float32),
        next_observation=np.concatenate(observations[1:]),
    )


def roll_out(act: Callable[[NDArray[np.float32]], ArrayLike], updates: int, start: ArrayLike = START) -> Rollout:
    """Follow a policy `act(observation (1, 4)) -> (1,)`, such as a fitted model's, from a starting point."""
    thetas, stepsizes = [np.asarray(start, dtype=np.float64)], []
    for _ in range(updates):
        stepsizes.append(float(np.asarray(act(observe(thetas[-1])[None, :]))[0]))
        thetas.append(update(thetas[-1], stepsizes[-1]))
    theta = np.stack(thetas)
    return Rollout(theta, np.array(stepsizes), landscape(theta))

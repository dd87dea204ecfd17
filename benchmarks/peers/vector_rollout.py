"""One learner's episodes, or several learners' at once, through Gymnasium's vector interface.

Gymnasium resets a finished sub-environment in the step after its end and goes on with a new episode. An estimate wants one
episode each, so what comes after a first end is masked, and the loop stops early once every episode has ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import SIGMA, SIZES, Estimates, Floats, joined
from numpy.typing import NDArray
from numpy_estimate import estimate

PUSH_RIGHT_ABOVE = 0.5


def roll(envs: Any, env: str, theta: Floats, episodes: int, horizon: int, rng: np.random.Generator) -> Estimates:
    """Estimates of the learners whose policies are the rows of theta; `envs` holds `episodes` environments for each."""
    size = SIZES[env]
    num_learners = theta.shape[0]
    bias = theta[:, None, : size.num_actions]  # (learners, 1, actions)
    weights = theta[:, size.num_actions :].reshape(num_learners, size.num_actions, size.num_observations)
    transposed = weights.transpose(0, 2, 1)
    shape = (horizon, num_learners, episodes)
    noise = rng.standard_normal((*shape, size.num_actions))
    observations = np.zeros((*shape, size.num_observations))
    rewards = np.zeros(shape)
    alive = np.zeros(shape, np.bool_)

    going = np.ones((num_learners, episodes), np.bool_)
    observation, _ = envs.reset()
    steps = 0
    while steps < horizon and going.any():
        seen = observation.reshape(num_learners, episodes, -1)
        actions = bias + seen @ transposed + SIGMA * noise[steps]
        observations[steps] = seen
        alive[steps] = going
        observation, reward, terminated, _, _ = envs.step(_environment_action(env, actions))
        rewards[steps] = reward.reshape(num_learners, episodes)
        going = going & ~terminated.reshape(num_learners, episodes)
        steps += 1

    parts = [
        estimate(observations[:steps, i], noise[:steps, i], rewards[:steps, i], alive[:steps, i])
        for i in range(num_learners)
    ]
    return joined(parts)


def set_cartpole(env: Any, pole_mass: float | Floats, pole_length: float | Floats) -> None:
    """Change a CartPole's task, and with it what Gymnasium derived from the old one when it was made."""
    env.masspole = pole_mass
    env.length = pole_length
    env.total_mass = env.masscart + pole_mass
    env.polemass_length = pole_mass * pole_length


def _environment_action(env: str, actions: Floats) -> NDArray[Any]:
    """(learners, episodes, actions) as the environments want it."""
    if env == "cartpole":
        return (actions.reshape(-1) > PUSH_RIGHT_ABOVE).astype(np.int64)
    return actions.reshape(-1, actions.shape[-1])

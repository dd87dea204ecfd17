"""Nav2D as a user of Gymnasium writes it: once for a single episode, once vectorised with NumPy.

Start at the origin; the action, clipped to ±0.1 per axis, is added to the position; the reward is minus the distance to the
goal after the move; within 0.01 of the goal the episode ends.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from common import Floats
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

MAX_MOVE = 0.1
GOAL_RADIUS = 0.01


def _box() -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Nav2D(gymnasium.Env[Any, Any]):
    """One episode at a time; `goal` is the context."""

    def __init__(self) -> None:
        self.observation_space = _box()
        self.action_space = _box()
        self.goal = np.zeros(2)
        self.position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Back to the origin."""
        super().reset(seed=seed, options=options)
        self.position = np.zeros(2)
        return self.position, {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """One move."""
        self.position = self.position + np.clip(action, -MAX_MOVE, MAX_MOVE)
        x, y = self.goal - self.position
        distance = float(np.hypot(x, y))
        return self.position, -distance, distance <= GOAL_RADIUS, False, {}


class Nav2DVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many episodes in one array; `goal` is (2,), or (num_envs, 2) for a task each."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = _box()
        self.single_action_space = _box()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.goal = np.zeros(2)
        self.position = np.zeros((num_envs, 2))
        self.ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """All back to the origin."""
        self.position = np.zeros((self.num_envs, 2))
        self.ended = np.zeros(self.num_envs, np.bool_)
        return self.position, {}

    def step(self, actions: Floats) -> tuple[Floats, Floats, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One move of each; an episode that has ended begins again instead."""
        moved = self.position + np.clip(actions, -MAX_MOVE, MAX_MOVE)
        self.position = np.where(self.ended[:, None], 0.0, moved)
        distance = np.sqrt(((self.goal - self.position) ** 2).sum(1))
        rewards = np.where(self.ended, 0.0, -distance)
        self.ended = (distance <= GOAL_RADIUS) & ~self.ended
        return self.position, rewards, self.ended, np.zeros(self.num_envs, np.bool_), {}

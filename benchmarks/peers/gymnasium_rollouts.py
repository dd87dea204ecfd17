"""Gymnasium with NumPy gradients, on one core.

`sync` is SyncVectorEnv: a Python environment for every episode, one learner at a time, with the bare classes, without the
wrappers of `gymnasium.make`. The others are Gymnasium's own CartPole vectorised with NumPy (Nav2D in the same manner): `one`
serves one learner at a time, since a task is an attribute of the environment; `arrays` sets the attributes to arrays, so that
one object serves many learners, which works because its formulas happen to broadcast.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from common import Estimates, Floats, Job, from_arguments, learners, measure, measure_each, print_record, rollout_record
from numpy_estimates import roll

LEARNERS_AT_ONCE = 16  # of `arrays`: with more the trajectories leave the cache
MAX_MOVE, GOAL_RADIUS = 0.1, 0.01
BOX = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Nav2D(gymnasium.Env[Any, Any]):
    """Nav2D as a user of Gymnasium writes it; `goal` is the context."""

    observation_space = action_space = BOX
    goal = position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.position = np.zeros(2)
        return self.position, {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self.position = self.position + np.clip(action, -MAX_MOVE, MAX_MOVE)
        distance = float(np.hypot(*(self.goal - self.position)))
        return self.position, -distance, distance <= GOAL_RADIUS, False, {}


class Nav2DVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many episodes in one array; `goal` is (2,), or (num_envs, 2) for a task each."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (Gymnasium's own declaration)
    single_observation_space = single_action_space = BOX
    goal = np.zeros(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space = self.action_space = batch_space(BOX, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        self.position = np.zeros((self.num_envs, 2))
        self.ended = np.zeros(self.num_envs, np.bool_)
        return self.position, {}

    def step(self, actions: Floats) -> tuple[Floats, Floats, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        moved = self.position + np.clip(actions, -MAX_MOVE, MAX_MOVE)
        self.position = np.where(self.ended[:, None], 0.0, moved)
        distance = np.sqrt(((self.goal - self.position) ** 2).sum(1))
        rewards = np.where(self.ended, 0.0, -distance)
        self.ended = (distance <= GOAL_RADIUS) & ~self.ended
        return self.position, rewards, self.ended, np.zeros(self.num_envs, np.bool_), {}


def set_task(env: Any, name: str, task: Floats) -> None:
    """Change an environment's task, and with it what CartPole derived from the old one when it was made."""
    if name == "nav2d":
        env.goal = task
        return
    env.masspole, env.length = task[..., 0], task[..., 1]
    env.total_mass, env.polemass_length = env.masscart + env.masspole, env.masspole * env.length


def main() -> None:
    job, _ = from_arguments(Job)
    is_cartpole = job.env == "cartpole"
    theta, context = learners(job.env, job.learners)
    at_once = min(LEARNERS_AT_ONCE, job.learners) if job.variant == "arrays" else 1
    num_envs = at_once * job.episodes
    envs: Any
    if job.variant == "sync":
        envs = SyncVectorEnv([CartPoleEnv if is_cartpole else Nav2D] * num_envs)
    else:  # one step more than the horizon, so that the time limit never ends an episode
        envs = CartPoleVectorEnv(num_envs, job.horizon + 1) if is_cartpole else Nav2DVector(num_envs)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def step(actions: Floats) -> Any:
        chosen = (actions.reshape(-1) > 0.5).astype(np.int64) if is_cartpole else actions.reshape(num_envs, -1)
        return envs.step(chosen)[:3]

    def estimate(first: int) -> Estimates:
        chosen = np.arange(first, first + at_once) % job.learners
        tasks = np.repeat(context[chosen], job.episodes, axis=0) if at_once > 1 else context[first]
        for env in envs.envs if job.variant == "sync" else (envs,):
            set_task(env, job.env, tasks)
        return roll(job.env, envs.reset()[0], step, theta[chosen], job.episodes, job.horizon, rng)

    if at_once == 1:
        rates, estimates = measure_each(job, estimate)
    else:
        turn = -at_once

        def work() -> tuple[int, int]:
            nonlocal turn
            turn = (turn + at_once) % job.learners
            return at_once, estimate(turn).live_steps

        estimates, rates = estimate(0), measure(job, work)
    print_record(rollout_record(gymnasium.__version__, rates, estimates))


if __name__ == "__main__":
    main()

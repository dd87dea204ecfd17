"""HalfCheetah with a goal velocity in Gymnasium's vector environments and in EnvPool, and MuJoCo alone.

One learner at a time: its episodes are the sub-environments, the policy and the estimate are NumPy. Gymnasium's bare classes
are used, without the wrappers of `gymnasium.make`. `raw` is MuJoCo alone: `mj_step` on one thread, five physics steps an action,
no policy and no gradient; it replays recorded actions.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from common import (
    SIGMA,
    SIZES,
    Estimates,
    Floats,
    Job,
    from_arguments,
    learners,
    measure,
    measure_each,
    print_record,
    rollout_record,
)  # fmt: skip
from numpy_estimates import roll

CONTROL_COST, FRAME_SKIP = 0.05, 5
SIZE = SIZES["halfcheetah"]


def make_envs(kind: str, num: int) -> tuple[Any, str]:
    """Return vector environments and the version of their package."""
    if kind == "envpool":
        import envpool

        threads = len(os.sched_getaffinity(0))
        return envpool.make_gymnasium("HalfCheetah-v5", num_envs=num, num_threads=threads, seed=0), envpool.__version__
    import gymnasium
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    return (SyncVectorEnv if kind == "sync" else AsyncVectorEnv)([HalfCheetahEnv] * num), gymnasium.__version__


def vector(job: Job) -> dict[str, Any]:
    envs, version = make_envs(job.variant, job.episodes)
    theta, context = learners(job.env, job.learners)
    rng = np.random.default_rng(0)

    def estimate(index: int) -> Estimates:
        def step(actions: Floats) -> tuple[Floats, Floats, Any]:
            action = np.clip(actions[0], -1.0, 1.0)
            observation, _, _, _, info = envs.step(action)
            missed = np.abs(info["x_velocity"] - context[index, 0])
            return observation, -missed - CONTROL_COST * np.sum(action**2, axis=1), np.zeros(job.episodes, np.bool_)

        return roll(job.env, envs.reset()[0], step, theta[index : index + 1], job.episodes, job.horizon, rng)

    rates, estimates = measure_each(job, estimate)
    envs.close()
    return rollout_record(version, rates, estimates)


def raw(job: Job) -> dict[str, Any]:
    import mujoco
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    env = HalfCheetahEnv()
    theta, _ = learners(job.env, job.learners)
    rng = np.random.default_rng(0)
    tapes = []
    for seed, parameters in enumerate(theta):
        weights = parameters[SIZE.num_actions :].reshape(SIZE.num_actions, SIZE.num_observations)
        observation, _ = env.reset(seed=seed)
        tape = np.zeros((job.horizon, SIZE.num_actions))
        for t in range(job.horizon):
            noise = SIGMA * rng.standard_normal(SIZE.num_actions)
            tape[t] = np.clip(parameters[: SIZE.num_actions] + weights @ observation + noise, -1.0, 1.0)
            observation = env.step(tape[t])[0]
        tapes.append(tape)

    def work() -> tuple[int, int]:
        for seed, tape in enumerate(tapes):
            env.reset(seed=seed)
            for action in tape:
                env.data.ctrl[:] = action
                mujoco.mj_step(env.model, env.data, nstep=FRAME_SKIP)
        return len(tapes), len(tapes) * job.horizon

    nothing = Estimates(np.full(1, np.nan), np.full((1, 1), np.nan), None, 0)
    return rollout_record(mujoco.__version__, measure(job._replace(episodes=1), work), nothing)


def main() -> None:
    job, _ = from_arguments(Job)
    print_record((raw if job.variant == "raw" else vector)(job))


if __name__ == "__main__":
    main()

"""HalfCheetah with a goal velocity in Gymnasium's vector environments and in EnvPool, and MuJoCo alone.

One learner at a time: its episodes are the sub-environments, the policy and the estimate are NumPy. Gymnasium's bare classes
are used, without the wrappers that `gymnasium.make` puts around them. `raw` is MuJoCo alone: `mj_step` on one thread, five
physics steps an action, no policy and no gradient.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from common import (
    DISCOUNT,
    SIGMA,
    SIZES,
    Estimates,
    Floats,
    Job,
    job_from_arguments,
    learners,
    measure,
    measure_each,
    print_record,
    record,
)
from numpy_estimate import estimate as estimate_of

CONTROL_COST = 0.05
FRAME_SKIP = 5
SIZE = SIZES["halfcheetah"]
Envs = Any


def processors() -> int:
    return len(os.sched_getaffinity(0))


def gymnasium_envs(kind: str, num: int) -> tuple[Envs, str]:
    import gymnasium
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    factories = [HalfCheetahEnv] * num
    envs = SyncVectorEnv(factories) if kind == "sync" else AsyncVectorEnv(factories, shared_memory=True)
    return envs, gymnasium.__version__


def envpool_envs(num: int) -> tuple[Envs, str]:
    import envpool

    envs = envpool.make_gymnasium("HalfCheetah-v5", num_envs=num, num_threads=processors(), seed=0)
    return envs, envpool.__version__


def roll(envs: Envs, theta: Floats, goal: float, job: Job, rng: np.random.Generator) -> Estimates:
    """All episodes of one learner."""
    shape = (job.horizon, job.episodes)
    weights = theta[SIZE.num_actions :].reshape(SIZE.num_actions, SIZE.num_observations).T
    noise = rng.standard_normal((*shape, SIZE.num_actions))
    observations, rewards = np.zeros((*shape, SIZE.num_observations)), np.zeros(shape)
    observation, _ = envs.reset()
    for t in range(job.horizon):
        action = np.clip(theta[: SIZE.num_actions] + observation @ weights + SIGMA * noise[t], -1.0, 1.0)
        observations[t] = observation
        observation, _, _, _, info = envs.step(action)
        rewards[t] = -np.abs(info["x_velocity"] - goal) - CONTROL_COST * np.sum(action**2, axis=1)
    return estimate_of(observations, noise, rewards, np.ones(shape, np.bool_))


def vector(job: Job) -> dict[str, object]:
    envs, version = (
        envpool_envs(job.episodes) if job.variant == "envpool" else gymnasium_envs(job.variant, job.episodes)
    )
    theta, context = learners("halfcheetah", job.learners)
    rng = np.random.default_rng(0)
    took, estimates = measure_each(
        lambda index: roll(envs, theta[index], float(context[index, 0]), job, rng), job.learners, job.seconds
    )
    envs.close()
    return record(job, job.variant, version, took, estimates)


def raw(job: Job) -> dict[str, object]:
    """The physics of the learners' own episodes again: the actions are recorded first, then replayed and timed."""
    import mujoco
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    env = HalfCheetahEnv()
    model, data = env.model, env.data
    theta, _ = learners("halfcheetah", job.learners)
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
                data.ctrl[:] = action
                mujoco.mj_step(model, data, nstep=FRAME_SKIP)
        return len(tapes), len(tapes) * job.horizon

    nothing = Estimates(np.full(1, np.nan), np.full((1, 1), np.nan), None, 0)
    return record(job._replace(episodes=1), "raw", mujoco.__version__, measure(work, job.seconds), nothing)


VARIANTS: dict[str, Callable[[Job], dict[str, object]]] = {
    "sync": vector,
    "async": vector,
    "envpool": vector,
    "raw": raw,
}


def main() -> None:
    """Measure and print."""
    job = job_from_arguments(f"HalfCheetah peers; discount {DISCOUNT}.", tuple(VARIANTS))
    print_record(VARIANTS[job.variant](job))


if __name__ == "__main__":
    sys.exit(main())

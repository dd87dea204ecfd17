"""Peer (a): Gymnasium's SyncVectorEnv, a Python environment for every episode, and the estimate in NumPy.

One learner at a time: its episodes are the sub-environments. The bare environment classes are used, without the wrappers
that `gymnasium.make` puts around them, which is the fastest this peer can be. Runs on one core.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from common import Estimates, job_from_arguments, learners, measure_each, print_record, record
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import SyncVectorEnv
from nav2d_gymnasium import Nav2D
from vector_rollout import roll, set_cartpole


def main() -> None:
    """Measure and print."""
    job = job_from_arguments("Gymnasium SyncVectorEnv with NumPy gradients.")
    theta, context = learners(job.env, job.learners)
    envs = SyncVectorEnv([CartPoleEnv if job.env == "cartpole" else Nav2D] * job.episodes)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def estimate(index: int) -> Estimates:
        for env in envs.envs:
            if job.env == "cartpole":
                set_cartpole(env, *(float(value) for value in context[index]))
            else:
                env.goal = context[index]  # type: ignore[attr-defined]
        return roll(envs, job.env, theta[index : index + 1], job.episodes, job.horizon, rng)

    took, estimates = measure_each(estimate, job.learners, job.seconds)
    print_record(record(job, "gymnasium SyncVectorEnv", gymnasium.__version__, took, estimates))


if __name__ == "__main__":
    main()

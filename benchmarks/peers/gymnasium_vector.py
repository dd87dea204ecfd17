"""Peer (b): Gymnasium's own CartPole vectorised with NumPy (for Nav2D, ours in the same manner), and NumPy gradients.

Two variants. `one`: a task is an attribute of the environment object, so it serves one learner at a time, with its episodes
as sub-environments. `arrays`: the attributes are set to arrays, one entry for every sub-environment, so that one object serves
many learners. Gymnasium does not promise that this works; its formulas happen to broadcast. Runs on one core.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from common import NUM_COMPARED, Estimates, job_from_arguments, learners, measure, measure_each, print_record, record
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from nav2d_gymnasium import Nav2DVector
from vector_rollout import roll, set_cartpole

LEARNERS_AT_ONCE = 16  # of `arrays`: more and the trajectories leave the cache


def main() -> None:
    """Measure and print."""
    job = job_from_arguments("Gymnasium's NumPy-vectorised CartPole with NumPy gradients.", ("one", "arrays"))
    theta, context = learners(job.env, job.learners)
    at_once = min(LEARNERS_AT_ONCE, job.learners) if job.variant == "arrays" else 1
    num_envs = at_once * job.episodes
    # One step more than the horizon, so that the time limit never ends an episode here.
    envs: Any = CartPoleVectorEnv(num_envs, job.horizon + 1) if job.env == "cartpole" else Nav2DVector(num_envs)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def estimate(first: int) -> Estimates:
        chosen = np.arange(first, first + at_once) % job.learners
        tasks = np.repeat(context[chosen], job.episodes, axis=0) if at_once > 1 else context[first]
        if job.env == "cartpole":
            set_cartpole(envs, tasks[..., 0], tasks[..., 1])
        else:
            envs.goal = tasks
        return roll(envs, job.env, theta[chosen], job.episodes, job.horizon, rng)

    if at_once == 1:
        took, estimates = measure_each(estimate, job.learners, job.seconds)
    else:
        start = -at_once

        def work() -> tuple[int, int]:
            nonlocal start
            start = (start + at_once) % job.learners
            return at_once, estimate(start).live_steps

        estimates = estimate(0)
        took = measure(work, job.seconds)
        assert estimates.gradient.shape[0] >= min(NUM_COMPARED, job.learners)
    name = {"one": "one object for each task", "arrays": "tasks as arrays"}[job.variant]
    print_record(record(job, f"gymnasium vector, {name}", gymnasium.__version__, took, estimates))


if __name__ == "__main__":
    main()

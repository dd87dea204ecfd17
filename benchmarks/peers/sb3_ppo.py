"""Stable-Baselines3 (PyTorch) and sbx (its networks in JAX), both with Gymnasium's environment in one process.

Stable-Baselines3 computes on the CPU in any case, as it advises for networks without convolutions; sbx on JAX's default device.
"""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version
from typing import Any

from stable_baselines3.common.env_util import make_vec_env

from common import Training, from_arguments, print_record, training_record


def main() -> None:
    warnings.simplefilter("ignore")
    job, chosen = from_arguments(Training, name=str)
    layers = [job.hidden, job.hidden]
    if chosen.name == "sbx":
        from sbx import PPO

        name, package, options = "sbx", "sbx-rl", {"policy_kwargs": {"net_arch": layers}}
    else:
        import torch
        from stable_baselines3 import PPO

        torch.set_num_threads(1)  # fastest for small networks, by far where other processes compute
        name, package = "Stable-Baselines3", "stable_baselines3"
        options = {"policy_kwargs": {"net_arch": {"pi": layers, "vf": layers}}, "device": "cpu"}
    model: Any = PPO(
        "MlpPolicy",
        make_vec_env(job.env, n_envs=job.envs),
        n_steps=job.steps,
        batch_size=job.minibatch,
        n_epochs=job.epochs,
        **options,
    )
    if job.learners != 1:
        sys.exit(f"{name} trains one learner in a process")

    def update(num: int) -> None:
        model.learn(num * job.batch, reset_num_timesteps=False)

    print_record(training_record(job, update, name, version(package)))


if __name__ == "__main__":
    main()

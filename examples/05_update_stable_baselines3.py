"""Stable-Baselines3's PPO on CartPole-v1, with the hyperparameters of every update set by a model.

METASTEP_EXAMPLE_QUICK=1 makes small updates. Needs the extra `sb3`.
"""

import os

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from metastep.integrations.stable_baselines3 import LearnedUpdate

STEPS, UPDATES = (16, 3) if os.environ.get("METASTEP_EXAMPLE_QUICK") else (128, 30)


def main() -> None:
    torch.set_num_threads(1)  # the networks are tiny
    envs = make_vec_env("CartPole-v1", n_envs=16, seed=1)
    agent = PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=256, n_epochs=4, seed=1, device="cpu")
    agent.learn(UPDATES * 16 * STEPS, callback=LearnedUpdate("ppo"))
    print(f"mean return of the last episodes {np.mean([episode['r'] for episode in agent.ep_info_buffer]):.0f}")


if __name__ == "__main__":
    main()

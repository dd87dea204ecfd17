"""Stable-Baselines3's PPO on CartPole-v1, with the learning rate of every update proposed by a fitted model.

METASTEP_MODEL may name another model, or a file; METASTEP_EXAMPLE_QUICK=1 makes small updates only. Needs the extra `sb3`.
"""

import os
import warnings

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from metastep.integrations.stable_baselines3 import LearnedRate

MODEL = os.environ.get("METASTEP_MODEL", "ppo-classic")
STEPS, UPDATES = (16, 3) if os.environ.get("METASTEP_EXAMPLE_QUICK") else (128, 30)


def main() -> None:
    torch.set_num_threads(1)  # the networks are tiny
    envs = make_vec_env("CartPole-v1", n_envs=16, seed=1)
    agent = PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=256, n_epochs=4, seed=1, device="cpu")
    learned = LearnedRate(MODEL, log="updates.csv")
    agent.learn(UPDATES * 16 * STEPS, callback=learned)
    print(f"mean return of the last episodes {np.mean([episode['r'] for episode in agent.ep_info_buffer]):.0f}")
    print("rates:", " ".join(f"{rate:.1e}" for rate in learned.proposed))
    used = agent.policy.optimizer.param_groups[0]["lr"]
    assert used == learned.proposed[-1], "the rate that was proposed is the rate that was used"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="LearnedRate: the model was fitted on other loops")
    main()

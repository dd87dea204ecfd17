"""A Stable-Baselines3 agent learns step sizes in the meta-MDP of Minigolf, which is a Gymnasium environment.

PPO trains on 4,000 updates and is then evaluated on new tasks, beside random and constant step sizes: by how much do 20 updates
improve the return? METASTEP_EXAMPLE_QUICK=1 trains on 100 updates and evaluates on 16 tasks. Needs the extras `gym` and `sb3`.
"""

import os
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import metastep.integrations.gymnasium  # noqa: F401  (registers the environments)

ENVIRONMENT = "metastep/Minigolf-v0"
QUICK = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))
NUM_STEPS = 100 if QUICK else 4_000
NUM_TEST_TASKS = 16 if QUICK else 128
TRAINING_SEED, TEST_SEED = 1, 100

Array = NDArray[np.float32]


def evaluate(name: str, choose: Callable[[Array], Array]) -> None:
    """Print the mean sum of rewards of a meta-episode, over learners in lockstep on the same test tasks."""
    learners = gymnasium.make_vec(ENVIRONMENT, num_envs=NUM_TEST_TASKS)
    observation, _ = learners.reset(seed=TEST_SEED)
    total, over = np.zeros(NUM_TEST_TASKS), False
    while not over:
        observation, reward, _, truncated, _ = learners.step(choose(observation))
        total += reward
        over = bool(truncated.all())
    error = total.std(ddof=1) / np.sqrt(NUM_TEST_TASKS)
    print(f"{name:28} {total.mean():7.2f} ± {1.96 * error:.2f}")


def main() -> None:
    torch.set_num_threads(1)  # the networks are tiny
    check_env(gymnasium.make(ENVIRONMENT).unwrapped)
    # Gradients and parameters differ in size by orders of magnitude: VecNormalize standardises observations.
    training = VecNormalize(make_vec_env(ENVIRONMENT, seed=TRAINING_SEED), gamma=1.0)
    agent = PPO(
        "MlpPolicy",
        training,
        gamma=1.0,  # the paper's meta-discount
        gae_lambda=0.8,
        n_steps=min(400, NUM_STEPS),
        batch_size=100,
        learning_rate=1e-3,
        seed=TRAINING_SEED,
    )
    shape = (NUM_TEST_TASKS, 1)
    rng = np.random.default_rng(TEST_SEED)

    def chosen_by_agent(observation: Array) -> Array:
        return agent.predict(training.normalize_obs(observation), deterministic=True)[0]

    print(f"{ENVIRONMENT}: improvement of the return in a meta-episode, mean of {NUM_TEST_TASKS} tasks, 95 % interval")
    evaluate("random step sizes", lambda _: rng.uniform(-1.0, 1.0, shape).astype(np.float32))
    evaluate("constant step size 0.5", lambda _: np.zeros(shape, np.float32))
    evaluate("PPO before training", chosen_by_agent)
    agent.learn(NUM_STEPS)
    evaluate(f"PPO after {NUM_STEPS} updates", chosen_by_agent)


if __name__ == "__main__":
    main()

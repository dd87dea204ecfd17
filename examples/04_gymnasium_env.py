"""A Gymnasium environment as a family of tasks, from a factory to the report: Pendulum with a bob of unknown mass.

Python environments are slow, so batches are small: `num_episodes` times `block_size` pendulums are simulated side by side.
METASTEP_EXAMPLE_QUICK=1 runs a very small version. Needs the extra `gym`.
"""

import os
from pathlib import Path

import gymnasium

import metastep
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import GymnasiumEnv


def make_pendulum(context):
    """Return the environment of one task. It is defined at the top of the module, so that equal families share environments."""
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    env.unwrapped.m = context.mass
    return env


def build_pendulum(heaviest: float = 2.0):
    """Return the family of tasks; arguments become `env.options`."""
    return GymnasiumEnv(make_pendulum, ContextSpace(("mass",), (0.5,), (heaviest,), ("kg",)), name="gym_pendulum")


CONFIG = """
env.name = "gym_pendulum"
policy.sigma = 1.0
initial = {kind = "normal", mean = 0.0, variance = 0.1}
rollout = {num_episodes = 20, horizon = 100, block_size = 8}
meta = {num_updates = 8, stepsize_high = 1.0}
collect.num_meta_episodes = 64
fqi = {iterations = 3, regressor = {trees = 50, min_samples_split = 0.02}}
selection.num_tasks = 8

[compare]
num_tasks = 16
num_tuning_tasks = 4
num_updates = 8

[[compare.methods]]
name = "metafqi"

[[compare.methods]]
name = "fixed"
grid.stepsize = [0.1, 0.3, 1.0]
"""
SMALL = [
    "rollout.num_episodes=4", "rollout.horizon=10", "rollout.block_size=4", "meta.num_updates=2",
    "collect.num_meta_episodes=8", "fqi.iterations=2", "fqi.regressor.trees=5", "selection.num_tasks=4",
    "compare.num_tasks=4", "compare.num_tuning_tasks=2", "compare.num_updates=2",
]  # fmt: skip


def main() -> None:
    metastep.envs.register("gym_pendulum", build_pendulum, label="Pendulum")
    env = metastep.make_env("gym_pendulum")
    metastep.testing.check_env(env)  # fails if the factory ignores the mass or a seed, or has the wrong spaces
    file = Path("pendulum.toml")
    file.write_text(CONFIG)
    overrides = SMALL if os.environ.get("METASTEP_EXAMPLE_QUICK") else []
    run = metastep.run(file, "runs/pendulum", overrides=overrides)
    print(f"report: {run.report_file}")
    env.close()  # closes all pendulums


if __name__ == "__main__":
    main()

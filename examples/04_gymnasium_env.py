"""Any Gymnasium environment as a family of tasks, from a factory to the report: Pendulum with a bob of unknown mass.

The factory builds the environment of a task; everything else works as with the environments of the library. Python environments
are slow, so the batches here are small: `num_episodes` times `block_size` pendulums are simulated side by side.
"""

import os
from pathlib import Path

import gymnasium

import metastep
from metastep._core.progress import Silent, Terminal
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import GymnasiumEnv


def make_pendulum(context):
    """One task. The function is defined once, at the top, because its identity tells which environments are equal."""
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    env.unwrapped.m = context.mass
    return env


def build_pendulum(heaviest: float = 2.0):
    """What the registry calls, once for each stage; equal results share their pendulums. Its arguments become `env.options`."""
    return GymnasiumEnv(make_pendulum, ContextSpace(("mass",), (0.5,), (heaviest,), ("kg",)), name="gym_pendulum")


CONFIG = """
[env]
name = "gym_pendulum"

[policy]
sigma = 1.0

[initial]
kind = "normal"
mean = 0.0
variance = 0.1

[rollout]
num_episodes = 20
horizon = 100
block_size = 8

[meta]
num_updates = 8
stepsize_high = 1.0

[collect]
num_meta_episodes = 64

[fqi]
iterations = 3
regressor = {trees = 50, min_samples_split = 0.02}

[selection]
num_tasks = 8

[compare]
num_tasks = 16
num_tuning_tasks = 4
num_updates = 8

[[compare.methods]]
name = "metafqi"

[[compare.methods]]
name = "fixed"
grid.stepsize = [0.1, 0.3, 1.0]

[[compare.methods]]
name = "adam"
grid.stepsize = [0.1, 0.3]

[quick.rollout]
num_episodes = 4
horizon = 10
block_size = 4

[quick.meta]
num_updates = 2

[quick.collect]
num_meta_episodes = 8

[quick.fqi]
iterations = 2
regressor.trees = 5

[quick.selection]
num_tasks = 4

[quick.compare]
num_tasks = 4
num_tuning_tasks = 2
num_updates = 2
"""


def main() -> None:
    metastep.envs.register("gym_pendulum", build_pendulum, label="Pendulum")
    env = metastep.make_env("gym_pendulum")
    metastep.testing.check_env(env)  # says so if the factory ignores the mass, a seed, or has the wrong spaces
    file = Path("pendulum.toml")
    file.write_text(CONFIG)
    quick = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))
    tracker = Silent() if quick else Terminal()
    run = metastep.run(file, "runs/pendulum", scale="quick" if quick else "full", tracker=tracker)
    print(f"report: {run.report}")
    env.close()  # closes all pendulums that are still open


if __name__ == "__main__":
    main()

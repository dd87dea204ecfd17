"""An environment that is not in the library, from its definition to the report.

A heated room: the task is how leaky its walls are and how much heat it stores. The policy sees how far the temperature is
from the wish and chooses the heating power.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp

import metastep
from metastep._core.noise import to_uniform
from metastep._core.progress import Silent, Terminal
from metastep.envs.base import Step
from metastep.envs.contexts import ContextSpace


class Room(NamedTuple):
    error: jnp.ndarray  # degrees above the wish


@dataclass(frozen=True)
class Thermostat:
    """Keep a room at the wished temperature: pay the squared error and the heating."""

    context_space: ContextSpace = ContextSpace(("leak", "capacity"), (0.05, 0.5), (0.3, 2.0), ("kW/K", "kWh/K"))
    name = "thermostat"
    num_observations = 1
    num_actions = 1
    packages = ()  # besides JAX and NumPy: their versions are recorded with the results
    reset_noise = 1  # standard normals that a reset takes
    step_noise = 1  # and a step

    def reset(self, context, noise):
        return Room(to_uniform(noise[0], -5.0, 2.0))

    def observe(self, context, state):
        return (state.error,)

    def step(self, context, state, action, noise):
        power = jnp.clip(action[0], 0.0, 5.0)  # kW
        outside = 15.0 + noise[0]  # degrees below the wish
        error = state.error + 0.25 * (power - context.leak * (state.error + outside)) / context.capacity
        reward = -(error**2) / 10.0 - 0.05 * power
        too_hot = error > 15.0
        return Step(Room(error), jnp.where(too_hot, -50.0, reward), too_hot)


CONFIG = """
[env]
name = "thermostat"

[policy]
sigma = 0.5

[initial]
kind = "normal"
mean = [2.0, 0.0]
variance = 0.25

[rollout]
num_episodes = 100
horizon = 40

[meta]
num_updates = 10
stepsize_high = 2.0

[collect]
num_meta_episodes = 512

[fqi]
iterations = 4
regressor.min_samples_split = 0.02

[selection]
num_tasks = 32

[compare]
num_tasks = 64
num_updates = 10

[[compare.methods]]
name = "metafqi"

[[compare.methods]]
name = "fixed"
grid.stepsize = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]

[[compare.methods]]
name = "adam"
grid.stepsize = [0.03, 0.1, 0.3, 1.0]

[[compare.methods]]
name = "oracle"

[quick.rollout]
num_episodes = 8
horizon = 10
block_size = 8

[quick.collect]
num_meta_episodes = 64

[quick.fqi]
iterations = 2
regressor.trees = 10

[quick.selection]
num_tasks = 8

[quick.compare]
num_tasks = 32
num_tuning_tasks = 8
num_updates = 3
"""


def main() -> None:
    metastep.testing.check_env(Thermostat())
    metastep.envs.register("thermostat", Thermostat, label="Thermostat")
    file = Path("thermostat.toml")
    file.write_text(CONFIG)
    quick = bool(os.environ.get("METASTEP_EXAMPLE_QUICK"))
    tracker = Silent() if quick else Terminal()
    run = metastep.run(file, "runs/thermostat", scale="quick" if quick else "full", tracker=tracker)
    print(f"report: {run.report}")


if __name__ == "__main__":
    main()

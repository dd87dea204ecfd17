"""An environment that is not in the library, from its definition to the report.

Tasks are heated rooms that differ in how leaky the walls are and how much heat a room stores. The policy sees the error of the
temperature and chooses the heating power. METASTEP_EXAMPLE_QUICK=1 runs a very small version.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp

import metastep
from metastep.envs import Step
from metastep.envs.contexts import ContextSpace


class Room(NamedTuple):
    error: jnp.ndarray  # degrees above the target


@dataclass(frozen=True)
class Thermostat:
    """Keep a room at its target temperature; pay for the squared error and for heating."""

    context_space: ContextSpace = ContextSpace(("leak", "capacity"), (0.05, 0.5), (0.3, 2.0), ("kW/K", "kWh/K"))
    name = "thermostat"
    num_observations = 1
    num_actions = 1
    packages = ()  # besides JAX and NumPy; versions are recorded with results
    reset_noise = 1  # standard normals for a reset
    step_noise = 1  # and for a step

    def reset(self, context, noise):
        return Room(2.0 * noise[0] - 2.0)

    def observe(self, context, state):
        return (state.error,)

    def step(self, context, state, action, noise):
        power = jnp.clip(action[0], 0.0, 5.0)  # kW
        outside = 15.0 + noise[0]  # degrees below the target
        error = state.error + 0.25 * (power - context.leak * (state.error + outside)) / context.capacity
        too_hot = error > 15.0
        reward = jnp.where(too_hot, -50.0, -(error**2) / 10.0 - 0.05 * power)
        return Step(Room(error), reward, too_hot)


CONFIG = """
env.name = "thermostat"
policy.sigma = 0.5
initial = {kind = "normal", mean = [2.0, 0.0], variance = 0.25}
rollout = {num_episodes = 100, horizon = 40}
meta = {num_updates = 10, stepsize_high = 2.0}
collect.num_meta_episodes = 512
fqi = {iterations = 4, regressor.min_samples_split = 0.02}
selection.num_tasks = 32

[compare]
num_tasks = 64
num_updates = 10

[[compare.methods]]
name = "metafqi"

[[compare.methods]]
name = "fixed"
grid.stepsize = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]

[[compare.methods]]
name = "oracle"
"""
SMALL = [
    "rollout.num_episodes=8", "rollout.horizon=10", "rollout.block_size=8", "collect.num_meta_episodes=64",
    "fqi.iterations=2", "fqi.regressor.trees=10", "selection.num_tasks=8",
    "compare.num_tasks=32", "compare.num_tuning_tasks=8", "compare.num_updates=3",
]  # fmt: skip


def main() -> None:
    metastep.testing.check_env(Thermostat())
    metastep.envs.register("thermostat", Thermostat, label="Thermostat")
    file = Path("thermostat.toml")
    file.write_text(CONFIG)
    overrides = SMALL if os.environ.get("METASTEP_EXAMPLE_QUICK") else []
    run = metastep.run(file, "runs/thermostat", overrides=overrides)
    print(f"report: {run.report_file}")


if __name__ == "__main__":
    main()

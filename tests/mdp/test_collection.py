"""Collected tuples obey the update equation and have the declared distributions; a block depends on its seed, stream and index.

The module runs as a script too, as the other process.
"""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from metastep.envs import make
from metastep.mdp import EpisodicMetaMDP, InitialPolicy
from metastep.mdp.blocks import Purpose, Stream
from metastep.mdp.collection import collect
from metastep.mdp.controller import Exploration
from metastep.policies import LinearGaussian
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout
from tests.one_block import run


def small_mdp(name: str = "nav2d", **changes) -> EpisodicMetaMDP:
    env = make(name)
    policy = LinearGaussian(env.num_observations, env.num_actions, sigma=1.0)
    settings = {
        "estimator": Estimator(Rollout(env, policy, num_episodes=8, horizon=5)),
        "space": HyperparameterSpace((0.0,), (8.0,)),
        "initial": InitialPolicy(mean=(0.0,), variance=(0.1,)),
        "block_size": 16,
    }
    return EpisodicMetaMDP(**(settings | changes))


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trajectories")
    return collect(small_mdp(), folder / "data", num_episodes=500, num_updates=3, seed=3, config={})


def test_theta_follows_the_update_equation(trajectories):
    for block in trajectories.blocks():
        gradient = block.features["natural_gradient"][:-1].astype(np.float64)
        length = np.linalg.norm(gradient, axis=-1, keepdims=True)
        step = block.hyperparameters * gradient / np.where(length > 0.0, length, 1.0)
        expected = block.features["theta"][:-1] + np.where(block.flagged[:-1, :, None], 0.0, step)
        np.testing.assert_allclose(block.features["theta"][1:], expected, rtol=1e-5, atol=1e-5)


def first_draws(data):
    theta = np.concatenate([block.features["theta"][0] for block in data.blocks()])
    return theta, np.concatenate([block.context for block in data.blocks()])


def test_trajectory_distributions_are_the_declared_ones(trajectories):
    theta, context = first_draws(trajectories)
    steps = np.concatenate([block.hyperparameters[..., 0].T for block in trajectories.blocks()])
    for column in theta.T:
        assert stats.kstest(column, stats.norm(0.0, np.sqrt(0.1)).cdf).pvalue > 0.001
    for column in context.T:
        assert stats.kstest(column, stats.uniform(-0.5, 1.0).cdf).pvalue > 0.001
    assert stats.kstest(steps.ravel(), stats.uniform(0.0, 8.0).cdf).pvalue > 0.001
    # Draws of different updates and of neighbouring learners are unrelated.
    assert abs(np.corrcoef(steps[:, 0], steps[:, 1])[0, 1]) < 0.15
    assert abs(np.corrcoef(context[:-1, 0], context[1:, 0])[0, 1]) < 0.15


def test_generative_distributions_are_the_declared_ones(tmp_path):
    mdp = small_mdp("minigolf", initial=InitialPolicy("uniform", low=(-2.0, -1.0), high=(3.5, 2.0)))
    drawn = first_draws(collect(mdp, tmp_path / "data", num_episodes=500, num_updates=1, seed=4, config={}))
    bounds = (-2.0, 3.5), (-1.0, 2.0), (0.7, 1.0), (0.065, 0.196)
    for column, (low, high) in zip(np.hstack(drawn).T, bounds, strict=True):
        assert stats.kstest(column, stats.uniform(low, high - low).cdf).pvalue > 0.001


def test_more_learners_keep_the_first_ones(trajectories, tmp_path):
    few = collect(small_mdp(), tmp_path / "few", num_episodes=20, num_updates=3, seed=3, config={})
    for found, wanted in zip(few.blocks(), trajectories.blocks(), strict=False):
        theta = found.features["theta"]
        np.testing.assert_array_equal(theta, wanted.features["theta"][:, : theta.shape[1]])


def digest(block: int, stream: Stream = Stream.TRAIN, seed: int = 42) -> str:
    """Of all that learners of a block go through in three updates."""
    mdp = small_mdp("cartpole")
    history, _ = run(mdp, Exploration(), mdp.tasks(seed, stream, block), 3, ("theta", "natural_gradient"))
    return sha256(b"".join(array.tobytes() for array in history.to_arrays().values())).hexdigest()


def test_a_block_is_the_same_alone_among_others_in_another_order_and_in_another_process() -> None:
    alone = digest(2)
    in_order = [digest(block) for block in range(3)]
    assert in_order[2] == alone
    assert [digest(block) for block in reversed(range(3))] == in_order[::-1]
    # Which compiles its programs, while this one may have them from the cache on disk.
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    command, root = [sys.executable, "-m", "tests.mdp.test_collection"], Path(__file__).parents[2]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=root)
    assert process.stdout.strip() == alone


def test_streams_seeds_and_blocks_are_disjoint_and_keep_their_numbers() -> None:
    """Which are part of what a seed means: renumbering would silently change every published result."""
    digests = [digest(0, stream) for stream in Stream] + [digest(0, seed=7), digest(1)]
    assert len(set(digests)) == len(digests)
    assert {stream.name: int(stream) for stream in Stream} == {"TRAIN": 0, "VALIDATION": 1, "TUNING": 2, "TEST": 3}
    purposes = ["CONTEXT", "INITIAL_POLICY", "SIMULATION", "CONTROLLER", "UPDATE"]
    assert [(purpose.name, int(purpose)) for purpose in Purpose] == [(name, i) for i, name in enumerate(purposes)]


if __name__ == "__main__":
    print(digest(2))

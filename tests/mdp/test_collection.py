"""Collected tuples obey the update equation and have the declared distributions."""

import jax
import numpy as np
import pytest
from scipy import stats

from metastep._core import parallel
from metastep._core.errors import InputError
from metastep.envs import make
from metastep.mdp import EpisodicMetaMDP, InitialPolicy
from metastep.mdp.blocks import Stream
from metastep.mdp.collection import collect
from metastep.mdp.controller import Exploration
from metastep.mdp.loop import run
from metastep.policies import LinearGaussian
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout


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


@pytest.fixture(scope="module")
def generative(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generative")
    mdp = small_mdp("minigolf", initial=InitialPolicy("uniform", low=(-2.0, -1.0), high=(3.5, 2.0)))
    return collect(mdp, folder / "data", num_episodes=500, num_updates=1, seed=4, config={})


def test_theta_follows_the_update_equation(trajectories):
    for block in trajectories.blocks():
        gradient = block.features["natural_gradient"][:-1].astype(np.float64)
        length = np.linalg.norm(gradient, axis=-1, keepdims=True)
        step = block.hyperparameters * gradient / np.where(length > 0.0, length, 1.0)
        expected = np.where(
            block.flagged[:-1, :, None], block.features["theta"][:-1], block.features["theta"][:-1] + step
        )
        np.testing.assert_allclose(block.features["theta"][1:], expected, rtol=1e-5, atol=1e-5)


def test_trajectory_distributions_are_the_declared_ones(trajectories):
    first = [block.features["theta"][0] for block in trajectories.blocks()]
    theta = np.concatenate(first)
    context = np.concatenate([block.context for block in trajectories.blocks()])
    stepsize = np.concatenate([block.hyperparameters[..., 0].ravel() for block in trajectories.blocks()])
    for column in theta.T:
        assert stats.kstest(column, stats.norm(0.0, np.sqrt(0.1)).cdf).pvalue > 0.001
    for column in context.T:
        assert stats.kstest(column, stats.uniform(-0.5, 1.0).cdf).pvalue > 0.001
    assert stats.kstest(stepsize, stats.uniform(0.0, 8.0).cdf).pvalue > 0.001
    # Draws of different updates and of neighbouring learners are unrelated.
    steps = np.concatenate([block.hyperparameters[..., 0].T for block in trajectories.blocks()])
    assert abs(np.corrcoef(steps[:, 0], steps[:, 1])[0, 1]) < 0.15
    assert abs(np.corrcoef(context[:-1, 0], context[1:, 0])[0, 1]) < 0.15


def test_generative_distributions_are_the_declared_ones(generative):
    assert generative.layout.num_updates == 1
    theta = np.concatenate([block.features["theta"][0] for block in generative.blocks()])
    context = np.concatenate([block.context for block in generative.blocks()])
    for column, low, high in zip(theta.T, (-2.0, -1.0), (3.5, 2.0), strict=True):
        assert stats.kstest(column, stats.uniform(low, high - low).cdf).pvalue > 0.001
    for column, low, high in zip(context.T, (0.7, 0.065), (1.0, 0.196), strict=True):
        assert stats.kstest(column, stats.uniform(low, high - low).cdf).pvalue > 0.001


def test_more_learners_keep_the_first_ones(tmp_path):
    mdp = small_mdp()
    few = collect(mdp, tmp_path / "few", num_episodes=20, num_updates=2, seed=5, config={})
    many = collect(mdp, tmp_path / "many", num_episodes=40, num_updates=2, seed=5, config={})
    few_theta = np.concatenate([block.features["theta"] for block in few.blocks()], axis=1)
    many_theta = np.concatenate([block.features["theta"] for block in many.blocks()], axis=1)
    np.testing.assert_array_equal(few_theta, many_theta[:, :20])


@pytest.mark.parametrize("name", ["nav2d", "lqr"])
def test_no_byte_depends_on_the_number_of_cores(tmp_path, monkeypatch, name):
    settings = {"num_episodes": 70, "num_updates": 2, "seed": 6, "config": {"a": 1}}
    found = {}
    for cores in (1, 2, 3, 16):
        monkeypatch.setattr(parallel, "_limit", cores)  # more than there are, too
        dataset = collect(small_mdp(name), tmp_path / str(cores), **settings)
        found[cores] = {path.name: path.read_bytes() for path in dataset.folder.iterdir()}
    assert found[1] == found[2] == found[3] == found[16]


def test_what_goes_wrong_in_a_block_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_limit", 2)

    class Wrong(Exploration):
        def propose(self, state, learners):
            raise InputError("controller: it cannot.")

    with pytest.raises(InputError, match="it cannot"):
        collect(small_mdp(), tmp_path / "d", num_episodes=40, num_updates=1, seed=0, config={}, controller=Wrong())


def test_a_task_list_replaces_the_distribution(tmp_path):
    tasks = np.array([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.5]], np.float32)
    data = collect(small_mdp(), tmp_path / "d", num_episodes=20, num_updates=1, seed=7, config={}, task_list=tasks)
    context = np.concatenate([block.context for block in data.blocks()])
    np.testing.assert_array_equal(context, tasks[np.arange(20) % 3])


def test_a_rule_with_state_and_an_mlp_run_through_the_same_loop():
    from metastep.policies import MLPGaussian
    from metastep.rules import Adam

    env = make("lqr")
    estimator = Estimator(Rollout(env, MLPGaussian(2, 1, sigma=0.5, hidden=(4,)), num_episodes=8, horizon=5))
    mdp = small_mdp(estimator=estimator, rule=Adam(), space=HyperparameterSpace((0.0,), (0.1,)))
    episode, _ = run(mdp, Exploration(), mdp.tasks(0, Stream.TRAIN, 0), 3, ("theta",))
    theta = episode.features["theta"]
    assert theta.shape == (4, 16, mdp.num_parameters)
    assert np.isfinite(theta).all()
    assert not np.array_equal(theta[0], theta[-1])
    with jax.numpy_dtype_promotion("strict"):
        mdp.begin(mdp.tasks(1, Stream.TRAIN, 0))

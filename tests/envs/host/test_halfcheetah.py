"""HalfCheetah on the C engine: Gymnasium's physics, our task, any number of threads."""

import importlib.metadata
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metastep import envs
from metastep._core.errors import InputError
from metastep.controllers import Fixed
from metastep.envs.host import HalfCheetahVel, HostEnv
from metastep.envs.host.halfcheetah import load_model
from metastep.evaluation import Method, compare
from metastep.mdp import EpisodicMetaMDP, InitialPolicy
from metastep.mdp.blocks import Stream
from metastep.mdp.collection import collect
from metastep.mdp.controller import Exploration
from metastep.mdp.loop import run
from metastep.policies import LinearGaussian
from metastep.rules import NGA
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout
from metastep.testing import check_host_env
from tests.envs.host.cheetah import gymnasium_episode, start_episodes, start_noise

POLICY = LinearGaussian(17, 6, 1.001)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Gymnasium loads the model in a way that makes MuJoCo leave a log file in the working directory."""
    monkeypatch.chdir(tmp_path)


def make_estimator(**options) -> Estimator:
    return Estimator(Rollout(HalfCheetahVel(**options), POLICY, num_episodes=20, horizon=10))


def draw_learners():
    keys = jax.random.split(jax.random.key(0), 2)
    theta = 0.3 * jax.random.normal(keys[0], (3, POLICY.num_parameters), jnp.float32)
    return theta, HalfCheetahVel().context_space.sample(keys[1], 3)


def test_one_hundred_steps_equal_gymnasiums():
    goals = np.asarray([0.0, 0.75, 2.0])  # float32 holds them exactly
    noise = start_noise(len(goals))
    episodes = start_episodes(HalfCheetahVel(), goals, noise)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (100, 1, len(goals), 6)).astype(np.float32)
    positions, velocities = episodes._position.copy(), episodes._velocity.copy()
    observations, rewards = [episodes.observe()], []
    for action in actions:
        after = episodes.step(action, np.zeros((1, len(goals), 0), np.float32), np.ones((1, len(goals)), bool))
        assert not after.terminated.any()
        rewards.append(after.reward)
        observations.append(episodes.observe())
    for lane, goal in enumerate(goals):
        expected = gymnasium_episode(positions[lane], velocities[lane], actions[:, 0, lane], goal)
        np.testing.assert_array_equal(np.stack(observations)[:, 0, lane], expected[0])
        np.testing.assert_allclose(np.stack(rewards)[:, 0, lane], expected[1], rtol=0.0, atol=1e-9)


def test_starts_are_distributed_like_gymnasiums():
    seen = start_episodes(HalfCheetahVel(), np.zeros(4000), start_noise(4000)).observe()[0]
    for position in seen[:, :8].T:
        assert stats.kstest(position, stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-3
    for velocity in seen[:, 8:].T:
        assert stats.kstest(velocity, stats.norm(0.0, 0.1).cdf).pvalue > 1e-3


def test_actions_are_clipped():
    outcomes = []
    for scale in (1.0, 100.0):
        episodes = start_episodes(HalfCheetahVel(), np.ones(2), start_noise(2))
        after = episodes.step(np.full((1, 2, 6), scale, np.float32), np.zeros((1, 2, 0)), np.ones((1, 2), bool))
        outcomes.append((episodes.observe(), after.reward))
    np.testing.assert_array_equal(outcomes[0][0], outcomes[1][0])
    np.testing.assert_array_equal(outcomes[0][1], outcomes[1][1])


def test_there_are_108_parameters():
    env = HalfCheetahVel()
    assert LinearGaussian(env.num_observations, env.num_actions, 1.001).num_parameters == 108
    model = load_model()
    assert (model.nq, model.nv, model.nu) == (9, 9, 6)
    assert model.opt.timestep * env.frame_skip == pytest.approx(0.05)


def test_the_goal_velocity_reaches_the_reward_and_nothing_else():
    goals = np.asarray([0.0, 1.0, 2.0])
    noise = np.repeat(start_noise(1), 3, axis=1)
    episodes = start_episodes(HalfCheetahVel(), goals, noise)
    before = episodes._position[:, 0].copy()
    after = episodes.step(np.full((1, 3, 6), 0.5, np.float32), np.zeros((1, 3, 0)), np.ones((1, 3), bool))
    seen = episodes.observe()[0]
    np.testing.assert_array_equal(seen, np.repeat(seen[:1], 3, axis=0))
    speed = (episodes._position[:, 0] - before) / 0.05
    np.testing.assert_allclose(after.reward[0], -np.abs(speed - goals) - 0.05 * 6 * 0.25, atol=1e-12)


def test_nothing_depends_on_the_number_of_threads():
    theta, context = draw_learners()
    estimates = [make_estimator(num_threads=threads)(theta, context, jax.random.key(1)) for threads in (1, 2, 3, 0)]
    for other in estimates[1:]:
        for field, expected, actual in zip(other._fields, estimates[0], other, strict=True):
            np.testing.assert_array_equal(actual, expected, err_msg=field)
    assert HalfCheetahVel(num_threads=1) == HalfCheetahVel(num_threads=2)


def test_it_keeps_the_contract():
    check_host_env(HalfCheetahVel())


def test_the_meta_loop_runs_on_it():
    mdp = EpisodicMetaMDP(
        make_estimator(), HyperparameterSpace((0.0,), (1.0,)), InitialPolicy(mean=(0.0,), variance=(0.1,)), block_size=3
    )
    tasks = mdp.tasks(0, Stream.TRAIN, 0)
    episode, again = (run(mdp, Exploration(), tasks, num_updates=2, record=("theta",))[0] for _ in range(2))
    theta = episode.features["theta"]
    assert theta.shape == (3, 3, 108)
    assert not episode.flagged.any()
    np.testing.assert_array_equal(theta, again.features["theta"])
    np.testing.assert_array_equal(episode.num_steps, 200.0)
    lengths = np.linalg.norm(theta[1:] - theta[:-1], axis=-1)
    np.testing.assert_allclose(lengths, episode.hyperparameters[..., 0], rtol=1e-3)


def test_actions_that_are_not_numbers_flag_the_learner_alone(tmp_path):
    theta, context = draw_learners()
    broken = theta.at[1].set(jnp.nan)
    estimator = make_estimator()
    usual, estimate = (estimator(each, context, jax.random.key(1)) for each in (theta, broken))
    assert np.isnan(estimate.mean_return[1])
    np.testing.assert_array_equal(estimate.gradient[jnp.array([0, 2])], usual.gradient[jnp.array([0, 2])])
    assert not list(tmp_path.iterdir())


def test_an_unstable_simulation_flags_the_learner_alone(capfd):
    episodes = start_episodes(HalfCheetahVel(), np.ones(2), start_noise(2))
    episodes._velocity[1] = 1e11
    after = episodes.step(np.zeros((1, 2, 6), np.float32), np.zeros((1, 2, 0)), np.ones((1, 2), bool))
    np.testing.assert_array_equal(np.isnan(after.reward[0]), [False, True])
    assert "unstable" in capfd.readouterr().err


@pytest.mark.parametrize("module", ["mujoco", "gymnasium"])
def test_a_missing_extra_is_one_sentence(monkeypatch, module):
    if module == "mujoco":
        monkeypatch.setitem(sys.modules, "mujoco", None)
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    load_model.cache_clear()
    env = envs.make("halfcheetah")  # naming it in tables needs nothing
    assert env.num_observations == 17
    with pytest.raises(InputError, match=r'env: halfcheetah needs MuJoCo .* pip install "metastep\[mujoco\]"\.$'):
        start_episodes(env, np.ones(1), start_noise(1))


def test_engines():
    assert isinstance(envs.make("halfcheetah"), HalfCheetahVel)
    assert isinstance(envs.make("halfcheetah", engine="c", num_threads=2), HostEnv)
    assert isinstance(envs.make("halfcheetah", engine="planar", iterations=8), envs.Env)
    assert envs.make("halfcheetah", iterations=8, num_threads=2) == HalfCheetahVel(num_threads=2)
    with pytest.raises(InputError, match=r"'iteration' is not an option of halfcheetah, .* Did you mean 'iterations'"):
        envs.make("halfcheetah", iteration=8)
    with pytest.raises(InputError, match=r"'iterations' is not an option of halfcheetah on engine 'c'"):
        envs.make("halfcheetah", engine="c", iterations=8)
    with pytest.raises(InputError, match=r"env.engine: 'warp' must be auto, c or planar"):
        envs.make("halfcheetah", engine="warp")
    for options in ({"frame_skip": 0}, {"num_threads": -1}, {"engine": "planar", "iterations": 0}):
        with pytest.raises(InputError, match="must be at least 1"):
            envs.make("halfcheetah", **options)


def test_results_name_the_simulator_and_not_its_threads(tmp_path):
    env = envs.make("halfcheetah", num_threads=2)
    rollout = Rollout(env, LinearGaussian(17, 6, sigma=1.0), num_episodes=2, horizon=2)
    mdp = EpisodicMetaMDP(Estimator(rollout), HyperparameterSpace((0.0,), (1.0,)), block_size=2)
    dataset = collect(mdp, tmp_path / "d", num_episodes=2, num_updates=1, seed=0, config={})
    comparison = compare([Method("h", NGA(), Fixed(0.1))], mdp, seed=0, num_updates=1, num_tasks=2)
    for record in (dataset.environment, comparison.settings["versions"]):
        assert record["mujoco"] == importlib.metadata.version("mujoco")
        assert record["gymnasium"] == importlib.metadata.version("gymnasium")
    assert "num_threads" not in str(comparison.settings)
    assert "frame_skip" in str(comparison.settings)


def test_the_control_cost_may_be_that_of_the_policys_own_action():
    goal, noise = np.asarray([1.0]), start_noise(1)
    action = np.full((1, 1, 6), 2.0, np.float32)
    rewards = [
        start_episodes(HalfCheetahVel(cost_of=kind), goal, noise)
        .step(action, np.zeros((1, 1, 0), np.float32), np.ones((1, 1), bool))
        .reward[0, 0]
        for kind in ("clipped", "unclipped")
    ]
    assert rewards[0] - rewards[1] == pytest.approx(0.05 * 6 * (2.0**2 - 1.0))
    with pytest.raises(InputError, match=r"env.cost_of: 'both' must be one of clipped, unclipped"):
        HalfCheetahVel(cost_of="both")

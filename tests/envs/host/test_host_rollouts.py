"""A JAX environment simulated on the host must give what it gives compiled: same keys, same draws, same estimates."""

import dataclasses

import jax
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.mdp import EpisodicMetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Exploration
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout, stream, trajectories
from metastep.testing import check_host_env
from tests.envs.host.twins import Twin
from tests.one_block import run
from tests.reference import draw_learners, make_rollout, relative_error

NAMES = ["nav2d", "swingup", "lqr"]  # no reset noise; early ends; step noise


def on_host(rollout: Rollout) -> Rollout:
    return dataclasses.replace(rollout, env=Twin(rollout.env))


@pytest.mark.parametrize("name", NAMES)
def test_the_episodes_are_the_same(name):
    rollout = make_rollout(name)
    arguments = draw_learners(rollout, num=3)
    compiled, hosted = (Estimator(each).trajectories(*arguments) for each in (rollout, on_host(rollout)))
    np.testing.assert_array_equal(hosted.noise, compiled.noise)
    np.testing.assert_array_equal(hosted.alive, compiled.alive)
    for field in ("observation", "action", "reward"):
        np.testing.assert_allclose(getattr(hosted, field), getattr(compiled, field), rtol=1e-4, atol=1e-5)
    assert np.asarray(compiled.alive).all() == (name != "swingup")
    check_host_env(Twin(rollout.env), horizon=40)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hidden", [(), (4,)], ids=["linear", "network"])
def test_the_estimates_are_the_same(name, hidden):
    rollout = make_rollout(name, hidden=hidden)
    arguments = draw_learners(rollout, num=3)
    # A network's Fisher matrix is nearly singular: conjugate gradient would magnify the last bits without more damping.
    damping = 0.1 if hidden else 1e-4
    compiled, hosted = (Estimator(each, damping=damping)(*arguments) for each in (rollout, on_host(rollout)))
    np.testing.assert_array_equal(hosted.num_steps, compiled.num_steps)
    np.testing.assert_allclose(hosted.mean_return, compiled.mean_return, rtol=1e-5)
    np.testing.assert_allclose(hosted.return_error, compiled.return_error, rtol=1e-4, atol=1e-6)
    assert relative_error(hosted.gradient, compiled.gradient).max() < 1e-4
    assert relative_error(hosted.natural_gradient, compiled.natural_gradient).max() < 1e-2


def test_the_loop_does_not_know_the_difference():
    rollout, episodes = make_rollout("lqr", num_episodes=20, horizon=20), []
    for each in (on_host(rollout), rollout):
        mdp = EpisodicMetaMDP(Estimator(each), HyperparameterSpace((0.0,), (1.0,)), block_size=4)
        episodes.append(run(mdp, Exploration(), mdp.tasks(0, Stream.TRAIN, 0), num_updates=3, record=("theta",))[0])
    hosted, compiled = episodes
    for field in ("context", "hyperparameters", "flagged"):
        np.testing.assert_array_equal(getattr(hosted, field), getattr(compiled, field))
    np.testing.assert_allclose(hosted.features["theta"], compiled.features["theta"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(hosted.mean_return, compiled.mean_return, rtol=1e-3)


def test_a_compiled_function_refuses_with_a_sentence():
    rollout = on_host(make_rollout("nav2d"))
    arguments = draw_learners(rollout, num=2)
    for simulate in (stream, trajectories):
        with pytest.raises(InputError, match="'nav2d' is simulated on the host"):
            simulate(rollout, *arguments)
    with pytest.raises(InputError, match="'nav2d' is simulated on the host and cannot be called inside a compiled"):
        jax.jit(Estimator(rollout))(*arguments)

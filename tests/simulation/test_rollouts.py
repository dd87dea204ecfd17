from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs import LQR, Env
from metastep.envs.cartpole import CartPoleState
from metastep.envs.small import Position
from metastep.policies import LinearGaussian, Policy
from metastep.simulation.rollouts import Rollout, discounted_returns, stream, sums_of, trajectories
from tests.reference import CASES, draw_learners, make_rollout, relative_error

compiled_trajectories = jax.jit(trajectories, static_argnums=0)


@pytest.mark.parametrize("name", CASES)
def test_termination_and_the_actions_of_the_policy(name: str) -> None:
    rollout = make_rollout(name)
    theta, context, key = draw_learners(rollout, 3)
    episodes = compiled_trajectories(rollout, theta, context, key)
    alive, reward = np.asarray(episodes.alive), np.asarray(episodes.reward)
    assert alive[0].all()
    assert (alive[1:] <= alive[:-1]).all()
    assert (reward[~alive] == 0.0).all()
    # The first observation after the end is that of the last state; from there on nothing moves.
    frozen = ~alive[:-1]
    moved = np.abs(np.diff(np.asarray(episodes.observation), axis=0)).max(axis=1)
    assert (moved[frozen] == 0.0).all()

    observation, noise = (np.asarray(array, np.float64) for array in (episodes.observation, episodes.noise))
    parameters, num_actions = np.asarray(theta, np.float64), rollout.env.num_actions
    bias, weights = parameters[:, :num_actions], parameters[:, num_actions:].reshape(3, num_actions, -1)
    mean = bias.T[None, :, None] + np.einsum("lao,toel->tael", weights, observation)
    np.testing.assert_allclose(episodes.action, mean + rollout.policy.sigma * noise, rtol=1e-5, atol=1e-5)
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "record"), [("cartpole", CartPoleState), ("swingup", CartPoleState), ("nav2d", Position)]
)
def test_trajectories_follow_the_environment(name: str, record: Any) -> None:
    """Without noise in the dynamics and with the state in full view, each step can be replayed on its own."""
    rollout = make_rollout(name)
    theta, context, key = draw_learners(rollout, 3)
    episodes = compiled_trajectories(rollout, theta, context, key)
    env: Env = rollout.env  # type: ignore[assignment]

    def step(task: jax.Array, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        after = env.step(env.context_space.unpack(task), record(*observation), tuple(action), ())
        return jnp.stack(after.state), jnp.float32(after.reward), after.terminated

    over_learners = jax.vmap(step, in_axes=(0, -1, -1), out_axes=-1)
    over_episodes = jax.vmap(over_learners, in_axes=(None, 1, 1), out_axes=(1, 0, 0))
    over_time = jax.jit(jax.vmap(over_episodes, in_axes=(None, 0, 0)))
    after, reward, terminated = (np.asarray(a) for a in over_time(context, episodes.observation, episodes.action))
    alive = np.asarray(episodes.alive)
    np.testing.assert_allclose(np.asarray(episodes.reward)[alive], reward[alive], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(alive[1:], alive[:-1] & ~terminated[:-1])
    seen = np.moveaxis(np.asarray(episodes.observation), 1, -1)[1:]
    expected = np.moveaxis(after, 1, -1)[:-1]
    np.testing.assert_allclose(seen[alive[:-1]], expected[alive[:-1]], rtol=1e-5, atol=1e-5)


def test_noise_of_the_dynamics_is_fresh_and_independent_of_the_actions() -> None:
    env = LQR()
    rollout = Rollout(env, LinearGaussian(2, 1, 0.5), num_episodes=100, horizon=30)
    theta, context, key = draw_learners(rollout, 4)
    episodes = compiled_trajectories(rollout, theta, context, key)
    states = np.asarray(episodes.observation, np.float64)
    drift = np.asarray(context, np.float64)[:, 0] * np.einsum("ij,tjel->tiel", env.dynamics, states[:-1])
    push = np.asarray(env.control)[:, None, None] * np.asarray(episodes.action, np.float64)[:-1]
    residual = ((states[1:] - drift - push) / env.noise).reshape(29, 2, -1)
    action_noise = np.asarray(episodes.noise, np.float64).reshape(30, -1)
    start = (states[0] - np.reshape(env.start, (2, 1, 1))).reshape(2, -1) / env.start_scale
    assert scipy.stats.kstest(residual.ravel(), "norm").pvalue > 1e-3
    assert scipy.stats.kstest(start.ravel(), "norm").pvalue > 1e-3
    pairs = {
        "coordinates": (residual[:, 0], residual[:, 1]),
        "actions": (residual[:, 0], action_noise[:-1]),
        "next actions": (residual[:, 1], action_noise[1:]),
        "steps": (residual[1:], residual[:-1]),
        "start": (residual[0], start),
        "start and action": (start, np.stack([action_noise[0]] * 2)),
    }
    for what, (left, right) in pairs.items():
        assert abs(np.mean(left * right)) < 4 / np.sqrt(left.size), what


def test_returns_alone_are_those_of_the_trajectories() -> None:
    rollout = make_rollout("cartpole", discount=0.9)
    theta, context, key = draw_learners(rollout, 3)
    returns = jax.jit(partial(discounted_returns, rollout))(theta, context, key)
    reward = np.asarray(compiled_trajectories(rollout, theta, context, key).reward, np.float64)
    np.testing.assert_allclose(returns, np.einsum("t,tel->el", 0.9 ** np.arange(rollout.horizon), reward), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_episodes": 0}, r"rollout.num_episodes: 0 must be greater than or equal to 1"),
        ({"discount": 1.5}, r"rollout.discount: 1.5 must be less than or equal to 1"),
        ({"baseline": "best"}, r"rollout.baseline: 'best' must be 'none', 'mean' or 'optimal'"),
        ({"policy": LinearGaussian(3, 1, 1.0)}, r"policy.num_observations: 3, but the environment 'cartpole' has 4"),
    ],
)
def test_a_bad_rollout_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    policy: Policy = LinearGaussian(4, 1, 1.0)
    fields = {"env": envs.make("cartpole"), "policy": policy, "num_episodes": 10, "horizon": 10} | changes
    with pytest.raises(InputError, match=sentence):
        Rollout(**fields)


def test_memory_of_the_streaming_path_does_not_grow_with_the_horizon() -> None:
    """32 learners of 100 episodes: keeping 1,000 steps takes more than 50 MB, which shows that the measure would see it."""

    def keep_everything(rollout: Rollout, *arguments: Any) -> Any:
        return sums_of(rollout, arguments[0], trajectories(rollout, *arguments))

    def temporary(function: Any, horizon: int) -> int:
        rollout = Rollout(envs.make("cartpole"), LinearGaussian(4, 1, 1.001), 100, horizon)
        arguments = jnp.zeros((32, 5), jnp.float32), jnp.ones((32, 2), jnp.float32), jax.random.key(0)
        return jax.jit(partial(function, rollout)).lower(*arguments).compile().memory_analysis().temp_size_in_bytes

    short = temporary(stream, 100)
    assert temporary(stream, 1000) <= 1.01 * short
    assert temporary(keep_everything, 1000) > short + 50e6


@pytest.mark.parametrize("baseline", ["mean", "optimal"])
def test_several_steps_at_once_give_the_same_sums(monkeypatch, baseline):
    """What a GPU does: reductions over several steps, here on the CPU."""
    env = envs.make("cartpole")
    rollout = Rollout(env, LinearGaussian(4, 1, sigma=1.0), num_episodes=20, horizon=30, baseline=baseline)
    key = jax.random.key(4)
    theta, context = 0.3 * jax.random.normal(key, (8, 5)), env.context_space.sample(key, 8)
    one = jax.jit(stream, static_argnums=0)(rollout, theta, context, key)
    monkeypatch.setattr("metastep.simulation.rollouts.on_cpu", lambda: False)
    several = jax.jit(lambda *arguments: stream(rollout, *arguments))(theta, context, key)
    for before, after in zip(one, several, strict=True):
        np.testing.assert_allclose(after, before, rtol=2e-5, atol=1e-5 * float(np.abs(before).max()))


@pytest.mark.parametrize("horizon", [1, 7, 13])
def test_any_horizon_steps_through_all_its_draws(horizon):
    """Horizons that bunches of steps do not divide: streamed and whole episodes agree, and nothing is drawn twice."""
    rollout = Rollout(LQR(), LinearGaussian(2, 1, sigma=0.5), num_episodes=6, horizon=horizon)
    theta, context, key = draw_learners(rollout, 3)
    episodes = trajectories(rollout, theta, context, key)
    assert episodes.reward.shape == (horizon, 6, 3)
    assert len(np.unique(np.asarray(episodes.noise))) == horizon * 6 * 3
    streamed, replayed = stream(rollout, theta, context, key), sums_of(rollout, theta, episodes)
    assert relative_error(streamed.gradient.T, replayed.gradient.T).max() < 1e-4

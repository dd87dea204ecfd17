"""Batches of steps: episodes end, are cut off and go on; returns are those of the episodes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs import CartPoleV1, Pendulum
from metastep.policies import ActorCritic
from metastep.rules.actor_critic import Sampler

LEARNERS, NUM_ENVS, NUM_STEPS, HORIZON = 2, 3, 20, 12
KEYS = jax.random.key(1), jax.random.key(2)


@pytest.fixture(scope="module")
def batches():
    """Two batches of CartPole that follow one another, and where the environments are after each."""
    env = envs.make("cartpole-v1")
    policy = ActorCritic(4, 1, 2, hidden=(4,))
    sampler = Sampler(env, policy, NUM_ENVS, NUM_STEPS, HORIZON)
    theta, context = policy.initial(KEYS[0], LEARNERS), env.context_space.sample(KEYS[0], LEARNERS)
    simulate = jax.jit(sampler.simulate)
    lanes, first = simulate(theta, context, sampler.start(context, KEYS[0]), KEYS[0])
    after, second = simulate(theta, context, lanes, KEYS[1])
    experience = jax.jit(sampler, static_argnums=4)(theta, context, lanes, KEYS[1], 0.95)
    joined = jax.tree.map(lambda *each: np.concatenate(each, axis=1), first, second)
    return joined, after, experience


def test_episodes_end_at_the_horizon_or_before_and_new_ones_begin_near_the_start(batches):
    steps, _, _ = batches
    for learner in range(LEARNERS):
        for lane in range(NUM_ENVS):
            ends = np.flatnonzero(steps.ended[learner, :, lane])
            lengths = np.diff(ends, prepend=-1)
            assert lengths.max() <= HORIZON
            terminated = steps.terminated[learner, ends, lane]
            assert (terminated | (lengths == HORIZON)).all()  # an episode that is shorter has no future
    assert (steps.ended & ~steps.terminated).any()
    assert steps.terminated.any()
    begun = np.roll(steps.ended, 1, axis=1)
    begun[:, 0] = True
    assert np.abs(steps.observation[begun]).max() <= 0.05
    assert np.abs(steps.observation[~begun]).max() > 0.05


def test_returns_are_those_of_the_last_finished_episodes(batches):
    steps, after, experience = batches
    for learner in range(LEARNERS):
        last = []
        for lane in range(NUM_ENVS):
            ends = np.flatnonzero(steps.ended[learner, :, lane])
            last.append(ends[-1] - ends[-2] if len(ends) > 1 else ends[-1] + 1)  # every step pays 1
        np.testing.assert_allclose(after.last_return[learner], last)
        np.testing.assert_allclose(experience.mean_return[learner], np.mean(last), rtol=1e-6)
        error = np.std(last, ddof=1) / np.sqrt(NUM_ENVS)
        np.testing.assert_allclose(experience.return_error[learner], error, rtol=1e-5)


def test_before_an_episode_has_ended_its_rewards_so_far_count():
    policy = ActorCritic(3, 1, hidden=(2,))
    sampler = Sampler(Pendulum(), policy, 2, 3, horizon=200)
    theta, context = policy.initial(KEYS[0], 1), jnp.asarray([[1.0, 1.0, 10.0]])
    lanes = sampler.start(context, KEYS[0])
    experience = sampler(theta, context, lanes, KEYS[0], 0.95)
    steps = sampler.simulate(theta, context, lanes, KEYS[0])[1]
    np.testing.assert_allclose(experience.mean_return, steps.reward.sum(axis=1).mean(axis=1), rtol=1e-5)


def test_an_action_is_held_and_cut_off_at_its_range():
    """On MountainCar a step pays -0.1 times the square of what was done, 100 at the goal."""
    env, policy, num = envs.make("mountaincar"), ActorCritic(2, 1, hidden=(2,), log_std=1.0), 30
    theta, context = policy.initial(KEYS[0], 1), jnp.asarray([[0.0015, 0.0025]])
    held = {}
    for hold in (1, 4):
        sampler = Sampler(env, policy, 2, num, horizon=50, hold=hold)
        simulate = jax.jit(sampler.simulate)
        held[hold] = jax.device_get(simulate(theta, context, sampler.start(context, KEYS[0]), KEYS[0])[1])
    for hold, steps in held.items():
        done = np.clip(steps.action[..., 0], -1.0, 1.0)
        assert np.abs(steps.action).max() > 1.5
        length = np.where(steps.ended, 50 % hold or hold, hold)  # the time limit ends the last one early
        np.testing.assert_allclose(steps.reward, -0.1 * length * done**2, rtol=1e-4, atol=1e-6)
        assert np.flatnonzero(steps.ended[0, :, 0])[0] == -(-50 // hold) - 1 if hold > 1 else not steps.ended.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler(Pendulum(), ActorCritic(3, 1), 1, 1, 4), "rollout.num_steps: a batch of 1 step has no spread"),
        (lambda: Sampler(CartPoleV1(), ActorCritic(4, 1), 2, 3, 4), "policy.num_choices: None, but the environment"),
        (lambda: Sampler(Pendulum(), ActorCritic(3, 1, 2), 2, 3, 4), "policy.num_choices: 2, but the environment"),
        (lambda: Sampler(Pendulum(), ActorCritic(4, 1), 2, 3, 4), "policy.num_observations: 4, but the environment"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        make()


class Replayed(VecEnv):
    """Environments that show a batch (steps, envs, ...) again, for Stable-Baselines3."""

    def __init__(self, steps):
        self.steps, self.time, box = steps, -1, Box(-np.inf, np.inf, steps.observation.shape[2:])
        super().__init__(steps.observation.shape[1], box, box)

    def reset(self):
        return self.steps.observation[0]

    def step_wait(self):
        self.time += 1
        now = jax.tree.map(lambda array: array[self.time], self.steps)
        infos = [{"terminal_observation": seen} for seen in now.seen_next]
        return self.steps.observation[self.time + 1], now.reward, now.ended, infos

    step_async = close = env_is_wrapped = env_method = set_attr = lambda self, *_: None
    get_attr = lambda self, *_: [None]  # noqa: E731


def test_observations_and_rewards_are_normalised_as_in_stable_baselines3(monkeypatch):
    env, seen, returns = envs.make("cartpole-v1"), [], []
    policy = ActorCritic(4, 1, 2, hidden=(4,), activation="relu")
    theta, context = policy.initial(KEYS[0], LEARNERS), env.context_space.sample(KEYS[0], LEARNERS)
    theta = jnp.where(policy.is_critic, theta, 0.0)  # actions do not depend on what is seen
    monkeypatch.setattr("metastep.rules.actor_critic.sampler.evaluate_steps", lambda _, parts, steps: steps)
    for how in ({}, {"normalise_observations": True, "normalise_rewards": True}, {"normalise_rewards": True}):
        sampler = Sampler(env, policy, NUM_ENVS, NUM_STEPS, HORIZON, 0.9, **how)
        lanes, first = jax.jit(sampler.simulate)(theta, context, sampler.start(context, KEYS[0]), KEYS[0])
        after, second = jax.jit(sampler.simulate)(theta, context, lanes, KEYS[1])
        seen.append(jax.tree.map(lambda *each: np.concatenate(each, axis=1), first, second))
        returns.append(after.last_return)  # of the rewards as they are
        assert sampler.normalises == tuple(name.partition("_")[2] for name in how)
    plain, both, rewards = seen
    assert (returns[0] == returns[1]).all()
    assert 0 < plain.ended.sum() < plain.ended.size
    np.testing.assert_array_equal(rewards.observation, plain.observation)
    np.testing.assert_array_equal(rewards.reward, both.reward)
    for learner in range(LEARNERS):
        raw, ours = (jax.tree.map(lambda array: array[learner], each) for each in (plain, both))  # noqa: B023
        theirs = VecNormalize(Replayed(raw), gamma=0.9)
        np.testing.assert_allclose(ours.observation[0], theirs.reset(), rtol=1e-3, atol=1e-5)
        for time in range(2 * NUM_STEPS - 1):
            shown, reward, ends, infos = theirs.step(np.zeros((NUM_ENVS, 1)))
            np.testing.assert_allclose(ours.observation[time + 1], shown, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(ours.reward[time], reward, rtol=1e-4)
            for place in np.flatnonzero(ends):
                last = infos[place]["terminal_observation"]
                np.testing.assert_allclose(ours.seen_next[time, place], last, rtol=1e-3, atol=1e-5)


def test_hidden_layers_have_the_activation_that_was_chosen():
    policies = [ActorCritic(2, 1, hidden=(1,), activation=kind) for kind in ("tanh", "relu")]
    parts = {name: jnp.ones(shape) for name, shape in policies[0].shapes.items()}
    for total in (-3.0, 2.0):  # of both observations and the bias
        found = [float(policy.value(parts, jnp.array([total - 1.0, 0.0]))) for policy in policies]
        np.testing.assert_allclose(found, [np.tanh(total) + 1.0, max(total, 0.0) + 1.0], atol=1e-6)

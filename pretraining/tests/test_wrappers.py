"""Every wrapper changes what it says, and nothing else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from metastep.envs import choices_of
from pretraining import wrappers
from pretraining.families.games import Catch
from pretraining.families.motion import Beam

BEAM = Beam()
STEPS = 12
ACTIONS = np.random.default_rng(0).uniform(-1.0, 1.0, (STEPS, 1)).astype(np.float32)
NOISE = np.random.default_rng(1).standard_normal((STEPS, 8)).astype(np.float32)


def played(env: Any, actions: np.ndarray = ACTIONS, noise: np.ndarray = NOISE, **own: float) -> Any:
    """Observations before every step, rewards and ends of one episode; `own` are coordinates that a wrapper adds."""
    values = {"gravity": 5.0, "torque": 3.0, "damping": 1.0, "roughness": 0.1, "fall": 0.1, "wind": 0.0} | own
    values |= {"speed": 0.1, "width": 0.1}
    task = env.context_space.unpack(jnp.asarray([values[name] for name in env.context_space.names], jnp.float32))

    def step(state: Any, given: Any) -> Any:
        after = env.step(task, state, tuple(given[0]), tuple(given[1][: env.step_noise]))
        return after.state, (jnp.stack(env.observe(task, state)), after.reward, after.terminated)

    first = env.reset(task, tuple(0.5 * jnp.sin(jnp.arange(1.0, 1.0 + env.reset_noise))))
    kind = jnp.float32 if choices_of(env) is None else jnp.int32
    run = jax.jit(lambda: jax.lax.scan(step, first, (jnp.asarray(actions, kind), jnp.asarray(noise)))[1])
    return [np.asarray(part) for part in run()]


@pytest.fixture(scope="module")
def plain() -> Any:
    return played(BEAM)


def test_rewards_are_scaled_by_the_task_and_shifted(plain: Any) -> None:
    seen, reward, _ = played(wrappers.ScaledRewards(BEAM, shift=0.5), reward_power=1.0)
    np.testing.assert_allclose(reward, 10.0 * plain[1] + 0.5, rtol=1e-5)
    np.testing.assert_array_equal(seen, plain[0])


def test_observations_are_scaled_by_the_task(plain: Any) -> None:
    env = wrappers.ScaledObservations(BEAM, power=0.4)
    seen, reward, _ = played(env, observation_power=0.4)
    scales = seen / plain[0]
    np.testing.assert_allclose(scales, scales[:1].repeat(STEPS, axis=0), rtol=1e-4)
    assert np.abs(np.log10(scales)).max() <= 0.4
    assert np.unique(scales[0]).size == 4
    np.testing.assert_allclose(played(env, observation_power=0.0)[0], plain[0], rtol=1e-6)
    np.testing.assert_array_equal(reward, plain[1])


def test_a_rotation_keeps_lengths_and_products(plain: Any) -> None:
    seen, _, _ = played(wrappers.MixedObservations(BEAM, seed=3))
    np.testing.assert_allclose(seen @ seen.T, plain[0] @ plain[0].T, atol=1e-5)
    assert np.abs(seen - plain[0]).max() > 0.1


def test_noise_is_added_to_what_is_seen_alone(plain: Any) -> None:
    seen, reward, _ = played(wrappers.NoisyObservations(BEAM, sigma=0.3))
    np.testing.assert_allclose(seen[1:] - plain[0][1:], 0.3 * NOISE[:-1, :4], atol=1e-5)
    np.testing.assert_array_equal(reward, plain[1])


def test_repeated_actions_pay_the_sum_up_to_the_end() -> None:
    full, none = np.ones((60, 1)), np.zeros((60, 1))
    (_, reward, ended), (_, each, ends) = (
        played(env, full, none) for env in (wrappers.RepeatedActions(BEAM, times=5), BEAM)
    )
    stop = int(np.flatnonzero(ends)[0])
    assert stop % 5 != 4  # an end within a repetition
    assert int(np.flatnonzero(ended)[0]) == stop // 5
    np.testing.assert_allclose(reward[: stop // 5 + 1].sum(), each[: stop + 1].sum(), rtol=1e-4)


def test_delays_shift_actions_and_observations(plain: Any) -> None:
    late = np.concatenate([np.zeros((2, 1), np.float32), ACTIONS[:-2]])
    np.testing.assert_allclose(played(wrappers.DelayedActions(BEAM, steps=2))[1], played(BEAM, late)[1], rtol=1e-6)
    seen, reward, _ = played(wrappers.DelayedObservations(BEAM, steps=2))
    np.testing.assert_array_equal(seen[2:], plain[0][:-2])
    np.testing.assert_array_equal(seen[:2], plain[0][:1].repeat(2, axis=0))
    np.testing.assert_array_equal(reward, plain[1])


def test_delayed_rewards_come_in_sums_and_at_the_end(plain: Any) -> None:
    _, reward, _ = played(wrappers.DelayedRewards(BEAM, steps=4))
    np.testing.assert_allclose(reward[3::4], plain[1].reshape(-1, 4).sum(axis=1), rtol=1e-5)
    assert not np.delete(reward, np.s_[3::4]).any()
    paid, ended = played(wrappers.DelayedRewards(Catch(), steps=100), np.ones((STEPS, 1)))[1:]
    assert paid[ended][0] == -1.0  # the ball is down


def test_a_time_limit_ends_and_is_seen(plain: Any) -> None:
    seen, reward, ended = played(wrappers.TimeLimit(BEAM, steps=10))
    np.testing.assert_array_equal(np.flatnonzero(ended)[:1], [9])
    np.testing.assert_allclose(seen[:, -1], 1.0 - np.arange(STEPS) / 10.0, atol=1e-6)
    np.testing.assert_array_equal(seen[:, :-1], plain[0])
    np.testing.assert_array_equal(reward, plain[1])


def test_sticky_actions_repeat_the_last_one_taken() -> None:
    sticks = NOISE[:, 0] < np.quantile(NOISE[:, 0], 0.5)
    taken, last = [], np.zeros(1, np.float32)
    chance = float(norm.cdf(np.quantile(NOISE[:, 0], 0.5)))
    for action, stuck in zip(ACTIONS, sticks, strict=True):
        last = last if stuck else action
        taken.append(last)
    assert 0 < sticks.sum() < STEPS
    sticky = played(wrappers.StickyActions(BEAM, chance=chance))
    np.testing.assert_allclose(sticky[1], played(BEAM, np.stack(taken))[1], rtol=1e-6)


def test_discrete_actions_are_the_corners_and_the_middle() -> None:
    env = wrappers.DiscreteActions(BEAM)
    assert (env.num_actions, env.num_choices, env.action_range) == (1, 3, None)
    choices = np.arange(STEPS)[:, None] % 3
    np.testing.assert_allclose(played(env, choices)[1], played(BEAM, choices - 1.0)[1], rtol=1e-6)

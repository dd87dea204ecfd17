"""HalfCheetah on MJX against the C engine, on few lanes: MJX is slow on a CPU."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metastep.envs import Env
from metastep.envs.halfcheetah import HalfCheetahVelMJX
from metastep.envs.host import HalfCheetahVel
from metastep.gradients import Estimator
from metastep.noise import standard_normals
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout, Trajectories
from metastep.testing import check_env
from tests.envs.host.cheetah import start_episodes

POLICY = LinearGaussian(17, 6, 1.001)
# Largest difference from the C engine over 80 episodes, in half and in nine tenths of them, after so many steps. float32
# rounds, and contacts magnify what it leaves: about tenfold every five steps. Observations reach 25, rewards 4.
OBSERVATIONS_AFTER = {1: (1e-5, 1e-4), 5: (1e-4, 1e-3), 19: (1e-2, 0.3)}
REWARDS_AFTER = {1: (1e-6, 1e-5), 5: (1e-5, 1e-4), 20: (2e-3, 0.05)}


def make_estimator(engine: type, num_episodes: int, horizon: int, **options) -> Estimator:
    return Estimator(Rollout(engine(**options), POLICY, num_episodes, horizon))


def draw_learners(num: int):
    keys = jax.random.split(jax.random.key(0), 2)
    # One policy for all, so that their returns are one sample.
    theta = jnp.tile(0.1 * jax.random.normal(keys[0], (1, POLICY.num_parameters), jnp.float32), (num, 1))
    return theta, jnp.full((num, 1), 1.0, jnp.float32)


MODELS_OWN = {"iterations": 100, "line_search": 50}


@cache
def short_episodes(iterations: int = 4, line_search: int = 8) -> Trajectories:
    """80 episodes of 20 steps on MJX, computed once for all tests here."""
    solver = {"iterations": iterations, "line_search": line_search}
    estimator = make_estimator(HalfCheetahVelMJX, num_episodes=20, horizon=20, allow_cpu=True, **solver)
    theta, context = draw_learners(4)
    return Trajectories(*(np.asarray(part) for part in estimator.trajectories(theta, context, jax.random.key(0))))


def returns_of(episodes: Trajectories) -> np.ndarray:
    weights = 0.99 ** np.arange(len(episodes.reward))
    return np.einsum("t,tel->el", weights, np.asarray(episodes.reward, np.float64)).ravel()


@pytest.mark.parametrize("solver", [{}, pytest.param(MODELS_OWN, marks=pytest.mark.soak)], ids=["default", "model"])
def test_twenty_steps_equal_those_of_the_c_engine(solver):
    episodes = short_episodes(**solver)
    shape = episodes.reward.shape[1:]
    key = jax.random.fold_in(jax.random.key(0), 0)
    normals = standard_normals(key, 0, HalfCheetahVel.reset_noise, shape)
    replay = start_episodes(HalfCheetahVel(), np.ones(shape[1]), np.asarray(jnp.stack(normals, axis=-1)))
    for t in range(20):
        seen = np.moveaxis(episodes.observation[t], 0, -1)
        difference = np.abs(seen - replay.observe()).max(axis=-1)
        if t == 0:
            assert difference.max() < 1e-7
        if t == 1:
            assert difference.max() < 1e-3
        if t in OBSERVATIONS_AFTER:
            assert (np.quantile(difference, (0.5, 0.9)) < OBSERVATIONS_AFTER[t]).all()
        action = np.moveaxis(episodes.action[t], 0, -1)
        after = replay.step(action, np.zeros((*shape, 0), np.float32), np.ones(shape, bool))
        if t + 1 in REWARDS_AFTER:
            off = np.abs(after.reward - episodes.reward[t])
            assert (np.quantile(off, (0.5, 0.9)) < REWARDS_AFTER[t + 1]).all()


def test_returns_are_distributed_alike():
    estimator = make_estimator(HalfCheetahVel, num_episodes=20, horizon=20)
    theta, context = draw_learners(10)
    independent = estimator.trajectories(theta, context, jax.random.key(1))
    assert stats.ks_2samp(returns_of(short_episodes()), returns_of(independent)).pvalue > 1e-3
    slower = estimator.trajectories(theta, context + 1.0, jax.random.key(1))
    assert stats.ks_2samp(returns_of(short_episodes()), returns_of(slower)).pvalue < 1e-3


def test_it_is_a_jax_environment():
    env = HalfCheetahVelMJX(allow_cpu=True)
    assert isinstance(env, Env)
    assert env == HalfCheetahVelMJX(allow_cpu=True)
    assert env == HalfCheetahVelMJX(allow_cpu=True, iterations=4, line_search=8)
    assert env != HalfCheetahVelMJX(allow_cpu=True, **MODELS_OWN)


@pytest.mark.soak
def test_it_keeps_the_contract():
    check_env(HalfCheetahVelMJX(allow_cpu=True), num_episodes=4, horizon=10)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("solver", "horizon"),
    [({}, 100), (MODELS_OWN, 20)],  # with the model's 100 and 50, 100 steps take a quarter hour
    ids=["default", "model"],
)
def test_two_thousand_returns_are_distributed_alike(solver, horizon):
    theta, context = draw_learners(1)
    engines = (HalfCheetahVel, {}), (HalfCheetahVelMJX, {"allow_cpu": True, **solver})
    samples = []
    for seed, (engine, options) in enumerate(engines):
        # A hundred at a time: all lanes wait for the slowest one's solver, and among thousands one always needs its limit.
        estimator = make_estimator(engine, num_episodes=100, horizon=horizon, **options)
        keys = jax.random.split(jax.random.key(seed), 20)
        samples.append(np.concatenate([returns_of(estimator.trajectories(theta, context, key)) for key in keys]))
    assert len(samples[0]) == 2000
    result = stats.ks_2samp(*samples)
    print(f"KS over {len(samples[0])} episodes a side, {solver or 'default settings'}: {result}")
    assert result.pvalue > 1e-2


@pytest.mark.soak
def test_both_engines_give_the_same_estimate_for_the_same_key():
    theta, context = draw_learners(4)
    estimates = [
        make_estimator(engine, num_episodes=25, horizon=10, **options)(theta, context, jax.random.key(2))
        for engine, options in ((HalfCheetahVel, {}), (HalfCheetahVelMJX, {"allow_cpu": True}))
    ]
    np.testing.assert_allclose(estimates[0].mean_return, estimates[1].mean_return, rtol=1e-3)
    np.testing.assert_allclose(estimates[0].gradient, estimates[1].gradient, rtol=0.02, atol=0.02)

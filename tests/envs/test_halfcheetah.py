"""HalfCheetah: the C engine against Gymnasium, the planar engine against MuJoCo, and the task on both."""

import copy
import importlib.metadata
import sys

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy import stats

from metastep import envs
from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep.controllers import Fixed
from metastep.envs.halfcheetah import HalfCheetahVel, HalfCheetahVelPlanar, load_model, read_model
from metastep.envs.planar import CheetahState, advance, in_one_kernel, step
from metastep.evaluation import Method, compare
from metastep.mdp import EpisodicMetaMDP
from metastep.mdp.collection import collect
from metastep.policies import LinearGaussian
from metastep.rules import NGA
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout, Trajectories

CHEETAH = read_model()
POLICY = LinearGaussian(17, 6, 1.001)
NUM_STATES = 600
# Largest difference from the C engine over 400 episodes, in half and in nine tenths of them, after so many steps. float32
# rounds, and contacts magnify what it leaves: about tenfold every five steps. Observations reach 25, rewards 4.
OBSERVATIONS_AFTER = {0: (1e-7, 1e-7), 1: (2e-6, 5e-5), 5: (1e-4, 1e-3), 19: (5e-3, 0.3)}
REWARDS_AFTER = {1: (1e-6, 1e-5), 5: (1e-5, 1e-4), 20: (1e-3, 0.05)}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Gymnasium loads the model in a way that makes MuJoCo leave a log file in the working directory."""
    monkeypatch.chdir(tmp_path)


def start_noise(key, *shape):
    """(episodes, learners, 18) standard normals."""
    return np.asarray(jnp.stack(standard_normals(key, 0, HalfCheetahVel.reset_noise, shape), axis=-1))


class OnC:
    """Episodes on the C engine: one a goal, or as many as the noise has."""

    def __init__(self, goals, noise=None, **options):
        noise = start_noise(jax.random.key(0), 1, len(goals)) if noise is None else noise
        context, self.shape = np.asarray(goals, np.float32)[:, None], noise.shape[:2]
        self.lanes = HalfCheetahVel(**options).start_episodes(context, noise, np.zeros(self.shape, np.uint32))
        self.observe = self.lanes.observe

    def step(self, action):
        action = np.broadcast_to(np.asarray(action, np.float32), (*self.shape, 6))
        return self.lanes.step(action, np.zeros((*self.shape, 0), np.float32), np.ones(self.shape, bool))


def test_one_hundred_steps_equal_gymnasiums():
    goals = np.asarray([0.0, 0.75, 2.0])  # float32 holds them exactly
    ours, paid = OnC(goals), OnC(goals, cost_of="unclipped")
    theirs = [gymnasium.make("HalfCheetah-v5").unwrapped for _ in goals]
    for lane, env in enumerate(theirs):
        env.reset(seed=0)
        env.set_state(ours.lanes._position[lane], ours.lanes._velocity[lane])
    for wild in np.random.default_rng(0).uniform(-1.5, 1.5, (100, 1, len(goals), 6)).astype(np.float32):
        action, after, seen = np.clip(wild, -1.0, 1.0), ours.step(wild), ours.observe()
        assert not after.terminated.any()
        for lane, (env, goal) in enumerate(zip(theirs, goals, strict=True)):
            expected, _, _, _, info = env.step(action[0, lane])
            np.testing.assert_array_equal(seen[0, lane], expected)
            cost = 0.05 * np.sum(np.square(action[0, lane].astype(np.float64)))
            np.testing.assert_allclose(after.reward[0, lane], -abs(info["x_velocity"] - goal) - cost, rtol=0, atol=1e-9)
        more = 0.05 * np.sum(np.square(wild, dtype=np.float64) - np.square(action, dtype=np.float64), axis=-1)
        np.testing.assert_allclose(after.reward - paid.step(wild).reward, more, atol=1e-9)
    assert POLICY.num_parameters == 108


def test_starts_are_distributed_like_gymnasiums():
    seen = OnC(np.zeros(4000)).observe()[0]
    for position in seen[:, :8].T:
        assert stats.kstest(position, stats.uniform(-0.1, 0.2).cdf).pvalue > 1e-3
    for velocity in seen[:, 8:].T:
        assert stats.kstest(velocity, stats.norm(0.0, 0.1).cdf).pvalue > 1e-3


def make_estimator(**options):
    return Estimator(Rollout(HalfCheetahVel(**options), POLICY, num_episodes=20, horizon=10))


def draw_learners():
    keys = jax.random.split(jax.random.key(0), 2)
    theta = 0.3 * jax.random.normal(keys[0], (3, POLICY.num_parameters), jnp.float32)
    return theta, HalfCheetahVel().context_space.sample(keys[1], 3)


def test_nothing_depends_on_the_number_of_threads():
    theta, context = draw_learners()
    estimates = [make_estimator(num_threads=threads)(theta, context, jax.random.key(1)) for threads in (1, 2, 3, 0)]
    for other in estimates[1:]:
        for field, expected, actual in zip(other._fields, estimates[0], other, strict=True):
            np.testing.assert_array_equal(actual, expected, err_msg=field)
    assert HalfCheetahVel(num_threads=1) == HalfCheetahVel(num_threads=2)


def test_what_is_not_a_number_or_unstable_flags_the_learner_alone(tmp_path, capfd):
    theta, context = draw_learners()
    broken = theta.at[1].set(jnp.nan)
    usual, estimate = (make_estimator()(each, context, jax.random.key(1)) for each in (theta, broken))
    assert np.isnan(estimate.mean_return[1])
    np.testing.assert_array_equal(estimate.gradient[jnp.array([0, 2])], usual.gradient[jnp.array([0, 2])])
    assert not list(tmp_path.iterdir())
    episodes = OnC(np.ones(2))
    episodes.lanes._velocity[1] = 1e11
    np.testing.assert_array_equal(np.isnan(episodes.step(0.0).reward[0]), [False, True])
    assert "unstable" in capfd.readouterr().err


@pytest.mark.parametrize("module", ["mujoco", "gymnasium"])
def test_a_missing_extra_is_one_sentence(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    load_model.cache_clear()
    assert envs.make("halfcheetah").num_observations == 17  # naming it in tables needs nothing
    with pytest.raises(InputError, match=r'env: halfcheetah needs MuJoCo .* pip install "metastep\[mujoco\]"\.$'):
        OnC(np.ones(1))


def test_engines():
    assert isinstance(envs.make("halfcheetah"), HalfCheetahVel)
    assert isinstance(envs.make("halfcheetah", engine="c", num_threads=2), envs.HostEnv)
    planar = envs.make("halfcheetah", engine="planar", iterations=8)
    assert isinstance(planar, envs.Env)
    assert hash(planar) == hash(copy.copy(planar))  # selects one compiled program
    assert envs.make("halfcheetah", iterations=8, num_threads=2) == HalfCheetahVel()
    assert HalfCheetahVelPlanar() == HalfCheetahVelPlanar(iterations=6) != HalfCheetahVelPlanar(iterations=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iteration": 8}, r"'iteration' is not an option of halfcheetah on engine 'auto', .* mean 'iterations'"),
        ({"engine": "c", "iterations": 8}, r"'iterations' is not an option of halfcheetah on engine 'c'"),
        ({"engine": "warp"}, r"env.engine: 'warp' must be auto, c or planar"),
        ({"cost_of": "both"}, r"cost_of: 'both' must be 'clipped' or 'unclipped'"),
        ({"frame_skip": 0}, "frame_skip: 0 must be greater than or equal to 1"),
        ({"num_threads": -1}, "num_threads: -1 must be greater than or equal to 0"),
        ({"engine": "planar", "iterations": 0}, "iterations: 0 must be greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        envs.make("halfcheetah", **options)


def test_results_name_the_simulator_and_not_its_threads(tmp_path):
    rollout = Rollout(envs.make("halfcheetah", num_threads=2), POLICY, num_episodes=2, horizon=2)
    mdp = EpisodicMetaMDP(Estimator(rollout), HyperparameterSpace((0.0,), (1.0,)), block_size=2)
    dataset = collect(mdp, tmp_path / "d", num_episodes=2, num_updates=1, seed=0, config={})
    comparison = compare([Method("h", NGA(), Fixed(0.1))], mdp, seed=0, num_updates=1, num_tasks=2)
    for record in (dataset.environment, comparison.settings["versions"]):
        assert record["mujoco"] == importlib.metadata.version("mujoco")
        assert record["gymnasium"] == importlib.metadata.version("gymnasium")
    assert "num_threads" not in str(comparison.settings)
    assert "frame_skip" in str(comparison.settings)


def test_the_planar_engine_takes_for_granted_what_the_model_has(monkeypatch):
    model = load_model()
    assert model.geom_type.tolist() == [mujoco.mjtGeom.mjGEOM_PLANE, *[mujoco.mjtGeom.mjGEOM_CAPSULE] * 8]
    assert not model.geom_conaffinity[1:].any()  # capsules touch nothing but the floor
    assert not model.qpos_spring.any()
    assert model.actuator_trnid[:, 0].tolist() == [3, 4, 5, 6, 7, 8]
    np.testing.assert_array_equal(model.jnt_axis, [(1, 0, 0), (0, 0, 1), *[(0, 1, 0)] * 7])
    changed = copy.copy(model)
    changed.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4
    monkeypatch.setattr("metastep.envs.halfcheetah.load_model", lambda: changed)
    with pytest.raises(InputError, match=r'^env\.engine: "planar" does not know the installed .*; allowed is "c"\.$'):
        read_model.__wrapped__()


def test_one_planar_step_in_float64_is_mujocos():
    """Thirty episodes of 20 steps with random torques from anywhere near the floor; solved as exactly as MuJoCo can."""
    model = copy.copy(load_model())
    model.opt.tolerance = model.opt.ls_tolerance = 0.0
    data, random = mujoco.MjData(model), np.random.default_rng(0)
    before, after, num_limits, num_contacts = [], [], 0, 0
    for index in range(NUM_STATES):
        if index % 20 == 0:
            mujoco.mj_resetData(model, data)
            data.qpos[:] = random.uniform(-0.5, 0.5, 9)
            data.qpos[1:3] = random.uniform(-0.6, -0.1), random.uniform(-np.pi, np.pi)
            data.qvel[:] = random.standard_normal(9)
        if index % 5 == 0:
            data.ctrl[:] = random.uniform(-1.0, 1.0, 6)
        before.append(np.concatenate([data.qpos, data.qvel, data.qacc_warmstart, data.ctrl]))
        mujoco.mj_step(model, data)
        after.append(np.concatenate([data.qpos, data.qvel, data.qacc]))
        num_limits += np.sum(data.efc_type == mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT)
        num_contacts += np.sum(data.efc_type == mujoco.mjtConstraint.mjCNSTR_CONTACT_PYRAMIDAL)
    assert num_limits > 50
    assert num_contacts > 4 * NUM_STATES / 2  # four rows each
    with jax.enable_x64(True):
        numbers = tuple(np.stack(before, axis=-1))
        state = CheetahState(numbers[:9], numbers[9:18], numbers[18:27])
        iterations = HalfCheetahVelPlanar().iterations
        moved = jax.jit(lambda state, action: step(CHEETAH, state, action, iterations))(state, numbers[27:])
        found, expected = np.concatenate(moved).T, np.stack(after)
    np.testing.assert_allclose(found[:, :18], expected[:, :18], atol=1e-9)
    np.testing.assert_allclose(found[:, 18:], expected[:, 18:], atol=1e-6)


def simulate(env, seed, goal=1.0):
    """400 episodes of 40 steps; one policy for all learners, so that their returns are one sample."""
    theta = 0.1 * jax.random.normal(jax.random.key(0), (1, POLICY.num_parameters), jnp.float32)
    estimator = Estimator(Rollout(env, POLICY, num_episodes=100, horizon=40))
    tasks = jnp.full((4, 1), goal, jnp.float32)
    return Trajectories(*map(np.asarray, estimator.trajectories(jnp.tile(theta, (4, 1)), tasks, jax.random.key(seed))))


@pytest.fixture(scope="module")
def episodes():
    return simulate(HalfCheetahVelPlanar(), seed=0)


def test_twenty_planar_steps_equal_those_of_the_c_engine(episodes):
    shape = episodes.reward.shape[1:]
    replay = OnC(np.ones(shape[1]), start_noise(jax.random.fold_in(jax.random.key(0), 0), *shape))
    for t in range(20):
        if t in OBSERVATIONS_AFTER:
            difference = np.abs(np.moveaxis(episodes.observation[t], 0, -1) - replay.observe()).max(axis=-1)
            assert (np.quantile(difference, (0.5, 0.9)) < OBSERVATIONS_AFTER[t]).all()
            assert difference.max() < {0: 1e-7, 1: 1e-3}.get(t, np.inf)
        after = replay.step(np.moveaxis(episodes.action[t], 0, -1))
        if t + 1 in REWARDS_AFTER:
            off = np.abs(after.reward - episodes.reward[t])
            assert (np.quantile(off, (0.5, 0.9)) < REWARDS_AFTER[t + 1]).all()


def test_returns_are_distributed_alike(episodes):
    def returns_of(sample):
        return np.einsum("t,tel->el", 0.99 ** np.arange(40), np.asarray(sample.reward, np.float64)).ravel()

    on_c, slower = (returns_of(simulate(HalfCheetahVel(), seed=1, goal=goal)) for goal in (1.0, 1.2))
    assert stats.ks_2samp(returns_of(episodes), on_c).pvalue > 1e-3
    assert stats.ks_2samp(returns_of(episodes), slower).pvalue < 1e-3


def test_one_kernel_does_what_the_loop_does():
    """As interpreted on a CPU, with fewer environments than two blocks have; the last ones are padding."""
    draws = 0.3 * np.random.default_rng(0).normal(size=(33, 130)).astype(np.float32)
    state = CheetahState(*(tuple(map(jnp.asarray, part)) for part in (draws[:9], draws[9:18], draws[18:27])))
    torque, own = tuple(map(jnp.asarray, draws[27:])), (read_model(), state)
    wanted = jax.jit(lambda *rows: advance(own[0], *rows, 2, 1, kernel=False))(state, torque)
    found = in_one_kernel(*own, torque, 2, 1, interpret=True)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cost_of", "paid"), [("clipped", 1.0), ("unclipped", 2.0)])
def test_a_planar_action_is_clipped_and_paid_for(cost_of, paid, monkeypatch):
    def stand_still(cheetah, state, torque, *_, **options):
        assert [float(force) for force in torque] == [1.0] * 6
        return state

    monkeypatch.setattr("metastep.envs.halfcheetah.advance", stand_still)
    env = HalfCheetahVelPlanar(cost_of=cost_of)
    task = env.context_space.unpack(jnp.asarray([1.5], jnp.float32))
    after = env.step(task, env.reset(task, (jnp.float32(0.0),) * 18), (jnp.float32(2.0),) * 6, ())
    np.testing.assert_allclose(after.reward, -1.5 - 0.05 * 6 * paid**2, rtol=1e-5)

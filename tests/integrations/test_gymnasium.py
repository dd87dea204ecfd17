from dataclasses import replace

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from metastep import envs
from metastep._core.errors import InputError
from metastep.controllers import Controller
from metastep.integrations.gymnasium import ENVIRONMENTS, MetaEnv, MetaVectorEnv, make_env
from metastep.mdp import EpisodicMetaMDP
from metastep.mdp.blocks import Stream
from metastep.policies import LinearGaussian
from metastep.rules.spaces import HyperparameterSpace
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout
from tests.one_block import run

NAV2D = "metastep/Nav2D-v0"
TINY = {"num_episodes": 4, "horizon": 3, "num_updates": 3}
LEARNERS = 2
ZEROS = np.zeros((LEARNERS, 1), np.float32)


@pytest.fixture(scope="module")
def env():
    return gym.make(NAV2D, **TINY).unwrapped


def vector(**options):
    return gym.make_vec(NAV2D, num_envs=LEARNERS, **TINY, **options)


class Replay(Controller):
    name = "replay"

    def __init__(self, stepsizes):
        self._stepsizes = jnp.asarray(stepsizes, jnp.float32)

    def init(self, mdp, learners):
        return ()

    def propose(self, state, learners):
        return self._stepsizes[learners.update]


def play(env, seed, actions, **reset):
    """Return observations, rewards, ends and infos of one meta-episode."""
    observation, info = env.reset(seed=seed, **reset)
    record = [(observation, None, None, info)]
    for action in actions:
        observation, reward, _, truncated, info = env.step(action)
        record.append((observation, reward, truncated, info))
    return tuple(zip(*record, strict=True))


def drawn_tasks(mdp, seed):
    numbers = seeding.np_random(seed)[0].integers(2**31, size=2)
    return mdp.tasks(int(numbers[0]), Stream.TRAIN, int(numbers[1]))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_gymnasium_has_nothing_to_complain_about(name):
    check_env(gym.make(f"metastep/{name}-v0", **TINY).unwrapped)


@pytest.mark.parametrize("num", [1, LEARNERS])
def test_learners_are_a_block_of_the_shared_loop(env, num):
    learners = env if num == 1 else vector()
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (3, num, 1)).astype(np.float32)
    observations, rewards, truncated, infos = play(learners, 7, actions if num > 1 else actions[:, 0])
    chosen, returns = (np.stack([info[name] for info in infos]) for name in ("stepsize", "mean_return"))
    np.testing.assert_allclose(chosen[1:], 4.0 * (1.0 + (actions if num > 1 else actions[:, 0])), rtol=1e-6)
    replay = Replay(chosen[1:].reshape(3, num, 1))
    episode, _ = run(learners.mdp, replay, drawn_tasks(learners.mdp, 7), 3, ("theta", "natural_gradient"))
    expected = episode.observe(("theta", "natural_gradient", "context"))
    np.testing.assert_array_equal(np.stack(observations).reshape(expected.shape), expected)
    np.testing.assert_array_equal(returns.reshape(4, num), episode.mean_return)
    np.testing.assert_array_equal(np.stack(rewards[1:]).reshape(3, num), np.diff(episode.mean_return, axis=0))
    assert np.stack(truncated[1:]).reshape(3, num).tolist() == [[False] * num, [False] * num, [True] * num]
    assert np.stack(observations)[0] in learners.observation_space
    assert num == 1 or not np.any(np.isclose(observations[0][0], observations[0][1]))


def test_later_episodes_differ_but_follow_from_the_seed():
    env = make_env("nav2d", **TINY)
    with pytest.raises(ResetNeeded):
        env.step(ZEROS[0])
    env.reset(seed=5)
    second = env.reset()[0]
    first = env.reset(seed=5)[0]
    assert not np.any(np.isclose(first, second))
    np.testing.assert_array_equal(env.reset()[0], second)


def test_options_fix_the_task_and_the_policy_and_nothing_else(env):
    free, _ = env.reset(seed=1)
    in_context, info = env.reset(seed=1, options={"context": [0.25, -0.5]})
    np.testing.assert_array_equal([in_context[12:], info["context"]], np.float32([[0.25, -0.5]] * 2))
    np.testing.assert_array_equal(in_context[:6], free[:6])
    theta = np.linspace(-1.0, 1.0, 6, dtype=np.float32)
    both, _ = env.reset(seed=1, options={"context": (0.25, -0.5), "theta": theta})
    np.testing.assert_array_equal(both[:6], theta)
    np.testing.assert_array_equal(env.reset(seed=1)[0], free)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"context": [0.0, 0.7]}, r"^options.context: task 0 has goal_y = 0.7, allowed is \[-0.5, 0.5\].$"),
        ({"context": [0.0]}, r"^options.context: got an array of shape \(1, 1\), expected \(tasks, 2\)"),
        ({"context": [[0.0, 0.1]] * 3}, "^options.context: got 3 rows, allowed is one or one for each learner"),
        ({"context": "here"}, "^could not convert"),
        ({"theta": [float("inf")] * 6}, "^options.theta: .* must be 6 finite numbers for each learner.$"),
        ({"goal": [0.0, 0.1]}, "^options: 'goal' is unknown, allowed are 'context' and 'theta'.$"),
    ],
)
def test_wrong_options_and_actions_are_refused(env, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        env.reset(options=options)
    env.reset(seed=0)
    for action in ([float("nan")], [0.1, 0.2], 0.5):
        with pytest.raises(InputError, match=r"^action: "):
            env.step(action)


def test_actions_are_clipped_follow_a_scale_or_are_the_stepsizes_themselves(env):
    mdp = replace(env.mdp, space=HyperparameterSpace((0.01,), (1.0,), ("log",)))
    for action, stepsize in ((-3.0, 0.01), (0.0, 0.1), (1e30, 1.0)):
        assert play(MetaEnv(mdp, 2), 2, [np.float32([action])])[3][1]["stepsize"] == pytest.approx(stepsize)
    own = MetaEnv(env.mdp, 3, actions="stepsize")
    assert (env.action_space, own.action_space) == (gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Box(0.0, 8.0, (1,)))
    ours, theirs = play(own, 4, [np.float32([2.0])]), play(env, 4, [np.float32([-0.5])])
    np.testing.assert_array_equal(ours[0], theirs[0])


def test_a_learner_that_diverged_is_flagged_and_shows_finite_numbers_only():
    lqr = envs.make("lqr")
    policy = LinearGaussian(lqr.num_observations, lqr.num_actions, 1.0)
    mdp = EpisodicMetaMDP(Estimator(Rollout(lqr, policy, 4, 50)), HyperparameterSpace((0.0,), (1.0,)))
    env = MetaEnv(mdp, 2)
    observations, rewards, _, infos = play(env, 0, ZEROS, options={"theta": np.full(mdp.policy.num_parameters, 1e6)})
    assert all(info["flagged"] and not np.isfinite(info["mean_return"]) for info in infos)
    assert all(observation in env.observation_space for observation in observations)
    assert rewards[1:] == (0.0, 0.0)
    np.testing.assert_array_equal(observations[2][: mdp.policy.num_parameters], np.float32(1e6))


def test_next_step_autoreset():
    learners = vector()
    assert learners.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    play(learners, 1, [ZEROS] * 3)
    observation, reward, terminated, truncated, info = learners.step(ZEROS * np.nan)
    assert not np.any([reward, terminated, truncated, info["stepsize"][:, 0]])
    learners.reset(seed=1)
    np.testing.assert_array_equal(learners.reset()[0], observation)
    # A reset in between takes the place of the one that was due.
    play(learners, 1, [ZEROS] * 3)
    learners.reset(seed=1)
    assert learners.step(ZEROS)[1].any()


def test_same_step_autoreset_and_results_that_never_change():
    same_step = vector(autoreset_mode="SameStep")
    observations, rewards, truncated, infos = play(same_step, 1, [ZEROS] * 4)
    plain = play(vector(), 1, [ZEROS] * 3)
    assert [list(now) for now in truncated[1:]] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    np.testing.assert_array_equal(np.stack(list(infos[3]["final_obs"])), plain[0][3])
    np.testing.assert_array_equal(infos[3]["final_info"]["mean_return"], plain[3][3]["mean_return"])
    np.testing.assert_array_equal(rewards[3], plain[1][3])
    observation, info = same_step.reset(seed=1)
    kept = observation.copy(), info["mean_return"].copy()
    np.testing.assert_array_equal(same_step.reset()[0], observations[3])
    for _ in range(4):
        later, reward, _, _, _ = same_step.step(ZEROS)
        later[:], reward[:] = 0.0, 0.0
    np.testing.assert_array_equal(observation, kept[0])
    np.testing.assert_array_equal(info["mean_return"], kept[1])


def test_without_autoreset():
    learners = vector(autoreset_mode=AutoresetMode.DISABLED)
    play(learners, 1, [ZEROS] * 3)
    with pytest.raises(ResetNeeded):
        learners.step(ZEROS)
    learners.reset(options={"reset_mask": np.ones(LEARNERS, bool)})
    with pytest.raises(InputError, match=r"^options.reset_mask: learners in lockstep can only be reset together"):
        learners.reset(options={"reset_mask": np.asarray([True, False])})


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_a_vector_returns_has_the_form_of_gymnasiums_own(mode):
    ours = vector(autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: gym.make(NAV2D, **TINY)] * LEARNERS, autoreset_mode=mode)

    def form(value):
        if isinstance(value, dict):
            return {name: form(entry) for name, entry in value.items()}
        return value.shape, value.dtype.kind

    assert form(ours.reset(seed=0)[1]) == form(theirs.reset(seed=0)[1])
    for _ in range(5):
        for mine, other in zip(ours.step(ZEROS), theirs.step(ZEROS), strict=True):
            assert form(mine) == form(other)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda mdp: MetaVectorEnv(mdp, 0, 3), "^environment.num_envs: 0 must be greater than or equal to 1"),
        (lambda mdp: MetaEnv(mdp, 0), "^environment.num_updates: 0 must be greater than or equal to 1"),
        (lambda mdp: MetaEnv(mdp, 1, "unit"), "^environment.actions: 'unit' must be 'normalised' or 'stepsize'"),
        (lambda mdp: MetaVectorEnv(mdp, 2, 3, autoreset_mode="Never"), "^'Never' is not a valid AutoresetMode"),
        (lambda mdp: make_env("nav3d"), "^preset: 'nav3d' is neither a preset"),
        (lambda mdp: make_env(), "^preset: nothing was given"),
        (lambda mdp: make_env(config={}, horizon=3), "^config: it is complete already"),
    ],
)
def test_wrong_settings_are_refused(env, build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(env.mdp)


def test_gymnasium_finds_and_rebuilds_the_environment_and_keywords_override_the_preset():
    env = gym.make(f"metastep.integrations.gymnasium:{NAV2D}", **TINY)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    np.testing.assert_array_equal(env.reset(seed=3)[0], again.reset(seed=3)[0])
    assert again.unwrapped.mdp == env.unwrapped.mdp
    rollout = make_env("nav2d", num_episodes=5, horizon=4, overrides=["policy.sigma=0.5"]).mdp.estimator.rollout
    assert (rollout.num_episodes, rollout.horizon, rollout.policy.sigma) == (5, 4, 0.5)

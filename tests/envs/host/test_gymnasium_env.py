"""The Gymnasium adapter against a loop written by hand, and factories that are wrong."""

import gc
import sys
from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep.envs.contexts import ContextSpace
from metastep.envs.host import GymnasiumEnv, HostEnv
from metastep.policies import LinearGaussian
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout
from metastep.testing import check_host_env

MASS = ContextSpace(("mass",), (0.5,), (2.0,), ("kg",))
LENGTH = ContextSpace(("length",), (2.0,), (9.0,))


def make_pendulum(context):
    env = gymnasium.make("Pendulum-v1")
    env.unwrapped.m = context.mass
    return env


def test_episodes_equal_a_loop_written_by_hand():
    """One episode after the other in float64, with the seeds and the action noise that belong to the key."""
    sigma, horizon, shape, key = 0.7, 25, (6, 3), jax.random.key(3)
    rollout = Rollout(GymnasiumEnv(make_pendulum, MASS), LinearGaussian(3, 1, sigma), shape[0], horizon)
    theta, context = 0.5 * jax.random.normal(jax.random.key(1), (3, 4)), MASS.sample(jax.random.key(2), 3)
    episodes = Estimator(rollout).trajectories(theta, context, key)
    seeds = np.asarray(jax.random.bits(jax.random.fold_in(key, 2), shape, jnp.uint32)) >> 1
    draws = [standard_normals(jax.random.fold_in(key, 1), t, 1, shape)[0] for t in range(horizon)]
    np.testing.assert_array_equal(episodes.noise[:, 0], draws)
    assert np.asarray(episodes.alive).all()
    for episode, learner in np.ndindex(shape):
        bias, *weights = np.asarray(theta, np.float64)[learner]
        env = make_pendulum(MASS.unpack(np.asarray(context)[learner].astype(float)))
        seen, _ = env.reset(seed=int(seeds[episode, learner]))
        for t in range(horizon):
            chosen = bias + weights @ seen.astype(np.float64) + sigma * np.asarray(draws[t])[episode, learner]
            np.testing.assert_allclose(episodes.observation[t, :, episode, learner], seen, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(episodes.action[t, 0, episode, learner], chosen, rtol=1e-4, atol=1e-4)
            seen, reward, _, _, _ = env.step(np.asarray([chosen], np.float32))
            np.testing.assert_allclose(episodes.reward[t, episode, learner], reward, rtol=1e-4, atol=1e-4)


class Countdown(gymnasium.Env):
    """Ends after `length` steps; truncates itself after five; each step pays 1; refuses to go on after either."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
    action_space = gymnasium.spaces.Box(-0.5, 0.25, (1, 2), np.float32)

    def __init__(self, length: float):
        self.length = round(length)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return self._seen(), {}

    def _seen(self):
        return np.asarray([[self.left, self.length], [1.0, 2.0]])

    def step(self, action):
        assert self.left > max(0, self.length - 5)
        assert action.shape == (1, 2)
        assert action.dtype == np.float32
        self.left -= 1
        return self._seen(), 1.0, self.left == 0, self.length - self.left == 5, {}


def test_ends_are_kept_and_time_limits_are_lifted():
    def make(context):
        limited = gymnasium.wrappers.TimeLimit(Countdown(context.length), 3)  # the horizon belongs to the rollout
        return gymnasium.wrappers.OrderEnforcing(limited)

    rollout = Rollout(GymnasiumEnv(make, LENGTH), LinearGaussian(4, 2, 1.0), num_episodes=3, horizon=6, discount=1.0)
    context = jnp.asarray([[2.0], [4.0], [9.0]], jnp.float32)
    estimate = Estimator(rollout)(jnp.zeros((3, 10), jnp.float32), context, jax.random.key(0))
    np.testing.assert_array_equal(estimate.mean_return, [2.0, 4.0, 5.0])
    np.testing.assert_array_equal(estimate.num_steps, [6.0, 12.0, 15.0])


class Motor(gymnasium.Env):
    """Pays the torque it is given, a weaker motor has a smaller action space; knows whether it is closed."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, weakest=-1.0, strongest=1.0):
        self.action_space = gymnasium.spaces.Box(weakest, strongest, (1,), np.float32)
        self.closed = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0]), False, False, {}

    def close(self):
        assert not self.closed
        self.closed = True


def begin(env, context, num_episodes=1):
    """Episodes of these tasks."""
    shape = (num_episodes, len(context))
    noise, seeds = np.zeros((*shape, 0), np.float32), np.zeros(shape, np.uint32)
    return env.start_episodes(np.asarray(context, np.float32), noise, seeds)


def move(episodes, action):
    action = np.asarray(action)[..., None]
    return episodes.step(action, np.zeros((*action.shape[:2], 0), np.float32), np.ones(action.shape[:2], np.bool_))


def test_every_task_is_clipped_to_the_bounds_of_its_own_action_space():
    space = ContextSpace(("weakest", "strongest"), (-2.0, 0.5), (-0.5, 2.0))
    episodes = begin(GymnasiumEnv(lambda context: Motor(*context), space), [[-0.5, 1.0], [-2.0, 2.0]], 2)
    after = move(episodes, np.asarray([[-9.0, -9.0], [9.0, 9.0]], np.float32))
    np.testing.assert_array_equal(after.reward, [[-0.5, -2.0], [1.0, 2.0]])


class Counter(Countdown):
    """Counts by -1, 0 or 1 from a start that the seed decides, `length` times; a dictionary knows what an action does."""

    action_space = gymnasium.spaces.Discrete(3, start=-1)
    moves: ClassVar[dict[int, float]] = {-1: -1.0, 0: 0.0, 1: 1.0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.np_random.normal()
        return self._seen(), {}

    def _seen(self):
        return np.asarray([[getattr(self, "count", 0.0), self.left], [1.0, 2.0]])

    def step(self, action):
        self.left -= 1
        self.count += self.moves[action] / self.length
        return self._seen(), self.count, self.left == 0, False, {}


def make_counter(context):
    return Counter(context.length)


@pytest.mark.parametrize(
    ("make", "space", "sizes"), [(make_pendulum, MASS, (3, 1, None)), (make_counter, LENGTH, (4, 1, 3))]
)
def test_families_keep_the_contract(make, space, sizes):
    env, again = (GymnasiumEnv(make, space) for _ in range(2))
    assert isinstance(env, HostEnv)
    assert (env, hash(env)) == (again, hash(again))
    assert (env.num_observations, env.num_actions, env.num_choices) == sizes
    assert env.packages == ("gymnasium",)  # its version is recorded with every result
    check_host_env(env)


def test_discrete_actions_are_indices_wherever_their_numbers_begin():
    env = GymnasiumEnv(make_counter, LENGTH, name="counter")
    episodes = begin(env, [[4.0], [8.0]], 3)
    start = episodes.observe()[..., 0]
    after = move(episodes, np.asarray([[0, 0], [1, 1], [2, 2]], np.int32))
    np.testing.assert_allclose(after.reward - start, np.outer([-1.0, 0.0, 1.0], [0.25, 0.125]))
    with pytest.raises(InputError, match="'counter' has 3 discrete actions, but the policy LinearGaussian draws real"):
        Rollout(env, LinearGaussian(4, 1, 1.0), num_episodes=1, horizon=1)


@pytest.mark.parametrize("end", [lambda env: begin(env, [[1.0]]), lambda env: env.close()])
def test_episodes_end_when_newer_ones_start_or_the_environment_is_closed(end):
    env = GymnasiumEnv(make_pendulum, MASS)
    older = begin(env, [[1.0]])
    end(env)
    with pytest.raises(RuntimeError, match="ended when newer ones were started or the environment was closed"):
        move(older, [[0.0]])


@pytest.fixture
def motors():
    """A factory, and which of its environments are closed; the probes of the spaces are, at once."""
    made = []

    def make(context):
        if context.mass > 1.9:
            raise InputError("too heavy")
        made.append(Motor())
        return made[-1]

    return make, lambda: [motor.closed for motor in made]


def test_environments_are_closed_when_others_take_their_place_and_on_demand(motors):
    make, closed = motors
    env = GymnasiumEnv(make, MASS)
    for task in (1.0, 1.0, 1.5, 1.5):  # they are kept while the tasks stay
        begin(env, [[task]])
    assert closed() == [True, True, False]
    env.close()
    assert all(closed())
    move(begin(env, [[1.5]]), [[0.0]])
    assert closed() == [True, True, True, False]
    with pytest.raises(InputError, match="too heavy"):  # what was built before the factory failed is closed
        begin(env, [[1.0], [2.0]])
    assert closed() == [True] * 5
    begin(env, [[1.0]])
    del env
    gc.collect()
    assert closed() == [True] * 6


def changed(env, **spaces):
    vars(env).update(spaces)
    return env


def several(context):
    return changed(Motor(), action_space=gymnasium.spaces.MultiDiscrete([2, 3]))


class UnhashableFactory:
    __hash__ = None
    __call__ = staticmethod(make_pendulum)


ONLY = gymnasium.make("Pendulum-v1")
RNG = np.random.default_rng(0)


class Noisy(Countdown):
    def _seen(self):
        return super()._seen() + RNG.standard_normal((2, 2))


def wide(context):
    space = gymnasium.spaces.Box(-9.0, 9.0, (round(context.length),))
    return changed(Countdown(context.length), observation_space=space)


UNUSED = ContextSpace(("mass", "l"), (0.5, 0.5), (2.0, 2.0))
SIZES = "task 0 has {'num_observations': 2, .*, others {'num_observations': 6, .*'num_choices': None}"


@pytest.mark.parametrize(
    ("factory", "space", "message"),
    [
        ("Pendulum-v1", MASS, "env.make: 'Pendulum-v1' must be a function of a context."),
        (lambda context: "Pendulum-v1", MASS, "env.make: the factory gave a str, expected a gymnasium.Env."),
        (lambda _: gymnasium.make("FrozenLake-v1"), MASS, r"observation_space of 'mine' is Discrete\(16\), allow"),
        (several, MASS, r"is MultiDiscrete\(\[2 3\]\), allowed is a Box of floats or Discrete"),
        (UnhashableFactory(), MASS, r"env.make: it must be hashable to select a compiled program, but unhashable type"),
        (make_pendulum, UNUSED, "l = 0.5 and l = 2 give the same episodes over"),
        (lambda context: ONLY, MASS, "it gave the same environment twice"),
        (wide, LENGTH, SIZES),
        (lambda context: Noisy(context.length), LENGTH, "the same seeds, noise and actions give different episodes"),
    ],
)
def test_wrong_families_are_caught(factory, space, message):
    with pytest.raises(InputError, match=message):
        check_host_env(GymnasiumEnv(factory, space, name="mine"))


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(InputError, match=r'pip install "metastep\[gym\]"'):
        GymnasiumEnv(make_pendulum, MASS)

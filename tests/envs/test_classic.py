"""Pendulum, Acrobot, CartPole-v1 and MountainCarContinuous are those of Gymnasium, step by step and as whole episodes."""

from itertools import product
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from scipy.stats import ks_2samp

from metastep import envs
from metastep._core.errors import InputError
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout
from tests.envs.classic import CASES, LIMITS, returns, to_gymnasium

NUM_CASES = 300
IDS = {
    "pendulum": "Pendulum-v1",
    "acrobot": "Acrobot-v1",
    "cartpole-v1": "CartPole-v1",
    "mountaincar": "MountainCarContinuous-v0",
}
# Acrobot turns by radians in one step, which amplifies rounding.
TOLERANCE = {"pendulum": 2e-6, "acrobot": 1e-4, "cartpole-v1": 1e-6, "mountaincar": 2e-7}


def drawn(name: str, tasks: Any = None) -> tuple[Any, Any, Any]:
    """Random contexts, states and actions, exact in float32."""
    env, rng = envs.make(name), np.random.default_rng(5)
    low, high = (np.asarray(side) for side in (env.context_space.low, env.context_space.high))
    tasks = rng.uniform(low, high, (NUM_CASES, len(low))) if tasks is None else np.tile(tasks, (NUM_CASES, 1))
    reach = np.asarray(CASES[name].reach)
    states = rng.uniform(-reach, reach, (NUM_CASES, len(reach)))
    choices = envs.choices_of(env)
    actions = rng.normal(0.0, 2.0, NUM_CASES) if choices is None else rng.integers(choices, size=NUM_CASES)
    return (
        tasks.astype(np.float32),
        states.astype(np.float32),
        actions.astype(np.float32 if choices is None else np.int32),
    )


def ours(name: str, tasks: Any, states: Any, actions: Any) -> list[Any]:
    """States, observations, rewards and ends."""
    env, state = envs.make(name), CASES[name].state

    def step(task: Any, numbers: Any, action: Any) -> Any:
        context = env.context_space.unpack(task)
        after = env.step(context, state(*numbers), (action,), ())
        return jnp.stack(after.state), jnp.stack(env.observe(context, after.state)), after.reward, after.terminated

    return [np.asarray(array) for array in jax.jit(jax.vmap(step))(tasks, states, actions)]


def gymnasiums(name: str, tasks: Any, states: Any, actions: Any) -> list[Any]:
    """The same of Gymnasium, in float64."""
    space, rows = envs.make(name).context_space, []
    for task, state, action in zip(tasks.astype(float), states.astype(float), actions, strict=True):
        env = CASES[name].gymnasium(space.unpack(task))
        env.state = state
        seen, reward, terminated, _, _ = env.step(to_gymnasium(env, action))
        rows.append((np.asarray(env.state), seen, reward, terminated))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.fixture(scope="module", params=CASES)
def steps(request: pytest.FixtureRequest) -> Any:
    cases = drawn(request.param)
    return request.param, cases, ours(request.param, *cases), gymnasiums(request.param, *cases)


def test_a_step_is_that_of_gymnasium(steps: Any) -> None:
    name, _, (states, seen, rewards, terminated), expected = steps
    print(f"{name}: largest difference over {NUM_CASES} steps {np.abs(states - expected[0]).max():.1e}")
    turns = np.round((states - expected[0]) / (2 * np.pi)) * (name == "acrobot")  # -pi and pi are one angle
    np.testing.assert_allclose(states - 2 * np.pi * turns, expected[0], rtol=0, atol=TOLERANCE[name])
    np.testing.assert_allclose(seen, expected[1], rtol=0, atol=TOLERANCE[name])
    np.testing.assert_allclose(rewards, expected[2], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(terminated, expected[3])
    assert name == "pendulum" or 0.02 < terminated.mean() < 0.98  # both outcomes are among the cases


def test_every_coordinate_of_the_context_would_be_seen(steps: Any) -> None:
    """The comparison has teeth: with one quantity from another task Gymnasium is elsewhere."""
    name, (tasks, states, actions), _, (expected, *_) = steps
    for column in range(tasks.shape[1]):
        others = tasks.copy()
        others[:, column] = np.roll(tasks[:, column], 1)
        wrong = gymnasiums(name, others, states, actions)[0]
        assert np.mean(np.abs(wrong - expected).max(axis=1) > 2 * TOLERANCE[name]) > 0.5, (name, column)


def test_the_continuous_mountain_car_itself() -> None:
    """With Gymnasium's own gravity, against the environment as it is."""
    tasks, states, actions = drawn("mountaincar", (0.002, 0.0025))
    after, _, rewards, terminated = ours("mountaincar", tasks, states, actions)
    ends = []
    for state, action, *results in zip(states, actions, after, rewards, terminated, strict=True):
        env = Continuous_MountainCarEnv()
        env.power, env.state = 0.002, state
        _, reward, ended, _, _ = env.step(np.asarray([action]))
        np.testing.assert_allclose(results[0], env.state, rtol=0, atol=2e-7)
        np.testing.assert_allclose(results[1], reward, rtol=1e-5, atol=1e-5)
        ends.append((results[2], ended))
    assert all(mine == theirs for mine, theirs in ends)
    assert 0.02 < terminated.mean() < 0.98


@pytest.mark.parametrize("name", CASES)
def test_returns_of_whole_episodes_are_distributed_as_in_gymnasium(name: str) -> None:
    env, case = envs.make(name), CASES[name]
    middle = np.mean([env.context_space.low, env.context_space.high], axis=0)
    (own, others), *_ = returns(env, case.act, np.stack([case.task, middle]), 400)
    theirs = []
    task = env.context_space.unpack(np.asarray(case.task))
    for seed in range(40):
        one = case.gymnasium(task)
        seen, _ = one.reset(seed=seed)
        total, ended, length = 0.0, False, 0
        while not ended and length < LIMITS[name]:
            seen, reward, ended, _, _ = one.step(to_gymnasium(one, case.act(np, task, seen)))
            total, length = total + reward, length + 1
        theirs.append(total)
    alike, different = ks_2samp(theirs, own).pvalue, ks_2samp(theirs, others).pvalue
    print(
        f"{name}: Gymnasium {np.mean(theirs):.1f}, ours {np.mean(own):.1f}, KS p {alike:.2g}; other task {different:.1g}"
    )
    assert alike > 0.01
    assert different < 0.001


def balance(xp: Any, task: Any, seen: Any) -> Any:
    """Push to where the pole leans and moves."""
    return xp.where(seen[2] + 0.25 * seen[3] + 0.02 * seen[0] + 0.06 * seen[1] > 0.0, 1, 0)


def swing_up(xp: Any, task: Any, seen: Any) -> Any:
    """Push along the motion while there is too little energy, against it while there is too much, and hold on near the top."""
    cos, sin, speed = seen
    weight, inertia = 0.5 * task.mass * task.gravity * task.length, task.mass * task.length**2 / 3.0
    too_little = 0.5 * inertia * speed**2 < weight * (1.0 - cos)
    hold = -2.0 * (weight * sin + xp.sqrt(weight * inertia) * speed)
    return xp.where(cos > 0.9, hold, xp.where(too_little == (speed >= 0.0), 2.0, -2.0))


@pytest.mark.parametrize(
    ("name", "act", "least"),
    [
        ("pendulum", swing_up, 1.0),
        ("acrobot", CASES["acrobot"].act, 0.5),
        ("cartpole-v1", balance, 1.0),
        ("mountaincar", CASES["mountaincar"].act, 1.0),
    ],
)
def test_every_task_can_be_solved(name: str, act: Any, least: float) -> None:
    """One rule of thumb is enough for all corners of the family, in this share of the episodes at least."""
    env = envs.make(name)
    corners = list(product(*zip(env.context_space.low, env.context_space.high, strict=True)))
    total, steps, seen = returns(env, act, corners, 32)
    solved = {"pendulum": seen[..., 0] > 0.9, "cartpole-v1": steps == LIMITS[name]}.get(name, steps < LIMITS[name])
    print(
        f"{name}: hardest task solved in {solved.mean(axis=1).min():.2f} of its episodes, mean return {total.mean():.0f}"
    )
    assert solved.mean(axis=1).min() >= least


@pytest.mark.parametrize("name", CASES)
def test_limits_and_actions_are_those_of_gymnasiums_registry(name: str) -> None:
    env, theirs = envs.make(name), gymnasium.make(IDS[name])
    assert LIMITS[name] == theirs.spec.max_episode_steps
    assert envs.choices_of(env) == getattr(theirs.action_space, "n", None)
    assert (env.num_observations,) == theirs.observation_space.shape
    usual = theirs.unwrapped
    space = env.context_space
    for name_of, own in {"mass": "m", "length": "l", "gravity": "g", "power": "power", "force": "force_mag"}.items():
        if name_of in space.names and hasattr(usual, own):
            index = space.names.index(name_of)
            assert space.low[index] < getattr(usual, own) < space.high[index]


@pytest.mark.parametrize(("name", "count"), [("acrobot", 3), ("cartpole-v1", 2)])
def test_a_gaussian_policy_is_refused_on_discrete_actions(name: str, count: int) -> None:
    env = envs.make(name)
    with pytest.raises(
        InputError,
        match=rf"^env.name: '{name}' has {count} discrete actions, but the policy LinearGaussian draws real numbers; "
        r"allowed here are environments with continuous actions\.$",
    ):
        Rollout(env, LinearGaussian(env.num_observations, env.num_actions, 1.0), 1, 1)

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.envs import Nav2D, Step
from metastep.envs.nav2d import Position


def step(goal: tuple[float, float], position: tuple[float, float], action: tuple[float, float]) -> Step:
    env = Nav2D()
    context = env.context_space.unpack(jnp.asarray(goal, jnp.float32))
    here, move = (tuple(jnp.float32(value) for value in pair) for pair in (position, action))
    return env.step(context, Position(*here), move, ())


@pytest.mark.parametrize(
    ("goal", "position", "action", "after", "reward"),
    [
        # A move within the limits: to (0.05, -0.08); the goal is (0.3, 0.4) further: distance 0.5.
        ((0.35, 0.32), (0.0, 0.0), (0.05, -0.08), (0.05, -0.08), -np.hypot(0.3, 0.4)),
        # Each axis is clipped to 0.1 on its own.
        ((0.4, -0.4), (0.1, 0.2), (7.0, -0.02), (0.2, 0.18), -np.hypot(0.2, 0.58)),
        ((0.0, 0.0), (0.1, 0.2), (-0.3, -0.1001), (0.0, 0.1), -0.1),
        # There are no walls.
        ((0.5, 0.5), (-3.0, 4.0), (0.0, 0.0), (-3.0, 4.0), -np.hypot(3.5, 3.5)),
    ],
)
def test_moves_by_hand(
    goal: tuple[float, float],
    position: tuple[float, float],
    action: tuple[float, float],
    after: tuple[float, float],
    reward: float,
) -> None:
    outcome = step(goal, position, action)
    np.testing.assert_allclose(outcome.state, after, atol=1e-7)
    np.testing.assert_allclose(outcome.reward, reward, rtol=1e-6)
    assert not bool(outcome.terminated)


@pytest.mark.parametrize(("short_of_goal", "ends"), [(0.0101, False), (0.0099, True), (0.0, True), (-0.0099, True)])
def test_the_goal_ends_the_episode_within_a_hundredth(short_of_goal: float, ends: bool) -> None:
    outcome = step((0.3, 0.2), (0.25, 0.2), (0.05 - short_of_goal, 0.0))
    assert bool(outcome.terminated) == ends
    np.testing.assert_allclose(outcome.reward, -abs(short_of_goal), atol=1e-7)


def test_episodes_start_at_the_origin_and_do_not_show_the_goal() -> None:
    env = Nav2D()
    start = env.reset(env.context_space.unpack(jnp.asarray((0.3, 0.4), jnp.float32)), ())
    np.testing.assert_array_equal(start, (0.0, 0.0))
    assert [float(value) for value in env.observe(None, Position(jnp.float32(1.0), jnp.float32(2.0)))] == [1.0, 2.0]


def test_a_hundred_random_moves_by_numpy() -> None:
    generator = np.random.default_rng(5)
    goals, positions = generator.uniform(-0.5, 0.5, (2, 100, 2))
    actions = generator.normal(0.0, 0.1, (100, 2))
    env = Nav2D()
    outcome = jax.vmap(lambda c, s, a: env.step(c, s, a, ()))(
        env.context_space.unpack(jnp.asarray(goals, jnp.float32)),
        Position(*jnp.asarray(positions.T, jnp.float32)),
        tuple(jnp.asarray(actions.T, jnp.float32)),
    )
    after = positions + np.clip(actions, -0.1, 0.1)
    distance = np.linalg.norm(after - goals, axis=1)
    np.testing.assert_allclose(np.stack(outcome.state, axis=1), after, atol=1e-6)
    np.testing.assert_allclose(outcome.reward, -distance, atol=1e-6)
    np.testing.assert_array_equal(outcome.terminated, distance < 0.01)


def test_the_range_of_the_goals_is_an_option() -> None:
    wide = Nav2D(goal_range=1.0)
    assert (wide.context_space.low, wide.context_space.high) == ((-1.0, -1.0), (1.0, 1.0))
    assert Nav2D().context_space.high == (0.5, 0.5)
    one_task = dataclasses.replace(wide, context_space=wide.context_space.fixed((0.75, -0.9)))
    assert one_task.context_space.low == one_task.context_space.high
    with pytest.raises(InputError, match=r"env.goal_range: -1.0 must be greater than 0"):
        Nav2D(goal_range=-1.0)

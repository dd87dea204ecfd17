"""Nav2D, minigolf, SwingUp and LQR: equations of motion, numbers by hand, and distributions of SciPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.envs import LQR, CartPole, Minigolf, Nav2D, Step, SwingUp
from metastep.envs.cartpole import CartPoleState
from metastep.envs.small import Ball, Position

Floats = NDArray[np.float64]
STATES = {CartPole: CartPoleState, SwingUp: CartPoleState, Minigolf: Ball, Nav2D: Position, LQR: Position}


def move(env: Any, tasks: ArrayLike, states: ArrayLike, actions: ArrayLike, noise: ArrayLike | None = None) -> Step:
    """One step of each row; tasks, states, actions and noise are (cases, numbers)."""
    tasks, states, actions = (jnp.asarray(array, jnp.float32) for array in (tasks, states, actions))
    normals = jnp.zeros((len(tasks), 0), jnp.float32) if noise is None else jnp.asarray(noise, jnp.float32)

    def step(task: Any, state: Any, action: Any, normal: Any) -> Step:
        return env.step(env.context_space.unpack(task), STATES[type(env)](*state), tuple(action), tuple(normal))

    return jax.jit(jax.vmap(step))(tasks, states, actions, normals)


def starts(env: Any, num: int = 4000) -> Floats:
    """First states (numbers, episodes)."""
    normals = jax.random.normal(jax.random.key(0), (env.reset_noise, num), jnp.float32)
    return np.stack(jax.vmap(lambda *noise: env.reset(None, noise))(*normals))


def test_nav2d_by_hand() -> None:
    cases = [
        # A move within the limits: to (0.05, -0.08); the goal is (0.3, 0.4) further: distance 0.5.
        ((0.35, 0.32), (0.0, 0.0), (0.05, -0.08), (0.05, -0.08), -0.5),
        # Each axis is clipped to 0.1 on its own.
        ((0.4, -0.4), (0.1, 0.2), (7.0, -0.02), (0.2, 0.18), -np.hypot(0.2, 0.58)),
        # There are no walls.
        ((0.5, 0.5), (-3.0, 4.0), (0.0, 0.0), (-3.0, 4.0), -np.hypot(3.5, 3.5)),
        # The goal ends the episode within a hundredth.
        ((0.3, 0.2), (0.25, 0.2), (0.0601, 0.0), (0.3101, 0.2), -0.0101),
        ((0.3, 0.2), (0.25, 0.2), (0.0401, 0.0), (0.2901, 0.2), -0.0099),
    ]
    goals, positions, actions, after, rewards = map(np.array, zip(*cases, strict=True))
    outcome = move(Nav2D(), goals, positions, actions)
    np.testing.assert_allclose(np.stack(outcome.state, axis=1), after, atol=1e-7)
    np.testing.assert_allclose(outcome.reward, rewards, rtol=1e-5)
    np.testing.assert_array_equal(outcome.terminated, rewards > -0.01)


def test_nav2d_starts_at_the_origin_and_does_not_show_the_goal() -> None:
    env = Nav2D()
    np.testing.assert_array_equal(env.reset(env.context_space.unpack(jnp.ones(2)), ()), (0.0, 0.0))
    assert [float(value) for value in env.observe(None, Position(jnp.float32(1.0), jnp.float32(2.0)))] == [1.0, 2.0]
    assert Nav2D(goal_range=1.0).context_space.low == (-1.0, -1.0)
    with pytest.raises(InputError, match=r"env.goal_range: -1.0 must be greater than 0"):
        Nav2D(goal_range=-1.0)


def stroke(length: ArrayLike, rho: ArrayLike, distance: ArrayLike, action: ArrayLike, noise: ArrayLike) -> Step:
    """One stroke for each entry of the broadcast arguments."""
    length, rho, *rest = np.broadcast_arrays(*np.atleast_1d(length, rho, distance, action, noise))
    return move(Minigolf(), np.stack([length, rho], axis=-1), *(array[:, None] for array in rest))


# Computed by hand with g = 9.81, D = 0.10, r = 0.02135:
# d = 5/7 rho g, v_min = sqrt(2 d x), (2D - r)^2 g / (2r) = 7.3324173, v_max = sqrt(7.3324173 + v_min^2).
@pytest.mark.parametrize(
    ("length", "rho", "x", "d", "v_min", "v_max"),
    [
        (0.7, 0.100, 4.0, 0.7007142857, 2.3676389686, 3.5969614379),
        (1.0, 0.196, 20.0, 1.3734000000, 7.4118823520, 7.8910339817),
        (0.85, 0.065, 0.5, 0.4554642857, 0.6748809419, 2.7906776213),
    ],
)
def test_minigolfs_three_outcomes_at_their_edges(
    length: float, rho: float, x: float, d: float, v_min: float, v_max: float
) -> None:
    """Noise 0 means epsilon 0, so the stroke v / l^2 gives the speed v."""
    speeds = np.array([0.5 * v_min, v_min * (1 - 1e-5), v_min * (1 + 1e-5), v_max * (1 - 1e-5), v_max * (1 + 1e-5)])
    after = stroke(length, rho, x, speeds / length**2, 0.0)
    np.testing.assert_array_equal(after.reward, [-1.0, -1.0, 0.0, 0.0, -100.0])
    np.testing.assert_array_equal(after.terminated, [False, False, True, True, True])
    # Half the needed speed rolls a quarter of the way; just short of v_min stops just short of the hole; then it stays.
    left = np.array([0.75 * x, x - (speeds[1] ** 2) / (2 * d), x, x, x])
    np.testing.assert_allclose(after.state.distance, left, atol=2e-5 * x)


def test_minigolf_clips_the_action() -> None:
    wild, clipped = [-4.0, 0.0, 10.5, 1e9], [1e-5, 1e-5, 10.0, 10.0]
    left, right = (stroke(0.9, 0.1, 5.0, actions, 0.3) for actions in (wild, clipped))
    np.testing.assert_array_equal(left.reward, right.reward)
    np.testing.assert_array_equal(left.state.distance, right.state.distance)


def test_minigolfs_noise_is_a_normal_of_variance_a_quarter_truncated_to_one() -> None:
    """Strokes that all fall short show their speed in the distance they leave: v^2 = 2 d (x - x')."""
    after = stroke(1.0, 0.1, 20.0, 2.0, jax.random.normal(jax.random.key(4), (20_000,), jnp.float32))
    np.testing.assert_array_equal(after.reward, -1.0)
    rolled = 20.0 - np.asarray(after.state.distance, np.float64)
    epsilon = np.sqrt(2 * 5 / 7 * 0.1 * 9.81 * rolled) / 2.0 - 1.0
    assert scipy.stats.kstest(epsilon, scipy.stats.truncnorm(-2.0, 2.0, scale=0.5).cdf).pvalue > 1e-3
    # An untruncated normal, or 0.25 taken for the standard deviation, would be seen.
    for wrong in (scipy.stats.norm(scale=0.5), scipy.stats.truncnorm(-4.0, 4.0, scale=0.25)):
        assert scipy.stats.kstest(epsilon, wrong.cdf).pvalue < 1e-6


def test_speeds_and_distances_in_minigolf_are_never_negative() -> None:
    """At the hole's edge, x = 0, a ball of speed 0 is in; just under v_min rounding could carry it past the hole."""
    extreme = np.array([-np.inf, -30.0, -6.0, -5.2947, -5.0902, -4.99, -4.5, -4.0])
    for action in (1e-5, 0.37, 1.0, 10.0):
        np.testing.assert_array_equal(stroke(0.85, 0.1, 0.0, action, extreme).terminated, True)
    generator = np.random.default_rng(2)
    rho = generator.uniform(0.065, 0.196, 20_000).astype(np.float32)
    distance = generator.uniform(0.0, 20.0, 20_000).astype(np.float32)
    v_min = np.sqrt(2 * 5 / 7 * rho.astype(np.float64) * 9.81 * distance)
    after = stroke(1.0, rho, distance, v_min * (1 - generator.uniform(0.0, 3e-7, 20_000)), 0.0)
    assert np.asarray(after.state.distance).min() >= 0.0
    assert np.mean(np.asarray(after.reward) == -1.0) > 0.1
    assert scipy.stats.kstest(starts(Minigolf())[0], "uniform", (0.0, 20.0)).pvalue > 1e-3


def test_the_options_of_cartpole_and_swing_up() -> None:
    after = move(CartPole(), np.ones((2, 2)), np.zeros((2, 4)), [[0.5], [0.50001]])
    assert after.state.velocity[0] < 0.0 < after.state.velocity[1]  # the threshold of the action is a half
    with pytest.raises(InputError, match=r"env.force: 'bangbang' must be 'bang-bang', 'continuous' or 'newtons'"):
        CartPole(force="bangbang")
    with pytest.raises(InputError, match=r"env.start: 'upright' must be 'hanging' or 'wide'"):
        SwingUp(start="upright")
    state, mass = [[0.0, 0.1, 2.0, -0.3]] * 3, np.ones((3, 1))
    scaled = move(SwingUp(action_scale=10.0), mass, state, [[0.3], [1.0], [-7.0]])
    plain = move(SwingUp(), mass, state, [[3.0], [1e9], [-11.0]])  # clipped to 10
    np.testing.assert_allclose(np.stack(scaled.state), np.stack(plain.state), rtol=1e-6)


@pytest.mark.parametrize(
    ("env", "centre", "half"),
    [
        (CartPole(), 0.0, [0.05] * 4),
        (SwingUp(), np.pi, [0.05] * 4),
        (SwingUp(start="wide"), np.pi, [1.0, 2.0, 1.0, 3.0]),
    ],
)
def test_poles_start_uniformly(env: Any, centre: float, half: list[float]) -> None:
    offset = starts(env) - np.array([[0.0], [0.0], [centre], [0.0]])
    assert (np.abs(offset) <= np.array(half)[:, None] + 1e-5).all()
    np.testing.assert_allclose(offset.std(axis=1), np.array(half) / np.sqrt(3.0), rtol=0.05)
    np.testing.assert_allclose(offset.mean(axis=1) / half, 0.0, atol=4 / np.sqrt(3 * 4000))


def by_lagrange(mass: float, state: Floats, force: float) -> Floats:
    """Euler step of the equations of motion, as a linear system for the two accelerations, in float64.

    (1 + m) x'' + m l cos(angle) angle'' = F + m l angle'^2 sin(angle),    cos(angle) x'' + 4/3 l angle'' = g sin(angle).
    """
    length, gravity, dt = 0.5, 9.8, 0.05
    _, velocity, angle, spin = state
    matrix = np.array([[1.0 + mass, mass * length * np.cos(angle)], [np.cos(angle), 4.0 / 3.0 * length]])
    right = [force + mass * length * spin**2 * np.sin(angle), gravity * np.sin(angle)]
    acceleration, angular_acceleration = np.linalg.solve(matrix, right)
    changes = [velocity, acceleration, spin, angular_acceleration]
    return np.array([now + dt * change for now, change in zip(state, changes, strict=True)])


def test_swing_up_follows_the_equations_of_motion() -> None:
    generator = np.random.default_rng(3)
    masses = generator.uniform(0.1, 2.0, 300)
    states = generator.uniform([-2.5, -4.0, -40.0, -8.0], [2.5, 4.0, 40.0, 8.0], (300, 4))  # the angle has no limit
    forces = generator.uniform(-10.0, 10.0, 300)
    after = move(SwingUp(), masses[:, None], states, forces[:, None])
    expected = np.stack([by_lagrange(*case) for case in zip(masses, states, forces, strict=True)])
    np.testing.assert_allclose(np.stack(after.state, axis=1), expected, atol=1e-4)
    np.testing.assert_allclose(after.reward, np.cos(expected[:, 2]), atol=1e-5)
    assert not np.asarray(after.terminated).any()


def test_leaving_the_track_costs_a_hundred_and_ends() -> None:
    """The position after a step is x + 0.05 x': just inside, just outside, on both sides."""
    states = [[2.9, 1.99, 0.0, 0.0], [2.9, 2.01, 0.0, 0.0], [-2.9, -1.99, 0.0, 0.0], [-2.9, -2.01, 0.0, 0.0]]
    after = move(SwingUp(), np.ones((4, 1)), states, np.zeros((4, 1)))
    np.testing.assert_array_equal(after.terminated, [False, True, False, True])
    np.testing.assert_allclose(after.reward, [1.0, -100.0, 1.0, -100.0])


def test_one_step_of_lqr_by_hand() -> None:
    """s = (2, -1), a = 0.5, z = (1, -2), scale = 0.5.

    r = -(1 * 4 + 0.5 * 1 + 0.1 * 0.25) = -4.525; s' = 0.5 (0.9 * 2 - 0.3, -0.2 - 0.8) + (0.05, 0.25) + 0.1 (1, -2).
    """
    after = move(LQR(), [[0.5]], [[2.0, -1.0]], [[0.5]], [[1.0, -2.0]])
    np.testing.assert_allclose(after.reward, [-4.525], rtol=1e-6)
    np.testing.assert_allclose(np.ravel(after.state), (0.9, -0.45), rtol=1e-5)
    assert not after.terminated.any()
    np.testing.assert_allclose(LQR().reset(None, (np.float32(1.0), np.float32(-2.0))), (1.3, -1.1), rtol=1e-6)

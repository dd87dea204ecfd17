import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike

from metastep.envs import Minigolf, Step
from metastep.envs.minigolf import Ball

# Hand-computed with g = 9.81, D = 0.10, r = 0.02135:
# d = 5/7 rho g, v_min = sqrt(2 d x), (2D - r)^2 g / (2r) = 7.3324173, v_max = sqrt(7.3324173 + v_min^2).
# (l, rho, x, d, v_min, v_max)
GREENS = [
    (0.7, 0.100, 4.0, 0.7007142857, 2.3676389686, 3.5969614379),
    (1.0, 0.196, 20.0, 1.3734000000, 7.4118823520, 7.8910339817),
    (0.85, 0.065, 0.5, 0.4554642857, 0.6748809419, 2.7906776213),
]


def stroke(length: ArrayLike, rho: ArrayLike, distance: ArrayLike, action: ArrayLike, noise: ArrayLike) -> Step:
    """One stroke for each entry of the broadcast arguments."""
    env = Minigolf()
    arrays = np.broadcast_arrays(*np.atleast_1d(length, rho, distance, action, noise))
    length, rho, distance, action, noise = (jnp.asarray(array, jnp.float32) for array in arrays)
    contexts = env.context_space.unpack(jnp.stack([length, rho], axis=-1))
    return jax.jit(jax.vmap(env.step))(contexts, Ball(distance), (action,), (noise,))


@pytest.mark.parametrize(("length", "rho", "x", "d", "v_min", "v_max"), GREENS)
def test_the_three_outcomes_at_their_edges(
    length: float, rho: float, x: float, d: float, v_min: float, v_max: float
) -> None:
    """Noise 0 means epsilon 0, so the stroke v / l^2 gives the speed v."""
    speeds = np.array([0.5 * v_min, v_min * (1 - 1e-5), v_min * (1 + 1e-5), v_max * (1 - 1e-5), v_max * (1 + 1e-5)])
    after = stroke(length, rho, x, speeds / length**2, 0.0)
    np.testing.assert_array_equal(after.reward, [-1.0, -1.0, 0.0, 0.0, -100.0])
    np.testing.assert_array_equal(after.terminated, [False, False, True, True, True])
    # Half the needed speed rolls a quarter of the way; just short of v_min stops just short of the hole.
    np.testing.assert_allclose(after.state.distance[:2], [0.75 * x, x - (speeds[1] ** 2) / (2 * d)], atol=2e-5 * x)
    assert 0.0 <= float(after.state.distance[1]) < 1e-4 * x


def test_by_hand_a_putt_that_falls_short() -> None:
    """l = 0.8, rho = 0.14, a = 2, epsilon = 0: v = 1.28, d = 0.981, so the ball rolls 1.28^2 / 1.962 = 0.83507 m."""
    after = stroke(0.8, 0.14, 3.0, 2.0, 0.0)
    np.testing.assert_allclose(after.state.distance, [3.0 - 0.8350662], atol=1e-6)
    assert float(after.reward[0]) == -1.0
    assert not bool(after.terminated[0])


@pytest.mark.parametrize(("action", "clipped"), [(-4.0, 1e-5), (0.0, 1e-5), (10.5, 10.0), (1e9, 10.0)])
def test_the_action_is_clipped(action: float, clipped: float) -> None:
    for distance in (0.0, 5.0, 20.0):
        left, right = (stroke(0.9, 0.1, distance, value, 0.3) for value in (action, clipped))
        np.testing.assert_array_equal(left.reward, right.reward)
        np.testing.assert_array_equal(left.state.distance, right.state.distance)


def test_the_noise_is_a_normal_of_variance_a_quarter_truncated_to_one() -> None:
    """Strokes that all fall short show their speed in the distance they leave: v^2 = 2 d (x - x')."""
    normals = jax.random.normal(jax.random.key(4), (20_000,), jnp.float32)
    after = stroke(1.0, 0.1, 20.0, 2.0, normals)
    np.testing.assert_array_equal(after.reward, -1.0)
    rolled = 20.0 - np.asarray(after.state.distance, np.float64)
    epsilon = np.sqrt(2 * 5 / 7 * 0.1 * 9.81 * rolled) / 2.0 - 1.0
    assert scipy.stats.kstest(epsilon, scipy.stats.truncnorm(-2.0, 2.0, scale=0.5).cdf).pvalue > 1e-3
    # An untruncated normal, or 0.25 taken for the standard deviation, would be seen.
    for wrong in (scipy.stats.norm(scale=0.5), scipy.stats.truncnorm(-4.0, 4.0, scale=0.25)):
        assert scipy.stats.kstest(epsilon, wrong.cdf).pvalue < 1e-6


def test_the_speed_is_never_negative() -> None:
    """At the hole's edge, x = 0, a ball of speed 0 is in; only a negative speed would be short."""
    extreme = np.array([-np.inf, -30.0, -6.0, -5.2947, -5.0902, -4.99, -4.5, -4.0])
    for length in (0.7, 0.85, 1.0):
        for action in (1e-5, 0.37, 1.0, 10.0):
            after = stroke(length, 0.1, 0.0, action, extreme)
            np.testing.assert_array_equal(after.terminated, True)
            assert (np.asarray(after.reward) != -1.0).all()


def test_distances_never_become_negative() -> None:
    """Speeds so close under v_min that rounding could carry the ball past the hole."""
    generator = np.random.default_rng(2)
    rho = generator.uniform(0.065, 0.196, 20_000).astype(np.float32)
    distance = generator.uniform(0.0, 20.0, 20_000).astype(np.float32)
    v_min = np.sqrt(2 * 5 / 7 * rho.astype(np.float64) * 9.81 * distance)
    after = stroke(1.0, rho, distance, v_min * (1 - generator.uniform(0.0, 3e-7, 20_000)), 0.0)
    assert np.asarray(after.state.distance).min() >= 0.0
    assert np.mean(np.asarray(after.reward) == -1.0) > 0.1


def test_starts_are_uniform_over_twenty_metres() -> None:
    env = Minigolf()
    normals = jax.random.normal(jax.random.key(9), (5000,), jnp.float32)
    start = jax.vmap(lambda z: env.reset(None, (z,)))(normals).distance
    assert scipy.stats.kstest(np.asarray(start), "uniform", (0.0, 20.0)).pvalue > 1e-3
    np.testing.assert_array_equal(env.observe(None, Ball(start))[0], start)


def test_a_ball_in_the_hole_or_beyond_stays_where_it_was() -> None:
    """The episode is over: the state only has to stay finite."""
    after = stroke(1.0, 0.1, [4.0, 4.0], [3.0, 9.0], 0.0)
    np.testing.assert_array_equal(after.reward, [0.0, -100.0])
    np.testing.assert_array_equal(after.state.distance, [4.0, 4.0])

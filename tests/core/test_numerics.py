"""Random numbers and elementary functions against NumPy, SciPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32 as jax_threefry_2x32

from metastep._core.numerics import (
    _bits_to_normal,
    sincos,
    standard_normals,
    threefry_2x32,
    to_truncated_normal,
    to_uniform,
    wrap,
)  # fmt: skip

WORD = st.integers(0, 2**32 - 1)


@settings(max_examples=30)
@given(key=st.tuples(WORD, WORD), counter=st.tuples(WORD, WORD))
def test_threefry_is_the_generator_of_jax(key, counter):
    words, (high, low) = jnp.asarray(key, jnp.uint32), jnp.asarray(counter, jnp.uint32)
    theirs = jax_threefry_2x32(words, jnp.asarray(counter, jnp.uint32))
    np.testing.assert_array_equal(jnp.stack(threefry_2x32(words, high, low)), theirs)


@pytest.fixture(scope="module")
def every_normal() -> np.ndarray:
    """Return all 2^23 values that a draw can take, in increasing order."""
    return np.asarray(jax.jit(_bits_to_normal)(jnp.arange(2**23, dtype=jnp.uint32) << np.uint32(9)))


def test_every_possible_normal_is_finite_and_its_own_quantile(every_normal: np.ndarray) -> None:
    assert np.isfinite(every_normal).all()
    assert (np.diff(every_normal) >= 0).all()
    np.testing.assert_array_equal(every_normal, -every_normal[::-1])
    share = (np.arange(2**23) + 0.5) / 2**23
    exact = scipy.stats.norm.ppf(share[:: 2**9])
    np.testing.assert_allclose(every_normal[:: 2**9], exact, rtol=1e-5, atol=2e-7)  # the tails of erf_inv in float32


def test_uniforms_and_truncated_normals_stay_in_their_interval(every_normal: np.ndarray) -> None:
    share = (np.arange(2**23) + 0.5) / 2**23  # the 2^23 cells are equally likely, so the i-th value is a quantile
    uniform = np.asarray(jax.jit(lambda z: to_uniform(z, -0.05, 0.05))(every_normal))
    assert np.float32(-0.05) <= uniform.min() <= -0.0499999
    assert 0.0499999 <= uniform.max() <= np.float32(0.05)
    np.testing.assert_allclose(uniform, -0.05 + 0.1 * share, atol=2e-8)
    truncated = np.asarray(jax.jit(lambda z: to_truncated_normal(z, 2.0))(every_normal))
    assert np.abs(truncated).max() <= 2.0
    np.testing.assert_allclose(truncated[:: 2**9], scipy.stats.truncnorm.ppf(share[:: 2**9], -2.0, 2.0), atol=2e-6)


@pytest.mark.parametrize("num", [1, 5])
def test_no_number_serves_twice(num: int) -> None:
    """Draws, arrays and lanes take disjoint counters: of 23 bits each, few of the numbers may coincide by chance."""
    key = jax.random.key(3)
    assert standard_normals(key, 0, 0, (2, 2)) == ()
    assert [each.shape for each in standard_normals(key, 0, num, (11, 13))] == [(11, 13)] * num
    drawn = np.concatenate([np.ravel(standard_normals(key, draw, num, (11, 13))) for draw in range(20)])
    pairs = drawn.size * (drawn.size - 1) / 2
    coincidences = drawn.size - np.unique(drawn).size
    assert coincidences <= pairs / 2**23 + 4 * np.sqrt(pairs / 2**23)


def test_traced_and_batched_draws_are_those_taken_one_by_one() -> None:
    key = jax.random.key(5)
    one_by_one = np.stack([np.stack(standard_normals(key, draw, 3, (4, 2))) for draw in range(3, 9)])
    batched = standard_normals(key, jnp.arange(3, 9, dtype=jnp.uint32), 3, (4, 2))
    np.testing.assert_array_equal(np.stack(batched, axis=1), one_by_one)
    traced = jax.jit(lambda draw: standard_normals(key, draw, 3, (4, 2)))(jnp.uint32(7))
    np.testing.assert_array_equal(np.stack(traced), one_by_one[4])


def largest_error(angles: np.ndarray) -> float:
    """Compare with NumPy in float64 at the same float32 angles."""
    angles = angles.astype(np.float32)
    exact, found = angles.astype(np.float64), jax.jit(sincos)(jnp.asarray(angles))
    assert {array.dtype for array in found} == {np.dtype("float32")}
    return float(np.abs(np.asarray(found, np.float64) - [np.sin(exact), np.cos(exact)]).max())


def test_sine_and_cosine_equal_numpy_also_where_the_quarter_switches_and_where_one_vanishes() -> None:
    assert largest_error(np.concatenate([np.linspace(-reach, reach, 300_003) for reach in (1.0, 1000.0)])) < 2e-7
    around = [(np.arange(-1200, 1201) * np.pi / 4).astype(np.float32)] * 2
    for _ in range(3):
        around += [np.nextafter(around[-2], np.float32(np.inf)), np.nextafter(around[-1], np.float32(-np.inf))]
    assert largest_error(np.concatenate(around)) < 2e-7
    small = np.float32(10.0) ** np.arange(-30, -2, dtype=np.float32)
    np.testing.assert_allclose(jax.jit(sincos)(small)[0], np.sin(small.astype(np.float64)), rtol=2e-7)


def test_a_wrapped_angle_is_the_same_one_within_half_a_turn() -> None:
    angles = np.linspace(-100.0, 100.0, 4001).astype(np.float32)
    wrapped = np.asarray(jax.jit(wrap)(jnp.asarray(angles)), np.float64)
    assert np.abs(wrapped).max() <= np.pi + 1e-5
    np.testing.assert_allclose(np.exp(1j * wrapped), np.exp(1j * angles.astype(np.float64)), atol=1e-5)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.random import threefry_2x32 as jax_threefry_2x32

from metastep._core.numerics import _bits_to_normal, standard_normals, threefry_2x32, to_truncated_normal, to_uniform

WORD = st.integers(0, 2**32 - 1)


def encrypt(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    words = jnp.asarray(key, jnp.uint32)
    high, low = (jnp.asarray([word], jnp.uint32) for word in counter)
    first, second = threefry_2x32(words, high, low)
    return int(first[0]), int(second[0])


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        # The known answers that Random123 publishes for threefry2x32 with 20 rounds.
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert encrypt(key, counter) == expected


@settings(max_examples=30)
@given(key=st.tuples(WORD, WORD), counter=st.tuples(WORD, WORD))
def test_threefry_is_the_generator_of_jax(key: tuple[int, int], counter: tuple[int, int]) -> None:
    theirs = jax_threefry_2x32(jnp.asarray(key, jnp.uint32), jnp.asarray(counter, jnp.uint32))
    assert encrypt(key, counter) == tuple(int(word) for word in theirs)


@pytest.fixture(scope="module")
def every_normal() -> np.ndarray:
    """All 2^23 values that a draw can take, in increasing order."""
    bits = jnp.arange(2**23, dtype=jnp.uint32) << np.uint32(9)
    return np.asarray(jax.jit(_bits_to_normal)(bits))


def test_every_possible_normal_is_finite_and_its_own_quantile(every_normal: np.ndarray) -> None:
    assert np.isfinite(every_normal).all()
    assert (np.diff(every_normal) >= 0).all()
    np.testing.assert_array_equal(every_normal, -every_normal[::-1])
    share = (np.arange(2**23) + 0.5) / 2**23
    exact = scipy.stats.norm.ppf(share[:: 2**9])
    np.testing.assert_allclose(every_normal[:: 2**9], exact, rtol=1e-5, atol=2e-7)  # the tails of erf_inv in float32


def test_uniforms_stay_in_their_interval(every_normal: np.ndarray) -> None:
    uniform = np.asarray(jax.jit(lambda z: to_uniform(z, -0.05, 0.05))(every_normal))
    assert np.float32(-0.05) <= uniform.min() <= -0.0499999
    assert 0.0499999 <= uniform.max() <= np.float32(0.05)
    expected = -0.05 + 0.1 * (np.arange(2**23) + 0.5) / 2**23
    np.testing.assert_allclose(uniform, expected, atol=2e-8)


def test_truncated_normals_are_conditioned_on_the_bound(every_normal: np.ndarray) -> None:
    truncated = np.asarray(jax.jit(lambda z: to_truncated_normal(z, 2.0))(every_normal))
    assert np.abs(truncated).max() <= 2.0
    # The 2^23 cells are equally likely, so the i-th value is a quantile.
    share = (np.arange(2**23) + 0.5) / 2**23
    exact = scipy.stats.truncnorm.ppf(share[:: 2**9], -2.0, 2.0)
    np.testing.assert_allclose(truncated[:: 2**9], exact, atol=2e-6)


@pytest.mark.parametrize("num", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (6, 4)])
def test_shapes_and_dtypes(num: int, shape: tuple[int, int]) -> None:
    arrays = standard_normals(jax.random.key(0), 0, num, shape)
    assert len(arrays) == num
    assert all(array.shape == shape and array.dtype == jnp.float32 for array in arrays)


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5])
def test_no_number_serves_twice(num: int) -> None:
    """Draws, arrays and lanes take disjoint counters: of 23 bits each, few of the numbers may coincide by chance."""
    key = jax.random.key(3)
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


NUM_DRAWS, NUM_ARRAYS, SHAPE = 64, 3, (50, 32)


@pytest.fixture(scope="module")
def normals() -> np.ndarray:
    """(draws, arrays, episodes, learners)."""
    key = jax.random.key(2024)
    draw = jax.jit(jax.vmap(lambda t: jnp.stack(standard_normals(key, t, NUM_ARRAYS, SHAPE))))
    return np.asarray(draw(jnp.arange(NUM_DRAWS, dtype=jnp.uint32))).astype(np.float64)


def test_normals_follow_the_normal_distribution(normals: np.ndarray) -> None:
    for array in range(NUM_ARRAYS):
        assert scipy.stats.kstest(normals[:, array].ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize(("power", "moment", "variance"), [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)])
def test_moments(normals: np.ndarray, power: int, moment: float, variance: float) -> None:
    values = normals.ravel() ** power
    assert abs(values.mean() - moment) < 4 * np.sqrt(variance / values.size)


def correlations(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Scaled so that each is a standard normal for independent columns: (left columns, right columns)."""
    return left.T @ right / np.sqrt(left.shape[0])


@pytest.mark.parametrize(
    ("axis", "what"), [(0, "draws"), (1, "arrays"), (2, "episodes"), (3, "learners")], ids=lambda value: str(value)
)
def test_no_correlation_between(normals: np.ndarray, axis: int, what: str) -> None:
    columns = np.moveaxis(normals, axis, -1).reshape(-1, normals.shape[axis])
    for transform in (lambda z: z, lambda z: (z**2 - 1) / np.sqrt(2)):
        scores = correlations(transform(columns), transform(columns))[np.triu_indices(columns.shape[1], 1)]
        # The largest of that many standard normals, at a level of 1 in 1,000 for the family.
        assert np.abs(scores).max() < scipy.stats.norm.isf(5e-4 / scores.size), what
        assert np.sum(scores**2) < scipy.stats.chi2.isf(1e-3, scores.size), what


def test_no_correlation_between_keys() -> None:
    keys = jax.random.split(jax.random.key(8), 20)
    draw = jax.jit(lambda key: jnp.stack(standard_normals(key, 0, 2, (40, 25))))
    columns = np.stack([np.ravel(draw(key)) for key in keys], axis=1).astype(np.float64)
    scores = correlations(columns, columns)[np.triu_indices(20, 1)]
    assert np.sum(scores**2) < scipy.stats.chi2.isf(1e-3, scores.size)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastep._core.numerics import sincos, wrap


def largest_errors(angles: np.ndarray) -> tuple[float, float]:
    """Against NumPy in float64 at the same float32 angles."""
    angles = angles.astype(np.float32)
    sin, cos = jax.jit(sincos)(jnp.asarray(angles))
    assert sin.dtype == cos.dtype == jnp.float32
    exact = angles.astype(np.float64)
    return (
        float(np.abs(np.asarray(sin, np.float64) - np.sin(exact)).max()),
        float(np.abs(np.asarray(cos, np.float64) - np.cos(exact)).max()),
    )


@pytest.mark.parametrize("reach", [1.0, 10.0, 1000.0])
def test_sine_and_cosine_equal_numpy(reach: float) -> None:
    errors = largest_errors(np.linspace(-reach, reach, 1_000_003))
    print(f"sincos on ±{reach:g}: largest errors {errors[0]:.2e} (sine), {errors[1]:.2e} (cosine)")
    assert max(errors) < 2e-7


def test_at_and_around_multiples_of_an_eighth_turn() -> None:
    """Where the reduction switches quarter, and where one of the two vanishes."""
    multiples = (np.arange(-1200, 1201) * np.pi / 4).astype(np.float32)
    around = [multiples]
    for _ in range(3):
        around += [np.nextafter(around[-1], np.float32(np.inf))]
    below = multiples
    for _ in range(3):
        below = np.nextafter(below, np.float32(-np.inf))
        around.append(below)
    assert max(largest_errors(np.concatenate(around))) < 2e-7


@given(st.floats(-1000.0, 1000.0, width=32))
def test_symmetry_and_unit_circle(angle: float) -> None:
    sin, cos = (float(value) for value in jax.jit(sincos)(jnp.float32(angle)))
    mirrored = [float(value) for value in jax.jit(sincos)(jnp.float32(-angle))]
    assert mirrored == [-sin, cos]
    assert abs(sin**2 + cos**2 - 1.0) < 5e-7


def test_small_angles_keep_their_relative_precision() -> None:
    angles = np.float32(10.0) ** np.arange(-30, -2, dtype=np.float32)
    sin, _ = jax.jit(sincos)(jnp.asarray(angles))
    np.testing.assert_allclose(sin, np.sin(angles.astype(np.float64)), rtol=2e-7)


def test_a_wrapped_angle_is_the_same_one_within_half_a_turn() -> None:
    angles = np.linspace(-100.0, 100.0, 4001).astype(np.float32)
    wrapped = np.asarray(jax.jit(wrap)(jnp.asarray(angles)), np.float64)
    assert np.abs(wrapped).max() <= np.pi + 1e-5
    np.testing.assert_allclose(np.exp(1j * wrapped), np.exp(1j * angles.astype(np.float64)), atol=1e-5)

"""Standard normals for whole blocks of learners, cheap enough not to dominate the physics.

The bits are Threefry-2x32 with 20 rounds, the generator behind `jax.random`, used here in counter mode: the counter of a
word is (draw, lane), so any step of any episode can be drawn without carrying random state through a scan. Two things make
it several times faster than `jax.random.normal` on a CPU: the rounds are unrolled into one fused loop (JAX rolls them up on
CPUs to compile faster), and both output words are used (JAX folds them into one).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_SQRT2 = np.float32(np.sqrt(2.0))


def threefry_2x32(key: Array, counter_high: Array, counter_low: Array) -> tuple[Array, Array]:
    """Encrypt the 64-bit counters with the 64-bit `key` (two uint32): two random words for each counter."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    left, right = counter_high + schedule[0], counter_low + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation))
            right = right ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def _bits_to_normal(bits: Array) -> Array:
    """Map 23 random bits to the centre of their cell in (-1, 1), then through the inverse error function.

    Every intermediate is exact in float32 in whatever order the compiler adds the constants, so ±1, where the inverse
    is infinite, cannot appear.
    """
    cell = lax.bitcast_convert_type(bits >> np.uint32(9), jnp.int32).astype(jnp.float32)
    return _SQRT2 * lax.erf_inv(cell * np.float32(2.0**-22) + np.float32(2.0**-23 - 1.0))


def standard_normals(key: Array, draw: Array | int, num: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Draw number `draw` of the stream `key`: `num` arrays of standard normals of the given shape.

    Args:
        key: a typed JAX key; different keys and different draws give independent numbers.
        draw: a counter such as the time step, or an array of them, which puts its axes in front of `shape`; may be traced.
        num: how many arrays (the normals one lane needs at once).
        shape: (episodes, learners) of each array.
    """
    words = jax.random.key_data(key)
    draws = jnp.asarray(draw, jnp.uint32)[..., *(None for _ in shape)]
    lanes = jnp.broadcast_to(
        lax.iota(jnp.uint32, math.prod(shape)).reshape(shape), (*draws.shape[: -len(shape)], *shape)
    )
    num_pairs = (num + 1) // 2
    arrays: list[Array] = []
    for pair in range(num_pairs):
        counter = jnp.broadcast_to(draws * np.uint32(num_pairs) + np.uint32(pair), lanes.shape)
        # An odd last array leaves a word unused: joining two half-sized arrays would cost more than drawing it.
        arrays += [_bits_to_normal(bits) for bits in threefry_2x32(words, counter, lanes)]
    return tuple(arrays[:num])


def to_uniform(normal: Array, low: float | Array, high: float | Array) -> Array:
    """Turn a standard normal into a uniform number on [low, high] through the normal distribution function."""
    return low + (high - low) * (0.5 + 0.5 * lax.erf(normal / _SQRT2))


def to_truncated_normal(normal: Array, bound: float) -> Array:
    """Turn a standard normal into one conditioned on [-bound, bound], monotonically.

    erf(z / sqrt 2) is uniform on (-1, 1); shrunk to the part that the bound leaves, it goes back through the inverse.
    """
    inside = math.erf(bound / math.sqrt(2.0))
    return _SQRT2 * lax.erf_inv(inside * lax.erf(normal / _SQRT2))

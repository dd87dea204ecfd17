import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace

SPACE = ContextSpace(("mass", "length"), (0.1, -2.0), (2.0, 5.0), ("kg", "m"))


def test_samples_are_uniform_and_inside() -> None:
    samples = np.asarray(SPACE.sample(jax.random.key(1), 5000))
    assert samples.shape == (5000, 2)
    assert samples.dtype == np.float32
    assert SPACE.validate(samples) is not None
    for column, low, high in ((0, 0.1, 1.9), (1, -2.0, 7.0)):
        assert scipy.stats.kstest(samples[:, column], "uniform", (low, high)).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 4 / np.sqrt(5000)


def test_sampling_is_seeded() -> None:
    first, again, other = (np.asarray(SPACE.sample(jax.random.key(seed), 10)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_unpacking_names_the_last_axis() -> None:
    contexts = jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2)
    named = SPACE.unpack(contexts)
    assert named._fields == ("mass", "length")
    np.testing.assert_array_equal(named.mass, contexts[..., 0])
    np.testing.assert_array_equal(named.length, contexts[..., 1])


def test_equal_spaces_unpack_to_the_same_type() -> None:
    """Otherwise each new environment object would be a new structure, and compile again."""
    twin = ContextSpace(("mass", "length"), (0.0, 0.0), (1.0, 1.0))
    contexts = jnp.zeros((1, 2), jnp.float32)
    assert type(SPACE.unpack(contexts)) is type(twin.unpack(contexts))


def test_a_fixed_space_holds_one_task() -> None:
    fixed = SPACE.fixed((1.5, 0.25))
    assert (fixed.names, fixed.units) == (SPACE.names, SPACE.units)
    np.testing.assert_array_equal(fixed.sample(jax.random.key(0), 3), np.float32([[1.5, 0.25]] * 3))


def test_units_default_to_none() -> None:
    assert ContextSpace(("a",), (0.0,), (1.0,)).units == ("",)


def test_a_space_is_hashable() -> None:
    assert hash(SPACE) == hash(ContextSpace(SPACE.names, SPACE.low, SPACE.high, SPACE.units))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((("a", "b"), (0.0,), (1.0, 1.0)), "ContextSpace: names, low and high must have one entry a coordinate"),
        ((("a b",), (0.0,), (1.0,)), "ContextSpace: the name 'a b' must be a Python identifier"),
        ((("a",), (2.0,), (1.0,)), r"ContextSpace: a has bounds \[2.0, 1.0\]"),
        ((("a",), (float("nan"),), (1.0,)), r"ContextSpace: a has bounds \[nan, 1.0\]"),
        ((("a",), (0.0,), (float("inf"),)), r"ContextSpace: a has bounds \[0.0, inf\], they must be finite"),
        ((("class",), (0.0,), (1.0,)), "ContextSpace: the name 'class' must be a Python identifier"),
        (
            (("_a",), (0.0,), (1.0,)),
            "ContextSpace: the name '_a' must be a Python identifier without leading underscore",
        ),
        ((("a", "a"), (0.0, 0.0), (1.0, 1.0)), "ContextSpace: the names a, a must differ from each other"),
        ((("a",), (0.0,), (1.0,), ("kg", "m")), "ContextSpace: 2 units for 1 names, one each is allowed"),
    ],
)
def test_a_bad_space_is_refused_with_a_sentence(arguments: tuple[tuple[str, ...], ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ContextSpace(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("contexts", "sentence"),
    [
        (np.zeros(2), r"contexts: got an array of shape \(2,\), expected \(tasks, 2\) with columns mass, length"),
        (np.ones((3, 1)), r"contexts: got an array of shape \(3, 1\)"),
        (np.array([[1.0, 1.0], [1.0, 6.0]]), r"contexts: task 1 has length = 6, allowed is \[-2, 5\]"),
        (np.array([[np.nan, 1.0]]), r"contexts: task 0 has mass = nan"),
    ],
)
def test_bad_tasks_are_refused_with_a_sentence(contexts: np.ndarray, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SPACE.validate(contexts)


def test_the_bounds_themselves_are_tasks() -> None:
    """0.1 has no float32 equal: the bound is compared after the same rounding."""
    corners = np.array([SPACE.low, SPACE.high])
    np.testing.assert_array_equal(SPACE.validate(corners), corners.astype(np.float32))


def test_a_fixed_task_must_lie_inside() -> None:
    with pytest.raises(InputError, match="context: task 0 has mass = 9"):
        SPACE.fixed((9.0, 0.0))

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace

SPACE = ContextSpace(("mass", "length"), (0.1, -2.0), (2.0, 5.0), ("kg", "m"))
UNEQUAL = ("a", "b"), (0.0,), (1.0, 1.0)


def test_samples_are_uniform_inside_and_seeded() -> None:
    samples, again, other = (np.asarray(SPACE.sample(jax.random.key(seed), 5000)) for seed in (1, 1, 2))
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(SPACE.validate(samples), again)
    assert not np.array_equal(samples, other)
    for column, low, high in ((0, 0.1, 1.9), (1, -2.0, 7.0)):
        assert scipy.stats.kstest(samples[:, column], "uniform", (low, high)).pvalue > 1e-3
    assert abs(np.corrcoef(samples.T)[0, 1]) < 4 / np.sqrt(5000)


def test_unpacking_names_the_last_axis() -> None:
    contexts = jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2)
    named = SPACE.unpack(contexts)
    np.testing.assert_array_equal(named.mass, contexts[..., 0])
    np.testing.assert_array_equal(named.length, contexts[..., 1])
    # One type for equal names: otherwise each new environment would be a new structure, and compile again.
    assert type(named) is type(ContextSpace(("mass", "length"), (0.0, 0.0), (1.0, 1.0)).unpack(contexts))


def test_a_fixed_space_holds_one_task() -> None:
    fixed = SPACE.fixed((1.5, 0.25))
    assert (fixed.names, fixed.units) == (SPACE.names, SPACE.units)
    np.testing.assert_array_equal(fixed.sample(jax.random.key(0), 3), np.float32([[1.5, 0.25]] * 3))
    with pytest.raises(InputError, match="context: task 0 has mass = 9"):
        SPACE.fixed((9.0, 0.0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (UNEQUAL, r"names, low, high and units have \[2, 1, 2, 2\] entries, they must be equal"),
        ((("a",), (0.0,), (1.0,), ("kg", "m")), r"names, low, high and units have \[1, 1, 1, 2\] entries"),
        ((("a b",), (0.0,), (1.0,)), "ContextSpace: names are a b. .* must be valid identifiers: 'a b'"),
        ((("_a",), (0.0,), (1.0,)), "ContextSpace: names are _a. Field names cannot start with an underscore: '_a'"),
        ((("a",), (2.0,), (1.0,)), r"ContextSpace: a has bounds \[2.0, 1.0\], they must be finite and in order"),
        ((("a", "a"), (0.0, 0.0), (1.0, 1.0)), "ContextSpace: names are a, a. Encountered duplicate field name: 'a'"),
        (np.zeros(2), r"contexts: got an array of shape \(2,\), expected \(tasks, 2\) with columns mass, length"),
        (np.array([[1.0, 1.0], [1.0, 6.0]]), r"contexts: task 1 has length = 6, allowed is \[-2, 5\]"),
        (np.array([[np.nan, 1.0]]), r"contexts: task 0 has mass = nan"),
    ],
)
def test_bad_spaces_and_tasks_are_refused_with_a_sentence(arguments: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SPACE.validate(arguments) if isinstance(arguments, np.ndarray) else ContextSpace(*arguments)

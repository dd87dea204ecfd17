"""Where hyperparameters lie: scales, and a direction with a range of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.rules.spaces import HyperparameterSpace, MenuSpace, Range

MENU = MenuSpace(("flat", "steep"), (Range(0.0, 2.0), Range(1e-4, 10.0, "divergence")))

BOX = HyperparameterSpace((1e-4, 0.1), (1e-1, 0.5), ("log", "linear"), ("stepsize", "clip_range"))
CLIPS = MenuSpace(("clip 0.1", "clip 0.4"), (Range(1e-4, 1e-1, "log"),) * 2, "clip_range", (0.1, 0.4))


@pytest.mark.parametrize("scale", ["log", "divergence"])
def test_a_range_goes_to_its_axis_and_back(scale):
    bounds, linear = Range(1e-4, 10.0, scale), Range(0.0, 10.0)
    numbers = np.geomspace(1e-4, 10.0, 50).astype(np.float32)
    assert bounds.axis == pytest.approx((-4.0, 1.0))
    np.testing.assert_allclose(bounds.to_axis(numbers), np.linspace(-4.0, 1.0, 50), atol=1e-5)
    np.testing.assert_allclose(bounds.from_axis(bounds.to_axis(numbers)), numbers, rtol=1e-5)
    assert bounds.grid(3).tolist() == pytest.approx([1e-4, 10**-1.5, 10.0])
    for same in (linear.to_axis, linear.from_axis):
        np.testing.assert_array_equal(same(numbers), numbers)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Range(1.0, 1.0), "must lie below"),
        (lambda: Range(0.0, 1.0, "log"), "must be positive on a log scale"),
        (lambda: Range(0.0, 1.0, "cubic"), "must be one of linear, log, divergence"),
        (lambda: Range(0.0, float("inf")), "both be finite"),
    ],
)
def test_a_range_that_cannot_be_is_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_menu_draws_directions_evenly_and_steps_from_their_own_ranges():
    drawn = np.asarray(MENU.sample(jax.random.key(0), 4000))
    first, logs = drawn[:, 0] == 0.0, np.log10(drawn[drawn[:, 0] == 1.0, 1])
    assert set(drawn[:, 0]) == {0.0, 1.0}
    assert first.mean() == pytest.approx(0.5, abs=0.03)
    assert 0.0 <= drawn[first, 1].min() < drawn[first, 1].max() <= 2.0
    assert -4.0 <= logs.min() < logs.max() <= 1.0001
    assert logs.mean() == pytest.approx(-1.5, abs=0.1)


def test_draws_near_others_keep_the_direction_and_spread_by_a_tenth_of_the_scale():
    around = jnp.tile(jnp.asarray([[0.0, 1.0], [1.0, 10**-1.5]], jnp.float32), (2000, 1))
    drawn = np.asarray(MENU.near(jax.random.key(0), around))
    np.testing.assert_array_equal(drawn[:, 0], around[:, 0])
    flat, steep = drawn[::2, 1], np.log10(drawn[1::2, 1])
    found = flat.mean(), flat.std(), steep.mean(), steep.std()
    np.testing.assert_allclose(found, [1.0, 0.2, -1.5, 0.5], atol=0.05)
    drawn = np.asarray(BOX.near(jax.random.key(1), jnp.full((4000, 2), jnp.float32(0.5))))
    assert drawn.max(axis=0).tolist() == pytest.approx([0.1, 0.5])
    # A half of a normal distribution, the rest cut off.
    assert drawn[:, 1].std() == pytest.approx(0.04 * 0.58, abs=0.003)


def test_the_nearest_point_and_the_grid_of_a_menu():
    wanted = jnp.asarray([[0.4, 5.0], [0.6, 5.0], [7.0, 50.0], [-3.0, -1.0]], jnp.float32)
    np.testing.assert_allclose(MENU.clip(wanted), [[0.0, 2.0], [1.0, 5.0], [1.0, 10.0], [0.0, 0.0]])
    candidates = MENU.candidates(3)
    np.testing.assert_allclose(candidates[:3], [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    np.testing.assert_allclose(candidates[3:, 1], MENU.ranges[1].grid(3))


def test_points_of_the_unit_cube_have_values_by_name():
    unit = jnp.asarray([[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]], jnp.float32)
    values, clips = (space.named(space.from_unit(unit)) for space in (BOX, CLIPS))
    assert tuple(values) == BOX.names
    np.testing.assert_allclose(values["stepsize"], [1e-4, 10**-2.5, 1e-1], rtol=1e-5)
    np.testing.assert_allclose(values["clip_range"], [0.1, 0.5, 0.3], rtol=1e-6)
    assert BOX.candidates(3).shape == (9, 2)
    assert list(BOX.branches) == [""]
    assert tuple(clips) == CLIPS.names == ("clip_range", "stepsize")
    np.testing.assert_allclose(clips["clip_range"], [0.1, 0.4, 0.4])
    np.testing.assert_allclose(clips["stepsize"], [1e-4, 1e-1, 10**-2.5], rtol=1e-5)
    assert MENU.named(MENU.from_unit(unit))["direction"].tolist() == [0, 1, 1]

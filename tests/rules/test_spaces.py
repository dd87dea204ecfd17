"""Where hyperparameters lie: scales, and a direction with a range of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.rules.spaces import HyperparameterSpace, MenuSpace, Range

MENU = MenuSpace(("flat", "steep"), (Range(0.0, 2.0), Range(1e-4, 10.0, "divergence")))


@pytest.mark.parametrize("scale", ["log", "divergence"])
def test_a_logarithmic_range_goes_to_its_axis_and_back(scale):
    bounds = Range(1e-4, 10.0, scale)
    numbers = np.geomspace(1e-4, 10.0, 50).astype(np.float32)
    assert bounds.axis == pytest.approx((-4.0, 1.0))
    np.testing.assert_allclose(bounds.to_axis(numbers), np.linspace(-4.0, 1.0, 50), atol=1e-5)
    np.testing.assert_allclose(bounds.from_axis(bounds.to_axis(numbers)), numbers, rtol=1e-5)
    assert bounds.grid(3).tolist() == pytest.approx([1e-4, 10**-1.5, 10.0])


def test_a_linear_range_is_its_own_axis():
    numbers = np.linspace(0.0, 8.0, 7, dtype=np.float32)
    np.testing.assert_array_equal(Range(0.0, 8.0).to_axis(numbers), numbers)
    np.testing.assert_array_equal(Range(0.0, 8.0).from_axis(numbers), numbers)


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [
        ((1.0, 1.0, "linear"), "must lie below"),
        ((0.0, 1.0, "log"), "must be positive on a log scale"),
        ((0.0, 1.0, "divergence"), "must be positive on a divergence scale"),
        ((0.0, 1.0, "cubic"), "must be one of linear, log, divergence"),
        ((0.0, float("inf"), "linear"), "both be finite"),
    ],
)
def test_ranges_that_cannot_be_are_refused(bounds, sentence):
    with pytest.raises(InputError, match=sentence):
        Range(*bounds)


def test_a_menu_draws_directions_evenly_and_steps_from_their_own_ranges():
    drawn = np.asarray(MENU.sample(jax.random.key(0), 4000))
    first = drawn[:, 0] == 0.0
    assert set(drawn[:, 0]) == {0.0, 1.0}
    assert abs(first.mean() - 0.5) < 0.03
    assert 0.0 <= drawn[first, 1].min() < drawn[first, 1].max() <= 2.0
    logs = np.log10(drawn[~first, 1])
    assert -4.0 <= logs.min() < logs.max() <= 1.0001
    assert abs(logs.mean() + 1.5) < 0.1


def test_draws_near_others_keep_the_direction_and_spread_by_a_tenth_of_the_scale():
    around = jnp.tile(jnp.asarray([[0.0, 1.0], [1.0, 10**-1.5]], jnp.float32), (2000, 1))
    drawn = np.asarray(MENU.near(jax.random.key(0), around))
    np.testing.assert_array_equal(drawn[:, 0], around[:, 0])
    flat, steep = drawn[::2, 1], np.log10(drawn[1::2, 1])
    assert (flat.mean(), flat.std()) == (pytest.approx(1.0, abs=0.02), pytest.approx(0.2, abs=0.02))
    assert (steep.mean(), steep.std()) == (pytest.approx(-1.5, abs=0.05), pytest.approx(0.5, abs=0.05))
    box = HyperparameterSpace((0.0, 1e-4), (8.0, 10.0), ("linear", "log"), ("stepsize", "clip"))
    drawn = np.asarray(box.near(jax.random.key(1), jnp.full((4000, 2), jnp.float32(8.0))))
    assert drawn[:, 0].max() == 8.0
    assert drawn.max() <= 10.0
    assert drawn[:, 0].std() == pytest.approx(0.8 * 0.58, abs=0.05)  # a half of a normal distribution, the rest cut off


def test_the_nearest_point_of_a_menu():
    wanted = jnp.asarray([[0.4, 5.0], [0.6, 5.0], [7.0, 50.0], [-3.0, -1.0]], jnp.float32)
    np.testing.assert_allclose(MENU.clip(wanted), [[0.0, 2.0], [1.0, 5.0], [1.0, 10.0], [0.0, 0.0]])


def test_the_candidates_of_a_menu_are_a_grid_for_each_direction():
    candidates = MENU.candidates(3)
    np.testing.assert_allclose(candidates[:3], [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    np.testing.assert_allclose(candidates[3:, 1], Range(1e-4, 10.0, "divergence").grid(3))
    assert HyperparameterSpace((0.0,), (1.0,)).candidates(3).shape == (3, 1)


def test_menus_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="1 directions and 2 ranges"):
        MenuSpace(("a",), MENU.ranges)
    with pytest.raises(InputError, match="named once each"):
        MenuSpace(("a", "a"), MENU.ranges)


BOX = HyperparameterSpace((1e-4, 0.1), (1e-1, 0.5), ("log", "linear"), ("stepsize", "clip_range"))
CLIPS = MenuSpace(("clip 0.1", "clip 0.4"), (Range(1e-4, 1e-1, "log"),) * 2, "clip_range", (0.1, 0.4))


def test_values_have_names_on_the_unit_cube_and_back():
    unit = jnp.asarray([[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]], jnp.float32)
    values = BOX.values(unit)
    assert tuple(values) == BOX.names
    np.testing.assert_allclose(values["stepsize"], [1e-4, 10**-2.5, 1e-1], rtol=1e-5)
    np.testing.assert_allclose(values["clip_range"], [0.1, 0.5, 0.3], rtol=1e-6)
    np.testing.assert_allclose(BOX.to_unit(BOX.from_unit(unit)), unit, atol=1e-5)
    assert BOX.candidates(3).shape == (9, 2)
    assert list(BOX.branches) == [""]
    clips = CLIPS.values(unit)
    assert tuple(clips) == CLIPS.names == ("clip_range", "stepsize")
    np.testing.assert_allclose(clips["clip_range"], [0.1, 0.4, 0.4])
    np.testing.assert_allclose(CLIPS.to_unit(CLIPS.from_unit(unit)), [[0.25, 0.0], [0.75, 1.0], [0.75, 0.5]], atol=1e-5)
    assert MENU.values(unit)["direction"].tolist() == [0, 1, 1]

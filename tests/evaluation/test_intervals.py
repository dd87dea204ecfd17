"""Calibration and properties of intervals over tasks, on the samples of `benchmarks/calibration.py`."""

import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from metastep._core.errors import InputError
from metastep.evaluation.aggregates import improvement_probability, interquartile_mean
from metastep.evaluation.resampling import (
    PairedTest,
    bootstrap_interval,
    holm,
    mean_interval,
    paired_test,
    sign_flip_p_values,
    verdict,
)

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "calibration.py"))
NULLS, NUMS, samples, t_interval = (BENCHMARK[name] for name in ("NULLS", "NUMS", "samples", "t_interval"))

REPLICATIONS = 20_000
SLACK = 0.0035  # two standard errors of a coverage of 93.5 %
LEAST = {("90 % zeros, rest exponential", 20): 0.75, ("90 % zeros, rest exponential", 32): 0.84}
"""What cannot be covered at this width in more than 78.8 and 88.0 %."""
MOST = {("90 % zeros, rest normal", 20): 1.0, ("90 % zeros, rest normal", 32): 1.0}
"""What Student's interval already covers in 99.8 and 99.3 %: two or three tasks that differ decide nothing."""

NEAR_A_BOUND = np.array([63.4] * 17 + [62.9, 60.5, 53.0])
FEW_DIFFER = np.array([0.2, -0.3, 0.1, 0.4, -0.2, 0.0, 0.3, -0.1, 0.2] * 2 + [112.0, -36.0])


def covered(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    return float(np.mean((low <= truth + 1e-12) & (high >= truth - 1e-12)))


@pytest.mark.parametrize("num", NUMS)
@pytest.mark.parametrize("name", NULLS)
def test_95_percent_intervals_cover_in_93_5_to_96_5_percent_and_are_not_wide(name: str, num: int) -> None:
    null = NULLS[name]
    values = samples(null, num, REPLICATIONS)
    low, high = mean_interval(values)
    assert LEAST.get((name, num), 0.935) - SLACK <= covered(low, high, null.mean)
    assert covered(low, high, null.mean) <= MOST.get((name, num), 0.965) + SLACK
    student = np.subtract(*reversed(t_interval(values)))
    assert (high - low <= 1.5 * student + 1e-12).all()


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_other_levels_are_kept_too(confidence: float) -> None:
    for name in ("normal", "Student's t, 3 degrees", "exponential"):
        null = NULLS[name]
        found = [covered(*mean_interval(samples(null, num, 5000), confidence=confidence), null.mean) for num in NUMS]
        assert np.all(np.abs(np.array(found) - confidence) < 0.3 * (1.0 - confidence) + 0.005), (name, found)


def test_two_tasks_that_differ_are_enough_for_the_coverage() -> None:
    null = NULLS["90 % zeros, rest exponential"]
    for num in NUMS:
        values = samples(null, num, REPLICATIONS)
        values = values[(values != 0.0).sum(axis=1) >= 2]
        assert covered(*mean_interval(values), null.mean) >= 0.935 - SLACK


@pytest.mark.parametrize("name", list(NULLS)[:4])
def test_false_wins_are_as_rare_as_the_level_says(name: str) -> None:
    """100 tasks, 10,000 flips: single comparisons stay under 6 %, families of five with Holm's correction near 5 %."""
    null = samples(NULLS[name], 100, 2000, seed=1) - NULLS[name].mean
    parts = [paired_test(rows, seed=index) for index, rows in enumerate(np.split(null, 4))]
    test = PairedTest(*map(np.concatenate, zip(*parts, strict=True)))
    wins = np.mean([verdict(*row, 0.95) != "not distinguishable" for row in zip(*test[1:], strict=True)])
    family_wins = np.mean([(holm(family) < 0.05).any() for family in test.p_value.reshape(400, 5)])
    assert wins < 0.06
    assert family_wins < 0.075  # 400 families: 0.05 plus 2.3 standard errors


def test_skewed_differences_are_covered_better_than_by_the_percentile_interval() -> None:
    values = samples(NULLS["exponential"], 20, 2000)
    plain = bootstrap_interval((values,), np.mean, seed=0, num_resamples=2000)
    assert covered(*mean_interval(values), 1.0) > covered(*plain, 1.0) + 0.02


def test_a_mean_near_a_bound_has_no_interval_beyond_it() -> None:
    """A bootstrap-t said 62.7 [48.6, 76.8] of returns that are at most 63.4."""
    (low,), (high,) = mean_interval(NEAR_A_BOUND[None])
    assert 60.0 < low < NEAR_A_BOUND.mean() < high <= 63.4


def test_a_mean_of_few_tasks_that_differ_has_a_sane_interval() -> None:
    """A bootstrap-t said 3.8 [-485, 493]; Student's interval is [-8.7, 16.3]."""
    (low,), (high,) = mean_interval(FEW_DIFFER[None])
    student = stats.ttest_1samp(FEW_DIFFER, 0.0).confidence_interval()
    np.testing.assert_allclose(low, student.low)
    assert student.high < high <= 1.5 * (student.high - student.low) + low + 1e-9


def test_bounded_values_have_bounded_intervals() -> None:
    for num in (9, 20, 100):
        low, high = mean_interval(np.random.default_rng(num).beta(0.3, 0.05, size=(2000, num)))
        assert (low >= 0.0).all()
        assert (high <= 1.0).all()
    low, high = mean_interval(np.array([[0.9, 1.0, 1.0, 1.0]]))  # four tasks tell little about the range
    assert high[0] > 1.0


@pytest.mark.parametrize("num", [2, 3, 20, 100])
def test_intervals_move_scale_and_turn_with_the_numbers(num: int) -> None:
    values = np.random.default_rng(num).exponential(size=(50, num))
    low, high = mean_interval(values)
    moved = mean_interval(3.0 * values - 7.0)
    np.testing.assert_allclose(moved, (3.0 * low - 7.0, 3.0 * high - 7.0), atol=1e-9)
    np.testing.assert_allclose(mean_interval(-values), (-high, -low), atol=1e-12)
    np.testing.assert_allclose(mean_interval(values[:, ::-1]), (low, high), atol=1e-12)


def test_nothing_but_the_seed_decides() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, size=(3, 30))
    for make in (paired_test, interquartile_mean):
        np.testing.assert_array_equal(make(values, seed=3), make(values, seed=3))
        assert not np.array_equal(make(values, seed=3), make(values, seed=4))
    np.testing.assert_allclose(mean_interval(values[1:2]), np.array(mean_interval(values))[:, 1:2])  # rows are apart


@pytest.mark.parametrize("name", NULLS)
def test_p_values_agree_with_the_interval_where_flips_do(name: str) -> None:
    """The p-value of the interval is the level at which it begins to reach zero; the flips' may be larger."""
    values = samples(NULLS[name], 20, 3000, seed=5)
    values -= NULLS[name].mean + 0.3 * values.std()  # many are significant, on the long side or the short one
    for confidence in (0.9, 0.95, 0.99):
        test = paired_test(values, num_resamples=500, confidence=confidence)
        by_flips = sign_flip_p_values(values, seed=0, num_flips=500)
        is_excluded = (test.low > 0.0) | (test.high < 0.0)
        agreed = (by_flips < 1.0 - confidence) & (values.std(axis=1) > 0.0)
        np.testing.assert_array_equal((test.p_value < 1.0 - confidence)[agreed], is_excluded[agreed])
        assert not (~is_excluded & (test.p_value < 1.0 - confidence)).any()


def test_intervals_of_a_pair_take_a_fraction_of_a_second() -> None:
    values = np.random.default_rng(0).normal(size=(1, 100))
    began = time.perf_counter()
    paired_test(values)
    assert time.perf_counter() - began < 1.0


def test_a_single_task_that_differs_decides_nothing() -> None:
    values = np.zeros((1, 100))
    values[0, 7] = 5.0
    test = paired_test(values)
    assert test.low[0] == 0.0 < test.high[0]
    assert verdict(test.low[0], test.high[0], test.p_value[0], 0.95) == "not distinguishable"


def test_equal_differences_have_an_interval_without_length() -> None:
    low, high = mean_interval(np.full((1, 30), 0.1))
    np.testing.assert_allclose([low[0], high[0]], 0.1, rtol=1e-12)


def test_intervals_agree_with_the_t_interval_on_normal_data() -> None:
    values = np.random.default_rng(0).normal(size=(1, 60))
    expected = stats.ttest_1samp(values[0], 0.0).confidence_interval()
    for low, high in (bootstrap_interval((values,), np.mean, seed=0, num_resamples=50_000), mean_interval(values)):
        np.testing.assert_allclose([low[0], high[0]], [expected.low, expected.high], atol=0.02)


def test_p_values_agree_with_scipys_permutation_test() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, size=(1, 25))
    expected = stats.permutation_test(
        (values[0],), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
    ).pvalue
    found = sign_flip_p_values(values, seed=1, num_flips=20_000)
    np.testing.assert_allclose(found[0], expected, rtol=0.15)


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03, 0.5])), [0.09, 0.04, 0.09, 0.5])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])


def test_interquartile_mean_leaves_out_the_outer_quarters() -> None:
    values = np.array([[9.0, -50.0, 1.0, 2.0, 3.0, 4.0, 700.0, -1.0]])
    found = interquartile_mean(values, seed=0, num_resamples=500)
    np.testing.assert_allclose(found.value, [2.5])
    assert found.low[0] < 2.5 < found.high[0]
    np.testing.assert_allclose(found.value[0], stats.trim_mean(values[0], 0.25))
    np.testing.assert_allclose(interquartile_mean(np.full((2, 5), 0.3), seed=0), 0.3)


@pytest.mark.parametrize("name", ["normal", "log-normal", "beta(10, 0.3), closer to it"])
def test_interquartile_means_are_covered(name: str) -> None:
    found = interquartile_mean(samples(NULLS[name], 20, 1500), seed=0, num_resamples=500)
    truth = BENCHMARK["interquartile_of"](NULLS[name], num=400_000)
    assert 0.935 <= covered(found.low, found.high, truth) <= 0.98


def test_probability_of_improvement() -> None:
    differences = np.array([[1.0] * 15 + [-1.0] * 5, [0.0] * 20, [2.0] * 20, [1.0] * 10 + [0.0] * 10])
    found = improvement_probability(differences)
    np.testing.assert_allclose(found.value, [0.75, 0.5, 1.0, 0.75])
    assert (found.low < found.value).all()
    assert (found.high[:2] > found.value[:2]).all()
    assert found.high[2] == 1.0
    assert found.low[2] > 0.75
    np.testing.assert_allclose(improvement_probability(-differences).low, 1.0 - found.high)
    assert found.high[3] - found.low[3] < found.high[0] - found.low[0]  # a tie is half a win for sure
    with pytest.raises(InputError, match="at least 2"):
        improvement_probability(np.ones((1, 1)))


def test_probabilities_of_improvement_are_covered() -> None:
    rng = np.random.default_rng(0)
    for num in (20, 100):
        for shift in (0.0, 0.5, 1.5):
            found = improvement_probability(rng.normal(shift, 1.0, size=(4000, num)))
            assert 0.93 <= covered(found.low, found.high, float(stats.norm.cdf(shift))) <= 0.99

"""Calibration and properties of intervals over tasks, on the samples of `benchmarks/calibration.py`."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from metastep._core.errors import InputError
from metastep.evaluation.intervals import (
    bootstrap_interval,
    holm,
    improvement_probability,
    interquartile_mean,
    mean_interval,
    paired_test,
    sign_flip_p_values,
    verdict,
)

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "calibration.py"))
NULLS, NUMS, samples, covers = (BENCHMARK[name] for name in ("NULLS", "NUMS", "samples", "covers"))

# Symmetric with heavy tails, or with few tasks that differ: the interval covers less there, and the sign flips decide.
HARD = {
    "Student's t, 3 degrees": 0.90,
    "Laplace": 0.91,
    "normal, one in ten 5 times as wide": 0.89,
    "log-normal minus log-normal": 0.89,
    "log-normal": 0.92,
    "Pareto(3)": 0.91,
    "80 % zeros, rest exponential": 0.91,
    "90 % zeros, rest exponential": 0.79,
    "90 % zeros, rest normal": 0.83,
}


@pytest.mark.parametrize("name", NULLS)
def test_95_percent_intervals_cover_as_the_docs_say(name: str) -> None:
    null = NULLS[name]
    for num in NUMS:
        covered = covers(mean_interval(samples(null, num, 10_000)), null.mean).mean()
        assert HARD.get(name, 0.94) <= covered <= 0.98, num


@pytest.mark.parametrize("name", ["normal", "Student's t, 3 degrees", "exponential", "90 % zeros, rest normal"])
def test_false_wins_are_as_rare_as_the_level_says(name: str) -> None:
    null = samples(NULLS[name], 100, 2000, seed=1) - NULLS[name].mean
    parts = [paired_test(rows, seed=index, num_resamples=2000) for index, rows in enumerate(np.split(null, 8))]
    _, low, high, p_value = map(np.concatenate, zip(*parts, strict=True))
    wins = np.mean([verdict(*row, 0.95) != "not distinguishable" for row in zip(low, high, p_value, strict=True)])
    families = np.mean([(holm(family) < 0.05).any() for family in p_value.reshape(400, 5)])
    assert wins < 0.06
    assert families < 0.075  # 400 families: 0.05 plus 2.3 standard errors


@pytest.mark.parametrize("name", NULLS)
def test_p_values_agree_with_the_interval_where_flips_do(name: str) -> None:
    """The p-value of the interval is the level at which it begins to reach zero; that of the flips may be larger."""
    values = samples(NULLS[name], 20, 1000, seed=5)
    values -= NULLS[name].mean + 0.3 * values.std()  # many are significant, on the long side or the short one
    by_flips = sign_flip_p_values(values, seed=0, num_flips=500)
    for confidence in (0.9, 0.99):
        _, low, high, p_value = paired_test(values, num_resamples=500, confidence=confidence)
        excluded, significant = (low > 0.0) | (high < 0.0), p_value < 1.0 - confidence
        agreed = (by_flips < 1.0 - confidence) & (values.std(axis=1) > 1e-9)
        np.testing.assert_array_equal(significant[agreed], excluded[agreed])
        assert not (~excluded & significant).any()


def test_a_mean_near_a_bound_or_of_few_tasks_that_differ_has_a_sane_interval() -> None:
    near = np.array([63.4] * 17 + [62.9, 60.5, 53.0])
    (low,), (high,) = mean_interval(near[None])
    assert 58.0 < low < near.mean() < high < 63.45  # Student's interval ends at 63.8
    few = np.array([0.2, -0.3, 0.1, 0.4, -0.2, 0.0, 0.3, -0.1, 0.2] * 2 + [112.0, -36.0])
    (low,), (high,) = mean_interval(few[None])
    student = stats.ttest_1samp(few, 0.0).confidence_interval()
    assert student.low < low < few.mean() < student.high < high
    assert high - low < 2.5 * (student.high - student.low)


@pytest.mark.parametrize("num", [2, 3, 20, 100])
def test_intervals_move_scale_and_turn_with_the_numbers(num: int) -> None:
    values = np.random.default_rng(num).exponential(size=(50, num))
    low, high = mean_interval(values)
    np.testing.assert_allclose(mean_interval(3.0 * values - 7.0), (3.0 * low - 7.0, 3.0 * high - 7.0), atol=1e-9)
    np.testing.assert_allclose(mean_interval(-values), (-high, -low), atol=1e-12)
    np.testing.assert_allclose(mean_interval(values[1:2, ::-1]), (low[1:2], high[1:2]), atol=1e-12)


def test_a_single_task_that_differs_decides_nothing() -> None:
    _, *found = (float(row) for (row,) in paired_test(np.eye(1, 100)))
    assert verdict(*found, 0.95) == "not distinguishable"
    np.testing.assert_allclose(mean_interval(np.full((1, 30), 0.1)), 0.1, rtol=1e-12)  # equal: without length


@pytest.mark.parametrize("make", [mean_interval, paired_test, improvement_probability])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(make, bad) -> None:
    values = np.ones((2, 20))
    values[1, 3] = bad
    with pytest.raises(InputError, match="not finite"):
        make(values)
    with pytest.raises(InputError, match="at least 2"):
        make(np.ones((1, 1)))


def test_intervals_agree_with_the_t_interval_on_normal_data() -> None:
    values = np.random.default_rng(0).normal(size=(1, 60))
    expected = stats.ttest_1samp(values[0], 0.0).confidence_interval()
    for ends in (bootstrap_interval((values,), np.mean, seed=0, num_resamples=50_000), mean_interval(values)):
        np.testing.assert_allclose(np.ravel(ends), [expected.low, expected.high], atol=0.02)


def test_p_values_agree_with_scipys_permutation_test() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, size=(1, 25))
    expected = stats.permutation_test(
        (values[0],), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
    ).pvalue
    np.testing.assert_allclose(sign_flip_p_values(values, seed=1, num_flips=20_000)[0], expected, rtol=0.15)


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.03, 0.5])), [0.09, 0.04, 0.09, 0.5])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])


def test_interquartile_mean_leaves_out_the_outer_quarters() -> None:
    values = np.array([[9.0, -50.0, 1.0, 2.0, 3.0, 4.0, 700.0, -1.0]])
    found = interquartile_mean(values, seed=0, num_resamples=500)
    np.testing.assert_allclose(found.mean[0], stats.trim_mean(values[0], 0.25))
    assert found.low[0] < 2.5 < found.high[0]
    covered = interquartile_mean(samples(NULLS["log-normal"], 20, 1000), seed=0, num_resamples=300)
    truth = BENCHMARK["interquartile_of"](NULLS["log-normal"], num=400_000)
    assert 0.935 <= covers(covered[1:], truth).mean() <= 0.98


def test_probability_of_improvement() -> None:
    differences = np.array([[1.0] * 15 + [-1.0] * 5, [0.0] * 20, [2.0] * 20, [1.0] * 10 + [0.0] * 10])
    found = improvement_probability(differences)
    np.testing.assert_allclose(found.mean, [0.75, 0.5, 1.0, 0.75])
    assert (found.low < found.mean).all()
    assert (found.high[:2] > found.mean[:2]).all()
    assert found.low[2] > 0.75
    np.testing.assert_allclose(improvement_probability(-differences).low, 1.0 - found.high)
    assert found.high[3] - found.low[3] < found.high[0] - found.low[0]  # a tie is half a win for sure
    for num, shift in ((20, 0.0), (20, 1.5), (100, 0.5)):
        found = improvement_probability(np.random.default_rng(0).normal(shift, 1.0, size=(4000, num)))
        assert 0.93 <= covers(found[1:], float(stats.norm.cdf(shift))).mean() <= 0.99

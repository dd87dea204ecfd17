"""Intervals over seeds and tasks: Student's where tasks agree, and their coverage."""

import numpy as np
import pytest
from scipy import stats

from metastep import InputError
from paper.seeds import hierarchical_interval


def test_an_interval_over_seeds_is_students_where_tasks_agree() -> None:
    means = np.array([1.0, 2.5, 1.7, 2.2])
    mean, low, high = hierarchical_interval(np.repeat(means[:, None], 10, axis=1), num_resamples=200_000)
    expected = stats.t.interval(0.95, 3, means.mean(), stats.sem(means))
    assert mean == pytest.approx(means.mean())
    np.testing.assert_allclose((low, high), expected, atol=0.03)
    with pytest.raises(InputError, match="needs 2 seeds or more"):
        hierarchical_interval(means[None])


@pytest.mark.parametrize("ratio", [0.0, 4.0])
def test_intervals_over_seeds_cover(ratio: float) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(300, 3, 50)) + rng.normal(size=(300, 3, 1)) * np.sqrt(ratio / 50)
    ends = np.array([hierarchical_interval(each, num_resamples=400)[1:] for each in values])
    assert 0.91 <= np.mean((ends[:, 0] <= 0.0) & (ends[:, 1] >= 0.0)) <= 0.99

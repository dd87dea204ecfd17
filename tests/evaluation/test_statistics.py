import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.evaluation import Comparison, MethodRecord, differences, metric_values, oracle_scores, summary
from metastep.evaluation.intervals import holm
from metastep.report.tables import differences_table


def make_comparison(returns: np.ndarray, names: tuple[str, ...], yardsticks: tuple[str, ...] = ()) -> Comparison:
    """From curves (methods, tasks, updates + 1)."""
    num_methods, num_tasks, num_observations = returns.shape
    return Comparison(
        methods=tuple(MethodRecord(name, name, "", "nga", "fixed", {}, name in yardsticks) for name in names),
        context_names=("x",),
        context=np.zeros((num_tasks, 1), np.float32),
        returns=returns.astype(np.float32),
        hyperparameters=np.zeros((num_methods, num_tasks, num_observations - 1, 1), np.float32),
        direction=np.zeros((num_methods, num_tasks, num_observations - 1), np.int8),
        flagged=np.zeros(returns.shape, np.bool_),
        num_steps=np.zeros((num_methods, num_tasks)),
        theta=np.zeros((num_methods, num_tasks, 1), np.float32),
    )


def simulated(shifts: tuple[float, ...], num_tasks: int, seed: int = 0, noise: float = 1.0) -> np.ndarray:
    """Curves with large differences between tasks, shared by all methods, and a shift of each method."""
    rng = np.random.default_rng(seed)
    tasks = 10.0 * rng.normal(size=(1, num_tasks, 1))
    return tasks + np.asarray(shifts)[:, None, None] + noise * rng.normal(size=(len(shifts), num_tasks, 5))


def test_pairing_finds_small_differences_between_very_different_tasks() -> None:
    comparison = make_comparison(simulated((0.0, 0.5, -0.5, 0.0), 100), ("a", "b", "c", "d"))
    found = {row.baseline: row for row in differences(comparison, "a")}
    assert [found[name].verdict for name in "bcd"] == ["worse", "better", "not distinguishable"]
    for name, shift in (("b", -0.5), ("c", 0.5), ("d", 0.0)):
        assert abs(found[name].mean - shift) < 0.25
        assert found[name].num_tasks == 100
        assert found[name].high - found[name].low < 0.6  # the tasks themselves differ by 10


def test_differences_are_antisymmetric_and_seeded() -> None:
    comparison = make_comparison(simulated((0.0, 0.3), 40), ("a", "b"))
    (forward,), (backward,) = (differences(comparison, name, seed=3) for name in "ab")
    np.testing.assert_allclose(forward[3:6], [-backward.mean, -backward.high, -backward.low])
    assert forward.p_value == backward.p_value
    assert differences(comparison, "a", seed=3) == (forward,)
    other = differences(comparison, "a", seed=4)[0]
    assert other._replace(p_value=forward.p_value, p_holm=forward.p_holm) == forward  # only sign flips are drawn


def test_metrics() -> None:
    comparison = make_comparison(np.array([[[9.0, 1.0, 2.0, 6.0]], [[9.0, 3.0, 3.0, 3.0]]]), ("a", "b"))
    np.testing.assert_array_equal(metric_values(comparison, "auc"), [[3.0], [3.0]])  # the first batch does not count
    np.testing.assert_array_equal(metric_values(comparison, "final"), [[6.0], [3.0]])
    with pytest.raises(InputError, match="metric"):
        metric_values(comparison, "best")  # type: ignore[arg-type]


def test_a_diverged_return_counts_as_the_worst_of_its_task() -> None:
    curves = np.array([[[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]], [[1.0, -4.0, 5.0], [1.0, -9.0, 5.0]]])
    comparison = make_comparison(curves, ("a", "b"))
    np.testing.assert_array_equal(metric_values(comparison, "final"), [[-4.0, 3.0], [5.0, 5.0]])
    assert comparison.num_diverged() == {"a": 1, "b": 0}
    with pytest.raises(InputError, match="no finite return"):
        metric_values(make_comparison(np.full((1, 2, 3), np.nan), ("a",)), "auc")


def test_a_verdict_between_two_methods_does_not_depend_on_a_third() -> None:
    """A third method that ends far below the others must not make a diverged task count as that bad."""
    curves = simulated((0.0, 0.3, 0.0), 40)
    curves[0, 3, 2:] = np.nan
    curves[2] -= 1000.0
    three = make_comparison(curves, ("a", "b", "terrible"))
    two = make_comparison(curves[:2], ("a", "b"))
    for metric in ("auc", "final"):
        assert differences(three, "a", ["b"], metric=metric) == differences(two, "a", ["b"], metric=metric)
    assert metric_values(three, "final")[0, 3] < -900.0


def test_all_pairs_are_one_family_without_yardsticks_unless_they_are_named() -> None:
    comparison = make_comparison(simulated((0.0, 0.5, 0.0, 9.0), 60), ("a", "b", "c", "oracle"), yardsticks=("oracle",))
    rows = differences(comparison, metric="final", seed=3)
    assert [(row.target, row.baseline) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {row.metric for row in rows} == {"final"}
    np.testing.assert_allclose([row.p_holm for row in rows], holm(np.array([row.p_value for row in rows])))
    alone = differences(comparison, "a", ["b"], metric="final", seed=3)[0]
    np.testing.assert_allclose(rows[0][3:7], alone[3:7], rtol=1e-12)
    assert [row.baseline for row in differences(comparison, "a")] == ["b", "c"]
    assert [row.baseline for row in differences(comparison, "a", ["oracle"])] == ["oracle"]
    one = make_comparison(simulated((0.0,), 20), ("a",))
    assert differences(one) == differences(one, "a") == ()


def test_few_tasks_that_differ_are_noted_beside_the_interval() -> None:
    curves = np.repeat(simulated((0.0,), 40), 2, axis=0)
    curves[0, :3] += 1.0
    (row,) = differences(make_comparison(curves, ("a", "b")), "a")
    assert row.num_differing == 3
    assert row.note == "only 3 of 40 tasks differ"
    table = differences_table(make_comparison(curves, ("a", "b")), "a", [row])
    assert table.rows[0][1].endswith("(only 3 of 40 tasks differ)")
    curves[0, :4] += 1.0
    assert differences(make_comparison(curves, ("a", "b")), "a")[0].note == ""


def test_identical_methods_are_not_distinguishable_and_one_task_is_refused() -> None:
    curves = simulated((0.0,), 30)
    (row,) = differences(make_comparison(np.concatenate([curves, curves]), ("a", "b")), "a")
    assert (row.mean, row.low, row.high, row.p_value, row.verdict) == (0.0, 0.0, 0.0, 1.0, "not distinguishable")
    with pytest.raises(InputError, match="at least 2"):
        differences(make_comparison(simulated((0.0, 1.0), 1), ("a", "b")), "a")


def test_oracle_scores_measure_the_way_from_fixed_to_oracle() -> None:
    returns = simulated((0.0, 2.0, 1.0, -1.0), 100, noise=0.3)
    comparison = make_comparison(returns, ("fixed", "oracle", "half", "worse"), ("oracle",))
    scores = {row.method: row for row in oracle_scores(comparison)}
    assert (scores["fixed"].score, scores["oracle"].score) == (0.0, 100.0)
    assert (scores["fixed"].low, scores["oracle"].high) == (0.0, 100.0)
    assert scores["half"].low < scores["half"].score < scores["half"].high
    assert abs(scores["half"].score - 50.0) < 4.0
    assert scores["half"].high - scores["half"].low < 10.0
    assert scores["worse"].high < 0.0
    equal = make_comparison(simulated((0.0, 0.0, 1.0), 20), ("fixed", "oracle", "a"))
    assert all(np.isnan(row.score) for row in oracle_scores(equal))  # the oracle must be better


def test_summary_has_a_row_a_method() -> None:
    first, second = summary(make_comparison(simulated((0.0, 5.0), 50), ("a", "b")))
    assert (first.method, second.method) == ("a", "b")
    for row in (first, second):
        assert row.auc.low < row.auc.mean < row.auc.high
        assert row.final.low < row.final.mean < row.final.high
        assert (row.num_diverged, row.num_flagged) == (0, 0)
    np.testing.assert_allclose(second.auc.mean - first.auc.mean, 5.0, atol=0.5)

"""Paired statistics of a comparison: differences with intervals and tests (`intervals` has them), oracle scores, summaries."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.logs import to_csv
from metastep.evaluation import intervals
from metastep.evaluation.comparison import Comparison
from metastep.evaluation.intervals import Interval, Verdict

Metric = Literal["auc", "final"]


class Difference(NamedTuple):
    """How much better `target` is than `baseline` on the same tasks."""

    target: str
    baseline: str
    metric: Metric
    mean: float
    low: float
    high: float
    p_value: float
    p_holm: float  # corrected by Holm for all comparisons of one call
    verdict: Verdict  # from the p-value of this pair alone, so that it is the same in every table
    probability: float  # of improvement: the share of tasks on which the target is better, ties counting half
    probability_low: float
    probability_high: float
    num_tasks: int
    num_differing: int  # tasks on which the two methods differ at all

    @property
    def note(self) -> str:
        """A note beside the interval if fewer than 1 in 10 tasks differ, because then no interval is reliable."""
        few = 10 * self.num_differing < self.num_tasks
        return f"only {self.num_differing} of {self.num_tasks} tasks differ" if few else ""


class OracleScore(NamedTuple):
    """100 (m - fixed) / (oracle - fixed) of the mean areas under the curve, in percent."""

    method: str
    score: float  # NaN where the oracle is not significantly better than the fixed step: the scale has no length
    low: float
    high: float


class Summary(NamedTuple):
    """One row of the results table."""

    method: str
    auc: Interval
    auc_middle: Interval  # interquartile mean
    final: Interval
    num_diverged: int
    num_flagged: int


def filled_returns(comparison: Comparison, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Return the curves of the named methods (all by default) with every return finite: (methods, tasks, updates + 1).

    A return that is not finite counts as the worst finite one of these methods on that task: dropping it would reward
    divergence. Other methods do not matter, so that the result for a pair does not depend on them.
    """
    chosen = [comparison.index(name) for name in (comparison.names if names is None else names)]
    returns = comparison.returns[chosen].astype(np.float64)
    finite = np.isfinite(returns)
    if not finite.any(axis=(0, 2)).all():
        raise InputError("comparison: a task has no finite return of any method.")
    worst = np.where(finite, returns, np.inf).min(axis=(0, 2))  # (tasks,)
    return np.where(finite, returns, worst[:, None])


def metric_values(comparison: Comparison, metric: Metric, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    """Return the area under the curve (mean return over updates 1..T) or the final return of `filled_returns`."""
    if metric not in get_args(Metric):
        raise InputError(f"metric: {metric!r} must be one of {', '.join(get_args(Metric))}.")
    filled = filled_returns(comparison, names)
    return filled[:, :, 1:].mean(axis=2) if metric == "auc" else filled[:, :, -1]


def differences(
    comparison: Comparison,
    target: str | None = None,
    baselines: Sequence[str] | None = None,
    *,
    metric: Metric = "auc",
    seed: int = 0,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> tuple[Difference, ...]:
    """Compare the target with every baseline, as one family; without a target, every pair of methods.

    Yardsticks take part only where they are named. The last three arguments are those of `paired_test`.
    """
    contenders = [record.name for record in comparison.methods if not record.is_yardstick]
    if target is None:
        pairs = list(combinations(contenders, 2))
    else:
        others = [name for name in contenders if name != target] if baselines is None else baselines
        pairs = [(target, name) for name in others]
    if not pairs:
        return ()
    values = np.stack([metric_values(comparison, metric, pair) for pair in pairs])  # (pairs, 2, tasks)
    apart = values[:, 0] - values[:, 1]
    test = intervals.paired_test(apart, seed=seed, num_resamples=num_resamples, confidence=confidence)
    numbers = (*test, intervals.holm(test[-1]), *intervals.improvement_probability(apart, confidence=confidence))
    rows = []
    for pair, by_task, row in zip(pairs, apart, np.transpose(numbers).tolist(), strict=True):
        mean, low, high, p_value, p_holm, *improved = row
        verdict = intervals.verdict(low, high, p_value, confidence)
        counts = comparison.num_tasks, int((by_task != 0.0).sum())
        facts: Any = (*pair, metric, mean, low, high, p_value, p_holm, verdict, *improved, *counts)
        rows.append(Difference(*facts))
    return tuple(rows)


def differences_to_csv(rows: Iterable[Difference], path: str | Path) -> None:
    """Write paired differences as CSV, with a row for every pair of methods and metric."""
    storage.write_atomically(path, to_csv([Difference._fields, *rows]).encode())


def oracle_scores(
    comparison: Comparison, *, fixed: str = "fixed", oracle: str = "oracle", **settings: Any
) -> tuple[OracleScore, ...]:
    """Score methods between the fixed step (0 %) and the greedy oracle (100 %); `settings` are those of `differences`."""
    if differences(comparison, oracle, [fixed], **settings)[0].low <= 0.0:
        return tuple(OracleScore(name, np.nan, np.nan, np.nan) for name in comparison.names)

    def share(method: NDArray[Any], start: NDArray[Any], end: NDArray[Any], axis: int = -1) -> NDArray[Any]:
        start_mean = np.mean(start, axis=axis)
        return 100.0 * (np.mean(method, axis=axis) - start_mean) / (np.mean(end, axis=axis) - start_mean)

    scores = []
    for name in comparison.names:
        values = metric_values(comparison, "auc", (name, fixed, oracle))
        low, high = intervals.bootstrap_interval(tuple(values), share, **({"seed": 0} | settings))
        scores.append(OracleScore(name, float(share(*values)), float(low), float(high)))
    return tuple(scores)


def summary(
    comparison: Comparison, *, seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> tuple[Summary, ...]:
    """Summarise every method: area under the curve and final return with intervals, and diverged and flagged tasks."""
    values = [metric_values(comparison, metric) for metric in get_args(Metric)]
    auc, final = ((each.mean(axis=1), *intervals.mean_interval(each, confidence=confidence)) for each in values)
    middle = intervals.interquartile_mean(values[0], seed=seed, num_resamples=num_resamples, confidence=confidence)
    columns = ([Interval(*map(float, row)) for row in zip(*each, strict=True)] for each in (auc, middle, final))
    counts = comparison.num_diverged().values(), comparison.num_flagged().values()
    return tuple(Summary(*row) for row in zip(comparison.names, *columns, *counts, strict=True))

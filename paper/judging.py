"""Judge facts: from learning curves on the same tasks to holds, does not hold, or not distinguishable.

A judge is a function of what was measured and of the arguments beside it in the list of facts. It finds methods by their names in
a comparison: `metafqi` and its iterations `N=1`, `N=2`, ..., the tuned baselines, every fixed step as `h = 0.5`, and variants
such as `without context`. Where one of them was not measured, the judge raises `NotMeasured`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metastep.evaluation import Comparison, TuningTable
from metastep.evaluation.intervals import paired_test, verdict
from metastep.evaluation.statistics import filled_returns
from paper.outcome import Effect, Outcome, Rule, Verdict, better, together

MARGIN = 0.1
"""A difference is small, and two methods are alike, below this share of what learning gains."""
_NUM_FLIPS = 2000

Floats = NDArray[np.float64]
Place = Literal["comparison", "longer", "one_task", "states"]


class NotMeasured(Exception):
    """A method or table that a judge needs is missing."""


class Measured(NamedTuple):
    """The comparisons that facts are judged by; all but the first may be missing."""

    comparison: Comparison  # for as many updates as the paper compares
    longer: Comparison | None = None  # the same learners for several times as many
    one_task: Comparison | None = None  # data, tuning and test in one task
    states: Comparison | None = None  # forests of several random states: `double-0`, `single-0`, ...

    def at(self, place: Place) -> Comparison:
        """Return one of the comparisons, which must be there."""
        comparison = getattr(self, place)
        if not isinstance(comparison, Comparison):
            raise NotMeasured(place)
        return comparison


Judge = Callable[..., Outcome]
"""From what was measured and further arguments to an outcome without environment and claim."""


def curves_of(comparison: Comparison, *names: str) -> Floats:
    """Return the curves of some methods, all returns finite: (methods, tasks, updates + 1)."""
    for name in names:
        if name not in comparison.names:
            raise NotMeasured(name)
    return filled_returns(comparison, names)


def _table(comparison: Comparison, method: str) -> TuningTable:
    for table in comparison.tuning:
        if table.method == method:
            return table
    raise NotMeasured(f"tuning of {method}")


def fixed_steps(comparison: Comparison) -> dict[float, str]:
    """Return the fixed steps in a comparison and their names, from small to large."""
    steps = {float(name.removeprefix("h = ")): name for name in comparison.names if name.startswith("h = ")}
    if not steps:
        raise NotMeasured("fixed steps")
    return dict(sorted(steps.items()))


def areas(curves: Floats) -> Floats:
    """Return the mean return over the updates of curves (..., updates + 1)."""
    return np.asarray(curves[..., 1:].mean(axis=-1))


def gain_of(curve: Floats) -> float:
    """Return what learning gains: (tasks, updates + 1) to one number."""
    return max(float((areas(curve) - curve[:, 0]).mean()), 0.0)


def found(
    rule: Rule, values: Floats, quantity: str, detail: str = "", counted: str = "tasks", margin: float = 0.0
) -> Outcome:
    """Judge the mean of a number for each task by a rule about its effect."""
    test = paired_test(values[None, :], seed=0, num_resamples=_NUM_FLIPS)
    mean, low, high, p_value = (float(array[0]) for array in test)
    judged = rule(Effect(mean, low, high, verdict(low, high, p_value, 0.95)), margin)
    return Outcome(
        "", "", quantity, mean, low, high, len(values), counted, judged, detail, rule=rule.__name__, margin=margin
    )


def small(rule: Rule, values: Floats, gained: float, quantity: str, of: str) -> Outcome:
    """Judge the mean of a number for each task against the margin, a share of what was gained."""
    margin = MARGIN * gained
    limit = f"the limit is {MARGIN:.0%} of {of}, {margin:.3g}"
    return found(rule, values, quantity, limit, margin=margin)


def beats(measured: Measured, target: str, baseline: str, place: Place = "comparison") -> Outcome:
    """Judge that the target has the larger area under the curve."""
    first, second = areas(curves_of(measured.at(place), target, baseline))
    counted = "first policies" if place == "one_task" else "tasks"
    return found(better, first - second, f"{target} minus {baseline}: difference in AUC", counted=counted)


def beats_fixed(measured: Measured, low: float = 0.0, high: float = np.inf, at_the_end: bool = False) -> Outcome:
    """Judge that metaFQI is better than each fixed step in a range, in area under the curve or after the last update."""
    rows = []
    for step, name in fixed_steps(measured.comparison).items():
        if low <= step <= high:
            curves = curves_of(measured.comparison, "metafqi", name)
            ours, fixed = curves[:, :, -1] if at_the_end else areas(curves)
            kind = "final return" if at_the_end else "AUC"
            rows.append(found(better, ours - fixed, f"difference in {kind} to the hardest, {name}"))
    if not rows:
        raise NotMeasured(f"fixed steps in [{low:g}, {high:g}]")
    deciding = min(decisive(rows), key=lambda row: row.effect)
    return deciding._replace(detail=f"better than {sum(row.verdict == 'holds' for row in rows)} of {len(rows)}")


def decisive(rows: list[Outcome]) -> list[Outcome]:
    """Return the outcomes that decide a claim about all of them: those of the common verdict, which no rule gave alone."""
    overall = together([row.verdict for row in rows])
    return [row._replace(rule="") for row in rows if row.verdict == overall]


def differ(measured: Measured, rule: Rule, target: str, baseline: str, gains: str) -> Outcome:
    """Judge that the target differs from the baseline by no more than a rule allows, given the gain of a method."""
    first, second, gaining = curves_of(measured.comparison, target, baseline, gains)
    quantity = f"{target} minus {baseline}: difference in AUC"
    return small(rule, areas(first) - areas(second), gain_of(gaining), quantity, f"the gain of {gains}")


def tuned_near(measured: Measured, method: str, parameter: str, paper: float, place: Place = "comparison") -> Outcome:
    """Judge that the grid search ends within one grid step of the paper's value.

    Farther away it is refuted only if the paper's value does clearly worse on the tuning tasks.
    """
    table = _table(measured.at(place), method)
    column = table.points[:, table.parameters.index(parameter)]
    grid = np.unique(column)
    nearest = int(np.argmin(np.abs(np.log(grid) - np.log(paper))))
    apart = int(np.searchsorted(grid, table.chosen[parameter])) - nearest
    there = int(np.argmax(np.where(np.isclose(column, grid[nearest]), table.mean, -np.inf)))
    cost, error = _cost(table, np.array([there]))
    is_clear = cost > 2.0 * error
    judged: Verdict = "holds" if abs(apart) <= 1 else "does not hold" if is_clear else "not distinguishable"
    detail = f"tuned {table.chosen[parameter]:g}, the paper's {paper:g} costs {cost:.3g} on the tuning tasks"
    quantity = "grid steps from the paper's value"
    return Outcome("", "", quantity, float(apart), None, None, table.num_tasks, "tuning tasks", judged, detail)


def depends_on_first(measured: Measured, method: str, strong: str, weak: str) -> Outcome:
    """Judge that a step on the grid away from the tuned value costs more for one parameter than for the other.

    Grids of two parameters reach differently far, so that ranges over them could not be compared.
    """
    table = _table(measured.comparison, method)
    (first, first_error), (second, second_error) = (_cost_of_a_step(table, name) for name in (strong, weak))
    effect = first - second
    is_clear = abs(effect) > 2.0 * float(np.hypot(first_error, second_error))
    judged: Verdict = "not distinguishable" if not is_clear else "holds" if effect > 0.0 else "does not hold"
    quantity = f"what a grid step away from the tuned value costs, {strong} minus {weak}"
    detail = f"{strong} {first:.3g}, {weak} {second:.3g}"
    return Outcome("", "", quantity, effect, None, None, table.num_tasks, "tuning tasks", judged, detail)


def _cost_of_a_step(table: TuningTable, parameter: str) -> tuple[float, float]:
    """Return the mean score that the neighbours of the tuned value lose, all else as tuned, and their standard error."""
    column = table.parameters.index(parameter)
    grid = np.unique(table.points[:, column])
    place = int(np.searchsorted(grid, table.points[table.best, column]))
    near = [grid[index] for index in (place - 1, place + 1) if 0 <= index < len(grid)]
    others = np.delete(table.points, column, axis=1)
    is_row = np.isclose(others, others[table.best]).all(axis=1)
    row = is_row & np.isin(table.points[:, column], near) & np.isfinite(table.mean)
    if not row.any():
        raise NotMeasured(f"neighbours of the tuned {parameter}")
    return _cost(table, np.flatnonzero(row))


def _cost(table: TuningTable, others: NDArray[np.int64]) -> tuple[float, float]:
    """Return how much worse other points are than the best one, on average over them, and its standard error.

    Over tasks, which all points share; where a file does not have the scores of tasks, as if points did not share them.
    """
    cost = float(table.mean[table.best] - table.mean[others].mean())
    if not table.scores.size:
        return cost, float(np.hypot(table.standard_error[table.best], table.standard_error[others].mean()))
    return cost, float(stats.sem(table.scores[table.best] - table.scores[others].mean(axis=0)))

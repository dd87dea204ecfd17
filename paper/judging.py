"""How a fact is judged: from learning curves on the same tasks to holds, does not hold, or cannot be told.

A judge is a function of what was measured. It takes methods by their names in a comparison: `metafqi` and its iterations `N=1`,
`N=2`, ..., the tuned baselines, every fixed step as `h = 0.5`, and variants such as `without context`. Where one of them was
not measured, the judge raises `NotMeasured`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.evaluation import Comparison, TuningTable, filled_returns
from metastep.evaluation.intervals import paired_test, verdict
from paper.outcome import Effect, Verdict, at_most, better, no_better, together, within

MARGIN = 0.1
"""A difference is small, and two methods are alike, below this share of what learning gains."""
_NUM_FLIPS = 2000

Floats = NDArray[np.float64]
Place = Literal["comparison", "longer", "one_task", "states"]


class NotMeasured(Exception):
    """A method or table that a judge needs is not there."""


class Measured(NamedTuple):
    """What facts are judged by; everything but the first may be missing."""

    comparison: Comparison  # for as many updates as the paper compares
    longer: Comparison | None = None  # the same learners for several times as many
    one_task: Comparison | None = None  # data, tuning and test in the same one task
    states: Comparison | None = None  # forests of several random states: `double-0`, `single-0`, ...


class Found(NamedTuple):
    """A verdict, and the number that it rests on with its 95 % interval."""

    verdict: Verdict
    quantity: str
    effect: float
    low: float | None
    high: float | None
    num: int
    counted: str = "tasks"
    detail: str = ""


Judge = Callable[[Measured], Found]


def place_of(measured: Measured, place: Place) -> Comparison:
    """One of the comparisons that were measured."""
    comparison = getattr(measured, place)
    if not isinstance(comparison, Comparison):
        raise NotMeasured(place)
    return comparison


def curves_of(comparison: Comparison, *names: str) -> Floats:
    """Curves of some methods, all returns finite: (methods, tasks, updates + 1)."""
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
    """The fixed steps in a comparison and their names, from small to large."""
    found = {float(name.removeprefix("h = ")): name for name in comparison.names if name.startswith("h = ")}
    if not found:
        raise NotMeasured("fixed steps")
    return dict(sorted(found.items()))


def effect_of(values: Floats) -> Effect:
    """The mean of a number for each task, with its interval and whether it differs from 0."""
    test = paired_test(values[None, :], seed=0, num_resamples=_NUM_FLIPS)
    mean, low, high, p_value = (float(array[0]) for array in test)
    return Effect(mean, low, high, verdict(low, high, p_value, 0.95))


def areas(curves: Floats) -> Floats:
    """The mean return over the updates of curves (..., updates + 1)."""
    return np.asarray(curves[..., 1:].mean(axis=-1))


def gain_of(curve: Floats) -> float:
    """What learning gains: (tasks, updates + 1) to one number."""
    return max(float((areas(curve) - curve[:, 0]).mean()), 0.0)


def found(judged: Verdict, effect: Effect, quantity: str, values: Floats, detail: str = "") -> Found:
    """A verdict with the effect behind it; `values` has a number for each task."""
    return Found(judged, quantity, effect.mean, effect.low, effect.high, len(values), detail=detail)


def beats(target: str, baseline: str, place: Place = "comparison") -> Judge:
    """The target has the larger area under the curve."""

    def judge(measured: Measured) -> Found:
        curves = curves_of(place_of(measured, place), target, baseline)
        values = areas(curves[0]) - areas(curves[1])
        effect = effect_of(values)
        judged = found(better(effect), effect, f"{target} minus {baseline}: difference in AUC", values)
        return judged._replace(counted="first policies") if place == "one_task" else judged

    return judge


def beats_fixed(low: float = 0.0, high: float = np.inf, *, at_the_end: bool = False) -> Judge:
    """metaFQI is better than each fixed step in a range, in area under the curve or after the last update."""

    def judge(measured: Measured) -> Found:
        comparison = measured.comparison
        rows: list[tuple[Verdict, Effect, Floats, str]] = []
        for step, name in fixed_steps(comparison).items():
            if low <= step <= high:
                curves = curves_of(comparison, "metafqi", name)
                values = curves[0, :, -1] - curves[1, :, -1] if at_the_end else areas(curves[0]) - areas(curves[1])
                effect = effect_of(values)
                rows.append((better(effect), effect, values, name))
        if not rows:
            raise NotMeasured(f"fixed steps in [{low:g}, {high:g}]")
        overall = together([row[0] for row in rows])
        deciding = min((row for row in rows if row[0] == overall), key=lambda row: row[1].mean)
        won = sum(row[0] == "holds" for row in rows)
        quantity = f"difference in {'final return' if at_the_end else 'AUC'} to the hardest, {deciding[3]}"
        return found(overall, deciding[1], quantity, deciding[2], f"better than {won} of {len(rows)}")

    return judge


def _small(
    rule: Callable[[Effect, float], Verdict], target: str, baseline: str, gains: str, place: Place = "comparison"
) -> Judge:
    def judge(measured: Measured) -> Found:
        curves = curves_of(place_of(measured, place), target, baseline, gains)
        values, margin = areas(curves[0]) - areas(curves[1]), MARGIN * gain_of(curves[2])
        effect = effect_of(values)
        limit = f"the limit is {MARGIN:.0%} of the gain of {gains}, {margin:.3g}"
        return found(rule(effect, margin), effect, f"{target} minus {baseline}: difference in AUC", values, limit)

    return judge


def alike(target: str, baseline: str) -> Judge:
    """The two differ by no more than the margin."""
    return _small(within, target, baseline, baseline)


def little_lost(target: str, without: str) -> Judge:
    """The target is no more than the margin better."""
    return _small(at_most, target, without, target)


def is_no_better(target: str, baseline: str) -> Judge:
    """The target is no improvement."""
    return _small(no_better, target, baseline, baseline)


def tuned_near(method: str, parameter: str, paper: float, place: Place = "comparison") -> Judge:
    """The grid search ends within one grid step of the paper's value.

    Farther away it is refuted only if the paper's value does clearly worse on the tuning tasks.
    """

    def judge(measured: Measured) -> Found:
        table = _table(place_of(measured, place), method)
        column = table.points[:, table.parameters.index(parameter)]
        grid = np.unique(column)
        nearest = int(np.argmin(np.abs(np.log(grid) - np.log(paper))))
        apart = int(np.searchsorted(grid, table.chosen[parameter])) - nearest
        there = int(np.argmax(np.where(np.isclose(column, grid[nearest]), table.mean, -np.inf)))
        cost = float(table.mean[table.best] - table.mean[there])
        is_clear = cost > 2.0 * float(np.hypot(table.standard_error[table.best], table.standard_error[there]))
        judged: Verdict = "holds" if abs(apart) <= 1 else "does not hold" if is_clear else "not distinguishable"
        detail = f"tuned {table.chosen[parameter]:g}, the paper's {paper:g} costs {cost:.3g} on the tuning tasks"
        quantity = "grid steps from the paper's value"
        return Found(judged, quantity, float(apart), None, None, table.num_tasks, "tuning tasks", detail)

    return judge


def depends_on_first(method: str, strong: str, weak: str) -> Judge:
    """A step on the grid away from the tuned value costs more for one parameter than for the other.

    Grids of two parameters reach differently far, so that ranges over them could not be compared.
    """

    def judge(measured: Measured) -> Found:
        table = _table(measured.comparison, method)
        (first, first_error), (second, second_error) = (_cost_of_a_step(table, name) for name in (strong, weak))
        effect = first - second
        # The table has no number for each task: errors as if these were not the same for both.
        is_clear = abs(effect) > 2.0 * float(np.hypot(first_error, second_error))
        judged: Verdict = "not distinguishable" if not is_clear else "holds" if effect > 0.0 else "does not hold"
        quantity = f"what a grid step away from the tuned value costs, {strong} minus {weak}"
        detail = f"{strong} {first:.3g}, {weak} {second:.3g}"
        return Found(judged, quantity, effect, None, None, table.num_tasks, "tuning tasks", detail)

    return judge


def _cost_of_a_step(table: TuningTable, parameter: str) -> tuple[float, float]:
    """The mean score that the neighbours of the tuned value lose, all else as tuned, and their standard error."""
    column = table.parameters.index(parameter)
    grid = np.unique(table.points[:, column])
    place = int(np.searchsorted(grid, table.points[table.best, column]))
    near = [grid[index] for index in (place - 1, place + 1) if 0 <= index < len(grid)]
    others = np.delete(table.points, column, axis=1)
    alike = np.isclose(others, others[table.best]).all(axis=1)
    row = alike & np.isin(table.points[:, column], near) & np.isfinite(table.mean)
    if not row.any():
        raise NotMeasured(f"neighbours of the tuned {parameter}")
    return float(table.mean[table.best] - table.mean[row].mean()), float(table.standard_error[row].mean())

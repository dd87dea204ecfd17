"""Judge facts about the course of learning: chosen step sizes, FQI iterations, convergence, random states."""

from collections.abc import Sequence

import numpy as np

from metastep.evaluation import Comparison
from metastep.evaluation.intervals import mean_interval
from paper.judging import (
    MARGIN,
    Floats,
    Measured,
    NotMeasured,
    Place,
    areas,
    beats,
    curves_of,
    decisive,
    differ,
    fixed_steps,
    found,
    gain_of,
    small,
)
from paper.outcome import Outcome, Rule, Verdict, at_most, better, more_than, within
from paper.robust import standard_deviation


def _steps(comparison: Comparison, name: str, more_than: int = 0) -> Floats:
    """Return the step sizes that a method chose, (tasks, updates), of which there must be more than a number."""
    curves_of(comparison, name)  # it must be there
    steps = comparison.hyperparameters[comparison.index(name), :, :, 0].astype(np.float64)
    if steps.shape[1] <= more_than:
        raise NotMeasured(f"more than {more_than} updates")
    return steps


def steps_within(measured: Measured, low: float, high: float, after: int = 0, place: Place = "comparison") -> Outcome:
    """Judge that the mean step that metaFQI chooses after a number of updates lies in a range."""
    values = _steps(measured.at(place), "metafqi", after)[:, after:].mean(axis=1)
    first, last = (float(end[0]) for end in mean_interval(values[None]))
    inside, outside = low <= first and last <= high, last < low or first > high
    judged: Verdict = "holds" if inside else "does not hold" if outside else "not distinguishable"
    mean = float(values.mean())
    return Outcome("", "", "mean chosen step size", mean, first, last, len(values), "tasks", judged)


def first_steps_larger(measured: Measured, num: int) -> Outcome:
    """Judge that metaFQI's first steps are larger than the later ones."""
    steps = _steps(measured.comparison, "metafqi", num)
    values = steps[:, :num].mean(axis=1) - steps[:, num:].mean(axis=1)
    return found(better, values, f"mean of the first {num} step sizes minus the later ones")


def iterations(comparison: Comparison) -> dict[int, str]:
    """Return the FQI iterations in a comparison."""
    numbers = {int(name.removeprefix("N=")): name for name in comparison.names if name.startswith("N=")}
    if len(numbers) < 2:
        raise NotMeasured("iterations")
    return dict(sorted(numbers.items()))


def _best_validated(comparison: Comparison, among: Sequence[int]) -> str:
    """Return the iteration with the best score on the validation tasks, which the record of its method holds."""
    values = {number: comparison.methods[comparison.index(f"N={number}")].values for number in among}
    return f"N={max(values, key=lambda number: values[number].get('validated', -np.inf))}"


def planning_pays(measured: Measured) -> Outcome:
    """Judge that the best of the later iterations, by validation tasks, beats the first."""
    numbers = list(iterations(measured.comparison))
    return beats(measured, _best_validated(measured.comparison, numbers[1:]), "N=1")


def selected_is(measured: Measured, number: int) -> Outcome:
    """Judge that validation tasks select an iteration; another one refutes it only where it is better on test tasks."""
    numbers = list(iterations(measured.comparison))
    if number not in numbers:
        raise NotMeasured(f"N={number}")
    best, theirs = _best_validated(measured.comparison, numbers), f"N={number}"
    other = beats(measured, best, theirs)
    refuted: Verdict = "does not hold" if other.verdict == "holds" else "not distinguishable"
    # Seeds' verdicts decide: the rule of `other` is about the other iteration.
    return other._replace(detail=f"{best} is selected", verdict="holds" if best == theirs else refuted, rule="")


def last_degrades(measured: Measured) -> Outcome:
    """Judge that the best of the earlier iterations, by validation tasks, beats the last."""
    numbers = list(iterations(measured.comparison))
    return beats(measured, _best_validated(measured.comparison, numbers[:-1]), f"N={numbers[-1]}")


def iterations_alike(measured: Measured) -> Outcome:
    """Judge that every iteration does about as well as the first."""
    rows = [differ(measured, within, name, "N=1", "N=1") for name in list(iterations(measured.comparison).values())[1:]]
    return max(decisive(rows), key=lambda row: abs(row.effect))


def more_cautious_with_n(measured: Measured) -> Outcome:
    """Judge that the last iteration chooses smaller steps than the first."""
    names = list(iterations(measured.comparison).values())
    first, last = (_steps(measured.comparison, name).mean(axis=1) for name in (names[0], names[-1]))
    return found(better, first - last, f"mean step size of N=1 minus that of {names[-1]}")


def greedy_only_at_first(measured: Measured, num: int) -> Outcome:
    """Judge that N = 1 is ahead of the best later iteration, by validation tasks, at first and behind it overall."""
    numbers = list(iterations(measured.comparison))
    later = _best_validated(measured.comparison, numbers[1:])
    greedy, planning = curves_of(measured.comparison, "N=1", later)
    ahead = (greedy - planning)[:, 1 : num + 1].mean(axis=1)
    detail = f"selected on validation tasks: {_best_validated(measured.comparison, numbers)}"
    rows = [
        found(better, ahead, f"return over {num} updates: N=1 minus {later}", detail),
        found(better, areas(planning) - areas(greedy), f"{later} minus N=1: difference in AUC", detail),
    ]
    return decisive(rows)[0]


def high_rates_ahead_at_first(measured: Measured, num: int) -> Outcome:
    """Judge that a fixed step above metaFQI's mean one is ahead of it at first; half of the tasks choose which."""
    mean = float(_steps(measured.comparison, "metafqi").mean())
    larger = [name for step, name in fixed_steps(measured.comparison).items() if step > mean]
    early = curves_of(measured.comparison, "metafqi", *larger)[:, :, 1 : num + 1].mean(axis=2)  # (methods, tasks)
    detail = f"the mean step of metaFQI is {mean:.3g}"
    if not larger:
        quantity, num_tasks = "larger steps than metaFQI's", early.shape[1]
        return Outcome("", "", quantity, 0.0, None, None, num_tasks, "tasks", "does not hold", detail)
    leading = int(np.argmax(early[1:, ::2].mean(axis=1)))
    values = early[1 + leading, 1::2] - early[0, 1::2]
    return found(better, values, f"return over {num} updates: {larger[leading]} minus metafqi", detail)


def _gained_after(comparison: Comparison, name: str, num: int, rule: Rule) -> Outcome:
    """Judge what a method gains after a number of updates against the margin of all that it gains."""
    curve = curves_of(comparison, name)[0]
    if curve.shape[1] <= num + 1:
        raise NotMeasured(f"more than {num} updates")
    last = curve[:, -3:].mean(axis=1)
    gained = max(float((last - curve[:, 0]).mean()), 0.0)
    return small(rule, last - curve[:, num], gained, f"what {name} gains after update {num}", "the final gain")


def converged_after(measured: Measured, num: int) -> Outcome:
    """Judge that metaFQI is within the margin of its last returns after a number of updates."""
    return _gained_after(measured.comparison, "metafqi", num, at_most)


def still_learning_after(measured: Measured, num: int) -> Outcome:
    """Judge that metaFQI, and the fixed step tuned for longer, still gain more than the margin after some updates."""
    return decisive([_gained_after(measured.at("longer"), name, num, more_than) for name in ("metafqi", "fixed")])[0]


def _by_kind(measured: Measured, kind: str) -> Floats:
    """Return the areas under the curve of all random states of a kind of Q, (states, tasks)."""
    comparison = measured.at("states")
    names = [name for name in comparison.names if name.startswith(f"{kind}-")]
    if len(names) < 2:
        raise NotMeasured(f"random states of {kind} Q")
    return areas(curves_of(comparison, *names))


def double_beats_single(measured: Measured) -> Outcome:
    """Judge that double Q learns faster than single Q, averaged over random states."""
    values = _by_kind(measured, "double").mean(axis=0) - _by_kind(measured, "single").mean(axis=0)
    return found(better, values, "double minus single, mean over random states: difference in AUC")


def states_matter_little(measured: Measured) -> Outcome:
    """Judge that the random state moves the mean AUC by no more than the margin; the interval takes the means as normal."""
    means = _by_kind(measured, "double").mean(axis=1)
    spread, margin = standard_deviation(means), MARGIN * gain_of(curves_of(measured.at("states"), "double-0")[0])
    quantity, judged = "standard deviation over random states of the mean AUC", at_most(spread, margin)
    return Outcome("", "", quantity, spread.mean, spread.low, spread.high, len(means), "random states", judged)

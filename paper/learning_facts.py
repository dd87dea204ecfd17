"""Facts about the course of learning: chosen step sizes, FQI iterations, convergence, random states."""

from collections.abc import Callable, Sequence

import numpy as np

from metastep.evaluation import Comparison
from metastep.evaluation.intervals import mean_interval
from paper.judging import (
    MARGIN,
    Floats,
    Found,
    Judge,
    Measured,
    NotMeasured,
    alike,
    areas,
    beats,
    curves_of,
    effect_of,
    fixed_steps,
    found,
    gain_of,
    place_of,
)
from paper.outcome import Effect, Verdict, at_most, better, more_than, together
from paper.robust import standard_deviation


def _steps(comparison: Comparison, name: str, more_than: int = 0) -> Floats:
    """The step sizes that a method chose, (tasks, updates), of which there must be more than so many."""
    curves_of(comparison, name)  # it must be there
    steps = comparison.hyperparameters[comparison.index(name), :, :, 0].astype(np.float64)
    if steps.shape[1] <= more_than:
        raise NotMeasured(f"more than {more_than} updates")
    return steps


def steps_within(low: float, high: float, *, after: int = 0) -> Judge:
    """The mean step that metaFQI chooses after so many updates lies in a range."""

    def judge(measured: Measured) -> Found:
        values = _steps(measured.comparison, "metafqi", after)[:, after:].mean(axis=1)
        mean, (first, last) = float(values.mean()), (float(end[0]) for end in mean_interval(values[None]))
        inside, outside = low <= first and last <= high, last < low or first > high
        judged: Verdict = "holds" if inside else "does not hold" if outside else "not distinguishable"
        return Found(judged, "mean chosen step size", mean, first, last, len(values))

    return judge


def first_steps_larger(num: int) -> Judge:
    """metaFQI's first steps are larger than the later ones."""

    def judge(measured: Measured) -> Found:
        steps = _steps(measured.comparison, "metafqi", num)
        values = steps[:, :num].mean(axis=1) - steps[:, num:].mean(axis=1)
        effect = effect_of(values)
        return found(better(effect), effect, f"mean of the first {num} step sizes minus the later ones", values)

    return judge


def iterations(comparison: Comparison) -> dict[int, str]:
    """The FQI iterations in a comparison."""
    numbers = {int(name.removeprefix("N=")): name for name in comparison.names if name.startswith("N=")}
    if len(numbers) < 2:
        raise NotMeasured("iterations")
    return dict(sorted(numbers.items()))


def _best_validated(comparison: Comparison, among: Sequence[int]) -> str:
    """The iteration with the best score on the validation tasks, which the record of its method holds."""
    scores = {
        number: comparison.methods[comparison.index(f"N={number}")].values.get("validated", -np.inf) for number in among
    }
    return f"N={max(scores, key=lambda number: scores[number])}"


def planning_pays(measured: Measured) -> Found:
    """The best of the later iterations, by validation tasks, beats the first."""
    numbers = list(iterations(measured.comparison))
    return beats(_best_validated(measured.comparison, numbers[1:]), "N=1")(measured)


def last_degrades(measured: Measured) -> Found:
    """The best of the earlier iterations, by validation tasks, beats the last."""
    numbers = list(iterations(measured.comparison))
    return beats(_best_validated(measured.comparison, numbers[:-1]), f"N={numbers[-1]}")(measured)


def iterations_alike(measured: Measured) -> Found:
    """Every iteration does about as well as the first."""
    rows = [alike(name, "N=1")(measured) for name in list(iterations(measured.comparison).values())[1:]]
    overall = together([row.verdict for row in rows])
    return max((row for row in rows if row.verdict == overall), key=lambda row: abs(row.effect))


def more_cautious_with_n(measured: Measured) -> Found:
    """The last iteration chooses smaller steps than the first."""
    names = list(iterations(measured.comparison).values())
    first, last = (_steps(measured.comparison, name).mean(axis=1) for name in (names[0], names[-1]))
    effect = effect_of(first - last)
    return found(better(effect), effect, f"mean step size of N=1 minus that of {names[-1]}", first)


def greedy_only_at_first(num: int) -> Judge:
    """The first iteration is ahead of the best later one, by validation tasks, over its first updates and behind it overall."""

    def judge(measured: Measured) -> Found:
        numbers = list(iterations(measured.comparison))
        later = _best_validated(measured.comparison, numbers[1:])
        greedy, planning = curves_of(measured.comparison, "N=1", later)
        ahead = (greedy - planning)[:, 1 : num + 1].mean(axis=1)
        behind = areas(planning) - areas(greedy)
        detail = f"selected on validation tasks: {_best_validated(measured.comparison, numbers)}"
        rows = [
            found(better(effect), effect, quantity, values, detail)
            for values, quantity in (
                (ahead, f"return over {num} updates: N=1 minus {later}"),
                (behind, f"{later} minus N=1: difference in AUC"),
            )
            for effect in (effect_of(values),)
        ]
        overall = together([row.verdict for row in rows])
        return next(row for row in rows if row.verdict == overall)

    return judge


def high_rates_ahead_at_first(num: int) -> Judge:
    """A fixed step above the mean one of metaFQI is ahead of it over the first updates; half of the tasks choose which."""

    def judge(measured: Measured) -> Found:
        mean = float(_steps(measured.comparison, "metafqi").mean())
        larger = [name for step, name in fixed_steps(measured.comparison).items() if step > mean]
        early = curves_of(measured.comparison, "metafqi", *larger)[:, :, 1 : num + 1].mean(axis=2)  # (methods, tasks)
        detail = f"the mean step of metaFQI is {mean:.3g}"
        if not larger:
            return Found("does not hold", "larger steps than metaFQI's", 0.0, None, None, early.shape[1], detail=detail)
        leading = int(np.argmax(early[1:, ::2].mean(axis=1)))
        values = early[1 + leading, 1::2] - early[0, 1::2]
        effect = effect_of(values)
        return found(
            better(effect), effect, f"return over {num} updates: {larger[leading]} minus metafqi", values, detail
        )

    return judge


def _gained_after(comparison: Comparison, name: str, num: int, rule: Callable[[Effect, float], Verdict]) -> Found:
    """What a method's last returns are above that after so many updates, against the margin of all that it gains."""
    curve = curves_of(comparison, name)[0]
    if curve.shape[1] <= num + 1:
        raise NotMeasured(f"more than {num} updates")
    last = curve[:, -3:].mean(axis=1)
    values, margin = last - curve[:, num], MARGIN * max(float((last - curve[:, 0]).mean()), 0.0)
    effect = effect_of(values)
    limit = f"the limit is {MARGIN:.0%} of the final gain, {margin:.3g}"
    return found(rule(effect, margin), effect, f"what {name} gains after update {num}", values, limit)


def converged_after(num: int) -> Judge:
    """metaFQI is within the margin of its last returns after so many updates."""
    return lambda measured: _gained_after(measured.comparison, "metafqi", num, at_most)


def still_learning_after(num: int) -> Judge:
    """metaFQI, and the fixed step that is best for longer, still gain more than the margin after so many updates."""

    def judge(measured: Measured) -> Found:
        longer = place_of(measured, "longer")
        rows = [_gained_after(longer, name, num, more_than) for name in ("metafqi", "fixed")]
        overall = together([row.verdict for row in rows])
        return next(row for row in rows if row.verdict == overall)

    return judge


def _by_kind(measured: Measured, kind: str) -> Floats:
    """Areas under the curve of all random states of a kind of Q, (states, tasks)."""
    comparison = place_of(measured, "states")
    names = [name for name in comparison.names if name.startswith(f"{kind}-")]
    if len(names) < 2:
        raise NotMeasured(f"random states of {kind} Q")
    return areas(curves_of(comparison, *names))


def double_beats_single(measured: Measured) -> Found:
    """Double Q learns faster than single Q, averaged over random states."""
    values = _by_kind(measured, "double").mean(axis=0) - _by_kind(measured, "single").mean(axis=0)
    effect = effect_of(values)
    return found(better(effect), effect, "double minus single, mean over random states: difference in AUC", values)


def states_matter_little(measured: Measured) -> Found:
    """The random state moves the mean AUC by no more than the margin; the interval takes the means as normal."""
    comparison, areas = place_of(measured, "states"), _by_kind(measured, "double")
    spread = standard_deviation(areas.mean(axis=1))
    margin = MARGIN * gain_of(curves_of(comparison, "double-0")[0])
    quantity = "standard deviation over random states of the mean AUC"
    counted = (len(areas), "random states")
    return Found(at_most(spread, margin), quantity, spread.mean, spread.low, spread.high, *counted)

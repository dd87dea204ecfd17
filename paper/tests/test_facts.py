"""Every kind of fact on synthetic measurements that make it hold, fail, or leave it open."""

import dataclasses

import numpy as np
import pytest

from metastep.evaluation import TuningTable
from metastep.experiments.config import load
from metastep.experiments.stages import method_specs
from paper import judging as by
from paper import learning_facts as learning
from paper.environments import EVERY
from paper.facts import FACTS, facts_of
from paper.judging import Measured
from paper.outcome import at_most, no_better, within
from paper.registry import REGISTRY
from paper.results import overall
from paper.tests.synthetic import comparison_of, curve

NUM_TASKS, NUM_UPDATES = 40, 20
HOLDS, FAILS, OPEN = "holds", "does not hold", "not distinguishable"


def table(method, parameters, scores, error=0.1):
    """A grid search: scores by the values of its points."""
    points = np.array([np.atleast_1d(point) for point in scores], np.float64)
    mean = np.array(list(scores.values()), np.float64)
    num = len(mean)
    return TuningTable(
        method, parameters, points, mean, np.full(num, error), np.zeros(num, np.int64), 20, 0, num_steps=1.0
    )


def between(target, baseline, gains):
    """Two methods with these gains, the second with noise of its own."""
    curves = {target: curve(gains[0], seed=1), baseline: curve(gains[1], noise=gains[2], seed=2)}
    return Measured(comparison_of(curves))


ALIKE, LITTLE_LOST, NO_BETTER = (within, "a", "b", "b"), (at_most, "a", "b", "a"), (no_better, "a", "b", "b")


@pytest.mark.parametrize(
    ("judge", "arguments", "gains", "verdict"),
    [
        (by.beats, ("a", "b"), (2.0, 1.0, 0.1), HOLDS),
        (by.beats, ("a", "b"), (1.0, 2.0, 0.1), FAILS),
        (by.beats, ("a", "b"), (1.0, 1.0, 0.5), OPEN),
        (by.differ, ALIKE, (2.0, 2.0, 0.1), HOLDS),
        (by.differ, ALIKE, (3.0, 2.0, 0.1), FAILS),
        (by.differ, LITTLE_LOST, (2.0, 2.5, 0.1), HOLDS),
        (by.differ, LITTLE_LOST, (2.0, 1.0, 0.1), FAILS),
        (by.differ, NO_BETTER, (1.0, 2.0, 0.1), HOLDS),
        (by.differ, NO_BETTER, (2.1, 2.0, 0.05), FAILS),
        (by.differ, NO_BETTER, (2.0, 2.0, 3.0), OPEN),
    ],
)
def test_pairs(judge, arguments, gains, verdict):
    found = judge(between("a", "b", gains), *arguments)
    assert found.verdict == verdict
    assert found.low < found.effect < found.high
    assert (found.num, found.counted) == (NUM_TASKS, "tasks")


def test_in_one_task_first_policies_are_counted():
    pair = between("a", "b", (2.0, 1.0, 0.1))
    assert by.beats(pair._replace(one_task=pair.comparison), "a", "b", "one_task").counted == "first policies"


@pytest.mark.parametrize(
    ("target", "small", "large", "verdict"), [(2.0, 1.0, 1.5, HOLDS), (2.0, 1.0, 2.5, FAILS), (2.0, 1.0, 2.0, OPEN)]
)
def test_every_fixed_step_must_be_beaten(target, small, large, verdict):
    curves = {"metafqi": curve(target), "h = 0.5": curve(small, seed=1), "h = 2": curve(large, 0.3, seed=2)}
    measured = Measured(comparison_of(curves))
    found = by.beats_fixed(measured)
    assert found.verdict == verdict
    assert "h = 2" in found.quantity
    assert by.beats_fixed(measured, 0.0, 1.0).verdict == HOLDS  # the large one is out of this range
    with pytest.raises(by.NotMeasured):
        by.beats_fixed(measured, 5.0)


def test_fixed_steps_may_be_looked_at_after_the_last_update_alone():
    late = np.concatenate([np.full(NUM_UPDATES - 1, 0.5), [3.0]])
    measured = Measured(comparison_of({"metafqi": curve(2.0), "h = 1": curve(late, seed=1)}))
    assert by.beats_fixed(measured).verdict == HOLDS
    assert by.beats_fixed(measured, at_the_end=True).verdict == FAILS


@pytest.mark.parametrize(
    ("scores", "verdict", "apart"),
    [
        ({0.1: 0.0, 0.3: 5.0, 1.0: 0.0, 3.0: 0.0}, HOLDS, 0.0),
        ({0.1: 0.0, 0.3: 1.0, 1.0: 5.0, 3.0: 0.0}, HOLDS, 1.0),
        ({0.1: 0.0, 0.3: 1.0, 1.0: 2.0, 3.0: 5.0}, FAILS, 2.0),
        ({0.1: 0.0, 0.3: 4.9, 1.0: 2.0, 3.0: 5.0}, OPEN, 2.0),
    ],
)
def test_tuned_values_are_compared_in_grid_steps(scores, verdict, apart):
    measured = Measured(comparison_of({"adam": curve(1.0)}, tuning=[table("adam", ("stepsize",), scores)]))
    found = by.tuned_near(measured, "adam", "stepsize", 0.3)
    assert (found.verdict, found.effect, found.num) == (verdict, apart, 20)
    with pytest.raises(by.NotMeasured):
        by.tuned_near(measured, "adam", "stepsize", 0.3, "longer")


@pytest.mark.parametrize(("noise", "verdict"), [(0.1, FAILS), (9.0, OPEN), (None, OPEN)])
def test_tuned_values_are_compared_on_the_same_tasks(noise, verdict):
    known = table("adam", ("stepsize",), {(0.1,): 0.0, (0.3,): 0.0, (1.0,): 0.0, (3.0,): 1.0}, error=5.0)
    tasks = np.linspace(-40.0, 40.0, 20)  # which differ by far more than points do on each of them
    if noise is not None:
        drawn = noise * np.random.default_rng(0).normal(size=(4, 20))
        known = known._replace(scores=known.mean[:, None] + tasks + drawn)
    measured = Measured(comparison_of({"adam": curve(1.0)}, tuning=[known]))
    assert by.tuned_near(measured, "adam", "stepsize", 0.3).verdict == verdict


def first_matters(scores):
    measured = Measured(comparison_of({"x": curve(1.0)}, tuning=[table("metagrad", ("stepsize", "beta"), scores)]))
    return by.depends_on_first(measured, "metagrad", "stepsize", "beta")


@pytest.mark.parametrize(("first", "beta", "verdict"), [(4.0, 0.5, HOLDS), (0.5, 4.0, FAILS), (1.0, 1.05, OPEN)])
def test_metagrad_depends_on_one_parameter_more(first, beta, verdict):
    scores = {(0.1, 0.1): 0.0, (0.1, 1.0): -beta, (1.0, 0.1): -first, (1.0, 1.0): -first - beta}
    assert first_matters(scores).verdict == verdict


def test_how_far_a_grid_reaches_does_not_decide_what_a_method_depends_on():
    # Beta falls off at the far ends of its grid, whose range is the larger one; near the optimum the step size matters.
    costs = {1e-5: 9.0, 0.01: 0.2, 0.1: 0.0, 1.0: 0.2, 10.0: 9.0}
    scores = {(step, beta): -abs(step - 1.0) * 4.0 - cost for step in (0.5, 1.0, 1.5) for beta, cost in costs.items()}
    found = first_matters(scores)
    assert found.verdict == HOLDS
    assert found.effect == pytest.approx(2.0 - 0.2)
    with pytest.raises(by.NotMeasured):
        first_matters({(0.5, 0.1): 0.0, (1.0, 0.1): 1.0})


def stepping(first, later, noise=0.0):
    moved = noise * np.random.default_rng(3).normal(size=(NUM_TASKS, 1))
    steps = np.concatenate([np.full((NUM_TASKS, 2), first), later + np.tile(moved, NUM_UPDATES - 2)], axis=1)
    return Measured(comparison_of({"metafqi": curve(1.0)}, {"metafqi": steps}))


@pytest.mark.parametrize(
    ("measured", "inside", "larger"),
    [
        (stepping(0.4, 0.1), HOLDS, HOLDS),
        (stepping(0.05, 0.3), FAILS, FAILS),
        (stepping(0.151, 0.151, noise=0.1), OPEN, OPEN),
    ],
)
def test_chosen_steps(measured, inside, larger):
    assert learning.steps_within(measured, 0.05, 0.15, after=2).verdict == inside
    assert learning.first_steps_larger(measured, 2).verdict == larger


def test_steps_are_judged_over_the_updates_of_the_figure():
    measured = stepping(0.4, 0.3)._replace(longer=stepping(0.4, 0.1).comparison)
    assert learning.steps_within(measured, 0.05, 0.15, after=2).verdict == FAILS
    assert learning.steps_within(measured, 0.05, 0.15, 2, "longer").verdict == HOLDS


def planned(*gains, steps=None, noise=0.1):
    names = [f"N={i}" for i in range(1, len(gains) + 1)]
    curves = {name: curve(gain, noise, seed=i) for i, (name, gain) in enumerate(zip(names, gains, strict=True))}
    scores = {name: {"validated": float(np.mean(gain))} for name, gain in zip(names, gains, strict=True)}
    chosen = dict(zip(names, steps, strict=True)) if steps is not None else None
    return Measured(comparison_of(curves, chosen, scores))


@pytest.mark.parametrize(("gains", "verdict"), [((1.0, 2.0), HOLDS), ((2.0, 1.0), FAILS), ((1.001, 1.0), OPEN)])
def test_another_iteration_must_be_better_to_refute_the_papers(gains, verdict):
    outcome = learning.selected_is(planned(*gains), 2)
    assert outcome.verdict == overall([outcome] * 3) == verdict  # over seeds, too
    with pytest.raises(by.NotMeasured):
        learning.selected_is(planned(*gains), 3)


@pytest.mark.parametrize(
    ("measured", "planning", "degrade", "same"),
    [
        (planned(1.0, 2.0, 1.0), HOLDS, HOLDS, FAILS),
        (planned(3.0, 1.0, 4.0), HOLDS, FAILS, FAILS),
        (planned(3.0, 2.0, 1.0), FAILS, HOLDS, FAILS),
        (planned(2.0, 2.0, 2.0), OPEN, OPEN, HOLDS),
        (planned(2.0, 2.0, 2.0, noise=3.0), OPEN, OPEN, OPEN),
    ],
)
def test_iterations(measured, planning, degrade, same):
    assert learning.planning_pays(measured).verdict == planning
    assert learning.last_degrades(measured).verdict == degrade
    assert learning.iterations_alike(measured).verdict == same


def test_the_validation_tasks_choose_the_iteration():
    measured = planned(1.0, 2.0, 3.0)
    methods = [m._replace(values={"validated": -m.values["validated"]}) for m in measured.comparison.methods]
    other = Measured(dataclasses.replace(measured.comparison, methods=tuple(methods)))
    assert "N=3 minus" in learning.planning_pays(measured).quantity
    assert "N=2 minus" in learning.planning_pays(other).quantity


@pytest.mark.parametrize(("steps", "verdict"), [((4.0, 1.0), HOLDS), ((1.0, 4.0), FAILS), ((2.0, 2.0), OPEN)])
def test_steps_of_the_first_and_the_last_iteration(steps, verdict):
    assert learning.more_cautious_with_n(planned(1.0, 1.0, steps=steps)).verdict == verdict


def in_two_parts(early, late):
    """A gain in the first two updates, and another one after them."""
    return np.where(np.arange(NUM_UPDATES) < 2, early, late)


@pytest.mark.parametrize(
    ("greedy", "verdict", "shown"),
    [
        ((3.0, 3.0), HOLDS, "return over 2 updates"),
        ((0.5, 3.0), FAILS, "return over 2 updates"),  # behind from the start
        ((3.0, 7.0), FAILS, "difference in AUC"),  # ahead to the end
        ((1.0, 3.0), OPEN, "return over 2 updates"),
    ],
)
def test_the_greedy_iteration_must_lead_at_first_and_fall_behind(greedy, verdict, shown):
    # The last iteration is poor: the one to compare with is that which validation tasks would select.
    measured = planned(in_two_parts(*greedy), in_two_parts(1.0, 5.0), in_two_parts(0.0, 0.0))
    found = learning.greedy_only_at_first(measured, 2)
    assert found.verdict == verdict
    assert shown in found.quantity
    assert "N=2" in found.quantity
    assert found.detail == f"selected on validation tasks: N={1 if greedy[1] > 5.0 else 2}"


@pytest.mark.parametrize(("early", "verdict"), [(3.0, HOLDS), (0.2, FAILS), (1.0, OPEN)])
def test_high_rates_at_first(early, verdict):
    curves = {
        "metafqi": curve(in_two_parts(1.0, 5.0)),
        "h = 1": curve(9.0, seed=1),  # ahead of metaFQI, but it is no high rate
        "h = 4": curve(in_two_parts(early, 2.0), seed=2),
        "h = 8": curve(0.0, seed=3),
    }
    found = learning.high_rates_ahead_at_first(Measured(comparison_of(curves, {"metafqi": 2.0})), 2)
    assert found.verdict == verdict
    assert found.quantity == "return over 2 updates: h = 4 minus metafqi"
    assert found.num == NUM_TASKS // 2
    none = learning.high_rates_ahead_at_first(Measured(comparison_of(curves, {"metafqi": 9.0})), 2)
    assert (none.verdict, none.low) == (FAILS, None)


def approaching(at_ten, noise=0.0):
    """Gains 10 in the end, and so much of it by update 10."""
    rng = np.random.default_rng(5)
    gains = np.where(np.arange(1, NUM_UPDATES + 1) < 12, at_ten, 10.0)
    found = curve(gains)
    moved = rng.normal(size=NUM_TASKS)
    found[:, 10] += noise * (moved - moved.mean())
    return comparison_of({"metafqi": found, "fixed": found})


@pytest.mark.parametrize(
    ("reached", "converged", "rising"),
    [(approaching(9.9), HOLDS, FAILS), (approaching(5.0), FAILS, HOLDS), (approaching(9.0, noise=4.0), OPEN, OPEN)],
)
def test_convergence(reached, converged, rising):
    assert learning.converged_after(Measured(reached), 10).verdict == converged
    assert learning.still_learning_after(Measured(reached, longer=reached), 10).verdict == rising


@pytest.mark.parametrize(
    ("ours", "fixed", "verdict", "shown"),
    [(5.0, 5.0, HOLDS, "metafqi"), (9.9, 5.0, FAILS, "metafqi"), (5.0, 9.9, FAILS, "fixed")],
)
def test_every_curve_must_still_rise(ours, fixed, verdict, shown):
    curves = {"metafqi": approaching(ours).returns[0], "fixed": approaching(fixed).returns[0]}
    found = learning.still_learning_after(Measured(approaching(9.9), longer=comparison_of(curves)), 10)
    assert (found.verdict, found.quantity) == (verdict, f"what {shown} gains after update 10")


@pytest.mark.parametrize(
    ("double", "single", "noise", "faster"), [(2.0, 1.0, 0.1, HOLDS), (1.0, 2.0, 0.1, FAILS), (2.0, 2.0, 3.0, OPEN)]
)
def test_random_states(double, single, noise, faster):
    curves = {
        f"{kind}-{state}": curve(gain, noise, seed=state + 5 * (kind == "single"))
        for kind, gain in (("double", double), ("single", single))
        for state in range(5)
    }
    measured = Measured(comparison_of({"metafqi": curve(1.0)}), states=comparison_of(curves))
    assert learning.double_beats_single(measured).verdict == faster
    little = learning.states_matter_little(measured)
    assert little.verdict == (HOLDS if noise < 1.0 else OPEN)
    assert little.counted == "random states"
    apart = {f"double-{i}": curve(float(10 * i)) for i in range(5)}
    assert learning.states_matter_little(Measured(measured.comparison, states=comparison_of(apart))).verdict == FAILS


def test_facts_are_about_figures_environments_and_methods_there_are():
    assert len({fact.id for fact in FACTS}) == len(FACTS)
    assert {fact.environment for fact in FACTS} == set(EVERY)
    assert {fact.id.split(".")[0] for fact in FACTS} <= set(REGISTRY)
    nothing = Measured(comparison_of({"x": curve(1.0)}))
    for fact in FACTS:
        assert fact.judged(nothing) is None
        assert fact.statement[0].islower() or fact.statement.startswith(("N = ", "RMSprop", "Adam"))


def test_grids_contain_the_papers_values():
    for fact in FACTS:
        if fact.judge is by.tuned_near:
            method, parameter, paper, *_ = fact.arguments
            grid = method_specs(load(fact.environment, "full"))[method].grid[parameter]
            assert any(np.isclose(value, paper) for value in grid)
    assert {fact.environment for fact in facts_of("swingup")} == {"swingup"}

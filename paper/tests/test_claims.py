"""Claims on numbers whose verdict is known."""

from types import SimpleNamespace

import numpy as np
import pytest

from metastep import InputError
from metastep.evaluation.intervals import mean_interval
from paper.claims import beats_every, gain, paired, small
from paper.columns import handful, shown
from paper.comparisons import final_gain
from paper.iterations import best_validated
from paper.outcome import Effect, Outcome, at_most, better, no_better, together, within
from paper.results import by_claim, claims_table, overall
from paper.robust import spread_difference, standard_deviation
from paper.seeds import hierarchical_interval, summarised_interval
from paper.tests.synthetic import comparison_of, curve, run_of

HOLDS, FAILS, OPEN = "holds", "does not hold", "not distinguishable"


@pytest.fixture
def run():
    return run_of("nav2d")


@pytest.mark.parametrize(
    ("others", "verdict", "hardest"),
    [((1.0, 1.5), HOLDS, "b"), ((1.0, 2.5), FAILS, "b"), ((1.0, 2.0), OPEN, "b"), ((3.0, 1.0), FAILS, "a")],
)
def test_better_than_every_one(run, others, verdict, hardest):
    curves = {name: curve(gained, seed=seed) for seed, (name, gained) in enumerate(zip("ab", others, strict=True))}
    comparison = comparison_of({"metafqi": curve(2.0, seed=2), **curves})
    outcome, rows = beats_every(run, comparison, "metafqi", ["a", "b"], "claim")
    assert (outcome.verdict, outcome.environment, outcome.num) == (verdict, "Nav2D", 40)
    assert outcome.effect == pytest.approx(2.0 - max(others), abs=0.1)
    assert outcome.low < outcome.effect < outcome.high
    assert f"against the hardest, {hardest}" in outcome.detail
    assert {row.baseline for row in rows} == {"a", "b"}
    assert gain(comparison, "metafqi") == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("other", "judge", "verdict"),
    [
        (1.9, within, HOLDS),  # different for certain, but by less than a tenth of the gain
        (1.0, within, FAILS),
        (3.0, at_most, HOLDS),
        (1.9, no_better, FAILS),
    ],
)
def test_small_differences(run, other, judge, verdict):
    comparison = comparison_of({"metafqi": curve(2.0, seed=1), "other": curve(other, seed=2)})
    outcome, _ = small(run, comparison, paired(run, comparison, "metafqi", ["other"]), "claim", judge)
    assert outcome.effect == pytest.approx(2.0 - other, abs=0.1)
    assert outcome.verdict == verdict


def effect(low, high, verdict=None):
    """An effect that differs from 0 where its interval says so."""
    by_interval = "better" if low > 0.0 else "worse" if high < 0.0 else OPEN
    return Effect((low + high) / 2.0, low, high, verdict or by_interval)


def test_judges():
    assert together([HOLDS, HOLDS]) == HOLDS
    assert together([HOLDS, FAILS, OPEN]) == FAILS
    assert together([HOLDS, OPEN]) == together([]) == OPEN
    assert [better(effect(*ends)) for ends in ((1, 2), (-2, -1), (-1, 1))] == [HOLDS, FAILS, OPEN]
    assert [at_most(effect(*ends), 1.0) for ends in ((0, 1), (2, 3), (0, 2))] == [HOLDS, FAILS, OPEN]
    assert [within(effect(*ends), 1.0) for ends in ((-0.5, 1.5), (-3.0, -2.0))] == [OPEN, FAILS]
    assert [no_better(effect(*ends), 1.0) for ends in ((-1.0, 2.0), (-1.0, 0.5))] == [OPEN, HOLDS]
    for judge in (within, at_most, no_better):  # the interval alone would refute it, the corrected p-value does not
        assert judge(effect(2.0, 3.0, OPEN), 1.0) == OPEN


def test_the_effect_shown_is_one_that_decides(run):
    noise = np.random.default_rng(1).normal(scale=5.0, size=(40, 1))
    noisy = curve(2.3, seed=3)
    noisy[:, 1:] += noise - noise.mean()
    comparison = comparison_of({"metafqi": curve(2.0, seed=1), "worse": curve(2.1, seed=2), "noisy": noisy})
    outcome, rows = beats_every(run, comparison, "metafqi", ["worse", "noisy"], "claim")
    assert [row.verdict for row in rows] == ["worse", OPEN]
    assert rows[1].mean < rows[0].mean
    assert (outcome.verdict, outcome.effect) == (FAILS, rows[0].mean)
    assert outcome.high < 0.0


def test_gains_leave_differences_as_they_are(run):
    comparison = comparison_of({"a": curve(2.0, seed=1), "b": curve(1.0, seed=2)})
    assert shown(run, comparison) == (comparison, "mean return", "")
    drawn, quantity, note = shown(run_of("halfcheetah"), comparison)
    assert (quantity, note) == ("mean return gain", "HalfCheetah: gain over the first return.")
    assert (drawn.returns[:, :, 0] == 0.0).all()
    kept, moved = comparison.returns[0] - comparison.returns[1], drawn.returns[0] - drawn.returns[1]
    assert np.allclose(kept, moved, atol=1e-5)


def test_the_final_gain_is_that_of_the_last_tenth():
    returns = np.tile(np.arange(41.0), (2, 1)) + np.array([[0.0], [100.0]])  # 40 updates: the last four are 37 to 40
    assert final_gain(returns).tolist() == [38.5, 38.5]
    assert final_gain(returns[:, :3]).tolist() == [2.0, 2.0]


def seen(seed, verdict, claim="c", *, fact=False, more=""):
    name, command = ("facts" if fact else "fig2"), f"python -m paper reproduce fig2 --seed {seed}{more}"
    return Outcome("Nav2D", claim, "effect", seed, None, None, 9, "tasks", verdict, id=name, command=command)


def test_seeds_stand_side_by_side():
    found = [seen(1, HOLDS, "N = 2"), seen(2, HOLDS, "N = 3"), seen(3, OPEN, "N = 2")]
    (row,) = by_claim(found)  # what a claim names may differ between seeds
    assert overall(row) == HOLDS
    assert claims_table([row]).rows[0][3:6] == ("effect: 1; 2; 3", "3 x 9 tasks", "holds")
    assert overall([*row, seen(4, FAILS)]) == overall([seen(1, HOLDS), seen(2, OPEN)]) == OPEN
    facts = [seen(1, HOLDS, "a", fact=True), seen(2, FAILS, "b", fact=True), seen(2, FAILS, "a", fact=True)]
    assert [[outcome.effect for outcome in row] for row in by_claim(facts)] == [[1, 2], [2]]
    with pytest.raises(InputError, match="fig2 was made with no --set and --set reading=first; write a page for each"):
        by_claim([seen(1, HOLDS), seen(2, HOLDS, more=" --set reading=first")])


def test_effects_of_several_seeds_are_judged_together():
    def row(*effects, rule="better", margin=0.0):
        own = {"rule": rule, "margin": margin}
        return [seen(1, OPEN)._replace(effect=mean, low=mean - 1.0, high=mean + 1.0, **own) for mean in effects]

    assert overall(row(0.9, 0.8, 0.9)) == HOLDS  # none by itself
    assert overall(row(-0.9, -0.8, -0.9)) == FAILS
    assert overall(row(3.0, -3.0, 0.5)) == OPEN  # each by itself is clear, but for the last
    assert overall(row(1.0, 1.1, 0.9, rule="within", margin=2.0)) == HOLDS
    assert overall([one._replace(rule="") for one in row(0.9, 0.8, 0.9)]) == OPEN
    effects = np.random.default_rng(0).normal(size=(3, 400)) + np.array([[0.3], [0.1], [0.2]])
    ends = zip(effects.mean(axis=1), *mean_interval(effects), strict=True)
    assert np.allclose(summarised_interval([*ends]), hierarchical_interval(effects, num_resamples=50_000), atol=0.01)


@pytest.mark.parametrize(
    ("effects", "half", "needed"),
    [
        ((0.2,), 0.4, "about 36 tasks would decide"),
        ((0.73, -0.216, -0.21, 0.643, -0.0338), 0.38, "about 28 seeds would decide"),  # tasks of these would not
        ((0.1, 0.1, 0.1), 0.4, "about 4 seeds would decide"),
        ((3.0, -3.0, 0.5), 1.0, ""),  # two seeds contradict each other
        ((0.5, -0.5, 0.001), 1.0, "1,000 seeds would not decide"),
        ((0.0,), 1.0, ""),
    ],
)
def test_how_many_seeds_would_decide(effects, half, needed):
    row = [seen(1, OPEN)._replace(effect=mean, low=mean - half, high=mean + half) for mean in effects]
    (text,) = (cells[3] for cells in claims_table([row]).rows)
    assert text.endswith(needed or "]")


def test_spread_over_random_states():
    values = np.random.default_rng(0).normal(scale=2.0, size=(2000, 5))
    intervals = np.array([standard_deviation(row)[1:3] for row in values])
    covered = ((intervals[:, 0] <= 2.0) & (intervals[:, 1] >= 2.0)).mean()
    assert covered == pytest.approx(0.95, abs=0.02)


def test_spread_over_tasks():
    base, other = np.random.default_rng(0).normal(size=(2, 60))
    wide = spread_difference(3.0 * base, base, seed=0, num_resamples=1000)
    assert wide.mean == pytest.approx(2.0 * base.std(ddof=1))
    assert wide.verdict == "better"
    assert spread_difference(base, 3.0 * base, seed=0, num_resamples=1000).verdict == "worse"
    assert spread_difference(base, other, seed=0, num_resamples=1000).verdict == OPEN


def test_iterations_are_chosen_by_validation_alone():
    scored = [SimpleNamespace(iteration=i, score=score) for i, score in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.45))]
    model = SimpleNamespace(record=SimpleNamespace(validation=scored))
    assert best_validated(model, range(1, 5)) == 1
    assert best_validated(model, range(2, 5)) == 4
    assert best_validated(model, range(2, 6)) == 4  # 5 diverged on the validation tasks: it has no score


@pytest.mark.parametrize("must", [[0.25], [5.0], [3.0, 6.0], [7.7]])
def test_a_handful_of_steps(must):
    grid = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    chosen = handful(grid, must)
    assert chosen == sorted(chosen)
    assert {*must, 0.25, 8.0} <= {*chosen} <= {*grid, *must}
    assert 3 <= len(chosen) <= 5
    assert handful([1.0, 2.0], [2.0]) == [1.0, 2.0]

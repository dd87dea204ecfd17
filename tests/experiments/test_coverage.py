"""Coverage: distances of test tasks, their price in return, and how far the words may go."""

from pathlib import Path

import numpy as np
import pytest

from metastep import InputError
from metastep.envs import make
from metastep.envs.nav2d import Nav2D
from metastep.experiments import coverage
from metastep.experiments.config import load
from metastep.experiments.coverage import (
    Z_99,
    Difference,
    LipschitzConstant,
    Smoothness,
    coverage_report,
    inspect_coverage,
    known_constant,
    measure_smoothness,
    measured_constant,
    return_differences,
    steepest_of,
)
from metastep.experiments.run import Run
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout

MINIGOLF = Rollout(make("minigolf"), LinearGaussian(1, 1, 0.1), 200, 20, 0.99, "none")
PUTTERS = np.array([[1.0, 0.15], [0.5, 0.1], [-2.0, -1.0]])  # the last one never moves the ball forward


def nav2d(goal_radius: float, sigma: float = 1.001) -> Rollout:
    return Rollout(Nav2D(goal_radius=goal_radius), LinearGaussian(2, 2, sigma), 50, 10, 0.99, "none")


def test_distances_by_hand_priced_by_the_bound() -> None:
    lines = coverage_report(nav2d(0.0), np.zeros(6), [[0.0, 0.0], [1.0, 0.0]], [[0.3, 0.4], [2.0, 0.0], [1.0, 0.0]])
    assert "median 0.5, largest 1 (task 1); training tasks lie 1 apart." in lines[0]
    assert lines[1] == "2 of 3 lie outside the range of the training tasks."
    bound = sum(0.99**t for t in range(10))
    assert lines[2].startswith(f"The bound says: a policy's return changes by at most {bound:.3g} a unit")
    assert f"loses at most {2 * bound:.3g} there" in lines[2]
    train = np.array([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [2.0, 0.0]])  # repeated tasks are not their own neighbours
    assert "training tasks lie 2 apart" in coverage_report(nav2d(0.0), np.zeros(6), train, [[2.1, 0.0]])[0]
    assert "there is one training task" in coverage_report(nav2d(0.0), np.zeros(6), train[:2], [[0.7, 0.0]])[0]


def smoothness_of(monkeypatch: pytest.MonkeyPatch, mean: list[float], half: list[float]) -> Smoothness:
    """As if these differences and half-widths had been measured."""
    error = np.array(half) / Z_99
    monkeypatch.setattr(coverage, "return_differences", lambda *_, **__: Difference(np.array(mean), error))
    return measure_smoothness(MINIGOLF, PUTTERS[0], num_pairs=len(mean), num_blocks=1, seed=0)


@pytest.mark.parametrize(
    ("half", "num_resolved", "expected"),
    [
        ([0.0, 9.0, 9.0], 0, [0.0, 9.0, 19.0]),  # equal returns without noise resolve nothing: upper ends
        ([0.0, 0.0, 4.0], 1, [0.0, 0.0, 10.0]),
    ],
)
def test_equal_returns_do_not_count_as_resolved(half, num_resolved, expected, monkeypatch) -> None:
    found = smoothness_of(monkeypatch, [0.0, 0.0, -10.0], half)
    assert found.num_resolved == num_resolved
    assert found.steepest == pytest.approx(np.max(expected / found.distance))
    assert found.steepest >= found.steepest_low > 0.0
    # 10 ± 6 hides its size, not that it is at least 4; a resolved difference of 0.01 does not speak for all pairs.
    found = smoothness_of(monkeypatch, [0.01, 10.0, 0.0], [0.0, 6.0, 0.0])
    assert found.num_resolved == 1
    assert found.steepest == found.steepest_low == pytest.approx(4.0 / found.distance[1])


def test_noise_does_not_outdo_a_resolved_policy() -> None:
    none = np.zeros(0)
    noisy = Smoothness(none, none, none, num_resolved=0, steepest=50.0, steepest_low=4.0, median=5.0)
    clear = noisy._replace(num_resolved=3, steepest=7.0)
    assert steepest_of([noisy]) == 50.0
    assert steepest_of([noisy, clear]) == 7.0
    assert steepest_of([noisy._replace(steepest_low=8.0), clear]) == 8.0


def test_the_steepest_of_several_policies_is_the_price() -> None:
    smooth = [measure_smoothness(MINIGOLF, theta, num_pairs=6, num_blocks=1, seed=0) for theta in PUTTERS]
    assert smooth[1].steepest > smooth[0].steepest > 0.0  # the first one alone would be too cheap
    assert all(one.steepest >= one.steepest_low for one in smooth)
    assert measured_constant(MINIGOLF, PUTTERS, num_pairs=6) == LipschitzConstant(smooth[1].steepest, 3)
    lines = coverage_report(MINIGOLF, PUTTERS, [[0.8, 0.1]], [[0.95, 0.1]], num_pairs=6)
    assert "largest 0.5 (task 0)" in lines[0]
    for words in ("not a guarantee", "the steepest of 3 policies", "the best policies may be steeper"):
        assert words in lines[-1]
    at_the_corner = coverage_report(MINIGOLF, PUTTERS, [[0.8, 0.1]], [[0.7, 0.196]], num_pairs=6)
    assert len(at_the_corner) == len(lines)  # no line about tasks outside the environment's range


def test_what_never_changes_has_no_price_and_few_episodes_are_made_more() -> None:
    lines = coverage_report(MINIGOLF, PUTTERS[2], [[0.8, 0.1]], [[0.95, 0.1]], num_pairs=4)
    assert "no price" in lines[-1]
    single = Rollout(MINIGOLF.env, MINIGOLF.policy, 1, 20, 0.99, "none")
    assert measured_constant(single, PUTTERS, num_pairs=4) is not None


@pytest.mark.parametrize(("goal_radius", "holds"), [(0.0, True), (0.01, False)])
def test_an_end_at_the_goal_exceeds_the_bound(goal_radius: float, holds: bool) -> None:
    """Resting at the origin ends at once if the goal is 0.007 away, and pays ten times 0.013 if it is that far."""
    rollout, pair = nav2d(goal_radius, sigma=0.001), np.array([[[0.007, 0.0], [0.013, 0.0]]])
    change = return_differences(rollout, np.zeros(6), pair, num_blocks=1, seed=0)
    price = known_constant(rollout)
    assert price is not None
    assert (abs(change.mean[0]) <= 0.006 * price.value * (1 + 1e-4)) == holds
    line = coverage_report(rollout, np.zeros(6), [[0.0, 0.0]], [[0.3, 0.4]])[-1]
    assert ("episodes that do not end at the goal (an end is a jump, with no bound)" in line) == (not holds)


TINY = ["collect.num_meta_episodes=8", "rollout.num_episodes=4", "rollout.horizon=8", "rollout.block_size=8"]
TINY += ["meta.num_updates=2", 'collect.method="trajectory"']


def covered(path: Path, preset: str, tests: str, *overrides: str, tasks: list[list[float]] | None = None) -> str:
    """What `inspect --coverage` prints on a tiny run for a file of test tasks."""
    listed = None if tasks is None else np.array(tasks, np.float32)
    folder = Run.create(path / "run", load(preset, "quick", [*TINY, *overrides]), listed)
    folder.collect()
    (path / "tests.csv").write_text(tests)
    return inspect_coverage(path / "run", path / "tests.csv")


def test_tasks_outside_the_range_are_what_coverage_is_for(tmp_path: Path) -> None:
    text = covered(tmp_path, "minigolf", "putter_length,friction\n0.8,0.1\n2.0,0.1\n")
    assert "2 test tasks in putter_length, friction" in text
    assert "of 10 policies of the training data" in text
    assert "1 of 2 lie outside the environment's range, where nothing was measured" in text
    (tmp_path / "wrong.csv").write_text("putter_length,friction\n0.8,nan\n")
    with pytest.raises(InputError, match="row 1 has friction = nan"):
        inspect_coverage(tmp_path / "run", tmp_path / "wrong.csv")
    (tmp_path / "wrong.csv").write_text("putter,friction\n0.8,0.1\n")
    with pytest.raises(InputError, match="unknown field 'putter'"):
        inspect_coverage(tmp_path / "run", tmp_path / "wrong.csv")


def test_a_fixed_context_or_listed_tasks_are_measured_by_the_environments_own_range(tmp_path: Path) -> None:
    """Putters are 0.7 to 1 long: from 0.8 to 0.95 is half of that range."""
    text = covered(tmp_path, "minigolf", "putter_length,friction\n0.95,0.1\n", "env.fixed_context=[0.8, 0.1]")
    assert "largest 0.5 (task 0); there is one training task." in text
    assert "Measured smoothness" in text
    text = covered(tmp_path / "listed", "nav2d", "goal_x,goal_y\n0.1,0.2\n", tasks=[[0.0, 0.0], [0.3, 0.4]])
    assert "training tasks lie 0.5 apart" in text


def test_environments_on_the_host_have_distances_without_a_price(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    text = covered(tmp_path, "halfcheetah", "goal_velocity\n1.0\n4.0\n")
    assert "1 of 2 lie outside the range of the training tasks." in text
    assert text.endswith("distances have no price in return.")

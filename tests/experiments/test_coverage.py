"""Coverage: distances of test tasks, their price in return, and how far the words may go."""

import re
from pathlib import Path

import numpy as np
import pytest

from metastep import InputError
from metastep.envs import make
from metastep.envs.small import Nav2D
from metastep.experiments import coverage
from metastep.experiments.config import load
from metastep.experiments.coverage import Difference, coverage_report, inspect_coverage, measured_constant, steepest
from metastep.experiments.run import Run
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout

MINIGOLF = Rollout(make("minigolf"), LinearGaussian(1, 1, 0.1), 200, 20, 0.99, "none")
NAV2D = Rollout(Nav2D(goal_radius=0.0), LinearGaussian(2, 2, 1.001), 50, 10, 0.99, "none")
PUTTERS = np.array([[1.0, 0.15], [0.5, 0.1], [-2.0, -1.0]])  # the last one never moves the ball forward


def test_distances_by_hand_priced_within_the_bound() -> None:
    """Goals lie within a square of width 1; moving one by d changes every reward by at most d."""
    lines = coverage_report(NAV2D, np.zeros(6), [[0.0, 0.0], [1.0, 0.0]], [[0.3, 0.4], [2.0, 0.0], [1.0, 0.0]])
    assert "median 0.5, largest 1 (task 1); training tasks lie 1 apart." in lines[0]
    assert lines[1] == "2 of 3 lie outside the range of the training tasks."
    measured = float(re.search(r"changes by about ([\d.]+) a unit", lines[2])[1])
    assert 0.0 < measured <= sum(0.99**t for t in range(10))
    assert f"loses about {2 * measured:.3g} there" in lines[2]
    train = np.array([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [2.0, 0.0]])  # repeated tasks are not their own neighbours
    assert "training tasks lie 2 apart" in coverage_report(NAV2D, np.zeros(6), train, [[2.1, 0.0]])[0]
    assert "there is one training task" in coverage_report(NAV2D, np.zeros(6), train[:2], [[0.7, 0.0]])[0]


@pytest.mark.parametrize(
    ("mean", "half", "counted"),
    [
        # Equal returns without noise resolve nothing: upper ends.
        ([0.0, 0.0, -10.0], [0.0, 9.0, 9.0], [0.0, 9.0, 19.0]),
        ([0.0, 0.0, -10.0], [0.0, 0.0, 4.0], [0.0, 0.0, 10.0]),
        # 10 ± 6 hides its size, not that it is at least 4; a resolved difference of 0.01 does not speak for all pairs.
        ([0.01, 10.0, 0.0], [0.0, 6.0, 0.0], [0.01, 4.0, 0.0]),
        ([[50.0, 8.0], [7.0, 1.0]], [[46.0, 9.0], [0.0, 9.0]], [[4.0, 0.0], [7.0, 0.0]]),  # one policy resolves
        ([[50.0, 8.0], [7.0, 1.0]], [[42.0, 9.0], [0.0, 9.0]], [[8.0, 0.0], [7.0, 0.0]]),
    ],
)
def test_unclear_differences_count_with_an_end_of_their_interval(mean, half, counted) -> None:
    distance = np.linspace(0.5, 1.0, np.shape(mean)[-1])
    found = steepest(distance, Difference(np.array(mean), np.array(half) / coverage.Z_99))
    assert found == pytest.approx(np.max(counted / distance))


def test_the_steepest_of_several_policies_is_the_price() -> None:
    single = [measured_constant(MINIGOLF, theta, num_pairs=6) for theta in PUTTERS]
    assert single[1] > single[0] > (0.0, 1)  # the first one alone would be too cheap
    assert measured_constant(MINIGOLF, PUTTERS, num_pairs=6) == (single[1][0], 3)
    few = Rollout(MINIGOLF.env, MINIGOLF.policy, 1, 20, 0.99, "none")  # is made more
    assert measured_constant(few, PUTTERS, num_pairs=6)[0] > 0.0
    lines = coverage_report(MINIGOLF, PUTTERS, [[0.8, 0.1]], [[0.95, 0.1]], num_pairs=6)
    assert "largest 0.5 (task 0)" in lines[0]
    for words in ("not a guarantee", "the steepest of 3 policies", "the best policies may be steeper"):
        assert words in lines[-1]
    at_the_corner = coverage_report(MINIGOLF, PUTTERS, [[0.8, 0.1]], [[0.7, 0.196]], num_pairs=6)
    assert len(at_the_corner) == len(lines)  # no line about tasks outside the environment's range
    never_moves = coverage_report(MINIGOLF, PUTTERS[2], [[0.8, 0.1]], [[0.95, 0.1]], num_pairs=6)
    assert "no price" in never_moves[-1]


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
    for wrong, sentence in {
        "putter_length,friction\n0.8,nan\n": ": task 0 has friction = nan",
        "putter,x\n0.8,0.1\n": "'putter'",
    }.items():
        (tmp_path / "wrong.csv").write_text(wrong)
        with pytest.raises(InputError, match=sentence):
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

"""Measurements against closed forms and bounds, and what the id `theory` makes of them."""

from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep.envs.small import Nav2D
from metastep.experiments.coverage import Difference, return_differences
from metastep.policies import LinearGaussian
from metastep.report.document import write_picture
from metastep.simulation.rollouts import Rollout, trajectories
from paper import bounds
from paper.theory import measure
from paper.theory.constants import Bounds
from paper.theory.measure import BoundRow, Effort, FromPair, measure_bounds
from paper.theory.policy import nav2d_constants, policy_from_theta
from paper.workbench import Workbench

EFFORT = Effort(num_policies=2, num_pairs=4, num_points=2, num_episodes=2_000, num_blocks=2)


@pytest.fixture(scope="module")
def rows() -> dict[str, list[BoundRow]]:
    return {name: measure_bounds(name, EFFORT, seed=1) for name in ("lqr", "nav2d")}


def test_lqr_measurements_agree_with_the_closed_forms(rows: dict[str, list[BoundRow]]) -> None:
    """Simulated Gaussian episodes find the exact differences of Q, J, gradient and mean state: 99.99 % intervals."""
    assert len(rows["lqr"]) == 2 * 4 * (2 + 1 + 3 + 2)
    for row in rows["lqr"]:
        assert abs(row.measured - row.exact) <= 1.6 * (row.high - row.measured) + 1e-5, row
        assert row.low <= row.high


@pytest.mark.parametrize("name", ["lqr", "nav2d"])
def test_measured_differences_respect_their_bounds(rows: dict[str, list[BoundRow]], name: str) -> None:
    table = rows[name]
    assert all(row.holds and row.low <= row.bound for row in table)
    assert {row.quantity.split("[")[0] for row in table} == {"Q", "J", "gradient", "occupancy"}
    assert all(row.tightness == pytest.approx(row.measured / row.bound) for row in table if row.bound > 0.0)
    occupancy = [row for row in table if row.quantity.startswith("occupancy")]
    if name == "lqr":  # the context is in the dynamics
        assert all(row.measured > 0.0 for row in occupancy)
        assert max(row.tightness for row in occupancy) > 0.01
    else:
        assert len(occupancy) == 2 * 4 * 2
        assert all(row.measured == row.bound == 0.0 for row in occupancy)
        # Collinear goals seen from one side: the return changes by almost all that the theorem allows.
        assert max(row.tightness for row in table if row.quantity == "Q") > 0.6
        assert all(np.isnan(row.exact) for row in table)


def test_nav2d_bound_is_attained_in_the_limit() -> None:
    """From far to the left of two goals on the axis, every step costs exactly the distance of the goals more."""
    env = Nav2D(goal_radius=0.0)
    rollout = Rollout(FromPair(env), LinearGaussian(2, 2, 1.0), 50, 10, 0.99, "none")
    theta = np.zeros(6)
    pair = np.array([[[0.1, 0.0, -50.0, 0.0, 0.0, 0.0], [0.4, 0.0, -50.0, 0.0, 0.0, 0.0]]])
    change = return_differences(rollout, theta, pair, num_blocks=1, seed=0)
    constants = nav2d_constants(env, policy_from_theta(theta, 2, 2, 1.0), 0.99, 10)
    bound = Bounds(*constants[:2], horizon=10).L_omega_Q
    assert sum(0.99**t for t in range(10)) == pytest.approx(bound)
    assert abs(change.mean[0]) == pytest.approx(0.3 * bound, rel=1e-3)


def test_nav2d_constants_bound_what_policies_reach() -> None:
    """Rewards, positions and mean absolute scores of simulated episodes stay within R_max and M."""
    env = Nav2D(goal_radius=0.0)
    theta = np.array([2.0, 1.0, 0.3, -0.2, 0.5, 0.1])  # runs to a corner as fast as it can
    rollout = Rollout(env, LinearGaussian(2, 2, 1.001), 2_000, 10, 0.99, "none")
    steps = trajectories(rollout, jnp.asarray(theta, jnp.float32)[None], jnp.array([[-0.5, -0.5]]), jax.random.key(0))
    cmdp, policy, score = nav2d_constants(env, policy_from_theta(theta, 2, 2, 1.001), 0.99, 10)
    assert float(-steps.reward.min()) <= cmdp.R_max * (1 + 1e-6)  # attained: both axes at full speed away from the goal
    assert float(-steps.reward.min()) >= 0.8 * cmdp.R_max
    assert policy.L_pi == pytest.approx(np.linalg.norm([[0.3, -0.2], [0.5, 0.1]], ord=2))
    observation, noise = (tuple(jnp.moveaxis(array, 1, 0)) for array in (steps.observation, steps.noise))
    pieces = rollout.policy.score(jnp.zeros((6, 1)), observation, noise)
    means = np.array([float(jnp.abs(piece).mean(axis=(1, 2)).max()) for piece in pieces])
    assert np.all(means <= score.M * 1.05)


def test_what_is_not_a_number_does_not_hold() -> None:
    """A return that overflows in one task says nothing, least of all that a bound holds."""
    nothing = np.full((1, 2), np.nan)
    part = measure.Part(["J", "gradient[0]"], Difference(nothing, nothing), np.ones((1, 2)), None)
    rows = measure.rows_of("lqr", 0, np.array([[[0.0], [1.0]]]), part)
    assert [(row.quantity, row.holds) for row in rows] == [("J", False), ("gradient[0]", False)]


def test_the_product_holds_tables_figure_and_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bounds._EFFORTS, "tiny", EFFORT)
    product = bounds.theory(Workbench(tmp_path, "tiny", 1))
    (outcome,) = product.outcomes
    assert (outcome.verdict, outcome.effect) == ("holds", 0.0)
    assert outcome.num == 2 * 4 * (2 + 1 + 3 + 2) + 2 * 4 * (2 + 1 + 6 + 2)
    assert len(product.tables["theory"]) == outcome.num
    first = product.tables["theory"][0]
    assert first["bound"] > 0.0
    assert 0.5 <= float(first["context"]) <= 1.1  # one coordinate, as text
    (drawn,) = product.pictures
    write_picture(drawn, tmp_path)
    assert ElementTree.parse(tmp_path / "theory.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")


def test_a_violation_is_reported() -> None:
    row = BoundRow("lqr", "gradient[1]", 0, (0.5,), (1.0,), 0.5, 1.0, 0.9, 1.1, np.nan, 2.0, 0.5, True)
    assert bounds.judge([row] * 48).verdict == "holds"
    outcome = bounds.judge([row] * 47 + [row._replace(holds=False)])
    assert (outcome.verdict, outcome.effect, outcome.num) == ("does not hold", 1.0, 48)
    assert outcome.detail == "largest share of the bound: lqr gradient 0.5"

import dataclasses
from typing import Any

import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.controllers import GeometricDecay
from metastep.evaluation import MethodSpec, baselines, compare, metric_values, tune
from metastep.evaluation.methods import require_disjoint
from metastep.mdp.blocks import Stream
from tests.controllers.problems import make_mdp
from tests.one_block import run


def spec(name: str, **grid: Any) -> MethodSpec:
    """A registered method with another grid."""
    return dataclasses.replace(baselines.make(name), grid=grid)


def test_every_grid_point_meets_every_task() -> None:
    """6 points on 5 tasks in blocks of 8: the scores are those of the shared loop with the points' own settings."""
    mdp = make_mdp()
    tried = spec("geometric-decay", stepsize=(0.1, 0.5), alpha=(0.5, 0.8, 1.0))
    _, table = tune(tried, mdp, seed=0, num_tasks=5, num_updates=2)
    np.testing.assert_allclose(table.points, [[a, b] for a in (0.1, 0.5) for b in (0.5, 0.8, 1.0)])
    assert (table.num_tasks, table.seed) == (5, 0)
    # Lanes 24 to 29 are tasks 4 of point 4 and all tasks of point 5, padded with the last.
    tasks, lanes = mdp.tasks(0, Stream.TUNING, 0), np.minimum(np.arange(24, 32), 29)
    key = mdp.tasks(0, Stream.TUNING, 3).key
    block = tasks._replace(context=tasks.context[lanes % 5], theta=tasks.theta[lanes % 5], key=key)
    episode, _ = run(mdp, GeometricDecay(*table.points[lanes // 5].T), block, 2)
    np.testing.assert_allclose(table.mean[5], episode.mean_return[1:, 1:6].mean(), rtol=1e-6)
    scores = episode.mean_return[1:, 1:6].mean(axis=0)
    np.testing.assert_allclose(table.standard_error[5], scores.std(ddof=1) / np.sqrt(5), rtol=1e-4)
    # 6 points, 5 tasks, 3 batches of 20 episodes; few of the episodes of 6 steps reach the goal before their end.
    assert 0.99 < table.num_steps / (6 * 5 * 3 * 20 * 6) <= 1.0


def test_points_that_share_their_noise_score_as_in_a_comparison() -> None:
    """So does an option of the rule, of which each value has blocks of its own."""
    mdp = make_mdp()
    damped = MethodSpec("damped", "fixed", rule="nga", grid={"stepsize": (0.4,), "rule.damping": (0.01, 0.5)})
    for tried in (spec("fixed", stepsize=(0.4, 0.8)), damped):
        method, table = tune(tried, mdp, seed=0, num_tasks=11, num_updates=2, shared_noise=tried is not damped)
        points = [dict(zip(table.parameters, point, strict=True)) for point in table.points.tolist()]
        methods = [dataclasses.replace(tried, name=str(i)).method(mdp, point) for i, point in enumerate(points)]
        found = compare(methods, mdp, seed=0, num_tasks=11, num_updates=2, stream=Stream.TUNING)
        np.testing.assert_allclose(table.mean, metric_values(found, "auc").mean(axis=1), rtol=1e-12)
        assert table.mean[0] != table.mean[1]
    assert method.rule.damping == table.chosen["rule.damping"]
    assert method.values == table.chosen
    with pytest.raises(InputError, match=r"compare\.methods\.fixed\.rule: is missing, it must be set"):
        spec("fixed", **{"stepsize": (0.4,), "rule.damping": (0.01,)})


def test_the_best_point_becomes_a_method_that_knows_its_tasks() -> None:
    mdp, goals = make_mdp(), np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
    tried = spec("fixed", stepsize=(0.0, 0.4, 0.8))
    method, table = tune(tried, mdp, seed=0, num_tasks=8, num_updates=3, contexts=goals)
    assert table.chosen == {"stepsize": table.points[np.argmax(table.mean), 0]}
    assert table.chosen["stepsize"] > 0.0  # standing still is worst
    assert (method.name, method.label, method.values) == ("fixed", "fixed step", table.chosen)
    with pytest.raises(InputError, match="'fixed': was tuned on the tuning stream"):
        compare([method], mdp, seed=1, num_tasks=2, num_updates=1, stream=Stream.TUNING)
    with pytest.raises(InputError, match=r"tuned on the task \(0.3, 0.4\)"):
        require_disjoint([method], Stream.TEST, goals[1:])
    result = compare([method], mdp, seed=0, num_tasks=2, num_updates=1, tuning=[table])
    np.testing.assert_array_equal(result.hyperparameters, np.float32(table.chosen["stepsize"]))
    edges = table._replace(points=np.array([[1.0], [2.0], [3.0]]), mean=np.array([0.0, 1.0, 0.5]))
    assert (edges.at_edge, edges._replace(mean=np.arange(3.0)).at_edge) == ((), ("stepsize",))


@pytest.mark.parametrize("name", ["geometric-decay", "adam", "hoof", "metagrad"])
def test_every_baseline_can_be_tuned(name: str) -> None:
    known = baselines.make(name)
    parameters = (*known.needs_grid, *known.grid)
    tried = spec(name, **dict.fromkeys(parameters, (0.05, 0.5)))
    method, table = tune(tried, make_mdp(), seed=0, num_tasks=3, num_updates=2)
    assert len(table.mean) == 2 ** len(parameters)
    assert np.all(np.isfinite(table.mean))
    assert len(set(table.mean)) > 1
    assert method.name == name


def test_a_point_that_diverges_is_never_chosen() -> None:
    """LQR with steps of 1e30: returns overflow, the small step stays."""
    _, table = tune(spec("fixed", stepsize=(1e30, 0.01)), make_mdp("lqr"), seed=0, num_tasks=4, num_updates=2)
    assert table.mean[0] == -np.inf
    assert table.num_diverged.tolist() == [4, 0]
    assert table.chosen == {"stepsize": 0.01}


@pytest.mark.parametrize(
    ("changes", "complaint"), [({"num_tasks": 1}, "at least 2 tasks"), ({"num_updates": 0}, "1 update")]
)
def test_bad_requests_get_one_sentence(changes: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tune(spec("fixed", stepsize=(1.0,)), make_mdp(), **({"seed": 0, "num_tasks": 2, "num_updates": 1} | changes))

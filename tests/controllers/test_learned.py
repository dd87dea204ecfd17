"""Controllers that act on what was learned before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.controllers import Fixed, MetaFQIController, Resources, SingleAction
from metastep.controllers.learned import constant_runs
from metastep.features import meta_observation
from metastep.fqi import ExtraTrees
from metastep.fqi.iteration import QFunction, Stepsizes
from metastep.mdp.blocks import Stream
from tests.controllers.problems import BLOCK, make_mdp
from tests.one_block import run


def _no_model() -> None:
    raise AssertionError("no model is needed")


def make_run(num_runs: int, num_updates: int = 2, model: Callable[[], Any] = _no_model, **changes: Any) -> Resources:
    settings = {"seed": 3, "num_stepsizes": 11, "regressor": lambda: ExtraTrees(5, 0.05)} | changes
    return Resources(make_mdp(), num_updates=num_updates, num_training_episodes=num_runs, model=model, **settings)


class LastCoordinate:
    """A model that reads its answer from the observation."""

    record = None

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        return np.asarray(observation, np.float32)[:, -1] + (iteration or 0)


def test_metafqi_sees_the_meta_observation_passes_the_iteration_on_and_takes_the_experiments_model() -> None:
    model, mdp, listed = LastCoordinate(), make_mdp(), np.zeros((1, 2), np.float32)
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    for iteration in (None, 3):
        controller = MetaFQIController(model, iteration)
        proposal = controller.propose(controller.init(mdp, learners), learners)
        np.testing.assert_array_equal(proposal[:, 0], meta_observation(mdp, learners)[:, -1] + (iteration or 0))
    assert controller.prepared(make_run(4)) is controller
    prepared = MetaFQIController().prepared(make_run(4, model=lambda: model, task_list=listed))
    assert prepared.model is model
    assert prepared.contexts is listed
    with pytest.raises(InputError, match="controller: 'metafqi' needs a fitted model"):
        MetaFQIController().init(mdp, learners)


def test_single_action_finds_the_best_step_of_each_task() -> None:
    """Final returns that peak where the step size is twice the absolute first coordinate of the goal."""
    rng = np.random.default_rng(0)
    inputs = np.column_stack([rng.uniform(-0.5, 0.5, (4000, 2)), rng.uniform(0.0, 2.0, 4000)])
    forest = ExtraTrees(30, 5).fit(inputs, -((inputs[:, 2] - 2.0 * np.abs(inputs[:, 0])) ** 2), seed=0)
    mdp = make_mdp()
    tasks = mdp.tasks(0, Stream.TUNING, 0)
    episode, _ = run(mdp, SingleAction(QFunction((forest,), {"": Stepsizes(0.0, 2.0)})), tasks, 2)
    chosen = episode.hyperparameters[:, :, 0]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    np.testing.assert_allclose(chosen[0], 2.0 * np.abs(episode.context[:, 0]), atol=0.25)


def test_constant_runs_are_the_loop_with_constant_steps() -> None:
    mdp = make_mdp()
    inputs, targets, num_steps = constant_runs(make_run(BLOCK + 3))
    assert inputs.shape == (BLOCK + 3, 3)
    episode, _ = run(mdp, Fixed(inputs[:BLOCK, 2]), mdp.tasks(3, Stream.TRAIN, 0), 2)
    np.testing.assert_array_equal(inputs[:BLOCK, :2], episode.context)
    np.testing.assert_array_equal(targets[:BLOCK], episode.mean_return[-1])
    np.testing.assert_array_equal(constant_runs(make_run(4))[0], inputs[:4])
    listed = np.array([[0.1, 0.2], [-0.3, 0.4], [0.0, 0.5]], np.float32)
    held = constant_runs(make_run(BLOCK + 3, num_updates=1, task_list=listed))[0]
    np.testing.assert_array_equal(held[:, :2], listed[np.arange(BLOCK + 3) % 3])
    whole = mdp.estimator.rollout.num_episodes * mdp.estimator.rollout.horizon * 3 * (BLOCK + 3)
    assert 0.9 * whole < num_steps <= whole  # an episode may reach its goal before its end


def test_learning_gives_a_controller_that_stays_on_the_grid() -> None:
    mdp = make_mdp()
    controller = SingleAction().prepared(make_run(64, seed=0))
    assert controller.prepared(make_run(64)) is controller
    assert controller.training_steps == constant_runs(make_run(64, seed=0))[2]
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    proposal = np.asarray(controller.propose(controller.init(mdp, learners), learners))[:, 0]
    assert set(proposal) <= set(mdp.space.candidates(11)[:, 0])
    with pytest.raises(InputError, match="'single-action' has not been trained"):
        SingleAction().init(mdp, learners)


def test_too_few_finite_returns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    results = np.zeros((3, 3), np.float32), np.array([1.0, np.nan, np.inf], np.float32), 0.0
    monkeypatch.setattr("metastep.controllers.learned.constant_runs", lambda run: results)
    with pytest.raises(InputError, match="only 1 of 3 runs ended with a finite return"):
        SingleAction().prepared(make_run(3))

"""Controllers that act on what was learned before."""

import numpy as np
import pytest
from metastep.meta.transitions import Transitions
from numpy.typing import ArrayLike, NDArray

from metastep.blocks import Stream
from metastep.controllers import Fixed, MetaFQIController, SingleAction, fit_single_action
from metastep.controllers.single_action import constant_runs
from metastep.errors import InputError
from metastep.fqi.iteration import MetaFQI
from metastep.fqi.native import fit_forest
from metastep.mdp import begin, meta_observation
from metastep.meta.loop import run
from tests.controllers.problems import BLOCK, make_mdp


class LastCoordinate:
    """A model that reads its answer from the observation."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        self.asked.append(iteration)
        return np.asarray(observation, np.float32)[:, -1]


def test_metafqi_sees_the_meta_observation_and_passes_the_iteration_on() -> None:
    mdp = make_mdp()
    learners = begin(mdp, mdp.tasks(0, Stream.TUNING, 0))
    model = LastCoordinate()
    for iteration in (None, 3):
        controller = MetaFQIController(model, iteration)
        proposal = controller.propose(controller.init(mdp, learners), learners)
        np.testing.assert_array_equal(proposal[:, 0], meta_observation(mdp, learners)[:, -1])
    assert model.asked == [None, 3]


def test_metafqi_acts_as_the_fitted_model_does() -> None:
    mdp = make_mdp()
    tasks = mdp.tasks(0, Stream.TUNING, 0)
    rng = np.random.default_rng(0)
    size = 2 * mdp.num_parameters + 2
    stepsize = rng.uniform(0.0, 2.0, 300).astype(np.float32)
    seen, reward, after = (rng.normal(size=shape).astype(np.float32) for shape in ((300, size), (300,), (300, size)))
    data = Transitions(seen, stepsize, reward, after)
    fitted = MetaFQI(iterations=2, trees=5, min_samples_split=0.1, stepsize_high=2.0).fit(data)
    for iteration in (1, 2):
        episode = run(mdp, MetaFQIController(fitted, iteration), tasks, 2)
        first = np.asarray(meta_observation(mdp, begin(mdp, tasks)))
        np.testing.assert_array_equal(episode.hyperparameters[0, :, 0], fitted.act(first, iteration))


def test_single_action_finds_the_best_step_of_each_task() -> None:
    """Final returns that peak where the step size is twice the absolute first coordinate of the goal."""
    rng = np.random.default_rng(0)
    inputs = np.column_stack([rng.uniform(-0.5, 0.5, (4000, 2)), rng.uniform(0.0, 2.0, 4000)])
    returns = -((inputs[:, 2] - 2.0 * np.abs(inputs[:, 0])) ** 2)
    forest = fit_forest(inputs, returns, num_trees=30, min_samples_split=5, seed=0)
    mdp = make_mdp()
    tasks = mdp.tasks(0, Stream.TUNING, 0)
    episode = run(mdp, SingleAction(forest, mdp.space.grid(101)), tasks, 2)
    chosen = episode.hyperparameters[:, :, 0]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    np.testing.assert_allclose(chosen[0], 2.0 * np.abs(episode.context[:, 0]), atol=0.25)


def test_constant_runs_are_the_loop_with_constant_steps() -> None:
    mdp = make_mdp()
    inputs, targets = constant_runs(mdp, seed=3, num_runs=BLOCK + 3, num_updates=2)
    assert inputs.shape == (BLOCK + 3, 3)
    episode = run(mdp, Fixed(inputs[:BLOCK, 2]), mdp.tasks(3, Stream.TRAIN, 0), 2)
    np.testing.assert_array_equal(inputs[:BLOCK, :2], episode.context)
    np.testing.assert_array_equal(targets[:BLOCK], episode.mean_return[-1])
    np.testing.assert_array_equal(constant_runs(mdp, seed=3, num_runs=4, num_updates=2)[0], inputs[:4])


def test_constant_runs_can_be_held_to_a_list_of_tasks() -> None:
    mdp = make_mdp()
    listed = np.array([[0.1, 0.2], [-0.3, 0.4], [0.0, 0.5]], np.float32)
    inputs, _ = constant_runs(mdp, seed=3, num_runs=BLOCK + 3, num_updates=1, task_list=listed)
    np.testing.assert_array_equal(inputs[:, :2], listed[np.arange(BLOCK + 3) % 3])


def test_fitting_gives_a_controller_that_stays_on_the_grid() -> None:
    mdp = make_mdp()
    controller = fit_single_action(
        mdp, seed=0, num_runs=64, num_updates=2, num_trees=5, min_samples_split=0.05, num_stepsizes=11
    )
    learners = begin(mdp, mdp.tasks(0, Stream.TUNING, 0))
    proposal = np.asarray(controller.propose(controller.init(mdp, learners), learners))[:, 0]
    assert set(proposal) <= set(mdp.space.grid(11))


def test_no_updates_are_refused() -> None:
    with pytest.raises(InputError, match="num_updates"):
        fit_single_action(make_mdp(), seed=0, num_runs=4, num_updates=0, num_trees=1, min_samples_split=2)

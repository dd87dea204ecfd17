"""One learned step size a task (paper, appendix: selection of a single learning rate)."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Blocks, Stream
from metastep.controllers.fixed import RandomConstant, require_one_coordinate
from metastep.errors import InputError
from metastep.fqi.forest import Forest
from metastep.fqi.maximise import maximise, prepare
from metastep.fqi.native import fit_forest
from metastep.meta.collection import with_task_list
from metastep.meta.loop import run
from metastep.meta.mdp import Learners, MetaMDP
from metastep.progress import Silent, Tracker


@dataclass(frozen=True, eq=False)
class SingleAction:
    """h(omega) = argmax_h of a regression of the final return on (omega, h); constant over the updates of a task.

    Args:
        forest: the regression; its inputs are the context's coordinates, then h.
        stepsizes: the step sizes among which the best is taken, increasing.
    """

    forest: Forest
    stepsizes: NDArray[np.float32]
    name: str = "single-action"

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        """Look up the step size of every task: (learners, 1)."""
        require_one_coordinate(self.name, mdp)
        best = maximise(prepare([self.forest], self.stepsizes), np.asarray(learners.context))
        return jnp.asarray(best.stepsize)[:, None]

    def propose(self, state: Array, learners: Learners) -> Array:
        """Always the same."""
        return state

    def observe(self, state: Array, before: Learners, hyperparameters: Array, after: Learners) -> Array:
        """Nothing changes."""
        return state


def constant_runs(
    mdp: MetaMDP,
    *,
    seed: int,
    num_runs: int,
    num_updates: int,
    task_list: NDArray[np.float32] | None = None,
    tracker: Tracker | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Train `num_runs` learners with a random constant step size each: inputs (runs, coordinates + 1), final returns (runs,).

    The tasks are those of the training stream, or of the list (tasks, coordinates) in turn.
    """
    require_one_coordinate("single-action", mdp)
    blocks = Blocks(num_runs, mdp.block_size)
    inputs, targets = [], []
    with (tracker or Silent()).stage("single step size: runs", num_runs, "learners") as stage:
        for block in blocks:
            tasks = mdp.tasks(seed, Stream.TRAIN, block)
            if task_list is not None:
                tasks = with_task_list(tasks, block, task_list)
            episode = run(mdp, RandomConstant(), tasks, num_updates).first(blocks.num_valid(block))
            inputs.append(np.concatenate([episode.context, episode.hyperparameters[0]], axis=1))
            targets.append(episode.mean_return[-1])
            stage.advance(len(episode.context))
    return np.concatenate(inputs), np.concatenate(targets)


def fit_single_action(
    mdp: MetaMDP,
    *,
    seed: int,
    num_runs: int,
    num_updates: int,
    num_trees: int,
    min_samples_split: int | float,
    num_stepsizes: int = 101,
    task_list: NDArray[np.float32] | None = None,
    tracker: Tracker | None = None,
) -> SingleAction:
    """Collect `constant_runs` and regress; the trees are set as those of metaFQI.

    Runs whose final return is not finite cannot be regressed on and are left out; fewer than two usable ones are refused.
    """
    if num_updates < 1:
        raise InputError(f"single_action.num_updates: {num_updates} must be at least 1.")
    inputs, targets = constant_runs(
        mdp, seed=seed, num_runs=num_runs, num_updates=num_updates, task_list=task_list, tracker=tracker
    )
    usable = np.isfinite(targets)
    if usable.sum() < 2:
        raise InputError(f"single_action.num_runs: only {usable.sum()} of {num_runs} runs ended with a finite return.")
    forest = fit_forest(
        inputs[usable], targets[usable], num_trees=num_trees, min_samples_split=min_samples_split, seed=seed
    )
    return SingleAction(forest, mdp.space.grid(num_stepsizes))

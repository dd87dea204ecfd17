"""One learned step size for each task (paper, appendix: selection of a single learning rate)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Blocks, Stream
from metastep.controllers.schedules import RandomConstant
from metastep.errors import InputError
from metastep.fqi.qfunction import QFunction, Stepsizes
from metastep.mdp import Learners, Process
from metastep.meta.controller import Controller, Run, TaskSource, require_one_coordinate
from metastep.meta.loop import run as run_learners


@dataclass(frozen=True, eq=False)
class SingleAction(Controller):
    """h(omega) = argmax_h of a regression of the final return on (omega, h); constant over the updates of a task.

    Args:
        regression: its inputs are the context's coordinates, its actions the step sizes; None learns it first.
        contexts: the task list that it was learned on, if any.
        num_steps: environment steps that this took.
    """

    regression: QFunction | None = None
    contexts: NDArray[np.float32] | None = None
    num_steps: float = 0.0

    name: ClassVar[str] = "single-action"

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        return (TaskSource("trained", Stream.TRAIN, self.contexts),)

    def prepared(self, run: Run) -> "SingleAction":
        """Learn the regression from as many learners as the training data has."""
        if self.regression is not None:
            return self
        regression, num_steps = fit_single_action(run)
        return replace(self, regression=regression, contexts=run.task_list, num_steps=num_steps)

    @property
    def training_steps(self) -> float:
        return self.num_steps

    def init(self, mdp: Process, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        if self.regression is None:
            raise InputError("controller: 'single-action' has not been trained.")
        return jnp.asarray(self.regression.maximum(np.asarray(learners.context)).stepsize)[:, None]

    def propose(self, state: Array, learners: Learners) -> Array:
        return state


class ConstantRuns(NamedTuple):
    """What became of learners with a random constant step size each."""

    inputs: NDArray[np.float32]  # (runs, coordinates + 1): task and step size
    final_return: NDArray[np.float32]  # (runs,)
    num_steps: float  # environment steps of them all


def constant_runs(run: Run) -> ConstantRuns:
    """Train learners with a random constant step size each."""
    mdp = run.mdp
    require_one_coordinate("single-action", mdp)
    blocks = Blocks(run.num_training_episodes, mdp.block_size)
    inputs, targets, num_steps = [], [], 0.0
    with run.tracker.stage("single step size: runs", blocks.num_learners, "learners") as stage:
        for block in blocks:
            tasks = mdp.tasks(run.seed, Stream.TRAIN, block, run.task_list)
            history, _ = run_learners(mdp, RandomConstant(), tasks, run.num_updates)
            history = history.first(blocks.num_valid(block))
            steps = mdp.space.branches[""].to_axis(history.hyperparameters[0])
            inputs.append(np.concatenate([history.context, steps], axis=1))
            targets.append(history.mean_return[-1])
            num_steps += float(history.num_steps.sum(dtype=np.float64))
            stage.advance(len(history.context))
    return ConstantRuns(np.concatenate(inputs), np.concatenate(targets), num_steps)


def fit_single_action(run: Run) -> tuple[QFunction, float]:
    """Regress the final returns of `constant_runs` with the experiment's regressor; also the environment steps it took.

    Runs whose final return is not finite cannot be regressed on and are left out; fewer than two usable ones are refused.
    """
    inputs, targets, num_steps = constant_runs(run)
    usable = np.isfinite(targets)
    if usable.sum() < 2:
        raise InputError(f"single-action: only {usable.sum()} of {len(targets)} runs ended with a finite return.")
    regressor: Any = run.regressor()
    head = regressor.fit(inputs[usable], targets[usable].astype(np.float64), seed=run.seed, threads=None)
    steps = run.mdp.space.branches[""]
    return QFunction((head,), Stepsizes(steps.low, steps.high, run.num_stepsizes, scale=steps.scale)), num_steps

"""One learned step size for each task (paper, appendix: selection of a single learning rate)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.controllers.schedules import RandomConstant
from metastep.fqi.iteration import QFunction, Stepsizes
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Blocks, Stream
from metastep.mdp.controller import Controller, Run, TaskSource, require_one_coordinate
from metastep.mdp.history import History
from metastep.mdp.runs import BlockRun, Plan, carry_out, start_of


@dataclass(frozen=True, eq=False)
class SingleAction(Controller):
    """h(omega) = argmax_h of a regression of the final return on (omega, h); constant over the updates of a task.

    Args:
        regression: Q function of the context's coordinates and the step size; None learns it first.
        contexts: the task list that it was learned on, if any.
        num_steps: environment steps of its training.
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

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        if self.regression is None:
            raise InputError("controller: 'single-action' has not been trained.")
        return jnp.asarray(self.regression.maximum(np.asarray(learners.context)).stepsize)[:, None]

    def propose(self, state: Array, learners: Learners) -> Array:
        return state


class ConstantRuns(NamedTuple):
    """Results of learners with a random constant step size each."""

    inputs: NDArray[np.float32]  # (runs, coordinates + 1): task and step size
    final_return: NDArray[np.float32]  # (runs,)
    num_steps: float  # environment steps of them all


def constant_runs(run: Run) -> ConstantRuns:
    """Train learners with a random constant step size each."""
    mdp = run.mdp
    require_one_coordinate("single-action", mdp)
    blocks = Blocks(run.num_training_episodes, mdp.block_size)

    def plan() -> Plan[list[History]]:
        asked = []
        for block in blocks:
            start = start_of(mdp, run.seed, Stream.TRAIN, block, run.task_list)
            asked.append(BlockRun(mdp, RandomConstant(), start, run.num_updates, num_valid=blocks.num_valid(block)))
        return [ran.history for ran in (yield asked)]

    with run.tracker.stage("single step size: runs", len(blocks), "blocks") as stage:
        histories = carry_out([plan()], stage.advance)[0]
    steps = [mdp.space.branches[""].to_axis(history.hyperparameters[0]) for history in histories]
    inputs = [np.concatenate([history.context, step], axis=1) for history, step in zip(histories, steps, strict=True)]
    num_steps = sum(float(history.num_steps.sum(dtype=np.float64)) for history in histories)
    return ConstantRuns(
        np.concatenate(inputs), np.concatenate([history.mean_return[-1] for history in histories]), num_steps
    )


def fit_single_action(run: Run) -> tuple[QFunction, float]:
    """Regress the final returns of `constant_runs`, and return the Q function and the environment steps of the runs.

    Runs whose final return is not finite are left out; fewer than two usable ones are refused.
    """
    inputs, targets, num_steps = constant_runs(run)
    usable = np.isfinite(targets)
    if usable.sum() < 2:
        raise InputError(f"single-action: only {usable.sum()} of {len(targets)} runs ended with a finite return.")
    regressor: Any = run.regressor()
    head = regressor.fit(inputs[usable], targets[usable].astype(np.float64), seed=run.seed, threads=None)
    steps = run.mdp.space.branches[""]
    stepsizes = {"": Stepsizes(steps.low, steps.high, run.num_stepsizes, scale=steps.scale)}
    return QFunction((head,), stepsizes), num_steps

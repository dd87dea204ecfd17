"""Controllers learned from training data: metaFQI, metaFQI with exploration, and a single step size for each task."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.provenance import first_difference
from metastep.controllers.schedules import RandomConstant
from metastep.features import meta_observation
from metastep.fqi import MetaFQI, Model
from metastep.fqi.iteration import QFunction, Stepsizes
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Blocks, Stream
from metastep.mdp.controller import Controller, Exploration, Resources, TaskSource, require_one_coordinate
from metastep.mdp.history import History
from metastep.mdp.runs import BlockRun, Plan, run_plans


@dataclass(frozen=True, eq=False)
class MetaFQIController(Controller):
    """h = argmax_h Q_N(x, h), or direction and step with a menu; a model that was fitted for another setting is an error."""

    model: Model | MetaFQI | None = None  # a `MetaFQI` has no record of a setting; None is the experiment's model
    iteration: int | None = None  # N; None takes the one the model selected, or its last
    contexts: NDArray[np.float32] | None = None  # the task list that it was trained on, if any

    name: ClassVar[str] = "metafqi"
    is_memoryless: ClassVar[bool] = True
    needs_model: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Send only the iteration that is used to other processes: the others are most of a model.
        model, iteration = self.model, self.iteration
        if isinstance(model, Model):
            model, iteration = model.only_selected(iteration), None if iteration is None else 1
        return MetaFQIController, (model, iteration, self.contexts)

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """Trained on the training tasks; unless it is given, the iteration was selected on the validation tasks."""
        trained = TaskSource("trained", Stream.TRAIN, self.contexts)
        return (trained,) if self.iteration is not None else (trained, TaskSource("selected", Stream.VALIDATION))

    def prepared(self, run: Resources) -> "MetaFQIController":
        return self if self.model is not None else replace(self, model=run.model(), contexts=run.task_list)

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        if self.model is None:
            raise InputError("controller: 'metafqi' needs a fitted model.")
        record = self.model.record  # a `MetaFQI` has none
        if record is not None and (difference := first_difference(record.setting, mdp.setting)):
            name, theirs, ours = difference
            raise InputError(f"model: it was fitted for {name} = {theirs}, but the meta-MDP has {ours}.")
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """Maximise on the host, where the forests are: two transfers for each update."""
        assert self.model is not None  # checked by `init`
        best = self.model.act(np.asarray(meta_observation(state, learners)), self.iteration)
        return jnp.asarray(best, jnp.float32).reshape(-1, state.space.num_coordinates)


@dataclass(frozen=True, eq=False)
class Exploring(Controller):
    """Use another controller, except for a share of random proposals; for later rounds of collection."""

    greedy: Controller  # it must be memoryless
    exploration: float  # the share of random proposals
    near: float = 0.0  # the share of candidates that are near the proposal of `greedy`

    name: ClassVar[str] = "exploring"
    is_memoryless: ClassVar[bool] = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        self.greedy.init(mdp, learners)
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        random = Exploration().propose(state, learners)
        draw = jax.random.uniform(jax.random.fold_in(learners.controller_key, 0), (len(random), 1))
        return jnp.where(draw < self.exploration, random, self.greedy.propose(state, learners))

    def candidates(self, mdp: MetaMDP, learners: Learners, num: int) -> list[Array]:
        drawn = super().candidates(mdp, learners, num)
        if num_near := round(self.near * num):
            best = self.greedy.propose(self.greedy.init(mdp, learners), learners)
            drawn[:num_near] = [mdp.space.near(key, best) for key in learners.candidate_keys(num_near)]
        return drawn


@dataclass(frozen=True, eq=False)
class SingleAction(Controller):
    """h(omega) = argmax_h of a regression of the final return on (omega, h), constant over a task (paper, appendix)."""

    regression: QFunction | None = None  # of the context's coordinates and the step size; None learns it first
    contexts: NDArray[np.float32] | None = None  # the task list that it was learned on, if any
    training_steps: float = 0.0  # environment steps of its training

    name: ClassVar[str] = "single-action"

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        return (TaskSource("trained", Stream.TRAIN, self.contexts),)

    def prepared(self, run: Resources) -> "SingleAction":
        """Learn the regression from as many learners as the training data has; leave out returns that are not finite."""
        if self.regression is not None:
            return self
        inputs, targets, steps = constant_runs(run)
        usable = np.isfinite(targets)
        if usable.sum() < 2:
            raise InputError(f"single-action: only {usable.sum()} of {len(targets)} runs ended with a finite return.")
        head = run.regressor().fit(inputs[usable], targets[usable].astype(np.float64), seed=run.seed, threads=None)
        stepsizes = {"": Stepsizes(**vars(run.mdp.space.branches[""]), num=run.num_stepsizes)}
        return replace(self, regression=QFunction((head,), stepsizes), contexts=run.task_list, training_steps=steps)

    def init(self, mdp: MetaMDP, learners: Learners) -> Array:
        require_one_coordinate(self.name, mdp)
        if self.regression is None:
            raise InputError("controller: 'single-action' has not been trained.")
        return jnp.asarray(self.regression.maximum(np.asarray(learners.context)).stepsize)[:, None]

    def propose(self, state: Array, learners: Learners) -> Array:
        return state


def constant_runs(run: Resources) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Train learners with random constant steps; return contexts and steps (runs, coordinates + 1), final returns, num_steps."""
    require_one_coordinate("single-action", mdp := run.mdp)
    blocks = Blocks(run.num_training_episodes, mdp.block_size)

    def plan() -> Plan[list[History]]:
        tasks = [mdp.tasks(run.seed, Stream.TRAIN, block, run.task_list) for block in blocks]
        pairs = zip(tasks, map(blocks.num_valid, blocks), strict=True)
        results = yield [BlockRun(mdp, RandomConstant(), start, run.num_updates, num) for start, num in pairs]
        return [result.history for result in results]

    with run.tracker.stage("single step size: runs", len(blocks), "blocks") as stage:
        (histories,) = run_plans([plan()], stage.advance)
    axis = mdp.space.branches[""]
    inputs = [np.concatenate([each.context, axis.to_axis(each.hyperparameters[0])], axis=1) for each in histories]
    num_steps = sum(float(history.num_steps.sum(dtype=np.float64)) for history in histories)
    return np.concatenate(inputs), np.concatenate([history.mean_return[-1] for history in histories]), num_steps

"""Controllers that follow a learned Q function: greedy (metaFQI), or with exploration to collect more data."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.provenance import first_difference
from metastep.features import meta_observation
from metastep.fqi import MetaFQI, Model
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, Exploration, Run, TaskSource, attempt_keys


@dataclass(frozen=True, eq=False)
class MetaFQIController(Controller):
    """h = argmax_h Q_N(x, h), or direction and step where there is a menu of directions.

    A learner whose observation is not finite gets the smallest step size of H.

    A model with a record is refused where environment, policy, rule, discount, baseline, meta-observation or step sizes are
    not those it was fitted for.

    Args:
        model: a fitted model, or a `MetaFQI`, which has no record of what it was fitted for; None takes the experiment's.
        iteration: N; None takes the one the model selected, or its last.
        contexts: the task list that it was trained on, if any.
    """

    model: Model | MetaFQI | None = None
    iteration: int | None = None
    contexts: NDArray[np.float32] | None = None

    name: ClassVar[str] = "metafqi"
    is_memoryless: ClassVar[bool] = True
    needs_model: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Send only the iteration that acts to other processes: the others are most of a model.
        model, iteration = self.model, self.iteration
        if isinstance(model, Model):
            model, iteration = model.only_selected(iteration), None if iteration is None else 1
        return MetaFQIController, (model, iteration, self.contexts)

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """Trained on the training tasks; unless it is given, the iteration was selected on the validation tasks."""
        trained = TaskSource("trained", Stream.TRAIN, self.contexts)
        return (trained,) if self.iteration is not None else (trained, TaskSource("selected", Stream.VALIDATION))

    def prepared(self, run: Run) -> "MetaFQIController":
        return self if self.model is not None else replace(self, model=run.model(), contexts=run.task_list)

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        if self.model is None:
            raise InputError("controller: 'metafqi' needs a fitted model.")
        record = self.model.record
        if record is not None and (difference := _difference(record.setting, mdp.setting)):
            key, fitted, wanted = difference
            raise InputError(f"model: it was fitted for {key} = {fitted}, but the meta-MDP has {wanted}.")
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """Maximise on the host, where the forests are: two transfers for each update."""
        assert self.model is not None  # `init` refuses that
        best = self.model.act(np.asarray(meta_observation(state, learners)), self.iteration)
        return jnp.asarray(best, jnp.float32).reshape(-1, state.space.num_coordinates)


def _difference(fitted: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return where a model does not fit; one of several families fits all with the same observation, space and rule."""
    if "families" not in fitted:
        return first_difference(fitted, wanted)

    def shared(setting: dict[str, Any]) -> dict[str, Any]:
        return {name: setting[name] for name in ("observation", "space")} | {"rule.name": setting["rule"]["name"]}

    return first_difference(shared(fitted), shared(wanted))


@dataclass(frozen=True, eq=False)
class Exploring(Controller):
    """Follow another controller, except for a share of random proposals: later rounds of collection use it.

    Args:
        greedy: the controller to follow; it must be memoryless.
        exploration: the share of random proposals.
        near: the share of the other updates tried that lie near the proposal of `greedy`.
    """

    greedy: Controller
    exploration: float
    near: float = 0.0

    name: ClassVar[str] = "exploring"
    is_memoryless: ClassVar[bool] = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        self.greedy.init(mdp, learners)
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        random = Exploration().propose(state, learners)
        draw = jax.random.uniform(jax.random.fold_in(learners.controller_key, 0), (len(random), 1))
        return jnp.where(draw < self.exploration, random, self.greedy.propose(state, learners))

    def attempts(self, mdp: MetaMDP, learners: Learners, num: int) -> list[Array]:
        drawn, num_near = super().attempts(mdp, learners, num), round(self.near * num)
        if not num_near:
            return drawn
        best = self.greedy.propose(self.greedy.init(mdp, learners), learners)
        near = [mdp.space.near(key, best) for key in attempt_keys(learners, num_near)]
        return near + drawn[num_near:]

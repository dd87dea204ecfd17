"""What a controller is: whatever proposes the hyperparameters of the next update."""

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.errors import InputError
from metastep.mdp import Learners, MetaMDP
from metastep.progress import Tracker

ControllerState = Any


class TaskSource(NamedTuple):
    """Tasks that a method has seen before it is judged: those of a stream, or an explicit list with the stream's keys."""

    use: Literal["trained", "selected", "tuned"]
    stream: Stream
    contexts: NDArray[np.float32] | None = None  # (tasks, coordinates)


class Run(Protocol):
    """What an experiment offers to a controller that has to be trained or loaded before it can propose."""

    @property
    def mdp(self) -> MetaMDP:
        """The meta-MDP of the method, its rule included."""
        ...

    @property
    def seed(self) -> int:
        """Of everything random."""
        ...

    @property
    def num_updates(self) -> int:
        """Updates of a learner in the comparison."""
        ...

    @property
    def num_training_episodes(self) -> int:
        """Meta-episodes that the training data has."""
        ...

    @property
    def num_stepsizes(self) -> int:
        """Step sizes on the grid of a maximum."""
        ...

    @property
    def task_list(self) -> NDArray[np.float32] | None:
        """The contexts to train on in place of the task distribution."""
        ...

    @property
    def tracker(self) -> Tracker:
        """Is told about long work."""
        ...

    def regressor(self) -> Any:
        """The experiment's regressor (`metastep.fqi.regressors`)."""
        ...

    def model(self) -> Any:
        """The experiment's fitted and selected model (`metastep.fqi.Model`)."""
        ...


class Controller(Protocol):
    """One call serves all learners of a block. A controller of your own inherits these defaults."""

    @property
    def name(self) -> str:
        """Identifier in the registry, in tables and in files."""
        ...

    @property
    def is_memoryless(self) -> bool:
        """Whether `init` gives the state at any update, so that a block can be resumed between two of them."""
        return False

    @property
    def is_yardstick(self) -> bool:
        """Whether it may use what a contender must not, so that it takes part in no test."""
        return False

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """The tasks it was trained or selected on, which it must not be judged on."""
        return ()

    def prepared(self, run: Run) -> "Controller":
        """The controller for an experiment: one that has to be trained or loaded first does so here."""
        return self

    def init(self, mdp: MetaMDP, learners: Learners) -> ControllerState:
        """State before the first proposal."""
        ...

    def propose(self, state: ControllerState, learners: Learners) -> Array:
        """Hyperparameters for every learner: (learners, coordinates)."""
        ...

    def observe(
        self, state: ControllerState, before: Learners, hyperparameters: Array, after: Learners
    ) -> ControllerState:
        """Learn from a transition of every learner."""
        return state

    def report(self, state: ControllerState) -> dict[str, Array]:
        """What is worth keeping of a run, by name, each (updates, learners)."""
        return {}


def require_one_coordinate(name: str, mdp: MetaMDP) -> None:
    """Refuse a space of several hyperparameters where a controller knows only a step size."""
    if mdp.space.num_coordinates != 1:
        raise InputError(
            f"controller: {name!r} chooses one number for each update, but the rule {mdp.rule.name!r} takes "
            f"{', '.join(mdp.space.names)}."
        )


class Exploration(Controller):
    """h ~ U(H) at every update: what collects the training data, called uniform in tables."""

    name = "uniform"
    is_memoryless = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        """Remember the space."""
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """Fresh draws for every learner."""
        return state.space.sample(learners.controller_key, learners.theta.shape[0])

"""The interface of controllers, which propose the hyperparameters of the next update."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.progress import Silent, Tracker
from metastep.mdp import Learners, MetaMDP
from metastep.mdp.blocks import Stream
from metastep.rules.spaces import Space

ControllerState = Any


class TaskSource(NamedTuple):
    """Tasks that a method was trained, selected or tuned on: those of a stream, or a list with the stream's keys."""

    use: Literal["trained", "selected", "tuned"]
    stream: Stream
    contexts: NDArray[np.float32] | None = None  # (tasks, coordinates)


@dataclass(frozen=True, eq=False)
class Resources:
    """What an experiment provides to controllers that have to be trained or loaded before they can propose."""

    mdp: MetaMDP  # with the method's rule
    seed: int
    num_updates: int  # of each learner in the comparison
    num_training_episodes: int  # meta-episodes in the training data
    num_stepsizes: int  # of the grid on which a model maximises
    regressor: Callable[[], Any]  # returns the experiment's regressor (`metastep.fqi.regressors`)
    model: Callable[..., Any]  # returns the experiment's selected model, or that of a level (`metastep.search`)
    task_list: NDArray[np.float32] | None = None  # contexts to train on in place of the task distribution
    tracker: Tracker = field(default_factory=Silent)  # shows progress


class Controller(ABC):
    """Base class of controllers; one call handles all learners of a block. Inherit from it for a controller of your own."""

    name: ClassVar[str]  # identifier in the registry, in tables and in files
    is_memoryless: ClassVar[bool] = False  # `init` returns the state at any update, so that a block can be resumed
    needs_model: ClassVar[bool] = False  # it uses the experiment's model, which has to be fitted first
    keeps_episodes: ClassVar[bool] = False  # it uses the episodes of a batch
    num_batches: ClassVar[int] = 1  # simulations of, or passes through, a batch per update; 0 is one for each step size
    is_yardstick: ClassVar[bool] = False  # a reference that is not tested against, such as an oracle

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """The tasks that it was trained or selected on, and must not be tested on."""
        return ()

    @property
    def training_steps(self) -> float:
        """Environment steps of its own training; those of the experiment's model are counted with the training data."""
        return 0.0

    def num_trials(self, space: Space) -> int:
        """Return the number of additional batches that it simulates before every update."""
        return 0

    def prepared(self, run: Resources) -> "Controller":
        """Return the controller for an experiment, trained or loaded if necessary."""
        return self

    @abstractmethod
    def init(self, mdp: MetaMDP, learners: Learners) -> ControllerState:
        """Return the state before the first proposal."""

    @abstractmethod
    def propose(self, state: ControllerState, learners: Learners) -> Array:
        """Return hyperparameters for every learner: (learners, coordinates)."""

    def candidates(self, mdp: MetaMDP, learners: Learners, num: int) -> list[Array]:
        """Return hyperparameters of further updates to evaluate, but not to apply, as training data: random draws by default."""
        return [mdp.space.sample(key, learners.theta.shape[0]) for key in learners.candidate_keys(num)]

    def observe(
        self, state: ControllerState, before: Learners, hyperparameters: Array, after: Learners
    ) -> ControllerState:
        """Learn from a transition of every learner."""
        return state

    def report(self, state: ControllerState) -> dict[str, Array]:
        """Return quantities to store with the results, by name, each (updates, learners)."""
        return {}


def require_one_coordinate(name: str, mdp: MetaMDP) -> None:
    """Raise an error if the space has more coordinates than the step size, the only one that a controller can choose."""
    if mdp.space.num_coordinates != 1:
        takes = f"the rule {mdp.rule.name!r} takes {', '.join(mdp.space.names)}"
        raise InputError(f"controller: {name!r} chooses one number for each update, but {takes}.")


class Exploration(Controller):
    """Uniform exploration, h ~ U(H) at every update, which collects the training data."""

    name: ClassVar[str] = "uniform"
    is_memoryless: ClassVar[bool] = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        return state.space.sample(learners.controller_key, learners.theta.shape[0])

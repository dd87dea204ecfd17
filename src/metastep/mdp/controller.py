"""What a controller is: it proposes the hyperparameters of the next update."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
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
    """Tasks that a method has seen before it is judged: those of a stream, or an explicit list with the stream's keys."""

    use: Literal["trained", "selected", "tuned"]
    stream: Stream
    contexts: NDArray[np.float32] | None = None  # (tasks, coordinates)


@dataclass(frozen=True, eq=False)
class Resources:
    """What an experiment offers to a controller that has to be trained or loaded before it can propose."""

    mdp: MetaMDP  # of the method, its rule included
    seed: int  # of everything random
    num_updates: int  # of a learner in the comparison
    num_training_episodes: int  # meta-episodes that the training data has
    num_stepsizes: int  # on the grid of a maximum
    regressor: Callable[[], Any]  # gives the experiment's regressor (`metastep.fqi.regressors`)
    model: Callable[..., Any]  # gives the experiment's selected model, or that of a level (`metastep.search`)
    task_list: NDArray[np.float32] | None = None  # contexts to train on in place of the task distribution
    tracker: Tracker = field(default_factory=Silent)  # shows long work


class Controller(ABC):
    """One call serves all learners of a block. A controller of your own inherits from this."""

    name: ClassVar[str]  # identifier in the registry, in tables and in files
    is_memoryless: ClassVar[bool] = False  # `init` gives the state at any update, so that a block can be resumed there
    needs_model: ClassVar[bool] = False  # it follows the experiment's model, which has to be fitted first
    keeps_episodes: ClassVar[bool] = False  # it looks at whole episodes of a batch
    num_batches: ClassVar[int] = 1  # simulations, or passes through a batch, for an update; 0: one for each step size
    is_yardstick: ClassVar[bool] = False  # it uses what a method must not, so it takes part in no test

    @property
    def shaped_by(self) -> tuple[TaskSource, ...]:
        """The tasks it was trained or selected on, which it must not be judged on."""
        return ()

    @property
    def training_steps(self) -> float:
        """Environment steps that it took to train itself; those of the experiment's model are counted with its data."""
        return 0.0

    def num_trials(self, space: Space) -> int:
        """Return how many batches of its own it simulates before every update."""
        return 0

    def prepared(self, run: Resources) -> "Controller":
        """Return the controller for an experiment; it is trained or loaded here where that is needed."""
        return self

    @abstractmethod
    def init(self, mdp: MetaMDP, learners: Learners) -> ControllerState:
        """Return the state before the first proposal."""

    @abstractmethod
    def propose(self, state: ControllerState, learners: Learners) -> Array:
        """Return hyperparameters for every learner: (learners, coordinates)."""

    def candidates(self, mdp: MetaMDP, learners: Learners, num: int) -> list[Array]:
        """Return hyperparameters of further updates to evaluate, but not to apply, as training data: random draws by default."""
        return [mdp.space.sample(key, learners.theta.shape[0]) for key in candidate_keys(learners, num)]

    def observe(
        self, state: ControllerState, before: Learners, hyperparameters: Array, after: Learners
    ) -> ControllerState:
        """Learn from a transition of every learner."""
        return state

    def report(self, state: ControllerState) -> dict[str, Array]:
        """Return what to keep of a run, by name, each (updates, learners)."""
        return {}


def candidate_keys(learners: Learners, num: int) -> list[Array]:
    """Return a key for each candidate."""
    return [jax.random.fold_in(learners.controller_key, index + 1) for index in range(num)]


def require_one_coordinate(name: str, mdp: MetaMDP) -> None:
    """Refuse a space of several hyperparameters where a controller knows only a step size."""
    if mdp.space.num_coordinates != 1:
        takes = f"the rule {mdp.rule.name!r} takes {', '.join(mdp.space.names)}"
        raise InputError(f"controller: {name!r} chooses one number for each update, but {takes}.")


class Exploration(Controller):
    """h ~ U(H) at every update: what collects the training data, called uniform in tables."""

    name: ClassVar[str] = "uniform"
    is_memoryless: ClassVar[bool] = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        return state.space.sample(learners.controller_key, learners.theta.shape[0])

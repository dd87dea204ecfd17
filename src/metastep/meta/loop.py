"""The one loop that collection, validation, tuning and test share: a controller proposes, the rule applies."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep.meta.mdp import Learners, MetaMDP, Tasks, advance, begin

ControllerState = Any


class Controller(Protocol):
    """Whatever proposes the hyperparameters of the next update; one call serves all learners of a block."""

    @property
    def name(self) -> str:
        """Identifier in tables and files."""
        ...

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
        ...


class Episode(NamedTuple):
    """The record of one block of learners over T updates, on the host; time first.

    A piece of it is the record of one stretch; only the first piece has the observation that precedes the updates, a later
    one of T updates has T observations.
    """

    context: NDArray[np.float32]  # (learners, coordinates)
    theta: NDArray[np.float32]  # (T+1, learners, parameters)
    gradient: NDArray[np.float32]  # (T+1, learners, parameters): the natural gradient
    mean_return: NDArray[np.float32]  # (T+1, learners)
    hyperparameters: NDArray[np.float32]  # (T, learners, coordinates)
    flagged: NDArray[np.bool_]  # (T+1, learners)
    num_steps: NDArray[np.float32]  # (T+1, learners): environment steps before termination

    def first(self, num: int) -> "Episode":
        """Only the first `num` learners: cuts the padding of a last block."""
        return Episode(
            self.context[:num],
            self.theta[:, :num],
            self.gradient[:, :num],
            self.mean_return[:, :num],
            self.hyperparameters[:, :num],
            self.flagged[:, :num],
            self.num_steps[:, :num],
        )


class Exploration:
    """h ~ U(H) at every update: the controller that collects the training data, called Uniform in tables.

    `is_memoryless` says that `init` gives the state at any update, so that a block can be resumed between two of them.
    """

    name = "uniform"
    is_memoryless = True

    def init(self, mdp: MetaMDP, learners: Learners) -> MetaMDP:
        """Remember the space."""
        return mdp

    def propose(self, state: MetaMDP, learners: Learners) -> Array:
        """Fresh draws for every learner."""
        return state.space.sample(learners.controller_key, learners.theta.shape[0])

    def observe(self, state: MetaMDP, before: Learners, hyperparameters: Array, after: Learners) -> MetaMDP:
        """Exploration does not learn."""
        return state


class _Snapshot(NamedTuple):
    theta: Array
    gradient: Array
    mean_return: Array
    flagged: Array
    num_steps: Array


def _snapshot(learners: Learners) -> _Snapshot:
    estimate = learners.estimate
    return _Snapshot(
        learners.theta, estimate.natural_gradient, estimate.mean_return, learners.flagged, estimate.num_steps
    )


class Stretch(NamedTuple):
    """What some updates led to: where to go on, and the piece of the record."""

    learners: Learners
    state: ControllerState
    piece: Episode


def follow(
    mdp: MetaMDP,
    controller: Controller,
    learners: Learners,
    state: ControllerState,
    num_updates: int,
    *,
    from_start: bool,
) -> Stretch:
    """Let the learners make `num_updates` more updates; from the start, what they are before is recorded, too."""
    snapshots, proposals = [_snapshot(learners)] if from_start else [], []
    for _ in range(num_updates):
        hyperparameters = controller.propose(state, learners)
        after = advance(mdp, learners, hyperparameters)
        state = controller.observe(state, learners, hyperparameters, after)
        learners = after
        snapshots.append(_snapshot(learners))
        proposals.append(hyperparameters)
    # One transfer at the end: the device never waits for the host in between.
    host_snapshots, host_proposals, context = jax.device_get((snapshots, proposals, learners.context))
    theta, gradient, mean_return, flagged, num_steps = (
        np.stack(arrays) for arrays in zip(*host_snapshots, strict=True)
    )
    chosen = np.stack(host_proposals) if host_proposals else np.zeros((0, len(context), mdp.space.num_coordinates))
    piece = Episode(context, theta, gradient, mean_return, chosen.astype(np.float32), flagged, num_steps)
    return Stretch(learners, state, piece)


def joined(pieces: Sequence[Episode]) -> Episode:
    """Pieces that follow one another as one."""
    if len(pieces) == 1:
        return pieces[0]
    context, *in_time = zip(*pieces, strict=True)
    return Episode(context[0], *(np.concatenate(arrays) for arrays in in_time))


def run(mdp: MetaMDP, controller: Controller, tasks: Tasks, num_updates: int) -> Episode:
    """Let the learners of one block make `num_updates` updates with the controller's step sizes."""
    learners = begin(mdp, tasks)
    state = controller.init(mdp, learners)
    return follow(mdp, controller, learners, state, num_updates, from_start=True).piece

"""The one loop that collection, validation, tuning and test share: a controller proposes, the rule applies."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from metastep import features
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.controller import Controller, ControllerState
from metastep.mdp.history import History, Outcomes


class Stretch(NamedTuple):
    """Where to go on after some updates, and their piece of the history."""

    learners: Learners
    state: ControllerState
    piece: History


def _snapshot(mdp: MetaMDP, learners: Learners, record: Sequence[str]) -> dict[str, Any]:
    return {
        "mean_return": learners.estimate.mean_return,
        "flagged": learners.flagged,
        "num_steps": learners.estimate.num_steps,
        "features": features.compute(mdp, tuple(record), learners),
    }


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def following(
    mdp: MetaMDP,
    controller: Controller,
    learners: Learners,
    state: ControllerState,
    num_updates: int,
    *,
    from_start: bool,
    record: Sequence[str] = (),
    tries: int = 0,
) -> Generator[Array, Learners, Stretch]:
    """Yield the hyperparameters of each of `num_updates` more updates, and receive the learners after it.

    From the start, the state before them is recorded, too, with the features that `record` names; `tries` others are tried.
    """
    snapshots, proposals, tried = [_snapshot(mdp, learners, record)] if from_start else [], [], []
    for _ in range(num_updates):
        attempts = controller.attempts(mdp, learners, tries) if tries else []
        outcomes = [_snapshot(mdp, mdp.advance(learners, attempt), record) for attempt in attempts]
        tried.append([{"hyperparameters": a, **found} for a, found in zip(attempts, outcomes, strict=True)])
        hyperparameters = controller.propose(state, learners)
        after = yield hyperparameters
        state = controller.observe(state, learners, hyperparameters, after)
        learners = after
        snapshots.append(_snapshot(mdp, learners, record))
        proposals.append(hyperparameters)
    # One transfer at the end: the device never waits for the host in between.
    snapshots, proposals, tried, context = jax.device_get((snapshots, proposals, tried, learners.context))
    chosen = np.stack(proposals) if proposals else np.zeros((0, len(context), mdp.space.num_coordinates))
    piece = History(
        context=context,
        hyperparameters=chosen.astype(np.float32),
        tried=Outcomes(**_stacked([_stacked(moment) for moment in tried])) if tries and num_updates else None,
        **_stacked(snapshots),
    )
    return Stretch(learners, state, piece)


def follow(
    mdp: MetaMDP,
    controller: Controller,
    learners: Learners,
    state: ControllerState,
    num_updates: int,
    on_update: Callable[[], object] = lambda: None,
    **options: Any,
) -> Stretch:
    """Let the learners make `num_updates` more updates, and call `on_update` after each; the options are those of `following`."""
    course = following(mdp, controller, learners, state, num_updates, **options)
    try:
        hyperparameters = next(course)
        while True:
            learners = mdp.advance(learners, hyperparameters)
            on_update()
            hyperparameters = course.send(learners)
    except StopIteration as end:
        stretch: Stretch = end.value
        return stretch


class Growth(NamedTuple):
    """A block after some updates: the history so far, and the learners to go on with."""

    updates: int
    pieces: tuple[History, ...]
    learners: Learners


def grow(
    mdp: MetaMDP,
    controller: Controller,
    tasks: Tasks,
    num_updates: int,
    *,
    stretch: int,
    begun: Growth | None = None,
    **options: Any,
) -> Iterator[Growth]:
    """Let a block make `num_updates` updates in all, and yield it after every `stretch` of them.

    `begun` is where an interrupted block goes on; the controller must be memoryless then.
    """
    updates, pieces, learners = begun or Growth(0, (), mdp.begin(tasks))
    state = controller.init(mdp, learners)
    while updates < num_updates:
        count = min(stretch, num_updates - updates)
        learners, state, piece = follow(mdp, controller, learners, state, count, from_start=updates == 0, **options)
        updates, pieces = updates + count, (*pieces, piece)
        yield Growth(updates, pieces, learners)

"""The one loop that collection, validation, tuning and test share: a controller proposes, the rule applies."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from metastep import features
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.controller import Controller, ControllerState
from metastep.mdp.history import History, Tried


class Stretch(NamedTuple):
    """What some updates led to: where to go on, and the piece of the history."""

    learners: Learners
    state: ControllerState
    piece: History


def _try(
    mdp: MetaMDP, controller: Controller, learners: Learners, num: int, record: Sequence[str]
) -> list[tuple[Array, tuple[dict[str, Array], dict[str, Array]]]]:
    """What learners would see after other updates, and the updates; nobody follows them."""
    attempts = controller.attempts(mdp, learners, num) if num else []
    return [(attempt, _snapshot(mdp, mdp.advance(learners, attempt), record)) for attempt in attempts]


def _snapshot(mdp: MetaMDP, learners: Learners, record: Sequence[str]) -> tuple[dict[str, Array], dict[str, Array]]:
    estimate = learners.estimate
    always = {"mean_return": estimate.mean_return, "flagged": learners.flagged, "num_steps": estimate.num_steps}
    return always, features.compute(mdp, tuple(record), learners)


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
    """Yields the hyperparameters of each update and is sent the learners after it; the arguments are those of `follow`."""
    snapshots, proposals, tried = [_snapshot(mdp, learners, record)] if from_start else [], [], []
    for _ in range(num_updates):
        tried.append(_try(mdp, controller, learners, tries, record))
        hyperparameters = controller.propose(state, learners)
        after = yield hyperparameters
        state = controller.observe(state, learners, hyperparameters, after)
        learners = after
        snapshots.append(_snapshot(mdp, learners, record))
        proposals.append(hyperparameters)
    # One transfer at the end: the device never waits for the host in between.
    host_snapshots, host_proposals, host_tried, context = jax.device_get(
        (snapshots, proposals, tried, learners.context)
    )
    always, kept = ([snapshot[part] for snapshot in host_snapshots] for part in (0, 1))
    chosen = np.stack(host_proposals) if host_proposals else np.zeros((0, len(context), mdp.space.num_coordinates))
    piece = History(
        context=context,
        hyperparameters=chosen.astype(np.float32),
        features=_stacked(kept),
        tried=_all_tried(host_tried) if tries and num_updates else None,
        **_stacked(always),
    )
    return Stretch(learners, state, piece)


def follow(
    mdp: MetaMDP,
    controller: Controller,
    learners: Learners,
    state: ControllerState,
    num_updates: int,
    *,
    from_start: bool,
    record: Sequence[str] = (),
    tries: int = 0,
    on_update: Callable[[], object] = lambda: None,
) -> Stretch:
    """Let the learners make `num_updates` more updates; from the start, what they are before is recorded, too.

    `record` names the features to keep; before every update, `tries` others are tried besides.
    """
    course = following(mdp, controller, learners, state, num_updates, from_start=from_start, record=record, tries=tries)
    try:
        hyperparameters = next(course)
        while True:
            learners = mdp.advance(learners, hyperparameters)
            on_update()
            hyperparameters = course.send(learners)
    except StopIteration as end:
        stretch: Stretch = end.value
        return stretch


def _all_tried(moments: list[list[tuple[Any, tuple[dict[str, Any], dict[str, Any]]]]]) -> Tried:
    """Time first, then the tries."""
    return Tried(
        hyperparameters=np.stack([np.stack([chosen for chosen, _ in moment]) for moment in moments]),
        features=_stacked([_stacked([kept for _, (_, kept) in moment]) for moment in moments]),
        **_stacked([_stacked([always for _, (always, _) in moment]) for moment in moments]),
    )


def _stacked(moments: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([moment[name] for moment in moments]) for name in moments[0]}


def run(
    mdp: MetaMDP, controller: Controller, tasks: Tasks, num_updates: int, record: Sequence[str] = ()
) -> tuple[History, ControllerState]:
    """Let the learners of one block make `num_updates` updates; also the controller's state at the end."""
    end = run_through(mdp, controller, tasks, num_updates, record)
    return end.piece, end.state


def run_through(
    mdp: MetaMDP,
    controller: Controller,
    tasks: Tasks,
    num_updates: int,
    record: Sequence[str] = (),
    on_update: Callable[[], object] = lambda: None,
) -> Stretch:
    """The same, with the learners at the end; `on_update` is called after every update."""
    learners = mdp.begin(tasks)
    state = controller.init(mdp, learners)
    return follow(mdp, controller, learners, state, num_updates, from_start=True, record=record, on_update=on_update)

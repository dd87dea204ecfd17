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
    others = Outcomes(**_stacked([_stacked(moment) for moment in tried])) if tries else None
    chosen = np.stack(proposals).astype(np.float32)
    return Stretch(
        learners, state, History(context=context, hyperparameters=chosen, tried=others, **_stacked(snapshots))
    )


Advance = Callable[[Sequence[Learners], Sequence[Array]], Sequence[Learners]]  # one update of each of some blocks


def in_lockstep(
    courses: Sequence[Generator[Array, Learners, Stretch]],
    blocks: Sequence[Learners],
    advance: Advance,
    on_update: Callable[[], object] = lambda: None,
) -> list[Stretch]:
    """Let blocks make equally many updates together, each as its `following` says, and call `on_update` after each."""
    chosen, ends = [next(course) for course in courses], list[Stretch]()
    while not ends:
        blocks, chosen = advance(blocks, chosen), []
        on_update()
        for course, learners in zip(courses, blocks, strict=True):
            try:
                chosen.append(course.send(learners))
            except StopIteration as end:
                ends.append(end.value)
    return ends


def follow(
    mdp: MetaMDP, controller: Controller, learners: Learners, state: ControllerState, num_updates: int, **options: Any
) -> Stretch:
    """Let one block make `num_updates` more updates; the options are those of `following`."""
    course = following(mdp, controller, learners, state, num_updates, **options)
    return in_lockstep([course], [learners], lambda blocks, chosen: [mdp.advance(blocks[0], chosen[0])])[0]


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

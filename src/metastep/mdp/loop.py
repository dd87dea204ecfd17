"""The one loop that collection, validation, tuning and test share: a controller proposes, the rule applies.

A block that takes long is kept in parts on disk.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep import features
from metastep._core import storage
from metastep._core.errors import InputError
from metastep.mdp import Learners, MetaMDP, Tasks
from metastep.mdp.controller import Controller, ControllerState
from metastep.mdp.history import History, Outcomes, from_arrays, joined


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
    """Yield the hyperparameters of each of `num_updates` more updates, and receive the learners after it."""
    # From the start, the state before them is recorded, too, with the features that `record` names; `tries` others are tried.
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
    piece = History(context=context, hyperparameters=chosen, tried=others, **_stacked(snapshots))
    return Stretch(learners, state, piece)


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
    """Let a block make `num_updates` updates in all, or go on where a memoryless one has `begun`; yield every `stretch`."""
    updates, pieces, learners = begun or Growth(0, (), mdp.begin(tasks))
    state = controller.init(mdp, learners)
    while updates < num_updates:
        count = min(stretch, num_updates - updates)
        learners, state, piece = follow(mdp, controller, learners, state, count, from_start=updates == 0, **options)
        updates, pieces = updates + count, (*pieces, piece)
        yield Growth(updates, pieces, learners)


_PIECE, _LEARNERS = "piece.", "learners."


@dataclass(frozen=True)
class Parts:
    """What there is of unfinished blocks in a folder, so that a stopped collection loses seconds and not a block.

        folder/part-00000.safetensors   block 0 up to some update, and what is needed to go on

    A part replaces the one before it, and is removed once the block itself is written.
    """

    folder: Path
    identity: Mapping[str, Any]  # recorded in every part; parts of another identity are not used

    def path(self, block: int) -> Path:
        """Return the path of a block's part."""
        return self.folder / f"part-{block:05d}.safetensors"

    def write(self, block: int, growth: Growth) -> None:
        """Write a block as it is now."""
        # All of the estimate is kept although the episodes could be simulated again: a program compiled for that could differ
        # from the loop's in the last bits.
        arrays = {f"{_PIECE}{name}": array for name, array in joined(growth.pieces).to_arrays().items()}
        arrays |= {name: np.asarray(leaf) for name, leaf in _leaves(growth.learners._replace(key=None)).items()}
        storage.write_tensors(self.path(block), arrays, {**self.identity, "block": block, "updates": growth.updates})

    def take_up(self, block: int, mdp: MetaMDP, tasks: Tasks) -> tuple[Growth | None, str | None]:
        """Return a block where its part ends, and what is wrong with the part, if anything; then it is removed."""
        path = self.path(block)
        if not path.exists():
            return None, None
        like = mdp.begin(tasks)._replace(key=None)  # learners of the same form
        kinds = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(like).items()}
        problem = f"File {path} does not hold what this version keeps."
        try:
            arrays, metadata = storage.read_tensors(path)
            of_piece = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_PIECE)}
            if {**metadata, "updates": 0} != {**self.identity, "block": block, "updates": 0}:
                problem = f"File {path} is of another dataset or block."
            elif {name: (array.shape, array.dtype) for name, array in arrays.items()} == kinds:
                piece = from_arrays({name.removeprefix(_PIECE): array for name, array in of_piece.items()})
                leaves = [jnp.array(arrays[name]) for name in kinds]
                kept: Learners = jax.tree.unflatten(jax.tree.structure(like), leaves)
                return Growth(len(piece.hyperparameters), (piece,), kept._replace(key=tasks.key)), None
        except TypeError:
            pass  # other arrays than those of a history
        except InputError as error:
            problem = str(error)
        self.remove({block})
        return None, problem

    def remove(self, blocks: Collection[int] | None = None) -> None:
        """Remove the parts of some blocks, or all parts; another process may have removed them."""
        for path in self.folder.glob("part-*.safetensors") if blocks is None else map(self.path, blocks):
            with storage.translate_os_errors(f"File {path} cannot be removed"):
                path.unlink(missing_ok=True)


def _leaves(tree: Any) -> dict[str, Array]:
    """Return every array of learners without key, in the tree's order, by a name like learners.estimate.gradient."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_LEARNERS + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

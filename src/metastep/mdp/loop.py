"""The loop that collection, validation, tuning and test share: a controller proposes hyperparameters, the rule applies them.

A block that takes long is run in segments, with checkpoints on disk from which it can be resumed.
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
from metastep.mdp.history import History, Outcomes, concatenate, from_arrays


class Segment(NamedTuple):
    """The result of some consecutive updates of a block."""

    learners: Learners  # after the last update, like the state
    state: ControllerState
    history: History  # of these updates only


def _snapshot(mdp: MetaMDP, learners: Learners, record: Sequence[str]) -> dict[str, Any]:
    seen = {"mean_return": learners.estimate.mean_return, "num_steps": learners.estimate.num_steps}
    return seen | {"flagged": learners.flagged, "features": features.compute(mdp, tuple(record), learners)}


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def update_steps(
    mdp: MetaMDP,
    controller: Controller,
    learners: Learners,
    state: ControllerState,
    num_updates: int,
    *,
    from_start: bool,
    record: Sequence[str] = (),
    num_candidates: int = 0,
) -> Generator[Array, Learners, Segment]:
    """Yield the hyperparameters of each of `num_updates` updates; the caller applies them and sends the learners after each.

    The history has the features that `record` names and, if `from_start`, the state before the first update. Before each update,
    `num_candidates` further updates are evaluated from the same state and recorded, but not applied.
    """
    snapshots, proposals, candidate_outcomes = [_snapshot(mdp, learners, record)] if from_start else [], [], []
    for _ in range(num_updates):
        candidates = controller.candidates(mdp, learners, num_candidates) if num_candidates else []
        outcomes = [_snapshot(mdp, mdp.advance(learners, candidate), record) for candidate in candidates]
        candidate_outcomes.append([{"hyperparameters": c, **o} for c, o in zip(candidates, outcomes, strict=True)])
        hyperparameters = controller.propose(state, learners)
        after = yield hyperparameters
        state = controller.observe(state, learners, hyperparameters, after)
        learners = after
        snapshots.append(_snapshot(mdp, learners, record))
        proposals.append(hyperparameters)
    # One transfer at the end, so that the device never waits for the host in between.
    on_device = snapshots, proposals, candidate_outcomes, learners.context
    snapshots, proposals, candidate_outcomes, context = jax.device_get(on_device)
    tried = Outcomes(**_stack([_stack(outcomes) for outcomes in candidate_outcomes])) if num_candidates else None
    chosen = np.stack(proposals).astype(np.float32)
    return Segment(learners, state, History(context, hyperparameters=chosen, candidates=tried, **_stack(snapshots)))


Loop = Generator[Array, Learners, Segment]
Advance = Callable[
    [Sequence[Learners], Sequence[Array]], Sequence[Learners]
]  # applies one update to each of some blocks


def in_lockstep(
    loops: Sequence[Loop], blocks: Sequence[Learners], advance: Advance, on_update: Callable[[], object] = lambda: None
) -> list[Segment]:
    """Run one `update_steps` generator per block, one update of all blocks at a time; call `on_update` after each update."""
    chosen, segments = [next(loop) for loop in loops], list[Segment]()
    while not segments:  # all loops have equally many updates
        blocks, chosen = advance(blocks, chosen), []
        on_update()
        for loop, learners in zip(loops, blocks, strict=True):
            try:
                chosen.append(loop.send(learners))
            except StopIteration as end:
                segments.append(end.value)
    return segments


def run_updates(
    mdp: MetaMDP, controller: Controller, learners: Learners, state: ControllerState, num_updates: int, **options: Any
) -> Segment:
    """Apply `num_updates` updates to one block; the options are those of `update_steps`."""
    loop = update_steps(mdp, controller, learners, state, num_updates, **options)
    return in_lockstep([loop], [learners], lambda blocks, chosen: [mdp.advance(blocks[0], chosen[0])])[0]


class Checkpoint(NamedTuple):
    """A block after some updates: the histories of its segments so far, and the learners to continue with."""

    updates: int
    histories: tuple[History, ...]
    learners: Learners


def run_segments(
    mdp: MetaMDP,
    controller: Controller,
    tasks: Tasks,
    num_updates: int,
    *,
    updates_per_segment: int,
    checkpoint: Checkpoint | None = None,
    **options: Any,
) -> Iterator[Checkpoint]:
    """Apply updates to a block until it has `num_updates`, and yield a checkpoint after each segment.

    With a memoryless controller, the block may continue from an earlier `checkpoint`. Options are those of `update_steps`.
    """
    updates, histories, learners = checkpoint or Checkpoint(0, (), mdp.begin(tasks))
    state = controller.init(mdp, learners)
    while updates < num_updates:
        num, how = min(updates_per_segment, num_updates - updates), {"from_start": updates == 0, **options}
        learners, state, history = run_updates(mdp, controller, learners, state, num, **how)
        updates, histories = updates + num, (*histories, history)
        yield Checkpoint(updates, histories, learners)


_HISTORY, _LEARNERS = "piece.", "learners."  # prefixes of the arrays in a file


@dataclass(frozen=True)
class Checkpoints:
    """The last checkpoint of every unfinished block in a folder, so that a stopped collection loses seconds and not a block.

        folder/part-00000.safetensors   the checkpoint of block 0

    A checkpoint replaces the block's earlier one, and is removed once the block itself is written.
    """

    folder: Path
    identity: Mapping[str, Any]  # recorded in every file; files with another identity are not used

    def path(self, block: int) -> Path:
        """Return the path of a block's checkpoint."""
        return self.folder / f"part-{block:05d}.safetensors"

    def write(self, block: int, checkpoint: Checkpoint) -> None:
        """Write the checkpoint of a block."""
        # The whole estimate is kept: a program that simulates the episodes again could differ from the loop's in the last bits.
        arrays = {f"{_HISTORY}{name}": array for name, array in concatenate(checkpoint.histories).to_arrays().items()}
        arrays |= {name: np.asarray(leaf) for name, leaf in _leaves(checkpoint.learners._replace(key=None)).items()}
        metadata = {**self.identity, "block": block, "updates": checkpoint.updates}
        storage.write_tensors(self.path(block), arrays, metadata)

    def load(self, block: int, mdp: MetaMDP, tasks: Tasks) -> tuple[Checkpoint | None, str | None]:
        """Return a block's checkpoint, or None and what is wrong with its file, if there is one; such a file is removed."""
        path = self.path(block)
        if not path.exists():
            return None, None
        template = mdp.begin(tasks)._replace(key=None)  # learners with the expected shapes
        expected = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(template).items()}
        problem = f"File {path} does not hold what this version keeps."
        try:
            arrays, metadata = storage.read_tensors(path)
            recorded = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_HISTORY)}
            if {**metadata, "updates": 0} != {**self.identity, "block": block, "updates": 0}:
                problem = f"File {path} is of another dataset or block."
            elif {name: (array.shape, array.dtype) for name, array in arrays.items()} == expected:
                history = from_arrays({name.removeprefix(_HISTORY): array for name, array in recorded.items()})
                leaves = [jnp.array(arrays[name]) for name in expected]
                learners: Learners = jax.tree.unflatten(jax.tree.structure(template), leaves)
                return Checkpoint(len(history.hyperparameters), (history,), learners._replace(key=tasks.key)), None
        except (InputError, TypeError) as error:  # other arrays than those of a history are a TypeError
            problem = str(error) if isinstance(error, InputError) else problem
        self.remove({block})
        return None, problem

    def remove(self, blocks: Collection[int] | None = None) -> None:
        """Remove the checkpoints of some blocks, by default of all; another process may have removed them."""
        for path in self.folder.glob("part-*.safetensors") if blocks is None else map(self.path, blocks):
            with storage.translate_os_errors(f"File {path} cannot be removed"):
                path.unlink(missing_ok=True)


def _leaves(learners: Any) -> dict[str, Array]:
    """Return all arrays of learners without a key, in the tree's order, by names like learners.estimate.gradient."""
    leaves = jax.tree_util.tree_leaves_with_path(learners)
    return {_LEARNERS + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

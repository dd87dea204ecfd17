"""Data collection (Algorithm 1): run blocks of learners under an exploring controller, in parallel, and write them to disk."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep._core import parallel, storage
from metastep._core.progress import Silent, Tally, Tracker
from metastep._core.provenance import device_name
from metastep.mdp import MetaMDP, Tasks
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Controller, Exploration
from metastep.mdp.dataset import Dataset, DatasetWriter, Layout
from metastep.mdp.history import History, concatenate
from metastep.mdp.loop import Checkpoint, run_segments
from metastep.simulation.engine import blocks_at_once, is_compiled, one_block_at_a_time

STEPS_PER_SEGMENT = 10_000_000
"""Environment steps in a segment of a block in JAX: some seconds of HalfCheetah, more than a block of CartPole has."""
SECONDS_BETWEEN_CHECKPOINTS = 2.0
"""A segment ends with a checkpoint only if the last is this old: where steps are cheap, files cost more than they save."""


def layout_of(mdp: MetaMDP, num_episodes: int, num_updates: int, labels: int = 1) -> Layout:
    """Return the shape of the dataset that `collect` writes."""
    names, sizes = mdp.env.context_space.names, features.sizes(mdp, recorded_features(mdp))
    return Layout(names, sizes, num_updates, num_episodes, mdp.block_size, mdp.space.num_coordinates, labels)


def recorded_features(mdp: MetaMDP) -> tuple[str, ...]:
    """Return the features that a dataset keeps besides tasks and returns, so that models of other observations can be fitted."""
    observed = (name for name in mdp.observation if name not in ("context", "return"))
    return tuple(dict.fromkeys((*mdp.recorded, *observed)))


class Collection(NamedTuple):
    """The settings of a collection that `make_block` needs, in any process."""

    writer: DatasetWriter
    mdp: MetaMDP
    seed: int
    task_list: NDArray[np.float32] | None
    mark: Path | None  # a file that exists during the collection: a worker that sees it can write to its folder

    def tasks(self, block: int) -> Tasks:
        """Return the learners of a block before their first batch."""
        return self.mdp.tasks(self.seed, Stream.TRAIN, block, self.task_list)

    def load_checkpoint(self, block: int) -> tuple[Checkpoint | None, str | None]:
        """Return the checkpoint of an interrupted block, and what is wrong with its file, if anything."""
        return self.writer.checkpoints.load(block, self.mdp, self.tasks(block))

    def steps_of(self, updates: int) -> int:
        """Return the environment steps of a block after this many updates, including the batch before the first one."""
        return (updates * self.writer.layout.labels + 1) * self.mdp.block_size * self.mdp.batch_steps


def collect(
    mdp: MetaMDP,
    folder: str | Path,
    *,
    num_episodes: int,
    num_updates: int,
    seed: int,
    config: Mapping[str, Any],
    task_list: NDArray[np.float32] | None = None,
    controller: Controller | None = None,
    labels: int = 1,
    rounds: int = 1,
    controller_of_round: Callable[[DatasetWriter, int], Controller] | None = None,
    tracker: Tracker | None = None,
) -> Dataset:
    """Collect a dataset, or the missing blocks of one with the same configuration.

    Args:
        num_episodes, num_updates: K and T; the generative method is T = 1.
        task_list: contexts to use in place of the task distribution, (tasks, coordinates).
        controller: proposes the step sizes; uniform exploration by default.
        labels: updates evaluated at every state; one of them is applied, the others are random candidates.
        rounds: groups of equally many blocks, collected one after the other.
        controller_of_round: returns the memoryless controller of a round, in place of `controller`, after the rounds before it.
        tracker: shows the environment steps simulated.
    """
    layout, controller = layout_of(mdp, num_episodes, num_updates, labels), controller or Exploration()
    tasks_digest = None if task_list is None else storage.sha256_of_json(np.asarray(task_list).tolist())
    recorded = {**config, "collected_with": {"controller": controller.name, "task_list": tasks_digest}}
    writer = DatasetWriter(folder, layout, recorded, seed=seed, device=device_name(), packages=mdp.env.packages)
    for sentence in writer.damaged:
        print(f"{sentence} It is collected again.", file=sys.stderr)
    missing = sorted(writer.problems())
    collection = Collection(writer, mdp, seed, task_list, None)
    done = dict.fromkeys(missing, 0)
    for block in missing if controller.is_memoryless else ():
        checkpoint, problem = collection.load_checkpoint(block)
        if checkpoint is not None:
            done[block] = collection.steps_of(checkpoint.updates)
        if problem is not None:
            print(f"{problem} It is left out.", file=sys.stderr)
    total = len(missing) * collection.steps_of(num_updates) - sum(done.values())
    blocks_per_round = len(layout.blocks) // rounds
    with (tracker or Silent()).stage("collect", total, "steps") as stage:
        tally = Tally(stage.advance, done)
        for index in range(rounds):
            in_round = [block for block in missing if rounds == 1 or block // blocks_per_round == index]
            if in_round:
                chosen = controller_of_round(writer, index) if controller_of_round else controller
                _collect_blocks(collection, chosen, in_round, tally)
    return writer.finish()


def _collect_blocks(collection: Collection, controller: Controller, blocks: list[int], tally: Tally) -> None:
    at_once = min(blocks_at_once(collection.mdp.env), len(blocks))
    with parallel.executor(at_once, tally) as pool, _marked(collection, pool) as marked:
        calls = ((block, make_block, marked, controller, block) for block in blocks)
        for block, history in parallel.completed(pool, lambda _: next(calls, None)):
            if history is not None:
                collection.writer.add(block, history)
            tally((block, collection.steps_of(collection.writer.layout.num_updates)))


@contextmanager
def _marked(collection: Collection, pool: parallel.Pool) -> Iterator[Collection]:
    """Yield the collection for other processes; if these may be on other machines, with a mark that shows who sees this disk."""
    writer = copy(collection.writer)
    writer.folder = writer.folder.absolute()
    collection = collection._replace(writer=writer)
    if pool.is_local:
        yield collection
        return
    with storage.temporary(writer.folder / "collecting") as mark:
        yield collection._replace(mark=mark)
    storage.remove_leftovers(writer.folder)  # of workers that were killed


def make_block(collection: Collection, controller: Controller, block: int) -> History | None:
    """Collect one block, or the rest of an interrupted one; if the mark exists, write it and return None, else return it."""
    writer, mdp, layout = collection.writer, collection.mdp, collection.writer.layout
    writes_itself = collection.mark is not None and collection.mark.exists()
    if writes_itself and not writer.problem(block):
        return None  # a worker wrote it, and was killed before it could report that
    is_resumable = (collection.mark is None or writes_itself) and controller.is_memoryless
    updates_per_segment, histories = layout.num_updates, tuple[History, ...]()
    if controller.is_memoryless:
        steps = STEPS_PER_SEGMENT if is_compiled(mdp.env) else 1  # host environments are not dispatched asynchronously
        updates_per_segment = max(1, steps // (mdp.block_size * mdp.batch_steps * layout.labels))
    with one_block_at_a_time(mdp.env):
        checkpoint = collection.load_checkpoint(block)[0] if is_resumable else None
        saved = time.monotonic()
        options: Any = {"record": tuple(layout.features), "num_candidates": layout.labels - 1}
        options |= {"updates_per_segment": updates_per_segment, "checkpoint": checkpoint}
        tasks, num_updates = collection.tasks(block), layout.num_updates
        for checkpoint in run_segments(mdp, controller, tasks, num_updates, **options):
            histories = checkpoint.histories
            if checkpoint.updates == num_updates:
                break
            if is_resumable and time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
                writer.checkpoints.write(block, checkpoint)
                saved = time.monotonic()
            parallel.report(block, collection.steps_of(checkpoint.updates))
    if not writes_itself:
        return concatenate(histories)
    writer.add(block, concatenate(histories))
    return None

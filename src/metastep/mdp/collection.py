"""Data collection (Algorithm 1): the shared loop with the exploring controller, blocks side by side onto the disk.

A block that takes long is kept in parts while it grows, so that a stopped collection resumes inside it.
"""

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
from metastep.mdp.history import History, joined
from metastep.mdp.loop import Growth, grow
from metastep.simulation.engine import blocks_at_once, is_compiled, one_block_at_a_time

STEPS_BETWEEN_HALTS = 10_000_000
"""Environment steps after which a block in JAX may pause: some seconds of HalfCheetah, more than a block of CartPole has."""
PART_SECONDS = 2.0
"""A halt leaves a part on disk only if the last one is this old: where steps are cheap, files would cost more than they save."""


def layout_of(mdp: MetaMDP, num_episodes: int, num_updates: int, labels: int = 1) -> Layout:
    """Return the shape of the dataset that `collect` writes."""
    names, sizes = mdp.env.context_space.names, features.sizes(mdp, recorded_features(mdp))
    return Layout(names, sizes, num_updates, num_episodes, mdp.block_size, mdp.space.num_coordinates, labels)


def recorded_features(mdp: MetaMDP) -> tuple[str, ...]:
    """Return what a dataset keeps besides tasks and returns, so that another observation can be fitted."""
    asked = (name for name in mdp.observation if name not in ("context", "return"))
    return tuple(dict.fromkeys((*mdp.recorded, *asked)))


class Collected(NamedTuple):
    """How a dataset is collected: what a call that makes one of its blocks has to know."""

    writer: DatasetWriter
    mdp: MetaMDP
    seed: int
    task_list: NDArray[np.float32] | None
    mark: Path | None  # a file that exists while a collection runs: a worker that sees it can write beside it

    def tasks(self, block: int) -> Tasks:
        """Return the learners of a block before their first batch."""
        return self.mdp.tasks(self.seed, Stream.TRAIN, block, self.task_list)

    def begun(self, block: int) -> tuple[Growth | None, str | None]:
        """Return where an interrupted block goes on, and what is wrong with its parts, if anything."""
        return self.writer.parts.take_up(block, self.mdp, self.tasks(block))

    def steps_of(self, updates: int) -> int:
        """Return the environment steps of a block after so many updates; the first batch precedes the first of them."""
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
    follow: Callable[[DatasetWriter, int], Controller] | None = None,
    tracker: Tracker | None = None,
) -> Dataset:
    """Collect a dataset, or with the same configuration what is missing of it.

    Args:
        num_episodes, num_updates: K and T; the generative method is T = 1.
        task_list: contexts to use in place of the task distribution, (tasks, coordinates).
        controller: proposes the step sizes; uniform exploration by default.
        labels: updates tried at every state; one of them is the one that is made, the others are drawn at random.
        rounds: parts of equally many blocks, collected one after the other.
        follow: gives the memoryless controller of each round in place of `controller`, once the rounds before it are there.
        tracker: shows the environment steps simulated.
    """
    layout, controller = layout_of(mdp, num_episodes, num_updates, labels), controller or Exploration()
    tasks_digest = None if task_list is None else storage.sha256_of_json(np.asarray(task_list).tolist())
    recorded = {**config, "collected_with": {"controller": controller.name, "task_list": tasks_digest}}
    writer = DatasetWriter(folder, layout, recorded, seed=seed, device=device_name(), packages=mdp.env.packages)
    for sentence in writer.damaged:
        print(f"{sentence} It is collected again.", file=sys.stderr)
    missing = sorted(writer.problems())
    work = Collected(writer, mdp, seed, task_list, None)
    done = dict.fromkeys(missing, 0)
    for block in missing if controller.is_memoryless else ():
        growth, problem = work.begun(block)
        if growth is not None:
            done[block] = work.steps_of(growth.updates)
        if problem is not None:
            print(f"{problem} It is left out.", file=sys.stderr)
    total = len(missing) * work.steps_of(num_updates) - sum(done.values())
    blocks = len(layout.blocks) // rounds
    with (tracker or Silent()).stage("collect", total, "steps") as stage:
        note = Tally(stage.advance, done)
        for index in range(rounds):
            of_round = [block for block in missing if rounds == 1 or block // blocks == index]
            if of_round:
                _collect_blocks(work, follow(writer, index) if follow else controller, of_round, note)
    return writer.finish()


def _collect_blocks(work: Collected, controller: Controller, blocks: list[int], note: Tally) -> None:
    here = min(blocks_at_once(work.mdp.env), len(blocks))
    with parallel.executor(here, note) as pool, _marked(work, pool) as marked:
        calls = ((block, make_block, marked, controller, block) for block in blocks)
        for block, history in parallel.completed(pool, lambda _: next(calls, None)):
            if history is not None:
                work.writer.add(block, history)
            note((block, work.steps_of(work.writer.layout.num_updates)))


@contextmanager
def _marked(work: Collected, pool: parallel.Pool) -> Iterator[Collected]:
    """Yield the work as other processes can do it; if they may not see this disk, with a mark file to tell."""
    writer = copy(work.writer)
    writer.folder = writer.folder.absolute()
    work = work._replace(writer=writer)
    if pool.is_local:
        yield work
        return
    with storage.temporary(writer.folder / "collecting") as mark:
        yield work._replace(mark=mark)
    storage.remove_leftovers(writer.folder)  # of workers that were killed


def make_block(work: Collected, controller: Controller, block: int) -> History | None:
    """Collect one block from where it was interrupted; return it to be written, unless this process writes it itself."""
    writer, mdp, layout = work.writer, work.mdp, work.writer.layout
    writes_itself = work.mark is not None and work.mark.exists()
    if writes_itself and not writer.problem(block):
        return None  # by a worker that was killed before it could say so
    resumes = (work.mark is None or writes_itself) and controller.is_memoryless
    stretch, pieces = layout.num_updates, tuple[History, ...]()
    if controller.is_memoryless:
        most = STEPS_BETWEEN_HALTS if is_compiled(mdp.env) else 1  # on the host every step is waited for anyway
        stretch = max(1, most // (mdp.block_size * mdp.batch_steps * layout.labels))
    with one_block_at_a_time(mdp.env):
        begun = work.begun(block)[0] if resumes else None
        saved = time.monotonic()
        what = {"record": tuple(layout.features), "tries": layout.labels - 1}
        tasks = work.tasks(block)
        for growth in grow(mdp, controller, tasks, layout.num_updates, stretch=stretch, begun=begun, **what):
            pieces = growth.pieces
            if growth.updates == layout.num_updates:
                break
            if resumes and time.monotonic() - saved >= PART_SECONDS:
                writer.parts.write(block, growth)
                saved = time.monotonic()
            parallel.report(block, work.steps_of(growth.updates))
    if not writes_itself:
        return joined(pieces)
    writer.add(block, joined(pieces))
    return None

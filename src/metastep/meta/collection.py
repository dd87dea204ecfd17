"""Data collection (Algorithm 1): the shared loop with the exploring controller, block by block onto the disk.

A block that takes long is kept in parts while it grows, so that a stopped collection resumes inside it.
"""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep.blocks import Stream
from metastep.errors import InputError
from metastep.mdp import Process, Tasks
from metastep.meta.controller import Controller, Exploration
from metastep.meta.dataset import Dataset, DatasetWriter, Layout
from metastep.meta.history import joined
from metastep.meta.parts import Growth, grow
from metastep.progress import Silent, Tracker
from metastep.provenance import device_name
from metastep.storage import sha256_of_json

PART_SECONDS = 2.0
"""A halt leaves a part on disk only if the last one is this old: where steps are cheap, files would cost more than they save."""


Follow = Callable[[DatasetWriter, int], Controller]
"""Gives the controller of a block; the blocks before it are on disk."""


def layout_of(mdp: Process, num_episodes: int, num_updates: int, labels: int = 1) -> Layout:
    """The shape of the dataset that `collect` writes."""
    return Layout(
        context_names=mdp.env.context_space.names,
        features=features.sizes(mdp, recorded_features(mdp)),
        num_updates=num_updates,
        num_learners=num_episodes,
        block_size=mdp.block_size,
        num_hyperparameters=mdp.space.num_coordinates,
        labels=labels,
    )


def recorded_features(mdp: Process) -> tuple[str, ...]:
    """What a dataset keeps besides tasks and returns, so that a model can be refitted with another observation."""
    asked = (name for name in mdp.observation if name not in ("context", "return"))
    return tuple(dict.fromkeys((*mdp.recorded, *asked)))


def collect(
    mdp: Process,
    folder: str | Path,
    *,
    num_episodes: int,
    num_updates: int,
    seed: int,
    config: Mapping[str, Any],
    task_list: NDArray[np.float32] | None = None,
    share: tuple[int, int] = (0, 1),
    controller: Controller | None = None,
    labels: int = 1,
    follow: Follow | None = None,
    tracker: Tracker | None = None,
) -> Dataset | None:
    """Collect a dataset, or what is missing of it; returns None while other processes have blocks to add.

    The trajectory method makes `num_updates` = T updates in each episode; the generative method is T = 1.

    Args:
        mdp: what to collect from.
        folder: of the dataset; a stopped collection resumes there.
        num_episodes: K.
        num_updates: T.
        seed: of the whole dataset.
        config: recorded, and compared on resuming.
        task_list: contexts to use in place of the task distribution, (tasks, coordinates).
        share: (i, n) collects only every n-th block from the i-th on, for n processes that share the work.
        controller: proposes the step sizes; uniform exploration by default.
        labels: updates tried at every state; one of them is the one that is made, the others are drawn at random.
        follow: gives the memoryless controller of each block in place of `controller`, once the blocks before it are there.
        tracker: is told the environment steps simulated.
    """
    index, shares = share
    if not 0 <= index < shares:
        raise InputError(f"share: {index}/{shares} must be I/N with 0 <= I < N.")
    layout = layout_of(mdp, num_episodes, num_updates, labels)
    if shares > len(layout.blocks):
        raise InputError(
            f"share: {index}/{shares} must have at most as many shares as there are blocks, {len(layout.blocks)} of "
            f"{mdp.block_size} learners (collect.block_size)."
        )
    controller = controller or Exploration()
    tasks_digest = None if task_list is None else sha256_of_json(np.asarray(task_list).tolist())
    recorded = {**config, "collected_with": {"controller": controller.name, "task_list": tasks_digest}}
    writer = DatasetWriter(folder, layout, recorded, seed=seed, device=device_name(), packages=mdp.env.packages)
    for sentence in writer.damaged:
        print(f"{sentence} It is collected again.", file=sys.stderr)
    missing = [block for block in writer.missing_blocks() if block % shares == index]

    def tasks_of(block: int) -> Tasks:
        return mdp.tasks(seed, Stream.TRAIN, block, task_list)

    begun: dict[int, Growth] = {}
    batch_steps = mdp.block_size * mdp.batch_steps
    stretch = num_updates
    if controller.is_memoryless:
        stretch = max(1, mdp.steps_between_halts // (batch_steps * labels))
        for block in sorted(writer.parts.blocks().intersection(missing)):
            growth, problem = writer.parts.take_up(block, mdp, tasks_of(block))
            begun |= {block: growth} if growth else {}
            if problem is not None:
                print(f"{problem} It is left out, with the parts after it.", file=sys.stderr)
    # The first batch precedes the first update, so a block has one batch more than updates.
    batches_done = {block: begun[block].updates * labels + 1 if block in begun else 0 for block in missing}
    total = sum(num_updates * labels + 1 - done for done in batches_done.values()) * batch_steps
    with ThreadPoolExecutor(max_workers=1) as thread, (tracker or Silent()).stage("collect", total, "steps") as stage:
        disk = _Disk(thread, writer)
        for block in missing:
            done = batches_done[block]
            start = begun.pop(block, None)
            if follow is not None:
                disk.wait()
                controller = follow(writer, block)
            disk.start(start.updates if start else 0)
            steps = grow(
                mdp,
                controller,
                tasks_of(block),
                num_updates,
                stretch=stretch,
                record=layout.features,
                tries=labels - 1,
                begun=start,
            )
            for growth in steps:
                disk.save(block, growth, complete=growth.updates == num_updates)
                stage.advance((growth.updates * labels + 1 - done) * batch_steps)
                done = growth.updates * labels + 1
        disk.wait()
    # Alone, nothing can be missing, and `finish` verifies every block anyway.
    return None if shares > 1 and writer.missing_blocks() else writer.finish()


class _Disk:
    """Writes what there is of a block on another thread, one file at a time, while the next stretch is simulated."""

    def __init__(self, thread: ThreadPoolExecutor, writer: DatasetWriter) -> None:
        self._thread, self._writer = thread, writer
        self._pending: Future[None] | None = None
        self.start(0)

    def start(self, updates: int) -> None:
        """Begin with a block of which so many updates are on disk."""
        self._updates_saved, self._last_saved = updates, time.monotonic()

    def save(self, block: int, growth: Growth, *, complete: bool) -> None:
        """Write a complete block, or a part of it if the last one is old enough."""
        if not complete and time.monotonic() - self._last_saved < PART_SECONDS:
            return
        self.wait()
        if complete:
            self._pending = self._thread.submit(lambda: self._writer.add(block, joined(growth.pieces)))
        else:
            self._pending = self._thread.submit(self._writer.parts.write, block, growth, self._updates_saved)
            self.start(growth.updates)

    def wait(self) -> None:
        """Wait for the file being written; whatever went wrong with it is raised here."""
        if self._pending is not None:
            self._pending.result()

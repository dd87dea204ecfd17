"""Data collection (Algorithm 1): the shared loop with the exploring controller, block by block onto the disk.

A block that takes long is kept in parts while it grows, so that a stopped collection resumes inside it.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.envs.base import packages_of
from metastep.errors import InputError
from metastep.meta.dataset import Dataset, DatasetWriter
from metastep.meta.episodes import Block, Layout
from metastep.meta.growth import Growth, from_parts, grow, to_part
from metastep.meta.loop import Controller, Episode, Exploration, joined
from metastep.meta.mdp import MetaMDP, Tasks
from metastep.meta.parts import remove_parts
from metastep.progress import Silent, Tracker
from metastep.storage import sha256_of_json

STRETCH_STEPS = 10_000_000
"""Environment steps between two halts of a block on the device: seconds on MJX, more than a block of CartPole has."""
PART_SECONDS = 2.0
"""A halt leaves a part on disk only if the last one is this old: where steps are cheap, files would cost more than they save."""


def device_name() -> str:
    """What simulates, as recorded with results: results of different devices differ in the last bits."""
    device = jax.devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    kind = _cpu_model() if device.platform == "cpu" else device.device_kind
    return f"{device.platform} ({kind}){f' XLA_FLAGS={flags}' if flags else ''}"


def _cpu_model() -> str:
    """The processor's name where the system tells: other processors have other vector units, hence other last bits."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "cpu"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def layout_of(mdp: MetaMDP, num_episodes: int, num_updates: int) -> Layout:
    """The shape of the dataset that `collect` writes."""
    return Layout(
        context_names=mdp.estimator.rollout.env.context_space.names,
        num_parameters=mdp.num_parameters,
        num_updates=num_updates,
        num_learners=num_episodes,
        block_size=mdp.block_size,
        num_hyperparameters=mdp.space.num_coordinates,
    )


def with_task_list(tasks: Tasks, block: int, task_list: NDArray[np.float32]) -> Tasks:
    """Replace the sampled contexts by those of a list: learner i gets task i modulo the list's length."""
    size = tasks.context.shape[0]
    rows = (block * size + np.arange(size)) % len(task_list)
    return tasks._replace(context=jnp.asarray(task_list[rows]))


def collect(
    mdp: MetaMDP,
    folder: str | Path,
    *,
    num_episodes: int,
    num_updates: int,
    seed: int,
    config: Mapping[str, Any],
    task_list: NDArray[np.float32] | None = None,
    share: tuple[int, int] = (0, 1),
    controller: Controller | None = None,
    tracker: Tracker | None = None,
) -> Dataset | None:
    """Collect a dataset, or what is missing of it; returns None while other processes have blocks to add.

    The trajectory method makes `num_updates` = T updates an episode; the generative method is T = 1.

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
        tracker: is told the environment steps simulated.
    """
    index, shares = share
    if not 0 <= index < shares:
        raise InputError(f"share: {index}/{shares} must be I/N with 0 <= I < N.")
    layout = layout_of(mdp, num_episodes, num_updates)
    if shares > layout.num_blocks:
        raise InputError(
            f"share: {index}/{shares} must have at most as many shares as there are blocks, {layout.num_blocks} of "
            f"{mdp.block_size} learners (collect.block_size)."
        )
    controller = controller or Exploration()
    tasks_digest = None if task_list is None else sha256_of_json(np.asarray(task_list).tolist())
    recorded = {**config, "collected_with": {"controller": controller.name, "task_list": tasks_digest}}
    rollout = mdp.estimator.rollout
    packages = packages_of(rollout.env)
    writer = DatasetWriter(folder, layout, recorded, seed=seed, device=device_name(), packages=packages)
    for sentence in writer.damaged:
        print(f"{sentence} It is collected again.", file=sys.stderr)
    missing = [block for block in writer.missing_blocks() if block % shares == index]

    def tasks_of(block: int) -> Tasks:
        tasks = mdp.tasks(seed, Stream.TRAIN, block)
        return tasks if task_list is None else with_task_list(tasks, block, task_list)

    resumable = getattr(controller, "is_memoryless", False)
    begun = _begun(writer, missing, mdp, tasks_of) if resumable else {}
    batch_steps = mdp.block_size * rollout.num_episodes * rollout.horizon
    stretch = _stretch(mdp, batch_steps) if resumable else num_updates
    # The first batch precedes the first update, so a block has one batch more than updates.
    batches_done = {block: begun[block].updates + 1 if block in begun else 0 for block in missing}
    total = sum(num_updates + 1 - done for done in batches_done.values()) * batch_steps
    with (
        ThreadPoolExecutor(max_workers=1) as thread,
        (tracker or Silent()).stage("collect", total, "steps") as stage,
    ):
        disk = _Disk(thread, writer)
        for block in missing:
            done = batches_done[block]
            start = begun.pop(block, None)
            disk.start(start.updates if start else 0)
            for growth in grow(mdp, controller, tasks_of(block), num_updates, stretch=stretch, begun=start):
                disk.save(block, growth, complete=growth.updates == num_updates)
                stage.advance((growth.updates + 1 - done) * batch_steps)
                done = growth.updates + 1
        disk.wait()
    # Alone, nothing can be missing, and `finish` verifies every block anyway.
    return None if shares > 1 and writer.missing_blocks() else writer.finish()


def _stretch(mdp: MetaMDP, batch_steps: int) -> int:
    """Updates between two halts. An environment on the host waits for every step anyway, so it halts after each."""
    return 1 if mdp.estimator.on_host else max(1, STRETCH_STEPS // batch_steps)


def _begun(
    writer: DatasetWriter, missing: list[int], mdp: MetaMDP, tasks_of: Callable[[int], Tasks]
) -> dict[int, Growth]:
    """The missing blocks of which parts can be used."""
    begun = {}
    for block in sorted(writer.parts.blocks().intersection(missing)):
        parts, problem = writer.parts.take_up(block)
        if problem is not None:
            print(f"{problem} It is left out, with the parts after it.", file=sys.stderr)
        if not parts:
            continue
        try:
            begun[block] = from_parts(parts, mdp, tasks_of(block))
        except InputError as error:
            print(f"Block {block} is collected from its start: {error}", file=sys.stderr)
            remove_parts(writer.folder, {block})
    return begun


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
            self._pending = self._thread.submit(self._write_block, block, growth)
        else:
            self._pending = self._thread.submit(self._write_part, block, growth, self._updates_saved)
            self.start(growth.updates)

    def wait(self) -> None:
        """Wait for the file being written; whatever went wrong with it is raised here."""
        if self._pending is not None:
            self._pending.result()

    def _write_block(self, block: int, growth: Growth) -> None:
        self._writer.add(block, block_of(joined(growth.pieces)))

    def _write_part(self, block: int, growth: Growth, since: int) -> None:
        self._writer.parts.write(block, to_part(growth, since))


def block_of(episode: Episode) -> Block:
    """What the dataset keeps of an episode."""
    return Block(
        episode.context,
        episode.theta,
        episode.gradient,
        episode.mean_return,
        episode.hyperparameters,
        episode.flagged,
    )

"""Data collection (Algorithm 1): the shared loop with the exploring controller, block by block onto the disk."""

import os
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep.blocks import Stream
from metastep.errors import InputError
from metastep.meta.dataset import Dataset, DatasetWriter
from metastep.meta.episodes import Block, Layout
from metastep.meta.loop import Controller, Episode, Exploration, run
from metastep.meta.mdp import MetaMDP, Tasks
from metastep.progress import Silent, Tracker
from metastep.storage import sha256_of_json


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
    index, parts = share
    if not 0 <= index < parts:
        raise InputError(f"share: {index}/{parts} must be I/N with 0 <= I < N.")
    layout = layout_of(mdp, num_episodes, num_updates)
    controller = controller or Exploration()
    tasks_digest = None if task_list is None else sha256_of_json(np.asarray(task_list).tolist())
    recorded = {**config, "collected_with": {"controller": controller.name, "task_list": tasks_digest}}
    writer = DatasetWriter(folder, layout, recorded, seed=seed, device=device_name())
    for sentence in writer.damaged:
        print(f"{sentence} It is collected again.", file=sys.stderr)
    missing = [block for block in writer.missing_blocks() if block % parts == index]
    rollout = mdp.estimator.rollout
    block_steps = mdp.block_size * (num_updates + 1) * rollout.num_episodes * rollout.horizon
    # The disk works on one block while the next is simulated.
    with (
        ThreadPoolExecutor(max_workers=1) as disk,
        (tracker or Silent()).stage("collect", len(missing) * block_steps, "steps") as stage,
    ):
        pending: Future[None] | None = None
        for block in missing:
            tasks = mdp.tasks(seed, Stream.TRAIN, block)
            if task_list is not None:
                tasks = with_task_list(tasks, block, task_list)
            episode = run(mdp, controller, tasks, num_updates)
            if pending is not None:
                pending.result()
            pending = disk.submit(writer.add, block, block_of(episode))
            stage.advance(block_steps)
        if pending is not None:
            pending.result()
    # Alone, nothing can be missing, and `finish` verifies every block anyway.
    return None if parts > 1 and writer.missing_blocks() else writer.finish()


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

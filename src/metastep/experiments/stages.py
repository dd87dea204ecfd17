"""The stages of an experiment, each resumable, each one call."""

from pathlib import Path

import numpy as np

from metastep.errors import InputError
from metastep.experiments.build import build_mdp, updates_collected
from metastep.experiments.config import Experiment
from metastep.meta.collection import collect
from metastep.meta.tasks import load_tasks
from metastep.progress import Tracker


def collect_dataset(
    config: Experiment,
    folder: Path,
    *,
    tracker: Tracker,
    task_file: Path | None = None,
    share: tuple[int, int] = (0, 1),
) -> str:
    """Collect the training data of an experiment; returns a sentence about the outcome."""
    mdp = build_mdp(config)
    recorded = config.to_dict()
    task_list = None
    if task_file is not None:
        space = mdp.estimator.rollout.env.context_space
        task_list = load_tasks(task_file, space.names, space.low, space.high)
        recorded["task_list"] = np.asarray(task_list).tolist()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder} is a file, a folder is needed.")
    dataset = collect(
        mdp,
        folder,
        num_episodes=config.collect.num_meta_episodes,
        num_updates=updates_collected(config),
        seed=config.seed,
        config=recorded,
        task_list=task_list,
        share=share,
        tracker=tracker,
    )
    if dataset is None:
        return f"{folder}: this share is done; the dataset is complete once the other shares are."
    counts = dataset.counts()
    return (
        f"{folder}: {counts.transitions} tuples in {dataset.layout.num_blocks} blocks, "
        f"{counts.flagged} flagged, {counts.excluded} excluded as not finite."
    )

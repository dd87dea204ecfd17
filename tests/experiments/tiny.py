"""An experiment so small that a whole run takes seconds."""

from pathlib import Path

import numpy as np

from metastep.experiments.config import load
from metastep.experiments.run import Run

TINY = ["collect.num_meta_episodes=24", "meta.num_updates=2", "rollout.num_episodes=8", "rollout.horizon=4"]
TINY += ["rollout.block_size=8", "fqi.iterations=1", "fqi.regressor.trees=3", "fqi.num_stepsizes=11"]
TINY += ["selection.num_tasks=4", "compare.num_tasks=4", "compare.num_updates=2", "compare.num_tuning_tasks=2"]
TASKS = np.array([[0.1, 0.2], [-0.3, 0.4]], np.float32)
METHODS = 'compare.methods=["metafqi", "fixed", "adam"]'
FEW = ["compare.methods.fixed.grid={stepsize = [0.5, 1.0]}", "compare.methods.adam.grid={stepsize = [0.5, 1.0]}"]
FEW += ["compare.num_resamples=100"]
WORDS = [word for setting in (*TINY, METHODS, *FEW) for word in ("--set", setting)]  # of the command


def make_folder(path: Path, *overrides: str, tasks: np.ndarray | None = None) -> Run:
    """The folder of a tiny run."""
    return Run.create(path, load("nav2d", "quick", [*TINY, *overrides]), tasks)


def make_run(path: Path, *changes: str) -> Run:
    """The folder of a run that compares three methods."""
    return make_folder(path, METHODS, *FEW, *changes)

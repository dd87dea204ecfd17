"""Comparisons and runs with made-up learning curves, whose verdicts are known."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from metastep.evaluation import Comparison, MethodRecord
from paper.workbench import PresetRun, Workbench


def comparison_of(curves, steps=None, values=None, tuning=()):
    """Methods by name with their curves (tasks, updates + 1), chosen steps (tasks, updates) and recorded values."""
    steps, values, num = steps or {}, values or {}, len(curves)
    tasks, points = next(iter(curves.values())).shape
    chosen = [np.broadcast_to(steps.get(name, 1.0), (tasks, points - 1)) for name in curves]
    return Comparison(
        methods=tuple(MethodRecord(name, name, "", "nga", "x", values.get(name, {}), False) for name in curves),
        context_names=("c",),
        context=np.zeros((tasks, 1), np.float32),
        returns=np.stack([one.astype(np.float32) for one in curves.values()]),
        hyperparameters=np.stack(chosen)[..., None].astype(np.float32),
        flagged=np.zeros((num, tasks, points), np.bool_),
        num_steps=np.ones((num, tasks)),
        theta=np.zeros((num, tasks, 1), np.float32),
        direction=np.zeros((num, tasks, points - 1), np.int8),
        tuning=tuple(tuning),
    )


def curve(gains, noise=0.1, seed=0, num_tasks=40, num_updates=20):
    """Curves (tasks, updates + 1): a start that differs between tasks, and a gain after each update with noise of the task."""
    rng = np.random.default_rng(seed)
    start = np.linspace(-5.0, 5.0, num_tasks)[:, None]
    learned = start + np.broadcast_to(gains, num_updates) + rng.normal(scale=noise, size=(num_tasks, 1))
    return np.concatenate([start, learned], axis=1)


def run_of(preset, scale="quick"):
    """A run without a folder, of which only the settings are used."""
    bench = Workbench(Path("nowhere"), scale, 0, ("compare.num_resamples=2000",))
    return PresetRun(preset, bench.out, bench.config(preset), bench)


class Watch:
    """A tracker that remembers which stages were opened."""

    def __init__(self):
        self.stages = []

    @contextmanager
    def stage(self, name, total, unit):
        self.stages.append(name)
        yield SimpleNamespace(advance=lambda amount: None)

"""HalfCheetah as the paper shows it: gains over the first return, and what a policy trained long on the known task gains."""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.controllers import Fixed
from metastep.evaluation import Comparison, Method
from metastep.evaluation.resampling import mean_interval
from metastep.experiments.folder import RunFolder
from metastep.experiments.reproduce.outcome import number
from metastep.experiments.reproduce.panels import Line
from metastep.experiments.reproduce.workbench import TITLES, Workbench
from metastep.experiments.stages import on_test_tasks, require_alike
from metastep.rules import NGA

_AS_GAIN = ("halfcheetah",)  # returns differ more between its tasks than learning changes them
_LONGER = 5  # how many times more updates the oracle makes
_AT_LEAST = 2  # times those that are shown
_END = 0.1  # the share of its updates, the last ones, that its gain is averaged over


class Shown(NamedTuple):
    """What figures show of a comparison."""

    comparison: Comparison
    quantity: str  # what its `returns` are, for the vertical axis


def is_shown_as_gain(folder: RunFolder) -> bool:
    """Whether figures of an environment show gains instead of returns."""
    return folder.config.env.name in _AS_GAIN


def shown(folder: RunFolder, comparison: Comparison) -> Shown:
    """The comparison, its returns less the first one where the environment asks for it; paired differences are the same."""
    if not is_shown_as_gain(folder):
        return Shown(comparison, "mean return")
    gains = comparison.returns - comparison.returns[:, :, :1]
    return Shown(dataclasses.replace(comparison, returns=gains), "mean return gain")


def gain_remark(bench: Workbench) -> str:
    """A sentence for captions, where something is shown as a gain."""
    names = [TITLES[env] for env in bench.environments if env in _AS_GAIN]
    return f" {' and '.join(names)}: gain over the first return." if names else ""


class KnownTask(NamedTuple):
    """The oracle in MAML's sense: every test task is known and a policy is trained on it for long."""

    gain: NDArray[np.float64]  # (tasks,), over the first return
    num_updates: int

    def line(self, num_points: int) -> Line:
        """A level in a figure of learning curves."""
        values = np.repeat(self.gain[:, None], num_points, axis=1)
        return Line(f"oracle, {self.num_updates} updates", values, "oracle", is_dashed=True, has_band=False)

    def described(self, folder: RunFolder) -> str:
        """The gain with its interval over tasks, in words."""
        compared = folder.config.compare
        low, high = mean_interval(self.gain[None], seed=folder.config.seed, num_resamples=compared.num_resamples)
        return (
            f"{self.num_updates} updates on the known task gain {number(float(self.gain.mean()))} "
            f"[{number(float(low[0]))}, {number(float(high[0]))}]"
        )


def known_task(bench: Workbench, folder: RunFolder, beside: Comparison, stepsize: float) -> KnownTask:
    """Train on every test task with the tuned fixed step, for several times as long as the methods beside it."""
    config = folder.config
    num_updates = max(_LONGER * config.compare.num_updates, _AT_LEAST * (beside.returns.shape[2] - 1))
    method = Method("known task", NGA, Fixed(stepsize), values={"stepsize": stepsize})
    trained = bench.kept(
        folder,
        "known-task",
        lambda tracker: on_test_tasks(config, [method], num_updates=num_updates, tracker=tracker),
    )
    require_alike(beside, trained, but=("num_updates",))
    return KnownTask(final_gain(trained.returns[0].astype(np.float64)), num_updates)


def final_gain(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """What (tasks, updates + 1) returns gain over the first one, averaged over the last updates."""
    last = max(round(_END * (returns.shape[1] - 1)), 1)
    return returns[:, -last:].mean(axis=1) - returns[:, 0]

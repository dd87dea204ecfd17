"""The regression problems of the FQI benchmark and how a stage is measured; needs NumPy only, so that every peer can run it.

Nav2D, Minigolf and CartPole are this package's own collections with the paper's settings, written to a file that every contender
reads. HalfCheetah's would take hours of simulation and a million tuples of Nav2D minutes, so these are made up (`make_up`):
learners climb `j(theta) = -|D (theta - M omega)|^2` along noisy, heavy-tailed gradients with uniform step sizes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
NUM_STEPSIZES = 101


class Size(NamedTuple):
    """A dataset of the paper and its forest."""

    name: str  # also of the preset that collects it
    simulated: bool
    tuples: int
    parameters: int
    context: int
    updates: int  # of an episode
    high: float  # largest step size
    trees: int
    min_split: float

    @property
    def features(self) -> int:
        """Numbers of an observation."""
        return 2 * self.parameters + self.context


SIZES = {
    size.name: size
    for size in (
        Size("nav2d", True, 80_000, 6, 2, 20, 8.0, 50, 0.01),
        Size("minigolf", True, 10_000, 2, 2, 1, 1.0, 50, 0.01),
        Size("cartpole", True, 48_000, 5, 2, 15, 10.0, 150, 0.05),
        Size("halfcheetah", False, 100_000, 108, 1, 500, 1.0, 150, 0.05),
    )
}


class Data(NamedTuple):
    """Tuples of the meta-MDP."""

    observation: NDArray[np.float32]  # (tuples, features)
    stepsize: NDArray[np.float32]  # (tuples,)
    reward: NDArray[np.float32]  # (tuples,)
    next_observation: NDArray[np.float32]  # (tuples, features)


def load_data(path: str) -> Data:
    """The tuples of a file."""
    with np.load(path) as arrays:
        return Data(*(arrays[name] for name in Data._fields))


def make_up(size: Size, seed: int = 0) -> Data:
    """Episodes of noisy normalised gradient ascent with uniform step sizes."""
    draw = np.random.default_rng(seed)
    episodes = -(-size.tuples // size.updates)
    shape = (episodes, size.parameters)
    context = draw.uniform(-1, 1, (episodes, size.context))
    optimum = size.high * context @ draw.normal(size=(size.context, size.parameters))
    curvature = draw.uniform(0.2, 1.0, size.parameters) / size.high
    theta = draw.normal(scale=2 * size.high, size=shape)

    def estimates(theta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        distance = curvature * (theta - optimum)
        value = -(distance**2).sum(axis=1)
        gradient = -2 * curvature * distance
        noise = 0.3 * np.abs(gradient).mean() * draw.standard_t(3, shape)
        return value + 0.05 * draw.normal(size=episodes), gradient + noise

    value, gradient = estimates(theta)
    observations, stepsizes, rewards = [np.hstack([theta, gradient, context])], [], []
    for _ in range(size.updates):
        stepsize = draw.uniform(0, size.high, episodes)
        theta = theta + stepsize[:, None] * gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
        following, gradient = estimates(theta)
        observations.append(np.hstack([theta, gradient, context]))
        stepsizes.append(stepsize)
        rewards.append(following - value)
        value = following
    return Data(
        *(
            np.concatenate(parts).astype(np.float32)[: size.tuples]
            for parts in (observations[:-1], stepsizes, rewards, observations[1:])
        )
    )


class Stage(NamedTuple):
    """What one stage of an iteration took."""

    cpu: float  # seconds, all threads together
    wall: float


def timed(work: Callable[[], Result]) -> tuple[Result, Stage]:
    """The result and the time it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return result, Stage(time.process_time() - cpu, time.perf_counter() - wall)


def forget_peak() -> float:
    """Begin a new measurement of the peak memory; the memory in use now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_since(before: float) -> float:
    """Most memory in use since `forget_peak`, above what was in use then, in MB."""
    return _status("VmHWM") - before


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def print_result(version: str, fit: Stage, target: Stage, peak: float, max_q: NDArray[np.float64], **more: Any) -> None:
    """One line of JSON: what the benchmark reads."""
    record = {
        "version": version,
        "fit": fit,
        "target": target,
        "peak_mb": peak,
        "mean_max_q": float(max_q.mean()),
        **more,
    }
    json.dump(record, sys.stdout)
    print()

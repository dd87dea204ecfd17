"""The regression problems of the FQI benchmark. Needs NumPy only, so that every peer can read them.

Nav2D, Minigolf and CartPole are the presets' own data at full scale, collected once and written to a file. HalfCheetah's would
take hours of simulation and a million tuples of Nav2D minutes, so these are synthetic (`synthesize`): learners climb
`j(theta) = -|D (theta - M omega)|^2` along noisy, heavy-tailed gradients with uniform step sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import Spent

NUM_STEPSIZES = 101


class Size(NamedTuple):
    """A dataset and its forest."""

    name: str  # of the preset
    simulated: bool  # collected by the preset, not synthetic
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
    """Read the tuples of a file."""
    with np.load(path) as arrays:
        return Data(*(arrays[name] for name in Data._fields))


def synthesize(size: Size, seed: int = 0) -> Data:
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


def forget_peak() -> float:
    """Start a new measurement of the peak memory; return the memory in use now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def record_of(version: str, fit: Spent, target: Spent, before: float, max_q: NDArray[Any]) -> dict[str, Any]:
    """Return the record of a contender; `before` is the memory that `forget_peak` returned."""
    record = {"version": version, "fit": fit, "target": target, "peak_mb": _status("VmHWM") - before}
    return record | {"mean_max_q": float(max_q.mean())}


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))

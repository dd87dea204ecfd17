"""What the peers share: the tasks, the command line, the clock and the line of JSON. Needs NumPy alone.

Every peer simulates the same learners: `learners(env, num)` gives each its policy and its task from fixed seeds, and a longer
list begins with the shorter one. So `mean_return` and `mean_gradient`, taken over the first learners, must agree between
peers up to sampling noise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DISCOUNT = 0.99
SIGMA = 1.001
DAMPING = 1e-4  # of the natural gradient, relative to the mean of the Fisher matrix's diagonal
NUM_COMPARED = 8  # learners whose statistics are averaged


class Size(NamedTuple):
    """What a task asks of a policy, and the distribution of tasks and first policies."""

    num_observations: int
    num_actions: int
    low: tuple[float, ...]  # of the context
    high: tuple[float, ...]
    theta_scale: float  # standard deviation of the initial parameters

    @property
    def num_parameters(self) -> int:
        """theta = (b, W) flattened, biases first."""
        return self.num_actions * (1 + self.num_observations)


SIZES = {
    "cartpole": Size(4, 1, (0.1, 0.5), (2.0, 1.5), 0.1),
    "nav2d": Size(2, 2, (-0.5, -0.5), (0.5, 0.5), 0.1**0.5),
    "halfcheetah": Size(17, 6, (0.0,), (2.0,), 0.1**0.5),
}


class Job(NamedTuple):
    """What the command line asks for."""

    env: str
    learners: int
    episodes: int
    horizon: int
    seconds: float
    variant: str


class Estimates(NamedTuple):
    """One pass over learners: what was estimated, with learners on the first axis."""

    mean_return: Floats  # (learners,)
    gradient: Floats  # (learners, parameters)
    natural_gradient: Floats | None  # (learners, parameters), or None where a peer has none
    live_steps: int  # steps before their episode's end, over all learners


class Measurement(NamedTuple):
    """Work done and what it took, after a warm-up."""

    estimates: int
    live_steps: int
    seconds: float
    cpu_seconds: float


def job_from_arguments(description: str, variants: tuple[str, ...] = ("default",)) -> Job:
    """Parse a peer's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", choices=tuple(SIZES), default="cartpole")
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure, after the warm-up")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    return Job(**vars(parser.parse_args()))


def learners(env: str, num: int) -> tuple[Floats, Floats]:
    """Policies (learners, parameters) and contexts (learners, coordinates), the same for every peer."""
    size = SIZES[env]
    theta = np.random.default_rng(1).normal(scale=size.theta_scale, size=(num, size.num_parameters))
    context = np.random.default_rng(2).uniform(size.low, size.high, size=(num, len(size.low)))
    return theta, context


def measure(work: Callable[[], tuple[int, int]], seconds: float) -> Measurement:
    """Repeat `work`, which returns (estimates, live steps), until `seconds` have passed. The first call is the warm-up."""
    work()
    estimates = live_steps = 0
    cpu_start, start = time.process_time(), time.perf_counter()
    elapsed = 0.0
    while elapsed < seconds:
        done, live = work()
        estimates += done
        live_steps += live
        elapsed = time.perf_counter() - start
    return Measurement(estimates, live_steps, elapsed, time.process_time() - cpu_start)


def measure_each(
    estimate: Callable[[int], Estimates], num_learners: int, seconds: float
) -> tuple[Measurement, Estimates]:
    """Measure a peer that serves one learner at a time, in turn; also the estimates of the compared learners."""
    compared = [estimate(index) for index in range(min(NUM_COMPARED, num_learners))]
    turn = 0

    def work() -> tuple[int, int]:
        nonlocal turn
        turn = (turn + 1) % num_learners
        return 1, estimate(turn).live_steps

    return measure(work, seconds), joined(compared)


def joined(parts: list[Estimates]) -> Estimates:
    """Estimates of several learners as one record."""
    natural = [part.natural_gradient for part in parts if part.natural_gradient is not None]
    return Estimates(
        np.concatenate([part.mean_return for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate(natural) if natural else None,
        sum(part.live_steps for part in parts),
    )


def record(
    job: Job, peer: str, version: str, took: Measurement, estimates: Estimates, note: str = ""
) -> dict[str, Any]:
    """The fields of a result: see the README beside this folder for what each counts."""
    lanes = took.estimates * job.episodes * job.horizon
    natural = estimates.natural_gradient
    return {
        "peer": peer,
        "version": version,
        "env": job.env,
        "learners": job.learners,
        "episodes": job.episodes,
        "horizon": job.horizon,
        "variant": job.variant,
        "estimates": took.estimates,
        "env_steps": lanes,
        "live_steps": took.live_steps,
        "seconds": took.seconds,
        "cores_used": took.cpu_seconds / took.seconds,
        "estimates_per_second": took.estimates / took.seconds,
        "steps_per_second": lanes / took.seconds,
        "live_steps_per_second": took.live_steps / took.seconds,
        "mean_return": float(estimates.mean_return[:NUM_COMPARED].mean()),
        "mean_gradient": [round(float(value), 6) for value in estimates.gradient[:NUM_COMPARED].mean(0)],
        "mean_gradient_norm": _mean_norm(estimates.gradient),
        "mean_natural_gradient_norm": None if natural is None else _mean_norm(natural),
        "note": note,
    }


def print_record(fields: dict[str, Any]) -> None:
    """One line of JSON, the last one a peer prints."""
    print(json.dumps(fields), flush=True)


def _mean_norm(vectors: Floats) -> float:
    return float(np.linalg.norm(vectors[:NUM_COMPARED], axis=1).mean())

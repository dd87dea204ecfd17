"""What the peers share: tasks, command lines, the clock, memory and the line of JSON. Needs NumPy only.

Every peer simulates the same learners: `learners(env, num)` draws policies and tasks from fixed seeds, and a longer list begins
with the shorter one. So the mean return and gradient over the first learners must agree between peers up to sampling noise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Result = TypeVar("Result")

DISCOUNT = 0.99
SIGMA = 1.001
DAMPING = 1e-4  # of the natural gradient, relative to the mean of the Fisher matrix's diagonal
NUM_COMPARED = 8  # learners whose statistics are averaged


class Size(NamedTuple):
    """Shapes of an environment, and the distributions of tasks and initial policies."""

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
    """One measurement of rollouts with gradients."""

    env: str
    learners: int
    episodes: int
    horizon: int
    seconds: float
    variant: str


class Training(NamedTuple):
    """One measurement of PPO."""

    env: str  # Gymnasium's name
    learners: int
    envs: int
    steps: int
    epochs: int
    minibatch: int
    hidden: int
    seconds: float

    @property
    def batch(self) -> int:
        """Environment steps of a learner for one update."""
        return self.envs * self.steps


class Estimates(NamedTuple):
    """What was estimated, with learners on the first axis."""

    mean_return: Floats  # (learners,)
    gradient: Floats  # (learners, parameters)
    natural_gradient: Floats | None  # (learners, parameters), or None where a peer has none
    live_steps: int  # steps before their episode's end, over all learners


class Spent(NamedTuple):
    """CPU seconds of all threads, and wall seconds."""

    cpu: float
    wall: float


def from_arguments(kind: type[Result], **more: Any) -> tuple[Result, argparse.Namespace]:
    """Return the fields of a named tuple from the command line, and further options given as name=type."""
    parser = argparse.ArgumentParser()
    hints = get_type_hints(kind)
    for name, each in (hints | more).items():
        parser.add_argument(f"--{name}", type=each, required=True)
    found = parser.parse_args()
    return kind(**{name: getattr(found, name) for name in hints}), found


def learners(env: str, num: int) -> tuple[Floats, Floats]:
    """Return policies (learners, parameters) and contexts (learners, coordinates), the same for every peer."""
    size = SIZES[env]
    theta = np.random.default_rng(1).normal(scale=size.theta_scale, size=(num, size.num_parameters))
    context = np.random.default_rng(2).uniform(size.low, size.high, size=(num, len(size.low)))
    return theta, context


def timed(work: Callable[[], Result]) -> tuple[Result, Spent]:
    """Return the result and the time it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return result, Spent(time.process_time() - cpu, time.perf_counter() - wall)


def measure(job: Job, work: Callable[[], tuple[int, int]]) -> dict[str, float]:
    """Repeat `work`, which returns (estimates, live steps), for some seconds after a warm-up; return rates per second."""
    work()
    done = np.zeros(2)

    def repeat() -> None:
        nonlocal done
        end = time.perf_counter() + job.seconds
        done = done + work()
        while time.perf_counter() < end:
            done = done + work()

    _, spent = timed(repeat)
    estimates, live = (float(number) for number in done / spent.wall)
    return {
        "estimates_per_second": estimates,
        "steps_per_second": estimates * job.episodes * job.horizon,
        "live_steps_per_second": live,
        "cores_used": spent.cpu / spent.wall,
    }


def measure_each(job: Job, estimate: Callable[[int], Estimates]) -> tuple[dict[str, float], Estimates]:
    """Measure a peer that serves one learner at a time; also return the estimates of the compared learners."""
    compared = joined([estimate(index) for index in range(min(NUM_COMPARED, job.learners))])
    turn = 0

    def work() -> tuple[int, int]:
        nonlocal turn
        turn = (turn + 1) % job.learners
        return 1, estimate(turn).live_steps

    return measure(job, work), compared


def joined(parts: list[Estimates]) -> Estimates:
    """Concatenate estimates of several learners."""
    natural = [part.natural_gradient for part in parts if part.natural_gradient is not None]
    return Estimates(
        np.concatenate([part.mean_return for part in parts]),
        np.concatenate([part.gradient for part in parts]),
        np.concatenate(natural) if natural else None,
        sum(part.live_steps for part in parts),
    )


def rollout_record(version: str, rates: dict[str, float], estimates: Estimates, note: str = "") -> dict[str, Any]:
    """Return the fields of a result; the README says what each counts."""
    norms = np.linalg.norm(estimates.gradient[:NUM_COMPARED], axis=1)
    return {
        "version": version,
        **rates,
        "mean_return": float(estimates.mean_return[:NUM_COMPARED].mean()),
        "mean_gradient_norm": float(norms.mean()),
        "note": note,
    }


def training_record(job: Training, update: Callable[[int], Any], name: str, version: str) -> dict[str, Any]:
    """Measure environment steps per second with learning: `update(n)` makes n updates of every learner and waits for them."""
    update(1)  # compiles
    _, spent = timed(lambda: update(1))
    num = max(1, int(job.seconds / max(spent.wall, 1e-6)))
    update(num)  # where n updates are one program, compiles it
    _, spent = timed(lambda: update(num))
    rate = num * job.learners * job.batch / spent.wall
    return {"name": name, "version": version, "steps_per_second": rate, "cores_used": spent.cpu / spent.wall}


def print_record(record: dict[str, Any]) -> None:
    """Print one line of JSON, the last line of a peer."""
    print(json.dumps(record), flush=True)

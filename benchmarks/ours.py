"""This package's row of the rollout benchmark, and where its time goes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from metastep import __version__
from metastep._core.noise import standard_normals
from metastep.envs import make
from metastep.policies import LinearGaussian
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Baseline, Rollout
from metastep.simulation.sums import stream

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from common import DAMPING, DISCOUNT, SIGMA, SIZES, Estimates, Job, learners, measure, record


class Part(NamedTuple):
    """One variant of the computation, timed."""

    name: str
    nanoseconds: float  # per step of the full horizon


@cache
def rollout_of(env: str, episodes: int, horizon: int, baseline: Baseline = "optimal", **options: Any) -> Rollout:
    """What every peer simulates."""
    size = SIZES[env]
    policy = LinearGaussian(num_observations=size.num_observations, num_actions=size.num_actions, sigma=SIGMA)
    return Rollout(
        make(env, **options), policy, num_episodes=episodes, horizon=horizon, discount=DISCOUNT, baseline=baseline
    )


def tasks(env: str, num: int) -> tuple[Array, Array]:
    """The peers' learners as (theta, context)."""
    theta, context = learners(env, num)
    return jnp.asarray(theta, jnp.float32), jnp.asarray(context, jnp.float32)


def ours(env: str, num_learners: int, episodes: int, horizon: int, seconds: float, **options: Any) -> dict[str, Any]:
    """Measure the whole estimate: return, gradient and natural gradient of all learners in one call."""
    estimator = Estimator(rollout_of(env, episodes, horizon, **options), damping=DAMPING)
    theta, context = tasks(env, num_learners)
    calls = 0

    def work() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        estimate = estimator(theta, context, jax.random.key(calls))
        return num_learners, int(np.asarray(estimate.num_steps).sum())

    took = measure(work, seconds)
    estimate = estimator(theta, context, jax.random.key(0))
    compared = Estimates(
        np.asarray(estimate.mean_return, np.float64),
        np.asarray(estimate.gradient, np.float64),
        np.asarray(estimate.natural_gradient, np.float64),
        int(np.asarray(estimate.num_steps).sum()),
    )
    job = Job(env, num_learners, episodes, horizon, seconds, "default")
    return record(job, "metastep", __version__, took, compared)


def breakdown(env: str, num_learners: int, episodes: int, horizon: int, seconds: float, rounds: int) -> list[Part]:
    """Time per step of the estimate and of less and less of it.

    The variants are compiled separately: what a program does not return, the compiler leaves out. Their differences show
    where the time goes; they need not add up exactly, as a shorter program also fits the caches better. The variants take
    turns and the fastest call of each counts: what slows a call down is other load, and it would drown the differences.
    """
    theta, context = tasks(env, num_learners)
    key = jax.random.key(0)
    lanes = num_learners * episodes * horizon
    programs = {name: jax.jit(function) for name, function in _variants(env, num_learners, episodes, horizon).items()}
    for program in programs.values():
        jax.block_until_ready(program(theta, context, key))
    fastest = dict.fromkeys(programs, math.inf)
    for _ in range(rounds):
        for name, program in programs.items():
            end = time.perf_counter() + seconds
            while (start := time.perf_counter()) < end:
                jax.block_until_ready(program(theta, context, key))
                fastest[name] = min(fastest[name], time.perf_counter() - start)
    return [Part(name, 1e9 * taken / lanes) for name, taken in fastest.items()]


def _variants(env: str, num_learners: int, episodes: int, horizon: int) -> dict[str, Callable[..., Any]]:
    """The programs of the breakdown, each a function of (theta, context, key)."""
    rollout = rollout_of(env, episodes, horizon)
    shape = (episodes, num_learners)
    num_normals = rollout.policy.num_actions + rollout.env.step_noise
    steps = jnp.arange(horizon, dtype=jnp.uint32)
    # What a step carries to the next: the state, whether it is alive, the return, and a summed score for each parameter.
    num_carried = rollout.policy.num_observations + 2 + rollout.policy.num_parameters

    def random_numbers(theta: Array, context: Array, key: Array) -> Array:
        def draw(total: Array, t: Array) -> tuple[Array, None]:
            return sum(standard_normals(key, t, num_normals, shape), total), None

        return lax.scan(draw, jnp.zeros(shape), steps)[0]

    def memory(theta: Array, context: Array, key: Array) -> Array:
        def touch(carried: Array, t: Array) -> tuple[Array, None]:
            return carried * jnp.float32(1.0001), None

        return lax.scan(touch, jnp.ones((num_carried, *shape)), steps)[0]

    def bare(theta: Array, context: Array, key: Array) -> Array:
        return stream(rollout, theta, context, key).mean_return

    def gradient(baseline: Baseline, theta: Array, context: Array, key: Array) -> tuple[Array, Array]:
        sums = stream(rollout_of(env, episodes, horizon, baseline), theta, context, key)
        return sums.mean_return, sums.gradient

    return {
        "random numbers alone": random_numbers,
        f"memory alone: {num_carried} carried arrays read and written": memory,
        "bare rollout (returns only)": bare,
        "with the gradient, no baseline": partial(gradient, "none"),
        "with the gradient, mean baseline": partial(gradient, "mean"),
        "with the gradient, optimal baseline": partial(gradient, "optimal"),
        "whole estimate, with the natural gradient": Estimator(rollout, damping=DAMPING).__call__,
    }

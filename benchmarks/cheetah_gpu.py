"""HalfCheetah in JAX on the accelerator: steps per second of the planar engine and of MJX, and how right their physics are.

The programs of an engine are compiled at once on the host's cores; measurements follow one after the other, then comes the next
engine, until the time is up. Speed is that of the whole estimate (policy, physics, gradient, natural gradient).
Correctness is judged against the C engine: the same start and actions, step by step; and 2,000 returns of one policy against
2,000 from the C engine with other random numbers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table
from scipy import stats

from cheetah_mjx import HalfCheetahVelMJX
from metastep._core.noise import standard_normals
from metastep.envs.halfcheetah import HalfCheetahVelPlanar
from metastep.envs.host import HalfCheetahVel
from metastep.policies import LinearGaussian
from metastep.simulation.gradients import Estimator
from metastep.simulation.rollouts import Rollout, keys_of, trajectories
from ours import tasks

EPISODES = 100
TIMED_HORIZON = 20
JUDGED_HORIZON = 100
STEPS_COMPARED = 20


class Engine(NamedTuple):
    """An engine with its settings."""

    label: str
    env: HalfCheetahVelPlanar


PLANAR = Engine("planar", HalfCheetahVelPlanar())
MJX = Engine("MJX", HalfCheetahVelMJX())

SIZES = {"gpu": (1280, 20, 200), "cpu": (1,)}  # learners, times 100 episodes; a CPU only shows that the script works
JUDGED_LEARNERS = {"gpu": 20, "cpu": 1}

Compiled = Any
Plan = dict[int | str, "Future[Compiled]"]


def _rollout(env: Any, horizon: int) -> Rollout:
    return Rollout(env, LinearGaussian(env.num_observations, env.num_actions, 1.001), EPISODES, horizon)


def _one_policy(num_learners: int) -> tuple[Array, Array]:
    """The same policy and task for every learner, so that all their returns are one sample."""
    theta, _ = tasks("halfcheetah", 1)
    return jnp.tile(theta, (num_learners, 1)), jnp.ones((num_learners, 1), jnp.float32)


def compile_all(pool: ThreadPoolExecutor, engine: Engine, kind: str) -> Plan:
    """Start the compilations of an engine: the estimate for every size, and whole episodes."""
    key = jax.random.key(0)
    plan: Plan = {}
    for learners in SIZES[kind]:
        estimator = Estimator(_rollout(engine.env, TIMED_HORIZON))
        lowered = jax.jit(estimator.__call__).lower(*tasks("halfcheetah", learners), key)
        plan[learners] = pool.submit(lowered.compile)
    simulate = jax.jit(trajectories, static_argnums=0)
    lowered = simulate.lower(_rollout(engine.env, JUDGED_HORIZON), *_one_policy(JUDGED_LEARNERS[kind]), key)
    plan["judge"] = pool.submit(lowered.compile)
    return plan


def steps_per_second(program: Compiled, learners: int) -> float:
    """Of the fastest of three calls after one that warms up."""
    theta, context = tasks("halfcheetah", learners)
    elapsed = []
    for seed in range(4):
        start = time.perf_counter()
        jax.block_until_ready(program(theta, context, jax.random.key(seed)))
        elapsed.append(time.perf_counter() - start)
    return learners * EPISODES * TIMED_HORIZON / min(elapsed[1:])


class Judgement(NamedTuple):
    """How far an engine is from the one in C."""

    after_one: float  # median over episodes of the largest difference of an observation
    after_twenty: float
    reward_after_twenty: float
    ks_distance: float
    p_value: float
    mean_return: float
    mean_return_c: float


def judge(program: Compiled, reference: np.ndarray, num_learners: int) -> Judgement:
    """Replay episodes in C, and compare returns with the reference sample."""
    key = jax.random.key(0)
    theta, context = _one_policy(num_learners)
    episodes = jax.device_get(program(theta, context, key))
    shape = (EPISODES, num_learners)
    normals = standard_normals(keys_of(key)[0], 0, HalfCheetahVel.reset_noise, shape)
    replay = HalfCheetahVel().start_episodes(
        np.asarray(context), np.asarray(jnp.stack(normals, axis=-1)), np.zeros(shape, np.uint32)
    )
    observed, paid = [], []
    for t in range(STEPS_COMPARED):
        action = np.moveaxis(episodes.action[t], 0, -1)
        after = replay.step(action, np.zeros((*shape, 0), np.float32), np.ones(shape, bool))
        seen = np.moveaxis(episodes.observation[t + 1], 0, -1)
        observed.append(float(np.median(np.abs(seen - replay.observe()).max(axis=-1))))
        paid.append(float(np.median(np.abs(after.reward - episodes.reward[t]))))
    returns = _returns(episodes.reward)
    test = stats.ks_2samp(returns, reference)
    means = float(returns.mean()), float(reference.mean())
    return Judgement(observed[0], observed[-1], paid[-1], float(test.statistic), float(test.pvalue), *means)


def _returns(reward: Any) -> np.ndarray:
    weights = 0.99 ** np.arange(len(reward))
    return np.einsum("t,tel->el", weights, np.asarray(reward, np.float64)).ravel()


def print_engines(console: Console, total_seconds: float, path: Path) -> None:
    """Compile, measure while there is time, print what there is."""
    deadline = time.monotonic() + total_seconds
    device = jax.devices()[0]
    console.print(f"device: {device.platform} ({device.device_kind}), {os.cpu_count()} cores, jax {jax.__version__}")
    kind = "cpu" if device.platform == "cpu" else "gpu"
    num_judged = JUDGED_LEARNERS[kind]
    speeds: dict[tuple[Engine, int], float] = {}
    judgements: dict[Engine, Judgement] = {}
    late = []
    on_c = Estimator(_rollout(HalfCheetahVel(), JUDGED_HORIZON))
    reference = _returns(on_c.trajectories(*_one_policy(num_judged), jax.random.key(1)).reward)
    # Without waiting for compilations that nobody will use any more.
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    for engine in (PLANAR, MJX) if importlib.util.find_spec("mujoco.mjx") else (PLANAR,):
        began = time.monotonic()
        plan = compile_all(pool, engine, kind)
        wait(plan.values(), timeout=max(deadline - time.monotonic(), 0.0))  # compiling would disturb what is timed
        console.print(f"{engine.label}: {len(plan)} programs after {time.monotonic() - began:.0f} s", highlight=False)
        for task, future in plan.items():
            if not future.done():
                late.append(f"{engine.label} {task}")
                future.cancel()
            elif isinstance(task, int):
                speeds[engine, task] = steps_per_second(future.result(), task)
                speed = f"{speeds[engine, task]:,.0f} steps/s"
                console.print(f"  {engine.label}, {task * EPISODES:,} episodes: {speed}", highlight=False)
            else:
                judgements[engine] = judge(future.result(), reference, num_judged)
                console.print(f"  {engine.label}: {judgements[engine]}", highlight=False)
    pool.shutdown(wait=False, cancel_futures=True)
    console.print(_speed_table(speeds))
    console.print(_judgement_table(judgements, num_judged))
    if late:
        console.print(f"not measured within {total_seconds:.0f} s: {', '.join(late)}", highlight=False)
    path.parent.mkdir(exist_ok=True)
    # What a CPU shows, that the script works, must not replace what was measured on a GPU.
    path = path.with_stem(f"{path.stem}-cpu") if device.platform == "cpu" else path
    saved = {
        "device": device.device_kind,
        "speeds": [[engine.label, learners * EPISODES, speed] for (engine, learners), speed in speeds.items()],
        "judgements": {engine.label: judgement._asdict() for engine, judgement in judgements.items()},
    }
    path.write_text(json.dumps(saved, indent=1))


def _speed_table(speeds: dict[tuple[Engine, int], float]) -> Table:
    table = Table(title="Environment steps per second, whole estimate", title_justify="left")
    table.add_column("engine")
    sizes = sorted({learners for _, learners in speeds})
    for learners in sizes:
        table.add_column(f"{learners * EPISODES:,} episodes", justify="right")
    for engine in dict.fromkeys(engine for engine, _ in speeds):
        table.add_row(engine.label, *(f"{speeds[engine, n]:,.0f}" if (engine, n) in speeds else "-" for n in sizes))
    return table


def _judgement_table(judgements: dict[Engine, Judgement], num_judged: int) -> Table:
    num = num_judged * EPISODES
    title = f"Against the C engine, {num:,} episodes: medians of the differences, KS of the returns"
    table = Table(title=title, title_justify="left")
    for heading in ("engine", "obs. 1 step", "obs. 20 steps", "reward 20 steps", "KS", "p", "return", "C"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for engine, found in judgements.items():
        table.add_row(
            engine.label,
            *(f"{value:.1e}" for value in found[:3]),
            f"{found.ks_distance:.3f}",
            f"{found.p_value:.3f}",
            f"{found.mean_return:.2f}",
            f"{found.mean_return_c:.2f}",
        )
    return table

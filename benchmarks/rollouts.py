"""Rollouts with return, gradient and natural gradient: this library beside its peers, in one run.

    python benchmarks/rollouts.py                                            # CartPole, Nav2D and HalfCheetah, on the CPU
    python benchmarks/rollouts.py --env cartpole --peers gymnax              # some peers
    python benchmarks/rollouts.py --device-only --learners 3200              # this library alone, on JAX's default device
    python benchmarks/rollouts.py --device-only --env halfcheetah --learners 20 200 1280

An estimate is what one learner needs for one update. This library is measured before and after each peer, and a ratio compares
a peer with the two measurements around it, so that other load on the machine affects both; the table has the median over rounds.
HalfCheetah runs on MuJoCo's C engine, and with `--device-only` on the planar engine in JAX.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from typing import Any, NamedTuple

import shared
from common import DAMPING, DISCOUNT, SIGMA, SIZES, Estimates, Job, learners, measure, rollout_record
from shared import PeerError, Record, console

BUSY_BELOW = 0.9  # cores; an idle machine gives every contender at least one
RETURN_TOLERANCE = 0.05  # relative; eight learners with 100 episodes each agree to about 0.02
SHAPES = {"cartpole": (100, 100), "nav2d": (200, 10), "halfcheetah": (100, 100)}  # episodes, horizon
LEARNERS = {"cartpole": (64, 512), "nav2d": (64,), "halfcheetah": (16,)}


class Contender(NamedTuple):
    """A peer: how it is run, and how many times as fast this library should be."""

    label: str
    peer: str
    script: str
    variant: str
    target: float | None
    episodes: int | None = None  # None: as many as this library


CLASSIC = (
    Contender("Gymnasium SyncVectorEnv", "gymnasium", "gymnasium_rollouts.py", "sync", 100.0),
    Contender("Gymnasium vector, one object per task", "gymnasium", "gymnasium_rollouts.py", "one", 8.0),
    Contender("Gymnasium vector, tasks as arrays", "gymnasium", "gymnasium_rollouts.py", "arrays", 8.0),
    Contender("gymnax, env.step", "gymnax", "gymnax_scan.py", "step", 3.0),
    Contender("gymnax, env.step_env", "gymnax", "gymnax_scan.py", "step_env", 3.0),
    Contender("MushroomRL GPOMDP", "mushroom", "mushroom_gpomdp.py", "default", 100.0),
)
CHEETAH = (
    Contender("mj_step alone, one thread", "mujoco", "cheetah_rollouts.py", "raw", 1.7, 1),
    Contender("Gymnasium SyncVectorEnv", "mujoco", "cheetah_rollouts.py", "sync", 3.5),
    # A process per environment: with a hundred of them they only wait for each other.
    Contender("Gymnasium AsyncVectorEnv", "mujoco", "cheetah_rollouts.py", "async", None, 16),
    Contender("EnvPool", "envpool", "cheetah_rollouts.py", "envpool", 1.2),
)


class Row(NamedTuple):
    """A peer's results, one per round, or the reason why there are none."""

    contender: Contender
    results: list[Record]
    ratios: list[float]  # this library's steps per second around the peer, over the peer's
    core_ratios: list[float]  # the same with steps per second of processor time
    failure: str = ""


def ours(job: Job) -> Record:
    """Measure this library: one call estimates for all learners."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import metastep

    size, options = SIZES[job.env], {"engine": "planar"} if job.variant == "planar" else {}
    policy = metastep.policies.LinearGaussian(size.num_observations, size.num_actions, SIGMA)
    env: Any = metastep.envs.make(job.env, **options)
    rollout = metastep.Rollout(env, policy, job.episodes, job.horizon, discount=DISCOUNT, baseline="optimal")
    estimator = metastep.Estimator(rollout, damping=DAMPING)
    theta, context = (jnp.asarray(array, jnp.float32) for array in learners(job.env, job.learners))
    calls = 0

    def work() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        estimate = estimator(theta, context, jax.random.key(calls))
        return job.learners, int(np.asarray(estimate.num_steps).sum())

    rates = measure(job, work)
    found = estimator(theta, context, jax.random.key(0))
    arrays = (np.asarray(part, np.float64) for part in (found.mean_return, found.gradient, found.natural_gradient))
    return rollout_record(metastep.__version__, rates, Estimates(*arrays, int(np.asarray(found.num_steps).sum())))


def compare(job: Job, contenders: list[Contender], rounds: int, *, smoke: bool) -> tuple[list[Record], list[Row]]:
    """Alternate between this library and the peers; return all of this library's runs, and a row for every peer."""
    runs = [ours(job)]
    rows = {contender: Row(contender, [], [], []) for contender in contenders}
    for _ in range(rounds):
        for contender, row in rows.items():
            if row.failure:
                continue
            asked = job._replace(
                variant=contender.variant, episodes=min(contender.episodes or job.episodes, job.episodes)
            )
            try:
                result = shared.run_peer(
                    contender.label, contender.peer, contender.script, asked._asdict(), smoke=smoke
                )
            except PeerError as error:
                rows[contender] = row._replace(failure=str(error))
                continue
            runs.append(ours(job))
            row.results.append(result)
            row.ratios.append(median(map(rate, runs[-2:])) / rate(result))
            row.core_ratios.append(median(map(core_rate, runs[-2:])) / core_rate(result))
    return runs, list(rows.values())


def rate(result: Record) -> float:
    return float(result["steps_per_second"])


def core_rate(result: Record) -> float:
    return rate(result) / float(result["cores_used"])


def middle(results: list[Record]) -> Record:
    """Return the run with the median rate (the lower of the two in the middle)."""
    return sorted(results, key=rate)[(len(results) - 1) // 2]


def print_comparison(job: Job, runs: list[Record], rows: list[Row]) -> None:
    """Print the table of one size."""
    headings = ["contender", "version", "estimates/s", "M steps/s", "ns/step", "live M steps/s", "cores", "per core"]
    headings += ["ratio", "target", "return", "|gradient|"]
    own = middle(runs)
    cells = [["metastep", own["version"], *figures(own), "", "", "", *statistics(own)]]
    rates = [rate(run) / 1e6 for run in runs]
    notes = [f"metastep: median of {len(runs)} runs, {min(rates):.3g} to {max(rates):.3g} M steps/s."]
    for row in rows:
        label, goal = row.contender.label, row.contender.target
        if not row.results:
            cells.append([label, *["-"] * 8, "no result", "-", "-"])
            notes.append(row.failure)
            continue
        result, ratio = middle(row.results), median(row.ratios)
        met = "" if goal is None else f"{goal:g}, {'met' if ratio >= goal else 'NOT met'}"
        ratios = (f"{median(row.core_ratios):,.1f}", f"{ratio:,.1f}")
        cells.append([label, result["version"], *figures(result), *ratios, met, *statistics(result)])
        if len(row.ratios) > 1:
            notes.append(f"{label}: ratios {', '.join(f'{value:,.1f}' for value in row.ratios)}.")
        if result["note"]:
            notes.append(f"{label}: {result['note']}.")
        if abs(result["mean_return"] - own["mean_return"]) > RETURN_TOLERANCE * abs(own["mean_return"]):
            notes.append(f"{label}: its return differs from metastep's by more than {RETURN_TOLERANCE:.0%}.")
    everything = [*runs, *(result for row in rows for result in row.results)]
    starved = sum(result["cores_used"] < BUSY_BELOW for result in everything)
    if starved:
        count = f"{starved} of {len(everything)} runs"
        notes.append(f"{count} got less than {BUSY_BELOW} cores: the machine was busy, compare `per core`.")
    shared.show(title_of(job), headings, cells, notes)


def title_of(job: Job) -> str:
    return f"{job.env}: {job.learners} learners, {job.episodes} episodes, horizon {job.horizon}"


def figures(result: Record) -> list[str]:
    steps, live = rate(result), result["live_steps_per_second"]
    numbers = (steps / 1e6, 1e9 / steps, live / 1e6)
    return [f"{result['estimates_per_second']:,.1f}", *(f"{n:,.3g}" for n in numbers), f"{result['cores_used']:.1f}"]


def statistics(result: Record) -> list[str]:
    return [f"{result['mean_return']:.2f}", f"{result['mean_gradient_norm']:.3g}"]


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("--learners", type=int, nargs="+", help="default: 64 and 512 for CartPole, 64 for Nav2D, 16")
    parser.add_argument("--env", choices=tuple(SHAPES), nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each contender is measured in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", help="names of peers; default: all")
    parser.add_argument("--device-only", action="store_true", help="no peers: this library on JAX's default device")
    asked: argparse.Namespace = parser.parse_args()
    if asked.smoke:
        asked.learners, asked.seconds, asked.rounds = [2], 0.01, 1
    if not asked.device_only:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the peers run on the CPU
    import jax

    device = jax.devices()[0]
    console.print(f"device: {device.platform} ({device.device_kind}), {os.cpu_count()} cores, jax {jax.__version__}\n")
    saved = []
    for env in asked.env:
        for num in asked.learners or LEARNERS[env]:
            shape = (2, 5) if asked.smoke else SHAPES[env]
            planar = asked.device_only and env == "halfcheetah"
            job = Job(env, num, *shape, asked.seconds, "planar" if planar else "default")
            contenders = [
                c for c in (CHEETAH if env == "halfcheetah" else CLASSIC) if c.peer in (asked.peers or [c.peer])
            ]
            if asked.device_only:
                runs, rows = [ours(job) for _ in range(asked.rounds)], []
            else:
                runs, rows = compare(job, contenders, asked.rounds, smoke=asked.smoke)
            print_comparison(job, runs, rows)
            peers = [{**row._asdict(), "contender": row.contender._asdict()} for row in rows]
            saved.append({"setting": job._asdict(), "metastep": runs, "peers": peers})
    shared.save(asked.out, "rollouts-device" if asked.device_only else "rollouts", saved)


if __name__ == "__main__":
    main()

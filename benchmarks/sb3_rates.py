"""Stable-Baselines3's PPO on Gymnasium's classic environments, their physics varied: a learned rate beside those in use.

    python benchmarks/sb3_rates.py --model ppo-classic --seeds 10                  # four families, loops as in the presets
    python benchmarks/sb3_rates.py --model ppo-classic --loop default --jobs 8     # one environment, batches and epochs of SB3
    python benchmarks/sb3_rates.py --model FILE --families pendulum --seeds 2 --updates 5     # a look

A seed is a variant of the physics, drawn as the family's tasks are, and everything random in the run; all methods share both.
Rates in use: SB3's default 3e-4, constant and annealed linearly, and one that follows a divergence (a factor of 1.5 up or down
where the divergence is below half or above twice 0.01, between 1e-5 and 1e-2, from 3e-4); each also tuned, on other seeds. The
score is the mean return over the updates: of the last finished episode of every environment, or what it was paid so far.
Intervals are those of Student's t over seeds. Every run is kept as a line of `--kept` once it is through, so that a stopped
benchmark goes on; runs of a model that was fitted again, or of a preset that has changed, are made anew.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from metastep._core import storage
from shared import HERE, save

FAMILIES = {
    "pendulum": "Pendulum-v1",
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCarContinuous-v0",
}
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TARGETS = (0.005, 0.01, 0.02, 0.04)
USUAL_RATE, USUAL_TARGET, USUAL_ENDS = 3e-4, 0.01, (1e-5, 1e-2)
FIRST_TUNING_SEED = 100_000


class Job(NamedTuple):
    """One run."""

    family: str
    method: str  # learned, constant, linear or divergence
    rate: float  # the first one; 0 for the learned one
    target: float  # the divergence to follow; 0 where none is followed
    seed: int
    model: str
    loop: str
    updates: int
    fingerprint: str  # of the model; empty where none is used
    said: str  # a short hash of what the loop is made of


class Held(gymnasium.Wrapper):
    """Holds an action for some steps, as simulated learners of the family do."""

    def __init__(self, env: gymnasium.Env, hold: int) -> None:
        super().__init__(env)
        self.hold = hold

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.hold):
            seen, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return seen, total, terminated, truncated, info


class Pulled(gymnasium.Wrapper):
    """MountainCarContinuous-v0 with another gravity, which Gymnasium has in its code: what it lacks is added before a step."""

    def __init__(self, env: gymnasium.Env, gravity: float) -> None:
        super().__init__(env)
        self.missing = gravity - 0.0025

    def step(self, action: Any) -> Any:
        state: Any = self.unwrapped.state  # type: ignore[attr-defined]
        state[1] -= self.missing * np.cos(3.0 * state[0])
        return self.env.step(action)


def varied(env: gymnasium.Env, family: str, task: Any) -> gymnasium.Env:
    """Gymnasium's environment with the physics of a task."""
    inner: Any = env.unwrapped
    if family == "pendulum":
        inner.m, inner.l, inner.g = task.mass, task.length, task.gravity
    elif family == "cartpole":
        inner.masscart, inner.masspole, inner.length, inner.force_mag = task
        inner.total_mass, inner.polemass_length = inner.masscart + inner.masspole, inner.masspole * inner.length
    elif family == "acrobot":
        inner.LINK_MASS_1, inner.LINK_MASS_2, inner.LINK_LENGTH_1, inner.LINK_LENGTH_2 = (
            task.mass_1, task.mass_2, task.length_1, task.length_2,
        )  # fmt: skip
        inner.LINK_COM_POS_1, inner.LINK_COM_POS_2 = task.length_1 / 2, task.length_2 / 2
    else:
        inner.power = task.power
        return Pulled(env, task.gravity)
    return env


class Loop(NamedTuple):
    """What a family's loops are made of."""

    space: Any  # of the physics
    horizon: int
    hold: int
    num_envs: int
    settings: dict[str, Any]  # of Stable-Baselines3's PPO

    @property
    def said(self) -> str:
        """A short hash of all of it."""
        physics = [*self.space.names], [*self.space.low], [*self.space.high]
        return storage.sha256_of_json([*physics, *self[1:]])[:12]


@cache
def loop_of(family: str, loop: str) -> Loop:
    """As the family's preset says, or with SB3's default batches and epochs."""
    from metastep.experiments.build import build_env
    from metastep.experiments.config import load

    config = load(f"{family}-ppo", "full")
    space, rollout = build_env(config).context_space, config.rollout
    if loop == "default":
        return Loop(space, rollout.horizon, 1, 1, {"n_steps": 2048})
    rule, hidden = config.meta.rule.options, list(config.policy.options["hidden"])
    settings = {
        "n_steps": rollout.num_steps,
        "n_epochs": rule["epochs"],
        "batch_size": rule["minibatch_size"],
        "gamma": rollout.discount,
        "policy_kwargs": {"net_arch": {"pi": hidden, "vf": hidden}},
    }
    return Loop(space, rollout.horizon, rollout.hold, int(rollout.num_envs or 1), settings)


@cache
def fingerprint_of(model: str) -> str:
    """What tells a model from another one of its name."""
    from metastep.integrations.rates import rate_model

    return rate_model(model).fingerprint if model else ""


def run(job: Job) -> dict[str, Any]:
    """Train once."""
    warnings.simplefilter("ignore")
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from metastep.integrations.stable_baselines3 import LearnedRate

    torch.set_num_threads(1)
    loop = loop_of(job.family, job.loop)
    num_envs = loop.num_envs
    task = loop.space.unpack(np.random.default_rng(job.seed).uniform(loop.space.low, loop.space.high))

    def make() -> gymnasium.Env:
        env = varied(gymnasium.make(FAMILIES[job.family], max_episode_steps=loop.horizon), job.family, task)
        return Held(env, loop.hold) if loop.hold > 1 else env

    class Watch(BaseCallback):
        """The curve, and rates that follow a divergence."""

        def __init__(self) -> None:
            super().__init__()
            self.curve: list[float] = []
            self.rates: list[float] = []
            self.returns = [deque(maxlen=1 if num_envs > 1 else 16) for _ in range(num_envs)]
            self.paid = np.zeros(num_envs)

        def _on_step(self) -> bool:
            self.paid += self.locals["rewards"]
            for lane, info in enumerate(self.locals["infos"]):
                if "episode" in info:
                    self.returns[lane].append(float(info["episode"]["r"]))
                    self.paid[lane] = 0.0
            return True

        def _on_rollout_end(self) -> None:
            pairs = zip(self.returns, self.paid, strict=True)
            self.curve.append(float(np.mean([np.mean(returns) if returns else paid for returns, paid in pairs])))
            divergence = self.model.logger.name_to_value.get("train/approx_kl")
            if job.method == "divergence" and divergence is not None:
                factor = 1.5 if divergence < job.target / 2 else 1 / 1.5 if divergence > 2 * job.target else 1.0
                self.model.learning_rate = float(np.clip(float(self.model.learning_rate) * factor, *USUAL_ENDS))
                self.model._setup_lr_schedule()

    first = (lambda left: job.rate * left) if job.method == "linear" else job.rate or USUAL_RATE
    envs = VecMonitor(DummyVecEnv([make] * num_envs))
    agent = PPO("MlpPolicy", envs, learning_rate=first, seed=job.seed % 2**31, device="cpu", **loop.settings)
    watch, learned = Watch(), LearnedRate(job.model) if job.method == "learned" else None
    proposing: list[float] = []
    measuring: list[float] = []
    if learned is not None:
        for hook in ("_on_rollout_start", "_on_step", "_on_rollout_end"):
            setattr(learned, hook, timed(getattr(learned, hook), measuring))
        learned.rates.__dict__["proposed"] = timed(learned.rates.proposed, proposing)  # a frozen class
    start = time.perf_counter()
    agent.learn(job.updates * num_envs * agent.n_steps, callback=CallbackList([watch, *([learned] if learned else [])]))
    seconds = time.perf_counter() - start
    found = {"curve": watch.curve, "score": float(np.mean(watch.curve)), "seconds": seconds, **job._asdict()}
    if learned is None:
        return found
    costs = {"measuring_us": 1e6 * sum(measuring) / job.updates, "proposing_us": 1e6 * float(np.median(proposing))}
    return found | costs | {"rates": learned.proposed}


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The same, and every call's seconds."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return result

    return watched


def interval(values: np.ndarray) -> str:
    """Mean and 95 % interval of Student's t."""
    from scipy import stats

    reach = (
        stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    )
    return f"{values.mean():.4g} [{values.mean() - reach:.4g}, {values.mean() + reach:.4g}]"


class Runs:
    """Runs side by side; those that a file holds already are not made again."""

    def __init__(self, kept: Path, processes: int) -> None:
        self.kept, self.processes = kept, processes

    def __call__(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """What came of every job, in their order."""
        text = self.kept.read_text() if self.kept.exists() else ""
        *lines, last = text.split("\n")
        found = {Job(*(record.get(name) for name in Job._fields)): record for record in map(json.loads, lines)}
        missing = [job for job in dict.fromkeys(jobs) if job not in found]
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(self.processes, mp_context=get_context("spawn")) as pool, self.kept.open("a") as file:
            if last:  # of a run that was stopped while its line was written
                file.truncate(len(text) - len(last))
            made = {pool.submit(run, job): job for job in missing}
            for future in track(as_completed(made), f"{len(missing)} runs", total=len(missing)):
                found[made[future]] = future.result()
                print(json.dumps(found[made[future]]), file=file, flush=True)
        return [found[job] for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="name or file; without it only the rates in use are run")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=3, help="0: rates in use are not tuned")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--loop", choices=("preset", "default"), default="preset")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=HERE / "results" / "sb3-rates.jsonl")
    chosen = parser.parse_args()
    console, runs = Console(), Runs(chosen.kept, chosen.jobs)
    grids = {"constant": [(rate, 0.0) for rate in RATES], "linear": [(rate, 0.0) for rate in RATES]}
    grids["divergence"] = [(rate, target) for rate in RATES[1:5] for target in TARGETS]
    usual = {"constant": (USUAL_RATE, 0.0), "linear": (USUAL_RATE, 0.0), "divergence": (USUAL_RATE, USUAL_TARGET)}

    def job(family: str, method: str, value: tuple[float, float], seed: int) -> Job:
        model = chosen.model if method == "learned" else ""
        known = fingerprint_of(model), loop_of(family, chosen.loop).said
        return Job(family, method, *value, seed, model, chosen.loop, chosen.updates, *known)

    trials = [
        job(family, method, value, FIRST_TUNING_SEED + seed)
        for family in chosen.families for method, grid in grids.items() for value in grid
        for seed in range(chosen.tuning_seeds)
    ]  # fmt: skip
    scores: dict[tuple[str, str, tuple[float, float]], list[float]] = {}
    for trial, found in zip(trials, runs(trials), strict=True):
        scores.setdefault((trial.family, trial.method, (trial.rate, trial.target)), []).append(found["score"])
    contenders = {"learned": dict.fromkeys(chosen.families, ("learned", (0.0, 0.0)))} if chosen.model else {}
    for method, grid in grids.items():
        contenders[f"{method}, usual"] = dict.fromkeys(chosen.families, (method, usual[method]))
        if chosen.tuning_seeds:
            contenders[f"{method}, tuned"] = {
                family: (method, max(grid, key=lambda value: np.mean(scores[family, method, value])))
                for family in chosen.families
            }
    asked = [
        (name, job(family, *at[family], seed))
        for name, at in contenders.items() for family in chosen.families for seed in range(chosen.seeds)
    ]  # fmt: skip
    made = runs([one for _, one in asked])
    results = [{"name": name} | found for (name, _), found in zip(asked, made, strict=True)]
    for family in chosen.families:
        rows = {
            name: np.array([r["score"] for r in results if (r["name"], r["family"]) == (name, family)])
            for name in contenders
        }
        table = Table(
            title=f"{FAMILIES[family]}, {chosen.seeds} variants, {chosen.updates} updates, loop: {chosen.loop}"
        )
        for heading in ("rate", "chosen", "mean return over the updates", "learned minus it"):
            table.add_column(heading)
        for name, values in rows.items():
            minus = interval(rows["learned"] - values) if "learned" in rows and name != "learned" else ""
            at = ", ".join(f"{number:g}" for number in contenders[name][family][1] if number)
            table.add_row(name, at, interval(values), minus)
        console.print(table)
    save(console, f"sb3-rates-{chosen.loop}", {"settings": {**vars(chosen), "kept": ""}, "results": results})
    if not chosen.model:
        return
    costs = [found for found in results if found["name"] == "learned"]
    share = np.median([found["measuring_us"] * 1e-6 * chosen.updates / found["seconds"] for found in costs])
    measuring, proposing = (np.median([found[f"{what}_us"] for found in costs]) for what in ("measuring", "proposing"))
    console.print(
        f"proposing takes {proposing:.0f} us, with measuring {measuring:.0f} us: {100 * share:.2f} % of an update, median of "
        f"{len(costs)} runs"
    )


if __name__ == "__main__":
    main()

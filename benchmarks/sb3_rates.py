"""Stable-Baselines3's PPO on Gymnasium's classic environments, their physics varied: a learned rate beside those in use.

    python benchmarks/sb3_rates.py --model cartpole-ppo --families cartpole --seeds 10        # loops as in the presets
    python benchmarks/sb3_rates.py --model cartpole-ppo --families cartpole --loop default    # batches and epochs of SB3
    python benchmarks/sb3_rates.py --model FILE --families pendulum --seeds 2 --updates 5            # a look

A seed is a variant of the physics, drawn as the family's tasks are, and everything random in the run; all methods share both.
Rates in use: SB3's default 3e-4, constant and annealed linearly, and one that follows a divergence (a factor of 1.5 up or down
where the divergence is below half or above twice 0.01, between 1e-5 and 1e-2, from 3e-4); each also tuned, on other seeds. The
score is the mean return over the updates: of the last finished episode of every environment, or its rewards so far.
Intervals are Student's t over seeds. Every finished run is a line of `--kept`, so that a stopped benchmark resumes; runs of a
model that was refitted, or of a preset that has changed, run again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from scipy import stats

import shared
from common import timed
from pretraining.sb3 import Curve, fingerprint_of, run_all, workers

FAMILIES = {
    "pendulum": "Pendulum-v1",
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCarContinuous-v0",
}
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TARGETS = (0.005, 0.01, 0.02, 0.04)
USUAL_RATE, USUAL_ENDS = 3e-4, (1e-5, 1e-2)
USUAL = {"constant": (USUAL_RATE, 0.0), "linear": (USUAL_RATE, 0.0), "divergence": (USUAL_RATE, 0.01)}
GRIDS = {  # rate, target divergence
    "constant": [(rate, 0.0) for rate in RATES],
    "linear": [(rate, 0.0) for rate in RATES],
    "divergence": [(rate, target) for rate in RATES[1:5] for target in TARGETS],
}
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
    digest: str  # of the loop's settings


class Held(gymnasium.Wrapper):
    """Repeat an action for some steps, as simulated learners of the family do."""

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
    """MountainCarContinuous-v0 with another gravity, a constant in Gymnasium's code: add the difference before a step."""

    def __init__(self, env: gymnasium.Env, gravity: float) -> None:
        super().__init__(env)
        self.missing = gravity - 0.0025

    def step(self, action: Any) -> Any:
        state: Any = self.unwrapped.state  # type: ignore[attr-defined]
        state[1] -= self.missing * np.cos(3.0 * state[0])
        return self.env.step(action)


def varied(env: gymnasium.Env, family: str, task: Any) -> gymnasium.Env:
    """Return Gymnasium's environment with the physics of a task."""
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
    """The settings of a family's loops."""

    space: Any  # of the physics
    horizon: int
    hold: int
    num_envs: int
    settings: dict[str, Any]  # of Stable-Baselines3's PPO

    @property
    def digest(self) -> str:
        """A short hash of all settings."""
        physics = [*self.space.names], [*self.space.low], [*self.space.high]
        return hashlib.sha256(json.dumps([*physics, *self[1:]], sort_keys=True).encode()).hexdigest()[:12]


@cache
def loop_of(family: str, loop: str) -> Loop:
    """Return the settings of the family's preset, or SB3's default batches and epochs."""
    from metastep.experiments.config import build_env, load

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


def environments(family: str, loop: Loop, seed: int) -> Any:
    """Return the environments of the variant that a seed draws, side by side."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    task = loop.space.unpack(np.random.default_rng(seed).uniform(loop.space.low, loop.space.high))

    def make() -> gymnasium.Env:
        env = varied(gymnasium.make(FAMILIES[family], max_episode_steps=loop.horizon), family, task)
        return Held(env, loop.hold) if loop.hold > 1 else env

    return VecMonitor(DummyVecEnv([make] * loop.num_envs))


def run(job: Job) -> dict[str, Any]:
    """Train once."""
    warnings.simplefilter("ignore")
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import CallbackList

    from metastep.integrations.stable_baselines3 import LearnedRate

    torch.set_num_threads(1)
    loop = loop_of(job.family, job.loop)
    num_envs = loop.num_envs

    class Watch(Curve):
        """Record the curve, and let rates follow a divergence."""

        def _on_rollout_end(self) -> None:
            super()._on_rollout_end()
            divergence = self.model.logger.name_to_value.get("train/approx_kl")
            if job.method == "divergence" and divergence is not None:
                factor = 1.5 if divergence < job.target / 2 else 1 / 1.5 if divergence > 2 * job.target else 1.0
                self.model.learning_rate = float(np.clip(float(self.model.learning_rate) * factor, *USUAL_ENDS))
                self.model._setup_lr_schedule()

    first = (lambda left: job.rate * left) if job.method == "linear" else job.rate or USUAL_RATE
    envs = environments(job.family, loop, job.seed)
    agent = PPO("MlpPolicy", envs, learning_rate=first, seed=job.seed % 2**31, device="cpu", **loop.settings)
    watch, learned = (
        Watch(num_envs, 1 if num_envs > 1 else 16),
        LearnedRate(job.model, outside="trust") if job.method == "learned" else None,
    )
    proposing: list[float] = []
    measuring: list[float] = []
    if learned is not None:
        for hook in ("_on_rollout_start", "_on_step", "_on_rollout_end"):
            setattr(learned, hook, with_clock(getattr(learned, hook), measuring))
        learned.rates.__dict__["chosen"] = with_clock(learned.rates.chosen, proposing)  # a frozen class
    callbacks, steps = CallbackList([watch, *([learned] if learned else [])]), job.updates * num_envs * agent.n_steps
    _, took = timed(lambda: agent.learn(steps, callback=callbacks))
    found = {"curve": watch.curve, "score": float(np.mean(watch.curve)), "seconds": took.wall, **job._asdict()}
    if learned is None:
        return found
    costs = {"measuring_us": 1e6 * sum(measuring) / job.updates, "proposing_us": 1e6 * float(np.median(proposing))}
    return found | costs | {"rates": learned.proposed}


def with_clock(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return the same function, which appends the seconds of every call to `spent`."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        result, took = timed(lambda: function(*args, **kwargs))
        spent.append(took.wall)
        return result

    return watched


def interval(values: np.ndarray) -> str:
    """Return the mean and the 95 % interval of Student's t."""
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return f"{values.mean():.4g} [{low:.4g}, {high:.4g}]"


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("--model", default="", help="name or file; without it only the rates in use are run")
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=3, help="0: rates in use are not tuned")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--loop", choices=("preset", "default"), default="preset")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="finished runs; default: sb3-rates.jsonl in --out")
    asked = parser.parse_args()
    grids = dict(GRIDS)
    if asked.smoke:
        small = {
            "model": "cartpole-ppo",
            "families": ["cartpole"],
            "seeds": 2,
            "tuning_seeds": 1,
            "updates": 2,
            "jobs": 1,
        }
        vars(asked).update(small)
        grids = {"divergence": [USUAL["divergence"]]}
    kept = asked.kept or asked.out / "sb3-rates.jsonl"
    with workers(asked.jobs) as pool:
        compare(asked, grids, lambda jobs: run_all(jobs, kept, pool, run, console=shared.console))


def compare(asked: Namespace, grids: dict[str, Any], runs: Callable[[list[Job]], list[dict[str, Any]]]) -> None:
    """Tune the rates in use, run all of them and the learned one, and print the tables."""

    def job(family: str, method: str, value: tuple[float, float], seed: int) -> Job:
        model = asked.model if method == "learned" else ""
        known = fingerprint_of(model), loop_of(family, asked.loop).digest
        return Job(family, method, *value, seed, model, asked.loop, asked.updates, *known)

    trials = [
        job(family, method, value, FIRST_TUNING_SEED + seed)
        for family in asked.families for method, grid in grids.items() for value in grid
        for seed in range(asked.tuning_seeds)
    ]  # fmt: skip
    scores: dict[tuple[str, str, tuple[float, float]], list[float]] = {}
    for trial, found in zip(trials, runs(trials), strict=True):
        scores.setdefault((trial.family, trial.method, (trial.rate, trial.target)), []).append(found["score"])
    contenders = {"learned": dict.fromkeys(asked.families, ("learned", (0.0, 0.0)))} if asked.model else {}
    for method, grid in grids.items():
        contenders[f"{method}, usual"] = dict.fromkeys(asked.families, (method, USUAL[method]))
        if asked.tuning_seeds:
            contenders[f"{method}, tuned"] = {
                family: (method, max(grid, key=lambda value: np.mean(scores[family, method, value])))
                for family in asked.families
            }
    jobs = [
        (name, job(family, *at[family], seed))
        for name, at in contenders.items() for family in asked.families for seed in range(asked.seeds)
    ]  # fmt: skip
    records = runs([one for _, one in jobs])
    results = [{"name": name} | found for (name, _), found in zip(jobs, records, strict=True)]
    for family in asked.families:
        means = {
            name: np.array([r["score"] for r in results if (r["name"], r["family"]) == (name, family)])
            for name in contenders
        }
        rows = []
        for name, values in means.items():
            minus = interval(means["learned"] - values) if "learned" in means and name != "learned" else ""
            at = ", ".join(f"{number:g}" for number in contenders[name][family][1] if number)
            rows.append([name, at, interval(values), minus])
        title = f"{FAMILIES[family]}, {asked.seeds} variants, {asked.updates} updates, loop: {asked.loop}"
        shared.show(title, ("rate", "chosen", "mean return over the updates", "learned minus it"), rows)
    costs = [found for found in results if found["name"] == "learned"]
    if costs:
        share = np.median([found["measuring_us"] * 1e-6 * asked.updates / found["seconds"] for found in costs])
        measuring, proposing = (
            np.median([found[f"{what}_us"] for found in costs]) for what in ("measuring", "proposing")
        )
        shared.console.print(
            f"proposing takes {proposing:.0f} us, with measuring {measuring:.0f} us: {100 * share:.2f} % of an update, "
            f"median of {len(costs)} runs"
        )
    settings = {name: str(value) for name, value in vars(asked).items()}
    shared.save(asked.out, f"sb3-rates-{asked.loop}", {"settings": settings, "results": results})


if __name__ == "__main__":
    main()

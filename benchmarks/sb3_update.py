"""Stable-Baselines3's PPO on Gymnasium's classic environments, their physics varied: searched updates beside tuned rates.

    python benchmarks/sb3_update.py --models 'study/{family}-update-0/models/update/levels/{level}.safetensors' --jobs 16
    python benchmarks/sb3_update.py --families pendulum --variants 4 --tuning-variants 4 --updates 5     # a look, rates only

A variant of the physics is drawn as the tasks of the preset FAMILY-update are, and so are all settings of the loop; methods share
variants and seeds. Rates: SB3's default of 3e-4, and the best constant, linearly falling and KL-adaptive rate (as in rsl_rl, by
its target, up to 0.1) on other variants, found by successive halving: all of the grid on a quarter of the tuning variants, the
best three on all of them. Levels of a searched
model (constant, schedule, feedback) are set by `LearnedUpdate`, without guards unless `--outside fallback` has them; the model
was searched in simulation, never on these variants.

The score is the mean return of all batches after the first update: of the last finished episode of every environment, or its
rewards so far. Intervals are Student's t over variants. Every finished run is a line of `--kept`, so that a comparison can be
spread over calls: after `--minutes` no further run is begun, and the next call goes on. Runs of a model or loop that has changed
run again.
"""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shared
from common import timed
from pretraining.sb3 import Curve, KLAdaptive, fingerprint_of, run_all, workers
from pretraining.work import Clock
from sb3_rates import FAMILIES, USUAL_RATE, Loop, environments, interval

RATES = (3e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
ADAPTIVE = "KL-adaptive rate"
TARGETS = (0.0025, 0.005, 0.01, 0.02, 0.04)  # of the divergence; a job has its target in place of a rate
SCHEDULES = ("constant rate", "linear rate", ADAPTIVE)
LARGEST_RATE = 0.1  # of the adaptive one, as in the presets
LEVELS = ("constant", "schedule", "feedback")
FIRST_TUNING_SEED = 100_000
KEPT_POINTS = 3  # of a grid, after the first round of tuning


class Job(NamedTuple):
    """One run."""

    family: str
    method: str  # of SCHEDULES or LEVELS
    rate: float  # the first one; 0 where a model chooses
    seed: int
    updates: int
    steps: int  # of every environment between two updates
    model: str  # file; empty without a model
    fingerprint: str  # of the model
    digest: str  # of the loop's settings
    outside: str | None = None  # what guards do with a model's proposals; "trust", none, in earlier files


@cache
def loop_of(family: str) -> tuple[Loop, int]:
    """Return the settings of the family's preset, and how many updates its learners make."""
    from metastep.experiments.config import build_env, load

    config = load(f"{family}-update", "full")
    rollout, rule, hidden = config.rollout, config.meta.rule.options, list(config.policy.options["hidden"])
    settings = {
        "n_steps": rollout.num_steps,
        "n_epochs": rule["epochs"],
        "batch_size": rule["minibatch_size"],
        "gamma": rollout.discount,
        "policy_kwargs": {"net_arch": {"pi": hidden, "vf": hidden}},
    }
    space = build_env(config).context_space
    loop = Loop(space, rollout.horizon, rollout.hold, int(rollout.num_envs or 1), settings)
    return loop, config.compare.num_updates


def run(job: Job) -> dict[str, Any]:
    """Train once."""
    warnings.simplefilter("ignore")
    os.environ["JAX_PLATFORMS"] = "cpu"
    import torch
    from stable_baselines3 import PPO

    from metastep.integrations.stable_baselines3 import LearnedUpdate

    torch.set_num_threads(1)
    loop, _ = loop_of(job.family)
    settings = loop.settings | {"n_steps": job.steps}
    first = (lambda left: job.rate * left) if job.method == "linear rate" else job.rate or USUAL_RATE
    envs = environments(job.family, loop, job.seed)
    agent = PPO("MlpPolicy", envs, learning_rate=first, seed=job.seed % 2**31, device="cpu", **settings)
    watch, callbacks = Curve(loop.num_envs), list[Any]()
    if job.method == ADAPTIVE:
        callbacks.append(KLAdaptive(job.rate, LARGEST_RATE))
    if job.model:
        callbacks.append(LearnedUpdate(job.model, outside=job.outside or "trust"))
    steps = job.updates * loop.num_envs * agent.n_steps
    _, took = timed(lambda: agent.learn(steps, callback=[watch, *callbacks]))
    score = float(np.mean(watch.curve[1:]))
    last = float(np.mean(watch.curve[-max(1, job.updates // 10) :]))
    return job._asdict() | {"curve": watch.curve, "score": score, "last": last, "seconds": took.wall}


def tuned(
    asked: Namespace, job: Callable[..., Job], runs: Callable[[list[Job]], list[dict[str, Any]]]
) -> dict[Any, float]:
    """Return the best rate of every family and schedule on the tuning variants, by successive halving."""
    grids = {schedule: [*(TARGETS if schedule == ADAPTIVE else asked.rates)] for schedule in SCHEDULES}
    left = {(family, schedule): grid for family in asked.families for schedule, grid in grids.items()}
    best: dict[Any, float] = {}
    for num in sorted({max(1, asked.tuning_variants // 4), asked.tuning_variants}):
        jobs = [
            job(family, schedule, rate, FIRST_TUNING_SEED + seed)
            for (family, schedule), rates in left.items() for rate in rates for seed in range(num)
        ]  # fmt: skip
        scores: dict[Any, list[float]] = {}
        for one, found in zip(jobs, runs(jobs), strict=True):
            scores.setdefault((one.family, one.method, one.rate), []).append(found["score"])
        for key, rates in left.items():
            order = sorted(rates, key=lambda rate: -float(np.nan_to_num(np.mean(scores[(*key, rate)]), nan=-np.inf)))
            left[key], best[key] = order[:KEPT_POINTS], order[0]
    return best


def compare(asked: Namespace, runs: Callable[[list[Job]], list[dict[str, Any]]]) -> None:
    """Tune the rates, run all methods on the test variants, and print the tables."""

    def job(family: str, method: str, rate: float, seed: int) -> Job:
        loop, updates = loop_of(family)
        model = asked.models.format(family=family, level=method) if method in LEVELS else ""
        facts = (
            asked.updates or updates,
            asked.steps or loop.settings["n_steps"],
            model,
            fingerprint_of(model),
            loop.digest,
            asked.outside if model and asked.outside != "trust" else None,
        )
        return Job(family, method, rate, seed, *facts)

    best = tuned(asked, job, runs)
    contenders: dict[str, dict[str, tuple[str, float]]] = {
        "SB3's default rate": dict.fromkeys(asked.families, (SCHEDULES[0], USUAL_RATE))
    }
    for schedule in SCHEDULES:
        contenders[f"{schedule}, tuned"] = {family: (schedule, best[family, schedule]) for family in asked.families}
    for level in asked.levels if asked.models else ():
        contenders[f"{level}, searched"] = dict.fromkeys(asked.families, (level, 0.0))
    jobs = [
        (name, job(family, *at[family], seed))
        for family in asked.families for name, at in contenders.items() for seed in range(asked.variants)
    ]  # fmt: skip
    records = runs([one for _, one in jobs])
    results = [{"name": name} | found for (name, _), found in zip(jobs, records, strict=True)]
    for family in asked.families:
        own = {name: [r for r in results if (r["name"], r["family"]) == (name, family)] for name in contenders}
        scores = {name: np.array([r["score"] for r in rows]) for name, rows in own.items()}
        rates = [f"{schedule}, tuned" for schedule in SCHEDULES]
        reference = max(rates, key=lambda name: scores[name].mean())
        gain = float(np.mean(scores[reference] - [r["curve"][0] for r in own[reference]]))
        rows = []
        for name, values in scores.items():
            lead = values - scores[reference]
            share = f"{100 * lead.mean() / gain:.1f} %" if gain > 0.0 and name != reference else ""
            rate = contenders[name][family][1]
            last, seconds = (np.mean([r[what] for r in own[name]]) for what in ("last", "seconds"))
            minus = interval(lead) if name != reference else ""
            rows.append(
                [name, f"{rate:g}" if rate else "", interval(values), minus, share, f"{last:.4g}", f"{seconds:.1f}"]
            )
        loop, usual = loop_of(family)
        batch = f"{loop.num_envs} environments x {asked.steps or loop.settings['n_steps']} steps"
        title = f"{FAMILIES[family]}, {asked.variants} variants, {asked.updates or usual} updates, {batch}"
        headings = (
            "method",
            "rate or target",
            "mean return over the updates",
            f"minus {reference}",
            "of its gain",
            "last return",
            "seconds",
        )
        shared.show(title, headings, rows)
    settings = {name: str(value) for name, value in vars(asked).items()}
    shared.save(asked.out, "sb3-update", {"settings": settings, "results": results})


def smoke_models(folder: Path, family: str) -> str:
    """Write models of the levels that observe nothing, at their base points; return the pattern of their files."""
    from metastep.experiments.config import load
    from metastep.experiments.run import Run
    from metastep.search import save_model, searched_model
    from metastep.search.evolution import Search, first_weights, network_of

    mdp: Any = Run(folder, load(f"{family}-update", "full")).of_model("update").mdp
    for level in LEVELS[:2]:
        network = network_of(level, Search(), [mdp], 0)
        ends = {"feature_low": [0.0] * len(network.features), "feature_high": [1.0] * len(network.features)}
        facts: dict[str, Any] = {"configuration": {}, "validation": (), "search_steps": 0.0, "seed": 0}
        save_model(
            searched_model(mdp, network, first_weights(network, 0), **ends, **facts), folder / f"{level}.safetensors"
        )
    return f"{folder}/{{level}}.safetensors"


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument(
        "--models", default="", help="files of the levels, with {family} and {level}; without it only rates"
    )
    parser.add_argument("--levels", nargs="+", default=[*LEVELS], choices=LEVELS)
    parser.add_argument(
        "--outside", default="trust", choices=("trust", "fallback"), help="guards: off, or as for users"
    )
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--variants", type=int, default=20, help="of the physics, to compare on")
    parser.add_argument("--tuning-variants", type=int, default=20, help="others, to tune rates on")
    parser.add_argument("--rates", type=float, nargs="+", default=[*RATES])
    parser.add_argument("--updates", type=int, help="of a run; by default those of the preset")
    parser.add_argument("--steps", type=int, help="of every environment between two updates; by default the preset's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=np.inf, help="after which no further run is begun")
    parser.add_argument("--kept", type=Path, help="finished runs; default: sb3-update.jsonl in --out")
    asked = parser.parse_args()
    if asked.smoke:
        small = {
            "families": ["cartpole"],
            "variants": 2,
            "tuning_variants": 1,
            "rates": [1e-3],
            "updates": 2,
            "steps": 25,
            "jobs": 1,
        }
        asked.out.mkdir(parents=True, exist_ok=True)
        vars(asked).update(small, levels=[*LEVELS[:2]], models=smoke_models(asked.out, "cartpole"))
    if asked.updates is not None and asked.updates < 2:
        sys.exit(f"--updates: {asked.updates} must be at least 2, since returns before the first update do not count.")
    for family in asked.families if asked.models else ():
        for level in asked.levels:
            file = asked.models.format(family=family, level=level)
            if not Path(file).exists():
                sys.exit(f"--models: {file} does not exist; search it first, or name other --families or --levels.")
    kept, clock = asked.kept or asked.out / "sb3-update.jsonl", Clock(asked.minutes)
    with workers(asked.jobs) as pool:
        try:
            compare(asked, lambda jobs: run_all(jobs, kept, pool, run, clock, shared.console))
        except TimeoutError as stopped:
            shared.console.print(str(stopped), markup=False)
            shared.save(asked.out, "sb3-update", {"left": str(stopped)})


if __name__ == "__main__":
    main()

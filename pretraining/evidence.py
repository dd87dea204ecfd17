"""Stable-Baselines3's PPO on environments that no model was trained on: a model beside schedules and tuned hyperparameters.

    python -m pretraining.evidence --jobs 16 --minutes 50                             # again, until no run is left
    python -m pretraining.evidence --envs InvertedPendulum-v5 --seeds 1 --steps 20000 --methods default model      # a look

Needs `pip install ".[evidence]"`. Loops: Stable-Baselines3's defaults, and RL Zoo's for the environment (networks, normalisation,
batches, epochs, discount). Methods set the learning rate, or all that they choose, in the same loop:

    default    Stable-Baselines3's values: a rate of 3e-4
    linear     the same rate, annealed to zero
    adaptive   a rate that follows the KL divergence, as in rsl_rl
    universal  the best schedule on our training families: that in the model's record, or --universal, such as "linear 0.003"
    zoo        RL Zoo's tuned rate, clip range, lambda and entropy weight, in its loop
    model      --model, a name, a file or the folder of a run

Every finished run is a line of OUT/runs.jsonl; a run is begun only if it should end within --minutes. The page and its figures
show what is there.
"""

import argparse
import hashlib
import importlib.util
import json
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metastep import InputError
from metastep.pretrained import rate_model
from pretraining.pages import write_page
from pretraining.sb3 import TUNED, ZOO, Curve, KLAdaptive, fingerprint_of, finished, run_all, workers
from pretraining.work import Clock

MODEL, UNIVERSAL = "ppo", "linear 0.003"  # the schedule is for models without a universal one in their record
LOOPS = {"sb3": "Stable-Baselines3's default loop", "zoo": "RL Zoo's loop"}
METHODS = {"model": "model", "default": "SB3's default", "linear": "linear annealing", "adaptive": "KL-adaptive"}
METHODS |= {"universal": "universal schedule", "zoo": "RL Zoo, tuned"}
BOX2D = ("LunarLander", "BipedalWalker")
ENVS = (*list(ZOO)[:3], "Pusher-v5", *list(ZOO)[3:])  # RL Zoo has no settings for Pusher
RATE, POINTS = 3e-4, 100  # the default, and points of a kept curve
EPISODES, FIRST = 16, 4  # of a return, and before the first update
OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("model", MODEL, "a name, a file or the folder of a run"),
    ("universal", "", f"a schedule; by default that in the model's record, or {UNIVERSAL}"),
    ("seeds", 5, "runs of every method on every environment"),
    ("steps", 200_000, "of a run"),
    ("updates", 20, "of a run at least, in loops with large batches"),
    ("jobs", 2, "processes side by side"),
    ("minutes", np.inf, "within which runs must end"),
    ("out", Path("runs/evidence"), "folder of the finished runs"),
    ("page", Path("docs/lab/evidence.md"), "to write"),
    ("figures", Path("docs/images"), "their folder"),
)


class Job(NamedTuple):
    """One run."""

    env: str
    loop: str  # of LOOPS
    method: str  # of METHODS
    seed: int
    steps: int
    schedule: str  # of the method `universal`
    model: str
    fingerprint: str  # of the model
    digest: str  # of the loop's settings


def settings_of(env: str, loop: str, smoke: bool = False) -> dict[str, Any]:
    """Return the settings of a loop and, in RL Zoo's, the tuned values as well."""
    usual = {"n_envs": 1, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "normalize": False, "policy": {}}
    small = {"n_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2} if smoke else {}
    return (ZOO[env] if loop == "zoo" else usual) | small


def universal_schedule(text: str, model: str) -> str:
    """Return `constant RATE` or `linear RATE`, as it is given or as the recipe of the model found it."""
    known = rate_model(model).record.configuration.get("universal_rate")
    if not text and known is not None:
        text = f"{'linear' if known['falls'] else 'constant'} {known['rate']:g}"
    kind, _, rate = (text or UNIVERSAL).partition(" ")
    with suppress(ValueError):
        if kind in ("constant", "linear") and 0.0 < float(rate) < 1.0:
            return f"{kind} {float(rate):g}"
    raise InputError(f"--universal: {text!r} must be 'constant RATE' or 'linear RATE', with a rate below 1.")


def run(job: Job, smoke: bool = False) -> dict[str, Any]:
    """Train once; return the job, its curve in equal shares of the steps, and the mean return of the policy before."""
    warnings.simplefilter("ignore")
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    from metastep.integrations.stable_baselines3 import LearnedRate

    torch.set_num_threads(1)
    settings, since = settings_of(job.env, job.loop, smoke), time.perf_counter()
    num_envs, policy, is_normal = settings.pop("n_envs"), dict(settings.pop("policy")), settings.pop("normalize")
    tuned: dict[str, Any] = {name: settings.pop(name) for name in TUNED if name in settings}
    if job.method != "zoo":
        kind, rate = (job.schedule or f"constant {RATE}").split()
        tuned = {"learning_rate": (lambda left: left * float(rate)) if kind == "linear" else float(rate)}
    if policy:
        hidden, activation = policy.pop("hidden"), {"relu": torch.nn.ReLU}[policy.pop("activation")]
        policy |= {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": activation}
    envs: Any = make_vec_env(job.env, n_envs=num_envs, seed=job.seed)
    envs = VecNormalize(envs, gamma=settings["gamma"]) if is_normal else envs
    agent = PPO("MlpPolicy", envs, seed=job.seed, device="cpu", policy_kwargs=policy, **settings, **tuned)
    others = make_vec_env(job.env, seed=job.seed)
    first, _ = evaluate_policy(agent, others, FIRST, deterministic=False)
    others.close()
    watch = Curve(num_envs, -(-EPISODES // num_envs))
    guards: list[str] = []  # that acted, of every update with a model
    learned = partial(LearnedRate, job.model, lambda _, entry: guards.append(entry["guard"]))
    extra: Any = {"model": learned, "adaptive": KLAdaptive}.get(job.method)
    failed = ""
    try:
        agent.learn(job.steps, callback=[watch, *([extra()] if extra else [])])
    except ValueError as error:  # a policy that is not finite: what is left of the curve counts as its worst part
        failed, total = " ".join(str(error).split())[:200], -(-job.steps // (agent.n_steps * num_envs))
        watch.curve += [min(watch.curve)] * (total - len(watch.curve))
    envs.close()
    curve = [round(float(part.mean()), 4) for part in np.array_split(watch.curve, min(POINTS, len(watch.curve)))]
    known = {"curve": curve, "first": float(np.mean(first)), "seconds": time.perf_counter() - since, "failed": failed}
    return job._asdict() | known | {"fallback": sum("fallback" in each for each in guards) / max(1, len(guards))}


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """Return all runs, those of the first seed first."""
    schedules, jobs = {"linear": f"linear {RATE}", "universal": asked.universal}, []
    for seed, loop, env, method in product(range(asked.seeds), asked.loops, asked.envs, asked.methods):
        if (loop == "sb3" and method == "zoo") or (loop == "zoo" and env not in ZOO):
            continue
        own, model = settings_of(env, loop, asked.smoke), asked.model if method == "model" else ""
        steps = max(asked.steps, asked.updates * own["n_envs"] * own["n_steps"])
        digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]
        known = steps, schedules.get(method, ""), model, fingerprint_of(model), digest
        jobs.append(Job(env, loop, method, seed, *known))
    return jobs


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in {"envs": ENVS, "loops": LOOPS, "methods": METHODS}.items():
        parser.add_argument(f"--{name}", nargs="+", default=[*known], choices=known, metavar=name[:-1].upper())
    for name, usual, text in OPTIONS:
        parser.add_argument(f"--{name}", default=usual, type=type(usual), help=f"{text} (default: {usual})")
    parser.add_argument("--smoke", action="store_true", help="the smallest batches: does it still run?")
    asked = parser.parse_args(words)
    try:
        asked.universal = universal_schedule(asked.universal, asked.model)
        if importlib.util.find_spec("Box2D") is None and any(env.startswith(BOX2D) for env in asked.envs):
            advice = "pip install 'gymnasium[box2d]', or name others"
            raise InputError(f"--envs: {' and '.join(BOX2D)} need Box2D, which is not installed; {advice}.")
        jobs = jobs_of(asked)
    except InputError as error:
        parser.error(str(error))
    kept = asked.out / "runs.jsonl"
    with workers(asked.jobs) as pool:
        try:
            run_all(jobs, kept, pool, partial(run, smoke=asked.smoke), Clock(asked.minutes))
        except TimeoutError as stopped:
            print(stopped)
    there = finished(kept, Job)
    records = [there[job] for job in jobs if job in there]
    write_page(records, METHODS | {"model": asked.model}, LOOPS, asked.page, asked.figures)


if __name__ == "__main__":
    main()

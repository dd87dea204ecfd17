"""PPO on CartPole-v1 or Pendulum-v1: environment steps per second with learning, beside rejax, sbx and Stable-Baselines3.

    python benchmarks/ppo.py                                  # one learner and 64, with peers, on the CPU
    python benchmarks/ppo.py --device-only --learners 1 64    # this library on JAX's default device
    python benchmarks/ppo.py --peers rejax --here             # peers that this Python has installed, on that device
    python benchmarks/ppo.py --env pendulum --learners 1024 --peers rejax --here    # batches of the presets *-update, on a GPU

All have the same network (two layers of tanh units for the actor, two for the critic), batch, minibatches and epochs. Learners of
this library have a task each; those of rejax share one. This library also bootstraps where episodes are truncated, and records
the diagnostics that features of a meta-observation need.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from statistics import median
from typing import Any

import shared
from common import Training, training_record
from shared import PeerError, Record, console

CONTENDERS = {"rejax": "rejax_ppo.py", "sbx": "sb3_ppo.py", "sb3": "sb3_ppo.py"}
TRAIN_MANY = ("rejax",)  # peers that train several learners at once
ENVS = {"cartpole-v1": "CartPole-v1", "pendulum": "Pendulum-v1"}
HORIZON = {"cartpole-v1": 500, "pendulum": 200}  # Gymnasium's
USUAL = {  # those of Pendulum are the presets' `*-update`: 64 gradient steps
    "cartpole-v1": {"envs": 8, "steps": 256, "epochs": 10, "minibatch": 64, "hidden": 64},
    "pendulum": {"envs": 16, "steps": 200, "epochs": 8, "minibatch": 400, "hidden": 32},
}
SMOKE = {"envs": 2, "steps": 8, "epochs": 1, "minibatch": 8, "hidden": 8, "seconds": 0.01, "learners": [1]}


def ours(job: Training, name: str) -> Record:
    """Measure this library in this process."""
    import jax
    import jax.numpy as jnp

    import metastep
    from metastep.mdp import ActorCriticMDP
    from metastep.mdp.blocks import Stream
    from metastep.policies import ActorCritic
    from metastep.rules.actor_critic import PPO, Sampler
    from metastep.rules.spaces import HyperparameterSpace

    env: Any = metastep.envs.make(name)
    choices = metastep.envs.choices_of(env)
    policy = ActorCritic(env.num_observations, env.num_actions, choices, hidden=(job.hidden, job.hidden))
    rule, space = PPO(job.epochs, job.minibatch), HyperparameterSpace((1e-5,), (1e-1,), ("log",))
    mdp = ActorCriticMDP(Sampler(env, policy, job.envs, job.steps, HORIZON[name]), space, rule, block_size=job.learners)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    rate = jnp.full((job.learners, 1), 3e-4, jnp.float32)

    def update(num: int) -> None:
        nonlocal learners
        for _ in range(num):
            learners = mdp.advance(learners, rate)
        jax.block_until_ready(learners.theta)

    return training_record(job, update, "metastep", metastep.__version__)


def gradient_steps(job: Training) -> int:
    """Return the steps of Adam for one update."""
    return job.epochs * job.batch // job.minibatch


def compare(job: Training, peers: Sequence[str], asked: Namespace) -> tuple[dict[str, list[Record]], list[str]]:
    """Return the records of all contenders, measured in turns, and a sentence for each that gave none."""
    found: dict[str, list[Record]] = {"metastep": []}
    found |= {name: [] for name in peers if job.learners == 1 or name in TRAIN_MANY}
    failures: dict[str, str] = {}
    for _ in range(asked.rounds):
        for name in [name for name in found if name not in failures]:
            if name == "metastep":
                found[name].append(ours(job, asked.env))
                continue
            options = job._asdict() | ({} if name == "rejax" else {"name": name})
            script, places = CONTENDERS[name], {"smoke": asked.smoke, "here": asked.here}
            try:
                found[name].append(shared.run_peer(name, name, script, options, **places))
            except PeerError as error:
                failures[name] = str(error)
    return found, list(failures.values())


def rate(records: list[Record]) -> float:
    return median(record["steps_per_second"] for record in records)


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--env", choices=[*ENVS], default="cartpole-v1")
    for name in USUAL["pendulum"]:
        parser.add_argument(f"--{name}", type=int, help=f"by default {[usual[name] for usual in USUAL.values()]}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each contender is measured in a round")
    parser.add_argument("--device-only", action="store_true", help="no peers: this library on JAX's default device")
    parser.add_argument("--peers", nargs="*", default=[*CONTENDERS], choices=[*CONTENDERS])
    parser.add_argument("--here", action="store_true", help="peers run with this Python, all on JAX's default device")
    asked = parser.parse_args()
    vars(asked).update({name: value for name, value in USUAL[asked.env].items() if getattr(asked, name) is None})
    if asked.smoke:
        vars(asked).update(SMOKE, rounds=1)
    if not (asked.device_only or asked.here):
        os.environ["JAX_PLATFORMS"] = "cpu"  # where all contenders can run
    import jax

    console.print(f"device: {jax.devices()[0].device_kind}, {os.cpu_count()} cores, jax {jax.__version__}\n")
    saved = []
    for num in asked.learners:
        job = Training(ENVS[asked.env], num, *(getattr(asked, name) for name in Training._fields[2:]))
        found, failures = compare(job, [] if asked.device_only else asked.peers, asked)
        rows = []
        for name, records in found.items():
            if not records:
                rows.append([name, "-", "no result", "", "", "", ""])
                continue
            rates = [record["steps_per_second"] for record in records]
            numbers = (rate(records), min(rates), max(rates))
            cores = median(record["cores_used"] for record in records)
            ratio = "" if name == "metastep" else f"{rate(found['metastep']) / rate(records):.2f}"
            cells = [*(f"{value:,.0f}" for value in numbers), f"{cores:.1f}", ratio]
            rows.append([records[0]["name"], records[0]["version"], *cells])
        title = f"{job.env}, {num} learner(s): {job.envs} environments, {job.steps} steps, {job.epochs} epochs of minibatches of "
        headings = ("contender", "version", "steps/s", "lowest", "highest", "cores", "metastep is faster by")
        title += f"{job.minibatch} = {gradient_steps(job)} gradient steps, {job.hidden} units"
        shared.show(title, headings, rows, failures)
        saved.append(
            {"setting": job._asdict() | {"gradient_steps": gradient_steps(job)}, "found": found, "failures": failures}
        )
    shared.save(
        asked.out, f"ppo{'-device' if asked.device_only else ''}{'-pendulum' if asked.env == 'pendulum' else ''}", saved
    )


if __name__ == "__main__":
    main()

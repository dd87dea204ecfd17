"""PPO on CartPole-v1: environment steps a second with learning, beside rejax, sbx and Stable-Baselines3.

    python benchmarks/ppo.py                                  # one learner and 64, with peers, on the CPU
    python benchmarks/ppo.py --device-only --learners 1 64    # this package on JAX's default device
    python benchmarks/ppo.py --peers rejax --here             # beside those that this Python has installed, on that device
    python benchmarks/ppo.py --growth                         # time and memory by width and learners, likewise

All have the same network (two layers of tanh units for the actor, two for the critic), batch, minibatches and epochs. Learners of
this package have tasks of their own; those of rejax share one. Ours also bootstraps where episodes are cut off, and keeps what
the features of a meta-observation need.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from shared import run_script, save

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))

from training import Training, measured  # noqa: E402
from venvs import InstallError, interpreter  # noqa: E402

CONTENDERS = {"rejax": ["rejax_ppo.py"], "sbx": ["sb3_ppo.py", "--name", "sbx"], "sb3": ["sb3_ppo.py", "--name", "sb3"]}
MANY = ("rejax",)  # who can train several learners at once
Record = dict[str, Any]


def make_mdp(job: Training) -> Any:
    """What every contender trains, as this package has it."""
    from metastep import envs
    from metastep.mdp import ActorCriticMDP
    from metastep.policies import ActorCritic
    from metastep.rules.actor_critic import PPO, Sampler
    from metastep.rules.spaces import HyperparameterSpace

    env: Any = envs.make("cartpole-v1")
    policy = ActorCritic(env.num_observations, env.num_actions, env.num_choices, hidden=(job.hidden, job.hidden))
    rule = PPO(epochs=job.epochs, minibatch_size=job.minibatch)
    space = HyperparameterSpace((1e-5,), (1e-1,), ("log",))
    return ActorCriticMDP(Sampler(env, policy, job.envs, job.steps, 500), space, rule, block_size=job.learners)


def ours(job: Training) -> Record:
    """This package in this process."""
    import jax
    import jax.numpy as jnp

    import metastep
    from metastep.mdp.blocks import Stream

    mdp = make_mdp(job)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    rate = jnp.full((job.learners, 1), 3e-4, jnp.float32)

    def update(num: int) -> None:
        nonlocal learners
        for _ in range(num):
            learners = mdp.advance(learners, rate)
        jax.block_until_ready(learners.theta)

    record = measured(job, update, "metastep", metastep.__version__)
    return {**record, "device": jax.devices()[0].device_kind, "return": float(learners.estimate.mean_return.mean())}


def compare(job: Training, rounds: int, peers: Sequence[str], *, here: bool) -> dict[str, list[Record] | str]:
    """Records of all contenders, in turns; a sentence for one that gives none."""
    found: dict[str, list[Record] | str] = {"metastep": []}
    found |= {name: [] for name in peers if job.learners == 1 or name in MANY}
    for _ in range(rounds):
        for name, records in found.items():
            if isinstance(records, str):
                continue
            try:
                records.append(ours(job) if name == "metastep" else _peer(name, job, here=here))
            except (InstallError, RuntimeError) as error:
                found[name] = str(error)
    return found


def _peer(name: str, job: Training, *, here: bool) -> Record:
    python = sys.executable if here else str(interpreter(name))
    script, *options = CONTENDERS[name]
    return run_script(name, [python, str(PEERS / script), *options], job._asdict())


def _rate(records: list[Record]) -> float:
    return median(record["steps_per_second"] for record in records)


def show(console: Console, job: Training, found: dict[str, list[Record] | str]) -> None:
    """The table of one setting."""
    title = (
        f"{job.learners} learner(s): {job.envs} environments, {job.steps} steps, {job.epochs} epochs of minibatches of "
    )
    table = Table(title=f"{title}{job.minibatch}, {job.hidden} units", title_justify="left")
    for heading in ("contender", "version", "steps/s", "from", "to", "cores", "metastep is faster by"):
        table.add_column(heading, justify="left" if heading in ("contender", "version") else "right")
    own = found["metastep"]
    for name, records in found.items():
        if isinstance(records, str):
            table.add_row(name, "-", "no result", "", "", "", "")
            continue
        rates = [record["steps_per_second"] for record in records]
        cores = median(record["cores_used"] for record in records)
        ratio = "" if name == "metastep" or isinstance(own, str) else f"{_rate(own) / _rate(records):.2f}"
        cells = (f"{_rate(records):,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}", f"{cores:.1f}", ratio)
        table.add_row(records[0]["name"], records[0]["version"], *cells)
    console.print(table)
    for records in found.values():
        if isinstance(records, str):
            console.print(f"  {records}", markup=False, highlight=False)


def growth(console: Console, base: Training, learners: list[int], widths: list[int]) -> list[Record]:
    """Time and memory of one update by the number of learners and by the width of the network."""
    import jax

    from metastep.mdp.actor_critic import _advance, _simulated
    from metastep.mdp.blocks import Stream

    found = []
    jobs = [base._replace(learners=num) for num in learners] + [base._replace(hidden=width) for width in widths]
    table = Table(title="one update: time, and memory of the compiled program", title_justify="left")
    for heading in ("learners", "units", "parameters", "ms", "us/learner", "MB for arguments", "MB of scratch"):
        table.add_column(heading, justify="right")
    for job in dict.fromkeys(jobs):
        mdp, record = make_mdp(job), ours(job)
        learned = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
        rate = jax.numpy.full((job.learners, 1), 3e-4, jax.numpy.float32)
        memory = jax.jit(_advance, static_argnums=0).lower(_simulated(mdp), learned, rate).compile().memory_analysis()
        seconds = job.learners * job.batch / record["steps_per_second"]
        sizes = {"arguments": memory.argument_size_in_bytes, "scratch": memory.temp_size_in_bytes}
        found.append({**record, **sizes, "parameters": mdp.num_parameters})
        cells = (
            job.learners,
            job.hidden,
            mdp.num_parameters,
            f"{1e3 * seconds:.1f}",
            f"{1e6 * seconds / job.learners:.0f}",
        )
        table.add_row(*map(str, cells), *(f"{size / 1e6:.1f}" for size in sizes.values()))
    console.print(table)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="PPO benchmark.")
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64, 128, 256], help="for --growth")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each contender is measured in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device-only", action="store_true", help="no peers: this package on JAX's default device")
    parser.add_argument("--peers", nargs="*", default=[*CONTENDERS], choices=[*CONTENDERS])
    parser.add_argument("--here", action="store_true", help="peers run with this Python, all on JAX's default device")
    parser.add_argument("--growth", action="store_true", help="this package by width and learners")
    return parser.parse_args()


def main() -> None:
    """Print the tables and save the figures."""
    arguments = _arguments()
    if not (arguments.device_only or arguments.growth or arguments.here):
        os.environ["JAX_PLATFORMS"] = "cpu"  # where all contenders can run
    import jax

    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"device: {jax.devices()[0].device_kind}, {os.cpu_count()} cores, jax {jax.__version__}\n")
    names = ("envs", "steps", "epochs", "minibatch", "hidden", "seconds")
    base = Training(learners=1, **{name: getattr(arguments, name) for name in names})
    if arguments.growth:
        save(console, "ppo-growth", growth(console, base, arguments.learners, arguments.widths))
        return
    saved = []
    for num in arguments.learners:
        job = base._replace(learners=num)
        alone = {"metastep": [ours(job) for _ in range(arguments.rounds)]} if arguments.device_only else None
        found: dict[str, list[Record] | str] = alone or compare(  # type: ignore[assignment]
            job, arguments.rounds, arguments.peers, here=arguments.here
        )
        show(console, job, found)
        saved.append({"setting": job._asdict(), "found": found})
    save(console, "ppo-device" if arguments.device_only else "ppo", saved)


if __name__ == "__main__":
    main()

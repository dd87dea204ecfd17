"""What several directions cost: a transition of the meta-MDP with a menu of six against one with the natural gradient alone.

    python benchmarks/directions.py              # Nav2D, Minigolf, CartPole and SwingUp, a minute or two on two cores
    python benchmarks/directions.py --learners 512 --repeats 20

Both simulate the same batch of every learner. The menu solves for four natural gradients of one Fisher matrix, runs the moments
of RMSprop and Adam, and measures the curvature along all six. The table has the median over repeats of the time of one update of
all learners, in milliseconds, the two taken in turns, and their ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from metastep.experiments.build import build_mdp
from metastep.experiments.config import load
from metastep.mdp import EpisodicMetaMDP
from metastep.mdp.blocks import Stream
from metastep.rules import Menu
from metastep.rules.spaces import MenuSpace, Range
from shared import save

DIRECTIONS = (*(f"nga damping={value}" for value in (0.001, 0.01, 0.1, 0.9)), "rmsprop", "adam")


def variants(env: str, learners: int) -> dict[str, EpisodicMetaMDP]:
    """The preset's own meta-MDP, and the same with the menu."""
    alone = replace(build_mdp(load(env, "full")), block_size=learners)
    ranges = tuple(Range(1e-4, 10.0, "divergence") for _ in DIRECTIONS)
    return {"one": alone, "six": alone.with_rule(Menu(DIRECTIONS), MenuSpace(DIRECTIONS, ranges))}


def seconds(env: str, learners: int, repeats: int) -> dict[str, float]:
    """The median time of an update of all learners."""
    found: dict[str, list[float]] = {"one": [], "six": []}
    states = {}
    for name, mdp in variants(env, learners).items():
        states[name] = mdp, mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    for repeat in range(repeats + 1):
        for name, (mdp, state) in states.items():
            chosen = mdp.space.sample(jax.random.key(repeat), learners)
            began = time.perf_counter()
            jax.block_until_ready(mdp.advance(state, chosen).estimate.gradient)
            if repeat:  # the first compiles
                found[name].append(time.perf_counter() - began)
    return {name: float(np.median(times)) for name, times in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", help="environment (repeat for more)")
    parser.add_argument("--learners", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args(arguments)
    table = Table("environment", "one direction, ms", "six directions, ms", "ratio", title=str(jax.devices()[0]))
    rows = []
    for env in asked.env or ("nav2d", "minigolf", "cartpole", "swingup"):
        times = seconds(env, asked.learners, asked.repeats)
        ratio = times["six"] / times["one"]
        table.add_row(env, f"{1e3 * times['one']:.1f}", f"{1e3 * times['six']:.1f}", f"{ratio:.2f}")
        rows.append({"env": env, **times, "ratio": ratio})
    console = Console()
    console.print(table)
    save(console, "directions", rows)


if __name__ == "__main__":
    main()

"""Q over a menu of directions: regressors for each direction, or the direction as an input of common ones.

    python benchmarks/menu.py                        # Nav2D, Minigolf, CartPole and SwingUp: about 5 minutes on two cores
    python benchmarks/menu.py --env cartpole --learners 600

Learners of a preset make random updates: one of six directions, and a step whose divergence is uniform along its logarithm. A
forest learns the improvement of the return from four fifths of them. Three ways to tell it the direction:

| way | inputs | forests |
|---|---|---|
| each direction | observation, step | one for each direction, on the tuples that followed it |
| one-hot | observation, a 0 or 1 for each direction, step | one |
| position | observation, the position of the direction, step | one |

`R2` is that of the improvement on the tuples of the other learners. `gain` is what counts: those learners, before their
middle update, take the direction and step that the forest thinks best; the mean improvement on fresh episodes, as a share of what
the best candidate of each learner gains there. `fit` and `best` are CPU seconds, of fitting and of finding the best candidate for
all held-out states. `split` is the smallest node that is split, as a share of a forest's rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from shared import save

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from fqi_data import timed

from metastep.controllers.greedy_oracle import line_search
from metastep.experiments.build import build_mdp
from metastep.experiments.config import load
from metastep.features import SETS, meta_observation
from metastep.fqi import ExtraTrees
from metastep.fqi.menu import MenuQ
from metastep.fqi.qfunction import QFunction, Stepsizes
from metastep.mdp import EpisodicMetaMDP, Learners
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Exploration
from metastep.mdp.history import Transitions, joined
from metastep.mdp.loop import follow
from metastep.rules import Menu
from metastep.rules.spaces import MenuSpace, Range

DIRECTIONS = ("nga damping=0.001", "nga damping=0.03", "nga damping=0.5", "gradient", "rmsprop", "adam")
STEPS = Range(1e-4, 3.0, "divergence")
NUM_STEPS = 21
WAYS = ("each direction", "one-hot", "position")
SPLITS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # a forest for all directions needs smaller shares for leaves as small


class Problem(NamedTuple):
    """Tuples to learn from, tuples and states to judge by."""

    train: Transitions
    test: Transitions
    states: NDArray[np.float32]  # (learners, columns), held out
    gains: NDArray[np.float64]  # (learners, directions, steps): improvement on fresh episodes


def with_menu(name: str, observation: Sequence[str], learners: int) -> tuple[EpisodicMetaMDP, int]:
    """The meta-MDP of a preset with the menu in place of its rule, and its number of updates."""
    config = load(name, "full")
    mdp = build_mdp(config)
    estimator = replace(mdp.estimator, damping=None)
    space = MenuSpace(DIRECTIONS, (STEPS,) * len(DIRECTIONS))
    changes: dict[str, Any] = {"rule": Menu(DIRECTIONS), "space": space, "estimator": estimator}
    return replace(mdp, **changes, observation=tuple(observation), block_size=learners), config.meta.num_updates


def make(name: str, observation: Sequence[str], learners: int) -> Problem:
    """Explore with `learners` for training and a quarter as many to judge by."""
    mdp, num_updates = with_menu(name, observation, learners)
    train, _ = explore(mdp, learners, num_updates, 0)
    judge = replace(mdp, block_size=learners // 4)
    test, middle = explore(judge, learners // 4, num_updates, 1)
    candidates = mdp.space.candidates(NUM_STEPS)
    returns = np.asarray(line_search(judge, middle, jnp.asarray(candidates)), np.float64).T
    before = np.asarray(middle.estimate.mean_return, np.float64)
    gains = (returns - before[:, None]).reshape(-1, len(DIRECTIONS), NUM_STEPS)
    states = np.asarray(meta_observation(judge, middle))
    kept = np.isfinite(states).all(axis=1) & np.isfinite(gains).all(axis=(1, 2))
    return Problem(train, test, states[kept], gains[kept])


def explore(mdp: EpisodicMetaMDP, learners: int, num_updates: int, block: int) -> tuple[Transitions, Learners]:
    """The tuples of random updates, and the learners half-way."""
    begun, explorer = mdp.begin(mdp.tasks(0, Stream.TRAIN, block)), Exploration()
    record = tuple(name for name in mdp.observation if name not in ("context", "return"))
    state, half = explorer.init(mdp, begun), num_updates // 2
    first = follow(mdp, explorer, begun, state, half, from_start=True, record=record)
    rest = follow(mdp, explorer, first.learners, first.state, num_updates - half, from_start=False, record=record)
    return joined([first.piece, rest.piece]).transitions(mdp.observation), first.learners


def inputs_of(way: str, observation: NDArray[np.float32], direction: Any, step: Any) -> NDArray[np.float32]:
    """What a forest sees."""
    told = {"each direction": np.zeros((len(observation), 0)), "position": np.asarray(direction)[:, None]}
    told["one-hot"] = np.eye(len(DIRECTIONS))[np.asarray(direction, np.int64)]
    return np.column_stack([observation, told[way], step]).astype(np.float32)


def judge(way: str, regressor: ExtraTrees, problem: Problem, seed: int) -> dict[str, float]:
    """Fit and measure one way."""
    train, test = problem.train, problem.test
    steps, judged = (STEPS.to_axis(part.stepsize[:, 1]) for part in (train, test))
    each = way == "each direction"
    groups = (
        [train.stepsize[:, 0] == index for index in range(len(DIRECTIONS))] if each else [np.full(len(steps), True)]
    )
    rows = inputs_of(way, train.observation, train.stepsize[:, 0], steps)
    target = train.reward.astype(np.float64)
    forests, fit = timed(
        lambda: [regressor.fit(rows[g], target[g], seed=seed + i, threads=1) for i, g in enumerate(groups)]
    )
    asked = inputs_of(way, test.observation, test.stepsize[:, 0], judged)
    predicted = np.empty(len(asked))
    for index, forest in enumerate(forests):
        own = test.stepsize[:, 0] == index if each else np.full(len(asked), True)
        predicted[own] = forest.predict(asked[own])
    functions = [
        QFunction((forest,), Stepsizes(STEPS.low, STEPS.high, NUM_STEPS, scale=STEPS.scale)) for forest in forests
    ]
    num = len(problem.states)

    def best() -> NDArray[np.float64]:
        if each:
            return MenuQ(tuple(functions)).values(problem.states, threads=1)
        told = [
            inputs_of(way, problem.states, np.full(num, index), np.zeros(num))[:, :-1]
            for index in range(len(DIRECTIONS))
        ]
        return np.stack([functions[0].values(states, threads=1) for states in told], axis=1)

    best()  # prepares the walk
    values, found = timed(best)
    error = np.mean((test.reward - predicted) ** 2) / np.var(test.reward)
    gains = problem.gains.reshape(num, -1)
    chosen = gains[np.arange(num), values.reshape(num, -1).argmax(axis=1)]
    return {
        "R2": 1.0 - float(error),
        "gain": float(chosen.mean() / gains.max(axis=1).mean()),
        "fit": fit.cpu,
        "best": found.cpu,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["nav2d", "minigolf", "cartpole", "swingup"])
    parser.add_argument("--observation", choices=SETS, default="full")
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--trees", type=int, default=50)
    options, console = parser.parse_args(), Console()
    figures = []
    for env in options.env:
        problem = make(env, SETS[options.observation], options.learners)
        table = Table(
            "way", "split", "R2", "gain", "fit, s", "best, s", title=f"{env}: {len(problem.train.reward)} tuples"
        )
        for split in SPLITS:
            for way in WAYS:
                found = [judge(way, ExtraTrees(options.trees, split), problem, seed) for seed in (0, 100)]
                mean = {name: float(np.mean([record[name] for record in found])) for name in found[0]}
                figures.append({"env": env, "way": way, "split": split, "tuples": len(problem.train.reward), **mean})
                table.add_row(way, f"{split:g}", *(f"{value:.3g}" for value in mean.values()))
        console.print(table)
    save(console, "menu", figures)


if __name__ == "__main__":
    main()

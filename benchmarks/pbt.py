"""Population-based training (Jaderberg and others 2017) over the hyperparameters of a preset, on its test tasks.

    python benchmarks/pbt.py pendulum-update --run runs/pendulum             # beside the methods of a finished run
    python benchmarks/pbt.py pendulum-update --population 4 8 --scale quick  # a look, beside a tuned constant rate

Every task has a population of learners. After some updates the worst quarter copies policy, optimiser state and environments of
a member of the best quarter (truncation selection), and moves every hyperparameter a little up or down its scale. The curve of a
population is that of the member that had the best returns so far, so that it does not profit from the noise of a maximum.

A population of P is shown twice: with as many updates for each member as one learner has, which costs P times its environment
steps, and at equal steps, with 1/P of the updates. How often to copy, and how far from the preset's usual values members begin,
are tuned on the tuning tasks. Scores are areas under the curve over environment steps; intervals are over tasks.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import shared
from shared import console

SHARE = 0.25  # of a population that is replaced, and that is copied from
SMOKE = {"population": [2], "every": [1], "spread": [0.2], "updates": 2, "num_tasks": 4, "num_tuning_tasks": 2}
SMALL = ("rollout.num_envs=2", "rollout.num_steps=8", "rollout.horizon=8", "rollout.block_size=8")
SMALL += ("meta.rule.minibatch_size=4", "meta.rule.epochs=16", "policy.hidden=[4]")


class Population(NamedTuple):
    """How a population is trained."""

    size: int
    every: int  # updates between two rounds of copies
    spread: float  # of the first values around the usual ones, on the unit cube
    updates: int  # of every member
    perturb: float  # how far a copied value moves, as a share of its scale's length


class Outcome(NamedTuple):
    """What populations gave, one for each task."""

    curve: np.ndarray  # (tasks, updates + 1): returns of the leading member
    steps: float  # environment steps of all members of all tasks
    seconds: float
    values: np.ndarray  # (updates, coordinates): median over tasks of the leading member's values


@partial(jax.jit, static_argnums=(0, 1))
def exploit_and_explore(
    space: Any, how: Population, learners: Any, values: Any, score: Any, key: Any
) -> tuple[Any, Any]:
    """Replace the worst of every population by copies of the best, with other hyperparameters."""
    num, tasks = max(1, int(how.size * SHARE)), len(score) // how.size
    order = jnp.argsort(jnp.where(jnp.isfinite(score), score, -jnp.inf).reshape(tasks, how.size), axis=1)
    copy_key, side_key = jax.random.split(key)
    chosen = jax.random.randint(copy_key, (tasks, num), how.size - num, how.size)
    rows = jnp.arange(tasks)[:, None]
    source = jnp.tile(jnp.arange(how.size), (tasks, 1)).at[rows, order[:, :num]].set(order[rows, chosen])
    lanes = (rows * how.size + source).ravel()
    copied = {name: getattr(learners, name) for name in ("theta", "rule_state", "estimate", "flagged", "previous")}
    learners = learners._replace(**jax.tree.map(lambda leaf: leaf[lanes], copied))
    sides = how.perturb * jnp.where(jax.random.bernoulli(side_key, 0.5, values.shape), 1.0, -1.0)
    values = values[lanes]
    columns = [each.shifted(values[:, i], sides[:, i]) for i, each in enumerate(space.ranges)]
    is_copy = (lanes != jnp.arange(len(lanes)))[:, None]
    return learners, jnp.where(is_copy, space.clip(jnp.stack(columns, axis=1)), values)


def train(mdp: Any, base: tuple[float, ...], how: Population, contexts: np.ndarray, seed: int, stream: Any) -> Outcome:
    """Train a population on every task."""
    from metastep.mdp.blocks import Purpose, purpose_key

    mdp = mdp.with_budget(how.updates)
    lanes = np.repeat(contexts, how.size, axis=0)
    start, curves, chosen, steps = time.perf_counter(), [], [], 0.0
    for block in range(-(-len(lanes) // mdp.block_size)):
        own = lanes[np.arange(block * mdp.block_size, (block + 1) * mdp.block_size) % len(lanes)]
        valid = min(mdp.block_size, len(lanes) - block * mdp.block_size)  # the rest is padding
        learners = mdp.begin(mdp.tasks(seed, stream, block)._replace(context=jnp.asarray(own)))
        key = purpose_key(learners.key, Purpose.CONTROLLER)
        first = jnp.asarray(base) + how.spread * jax.random.uniform(key, (len(own), len(base)), minval=-1.0)
        values = mdp.space.from_unit(jnp.clip(first, 0.0, 1.0).astype(jnp.float32))
        returns, used = [learners.estimate.mean_return], []
        steps += float(np.sum(learners.estimate.num_steps[:valid]))
        for update in range(how.updates):
            if update and update % how.every == 0:
                score = jnp.mean(jnp.stack(returns[-how.every :]), axis=0)
                chance = jax.random.fold_in(key, update)
                learners, values = exploit_and_explore(mdp.space, how, learners, values, score, chance)
            used.append(values)
            learners = mdp.advance(learners, values)
            returns.append(learners.estimate.mean_return)
            steps += float(np.sum(learners.estimate.num_steps[:valid]))
        found = np.stack(jax.device_get(returns))[:, :valid].reshape(how.updates + 1, -1, how.size)
        taken = np.stack(jax.device_get(used))[:, :valid].reshape(how.updates, -1, how.size, len(base))
        curve, leader = led(found, how.every)
        curves.append(curve)
        chosen.append(np.take_along_axis(taken, leader[1:, :, None, None], axis=2)[:, :, 0])
    values_over_time = np.median(np.concatenate(chosen, axis=1), axis=1)
    return Outcome(np.concatenate(curves, axis=1).T, steps, time.perf_counter() - start, values_over_time)


def led(returns: np.ndarray, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns (updates + 1, tasks) of the members that led before each batch, and who they were."""
    safe, leader = np.where(np.isfinite(returns), returns, -np.inf), [np.zeros(returns.shape[1], np.intp)]
    for update in range(1, len(returns)):
        leader.append(safe[max(0, update - every) : update].mean(axis=0).argmax(axis=1))
    return np.take_along_axis(returns, np.stack(leader)[:, :, None], axis=2)[:, :, 0], np.stack(leader)


def area(curve: np.ndarray) -> np.ndarray:
    """Return the mean return over the updates of every task, the worst of all where one is not finite."""
    with np.errstate(invalid="ignore"):
        found = curve[:, 1:].mean(axis=1, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.min(found[np.isfinite(found)], initial=np.inf))


def interval(values: np.ndarray) -> str:
    """Return a mean with its 95 % interval over tasks."""
    from metastep.evaluation.intervals import mean_interval

    low, high = mean_interval(values[None])
    return f"{values.mean():.4g} [{low[0]:.4g}, {high[0]:.4g}]"


def references(asked: Namespace, run: Any, seconds: dict[str, float]) -> Any:
    """Return a comparison on the test tasks: that of a finished run, or of one method that is tuned here."""
    from metastep.evaluation import compare, tune
    from metastep.experiments.stages import method_specs

    if asked.run:
        return run.comparison
    settings, begun, spec = run.config.compare, time.perf_counter(), method_specs(run.config)[asked.reference]
    how = {"seed": run.config.seed, "num_updates": asked.updates or settings.num_updates}
    mdp = run.of_model(spec.model).mdp
    method, table = tune(spec, mdp, num_tasks=asked.num_tuning_tasks, **how)
    found = compare([method], mdp, num_tasks=asked.num_tasks, tuning=[table], **how)
    seconds[asked.reference] = time.perf_counter() - begun
    return found


def main() -> None:
    parser = shared.parser_of(__doc__)
    parser.add_argument("preset", nargs="?", default="pendulum-update")
    parser.add_argument("--scale", choices=("quick", "full"), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--run", type=Path, help="folder of a finished run of this preset, whose methods are shown beside"
    )
    parser.add_argument(
        "--reference", default="fixed", help="method of the preset to tune and show where there is no --run"
    )
    parser.add_argument("--model", default="update", help="the table [models.NAME] whose hyperparameters are chosen")
    parser.add_argument("--population", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--every", type=int, nargs="+", default=[2, 5], help="updates between copies, tuned")
    parser.add_argument("--spread", type=float, nargs="+", default=[0.15, 0.5], help="of the first values, tuned")
    parser.add_argument("--perturb", type=float, default=0.1)
    parser.add_argument("--block-size", type=int, help="learners simulated together; larger on a GPU")
    parser.add_argument("--num-tasks", type=int)
    parser.add_argument("--num-tuning-tasks", type=int)
    asked = parser.parse_args()
    asked.updates, overrides = None, [f"seed={asked.seed}"]
    if asked.smoke:
        vars(asked).update(SMOKE, scale="quick", reference="bandit")  # its program is that of the populations
        overrides += SMALL
    from metastep.experiments.config import load
    from metastep.experiments.run import Run
    from metastep.mdp.blocks import Stream
    from metastep.search.evolution import base_point

    run = Run.open(asked.run) if asked.run else Run(asked.out / "unused", load(asked.preset, asked.scale, overrides))
    config, own = run.config, run.of_model(asked.model)
    mdp: Any = replace(own.mdp, block_size=asked.block_size or own.mdp.block_size)  # type: ignore[type-var]
    if unfit := [size for size in asked.population if size < 2 or mdp.block_size % size]:
        sys.exit(f"--population: {unfit[0]} must be at least 2 and divide the block of {mdp.block_size} learners.")
    updates = asked.updates or config.compare.num_updates
    num_tuning = asked.num_tuning_tasks = asked.num_tuning_tasks or config.compare.num_tuning_tasks
    asked.num_tasks = asked.num_tasks or config.compare.num_tasks
    took: dict[str, float] = {}
    comparison = references(asked, run, took)
    names = comparison.names
    contexts, seed = comparison.context, config.seed
    blocks = range(-(-num_tuning // own.mdp.block_size))
    drawn = [np.asarray(own.mdp.tasks(seed, Stream.TUNING, block).context) for block in blocks]
    tuning_tasks = np.concatenate(drawn)[:num_tuning]
    base = base_point(mdp, own.config.search.start)
    console.print(f"{jax.devices()[0].device_kind}, {len(contexts)} test tasks, {updates} updates of one learner\n")
    scores, rows, saved = {}, [], []
    learner_steps = {name: float(comparison.num_steps[i].mean()) for i, name in enumerate(comparison.names)}
    tuned_steps = {table.method: table.num_steps for table in comparison.tuning}
    for name in names:
        curve = comparison.returns[comparison.index(name)]
        scores[name] = area(curve)
        last = float(np.nanmean(curve[:, -max(1, updates // 10) :]))
        once = tuned_steps.get(name, 0.0)
        cells = [
            f"{learner_steps[name]:,.0f}",
            f"{once:.3g}" if once else "-",
            f"{took[name]:.1f}" if name in took else "-",
        ]
        rows.append([name, "1", str(updates), interval(scores[name]), f"{last:.4g}", *cells])
    for size, is_equal in product(asked.population, (False, True)):
        made = max(1, updates // size) if is_equal else updates
        trials, spent, costs = {}, time.perf_counter(), 0.0
        for every, spread in product([each for each in asked.every if each < made] or [made], asked.spread):
            how = Population(size, every, spread, made, asked.perturb)
            trial = train(mdp, base, how, tuning_tasks, seed, Stream.TUNING)
            trials[how], costs = float(area(trial.curve).mean()), costs + trial.steps
        best = max(trials, key=lambda how: trials[how])
        found = train(mdp, base, best, contexts, seed, Stream.TEST)
        name = f"population of {size}{', equal steps' if is_equal else ''}"
        scores[name], each = area(found.curve), found.steps / len(contexts)
        last = float(np.nanmean(found.curve[:, -max(1, made // 10) :]))
        cells = [f"{each:,.0f}", f"{costs:.3g}", f"{time.perf_counter() - spent:.1f}"]
        rows.append([name, str(size), str(made), interval(scores[name]), f"{last:.4g}", *cells])
        about = {"name": name, "how": best._asdict(), "tuning": [[*map(float, h), s] for h, s in trials.items()]}
        numbers = {"score": scores[name].tolist(), "last": last, "steps_per_task": each, "tuning_steps": costs}
        over_time = dict(zip(mdp.space.names, found.values.T.tolist(), strict=True))
        saved.append(
            about
            | numbers
            | {"seconds": found.seconds, "curve": found.curve.mean(axis=0).tolist(), "values": over_time}
        )
    leader = max(names, key=lambda name: scores[name].mean())
    rows = [[*row, interval(scores[row[0]] - scores[leader]) if row[0] != leader else ""] for row in rows]
    headings = (
        "method",
        "learners",
        "updates",
        "mean return over the steps",
        "last",
        "steps of a task",
        "of tuning",
        "seconds",
    )
    shared.show(f"{asked.preset}, seed {seed}", (*headings, f"minus {leader}"), rows)
    facts = {"preset": asked.preset, "seed": seed, "device": jax.devices()[0].device_kind, "num_tasks": len(contexts)}
    others = {name: {"score": scores[name].tolist(), "steps_per_task": learner_steps[name]} for name in names}
    shared.save(asked.out, f"pbt-{asked.preset}-{seed}", facts | {"populations": saved, "others": others})


if __name__ == "__main__":
    main()

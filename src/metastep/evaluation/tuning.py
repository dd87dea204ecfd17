"""Tuning by grid search on tuning tasks, all grid points in lockstep (table 1 of the paper)."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep.blocks import Blocks, Stream, block_key
from metastep.controllers import HOOF, Decay, Fixed, GeometricDecay, Metagrad
from metastep.errors import InputError
from metastep.evaluation.methods import Method, TaskSource
from metastep.meta.collection import with_task_list
from metastep.meta.loop import Controller, run
from metastep.meta.mdp import MetaMDP, Tasks
from metastep.progress import Silent, Tracker
from metastep.rules import NGA, Adam, RMSProp, Rule


class Family(NamedTuple):
    """A method up to the values to be tuned.

    `build` takes each of the parameters as a number, or as one number a learner.
    """

    name: str
    label: str
    rule: Rule
    parameters: tuple[str, ...]
    build: Callable[..., Controller]


FAMILIES = {
    family.name: family
    for family in (
        Family("fixed", "NGA, fixed", NGA, ("stepsize",), Fixed),
        Family("decay", "NGA, decay", NGA, ("alpha",), Decay),
        Family("geometric-decay", "NGA, geometric decay", NGA, ("stepsize", "alpha"), GeometricDecay),
        Family("rmsprop", "RMSprop", RMSProp(), ("stepsize",), Fixed),
        Family("adam", "Adam", Adam(), ("stepsize",), Fixed),
        Family("hoof", "NGA, HOOF", NGA, ("max_divergence",), HOOF),
        Family("metagrad", "NGA, metagrad", NGA, ("stepsize", "beta"), Metagrad),
    )
}


class TuningTable(NamedTuple):
    """The outcome of one grid search; the score is the area under the curve, the mean return over updates 1..T."""

    method: str
    parameters: tuple[str, ...]
    points: NDArray[np.float64]  # (points, parameters)
    mean: NDArray[np.float64]  # (points,): -inf where a task diverged
    standard_error: NDArray[np.float64]  # (points,), over tasks
    num_diverged: NDArray[np.int64]  # (points,): tasks with a return that is not finite
    num_tasks: int
    seed: int

    @property
    def best(self) -> int:
        """The point with the highest mean; ties go to the first."""
        return int(np.argmax(self.mean))

    @property
    def chosen(self) -> dict[str, float]:
        """The tuned values."""
        return dict(zip(self.parameters, self.points[self.best].tolist(), strict=True))

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Parameters whose tuned value is the smallest or largest of its grid, so that a wider grid might do better."""
        ranges = zip(self.parameters, self.points.T, self.points[self.best], strict=True)
        return tuple(name for name, column, value in ranges if value in (column.min(), column.max()))


class Tuning(NamedTuple):
    """A tuned family."""

    family: Family
    table: TuningTable
    source: TaskSource

    def method(self) -> Method:
        """The family with its tuned values, which remembers the tasks it was tuned on."""
        values, family = self.table.chosen, self.family
        return Method(family.name, family.rule, family.build(**values), family.label, values, (self.source,))


def tune(
    family: Family,
    grid: Mapping[str, Sequence[float]],
    mdp: MetaMDP,
    *,
    seed: int,
    num_tasks: int,
    num_updates: int,
    contexts: NDArray[np.float32] | None = None,
    tracker: Tracker | None = None,
) -> Tuning:
    """Score every point of the grid on the same tuning tasks and initial policies.

    Grid points and tasks share the lanes of blocks: lane `p * num_tasks + t` is point p on task t, so a grid costs as
    many blocks as its learners fill. The points differ in their simulation noise, which is small against the
    differences between tasks.

    Args:
        family: what to tune.
        grid: values of each of the family's parameters; all combinations are tried.
        mdp: everything but the rule.
        seed: of tasks, initial policies and simulations.
        num_tasks: tuning tasks.
        num_updates: T.
        contexts: an explicit task list in place of sampled tasks.
        tracker: is told the blocks done.
    """
    points = _points(family, grid)
    if num_tasks < 2 or num_updates < 1:
        raise InputError(
            f"tune: {num_tasks} tasks and {num_updates} updates; at least 2 tasks and 1 update are needed."
        )
    if contexts is not None:
        contexts = mdp.estimator.rollout.env.context_space.validate(contexts)
    context, theta = _tuning_tasks(mdp, seed, num_tasks, contexts)
    variant = dataclasses.replace(mdp, rule=family.rule)
    lanes = Blocks(len(points) * num_tasks, mdp.block_size)
    scores = []
    with (tracker or Silent()).stage(f"tune {family.name}", len(lanes), "blocks") as stage:
        for block, lane in _lanes(lanes):
            values = points[lane // num_tasks]
            controller = family.build(**{name: values[:, index] for index, name in enumerate(family.parameters)})
            batch = Tasks(
                jnp.asarray(context[lane % num_tasks]),
                jnp.asarray(theta[lane % num_tasks]),
                block_key(seed, Stream.TUNING, block),
            )
            episode = run(variant, controller, batch, num_updates).first(lanes.num_valid(block))
            scores.append(episode.mean_return[1:].mean(axis=0, dtype=np.float64))
            stage.advance(1)
    table = _table(family, points, np.concatenate(scores).reshape(len(points), num_tasks), seed)
    return Tuning(family, table, TaskSource("tuned", Stream.TUNING, contexts))


def _points(family: Family, grid: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    if set(grid) != set(family.parameters) or not all(len(values) for values in grid.values()):
        raise InputError(
            f"grid of {family.name}: got values for {', '.join(grid) or 'nothing'}, needed are some for each of "
            f"{', '.join(family.parameters)}."
        )
    return np.array(list(product(*(grid[name] for name in family.parameters))), np.float64)


def _tuning_tasks(
    mdp: MetaMDP, seed: int, num_tasks: int, contexts: NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Contexts (tasks, coordinates) and initial policies (tasks, parameters)."""
    blocks = [mdp.tasks(seed, Stream.TUNING, block) for block in Blocks(num_tasks, mdp.block_size)]
    if contexts is not None:
        blocks = [with_task_list(tasks, block, contexts) for block, tasks in enumerate(blocks)]
    context = np.concatenate([np.asarray(tasks.context) for tasks in blocks])
    theta = np.concatenate([np.asarray(tasks.theta) for tasks in blocks])
    return context[:num_tasks], theta[:num_tasks]


def _lanes(blocks: Blocks) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Learners of every block; the padding of the last repeats its last learner."""
    for block in blocks:
        lanes = np.arange(block * blocks.size, (block + 1) * blocks.size)
        yield block, np.minimum(lanes, blocks.num_learners - 1)


def _table(family: Family, points: NDArray[np.float64], scores: NDArray[np.float64], seed: int) -> TuningTable:
    finite = np.isfinite(scores)
    whole = finite.all(axis=1)
    safe = np.where(finite, scores, 0.0)
    num_tasks = scores.shape[1]
    return TuningTable(
        method=family.name,
        parameters=family.parameters,
        points=points,
        mean=np.where(whole, safe.mean(axis=1), -np.inf),
        standard_error=np.where(whole, safe.std(axis=1, ddof=1) / np.sqrt(num_tasks), np.inf),
        num_diverged=(~finite).sum(axis=1),
        num_tasks=num_tasks,
        seed=seed,
    )

"""Tune methods by grid search on tuning tasks, all grid points in lockstep (table 1 of the paper)."""

from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.progress import Silent, Tracker
from metastep.evaluation.methods import Method, MethodSpec
from metastep.mdp import MetaMDP, Tasks
from metastep.mdp.blocks import Blocks, Stream, block_key
from metastep.mdp.controller import TaskSource
from metastep.mdp.runs import BlockRun, Plan, run_plans


class TuningTable(NamedTuple):
    """The result of a grid search; the score of a point is the area under the curve, the mean return over updates 1..T."""

    method: str
    parameters: tuple[str, ...]
    points: NDArray[np.float64]  # (points, parameters)
    mean: NDArray[np.float64]  # (points,): -inf where a task diverged
    standard_error: NDArray[np.float64]  # (points,), over tasks
    num_diverged: NDArray[np.int64]  # (points,): tasks with a return that is not finite
    num_tasks: int
    seed: int
    num_steps: float  # environment steps of the whole search

    @property
    def best(self) -> int:
        """The index of the point with the highest mean, the first one in case of ties."""
        return int(np.argmax(self.mean))

    @property
    def chosen(self) -> dict[str, float]:
        """The tuned values."""
        return dict(zip(self.parameters, self.points[self.best].tolist(), strict=True))

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Names of parameters whose tuned value is at an edge of the grid, so that a wider grid might do better."""
        ranges = zip(self.parameters, self.points.T, self.points[self.best], strict=True)
        return tuple(name for name, column, value in ranges if value in (column.min(), column.max()))


def tune(
    spec: MethodSpec,
    mdp: MetaMDP,
    *,
    seed: int,
    num_tasks: int,
    num_updates: int,
    contexts: NDArray[np.float32] | None = None,
    shared_noise: bool = False,
    blocks_together: int = 1,
    tracker: Tracker | None = None,
) -> tuple[Method, TuningTable]:
    """Score all combinations of a method's grid on the same tasks and initial policies; return the best as a method.

    By default, a block holds learners of several grid points: learner `p * num_tasks + t` is point p on task t. Fewer blocks are
    simulated, but points have independent simulation noise, which is small compared with the differences between tasks. With
    `shared_noise`, or if an option of the rule is tuned, each point has its own blocks, all with the same random numbers, as the
    methods of `compare` do. The other arguments are those of `compare`.
    """
    if contexts is not None:
        contexts = mdp.env.context_space.validate(contexts)
    blocks = num_blocks(spec, mdp, num_tasks, shared_noise)
    with (tracker or Silent()).stage(f"tune {spec.name}", blocks, "blocks") as stage:
        plan = tuning_plan(spec, mdp, seed, num_tasks, num_updates, contexts, shared_noise)
        return run_plans([plan], stage.advance, together=blocks_together)[0]


def num_blocks(spec: MethodSpec, mdp: MetaMDP, num_tasks: int, shared_noise: bool) -> int:
    """Return the number of blocks of a grid search."""
    return sum(len(Blocks(len(points) * num_tasks, mdp.block_size)) for points in _groups(spec, shared_noise))


def _groups(spec: MethodSpec, shared_noise: bool) -> list[NDArray[np.float64]]:
    """Return the grid points, (points, parameters), in groups that share blocks."""
    points = np.array(list(product(*spec.grid.values())), np.float64)
    return np.split(points, len(points)) if shared_noise or spec.tunes_rule else [points]


def tuning_plan(
    spec: MethodSpec,
    mdp: MetaMDP,
    seed: int,
    num_tasks: int,
    num_updates: int,
    contexts: NDArray[np.float32] | None = None,
    shared_noise: bool = False,
) -> Plan[tuple[Method, TuningTable]]:
    """Return the plan of a grid search; the arguments are those of `tune`."""
    groups, parameters = _groups(spec, shared_noise), tuple(spec.grid)
    if num_tasks < 2 or num_updates < 1:
        needed = "at least 2 tasks and 1 update are needed"
        raise InputError(f"tune: {num_tasks} tasks and {num_updates} updates; {needed}.")
    tasks = [mdp.tasks(seed, Stream.TUNING, block, contexts) for block in Blocks(num_tasks, mdp.block_size)]
    context, theta = (jnp.concatenate(each)[:num_tasks] for each in zip(*(block[:2] for block in tasks), strict=True))
    base, runs = mdp.with_budget(num_updates), list[BlockRun]()
    for points in groups:
        lanes = Blocks(len(points) * num_tasks, mdp.block_size)
        for block in lanes:
            # The padding of the last block repeats its last learner.
            lane = np.minimum(np.arange(block * lanes.size, (block + 1) * lanes.size), lanes.num_learners - 1)
            by_lane = points[lane // num_tasks].T if len(points) > 1 else points[0].tolist()
            values: dict[str, Any] = dict(zip(parameters, by_lane, strict=True))
            task = lane % num_tasks
            start = Tasks(context[task], theta[task], block_key(seed, Stream.TUNING, block))
            variant = spec.on(base, spec.first_values if len(points) > 1 else values)
            controller = spec.build_controller(values)
            runs.append(BlockRun(variant, controller, start, num_updates, lanes.num_valid(block)))
    histories, points = [result.history for result in (yield runs)], np.concatenate(groups)
    scores = np.concatenate([history.mean_return[1:].mean(axis=0, dtype=np.float64) for history in histories])
    scores = scores.reshape(len(points), num_tasks)
    finite = np.isfinite(scores)
    all_finite, safe = finite.all(axis=1), np.where(finite, scores, 0.0)
    table = TuningTable(
        method=spec.name,
        parameters=parameters,
        points=points,
        mean=np.where(all_finite, safe.mean(axis=1), -np.inf),
        standard_error=np.where(all_finite, safe.std(axis=1, ddof=1) / np.sqrt(num_tasks), np.inf),
        num_diverged=(~finite).sum(axis=1),
        num_tasks=num_tasks,
        seed=seed,
        num_steps=sum(float(history.num_steps.sum(dtype=np.float64)) for history in histories),
    )
    return spec.method(mdp, table.chosen, tuned_on=TaskSource("tuned", Stream.TUNING, contexts)), table

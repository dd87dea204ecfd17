"""Run many blocks of learners at a time; a block and its controller are described as data, so that any process can run it.

A plan is a generator that yields the blocks it needs and receives their results, as often as it likes: to tune a method first,
then to test it. A small block leaves most of a GPU idle, so several are simulated there in one batch, alike up to rounding.
"""

import dataclasses
import heapq
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core import parallel
from metastep._core.progress import Tally
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, Tasks, require_episodic
from metastep.mdp.blocks import Purpose, purpose_key
from metastep.mdp.controller import Controller
from metastep.mdp.episodes import apply_update, initial_learners, with_estimate
from metastep.mdp.history import History
from metastep.mdp.loop import Advance, in_lockstep, update_steps
from metastep.simulation.engine import blocks_at_once, compiled, fills_batches, one_block_at_a_time
from metastep.simulation.gradients import Batch, Estimator
from metastep.simulation.rollouts import Trajectories, sums_of

Outcome = TypeVar("Outcome")
_SECONDS_BETWEEN_REPORTS = 0.5


class BlockRun(NamedTuple):
    """A block of learners to run."""

    mdp: MetaMDP
    controller: Controller
    tasks: Tasks
    num_updates: int
    num_valid: int | None = None  # learners to keep; the others are padding


class BlockResult(NamedTuple):
    """The results of a block."""

    history: History
    theta: NDArray[np.float32]  # (learners, parameters), after the last update
    report: Mapping[str, NDArray[Any]]  # the controller's report, by name, each (updates, learners)


_Request = tuple[int, int, BlockRun]  # number of the plan, index among the blocks that it waits for, block
Plan = Generator[Sequence[BlockRun], list[BlockResult], Outcome]


def run_blocks(runs: Sequence[BlockRun], tag: int) -> list[BlockResult]:
    """Run blocks in lockstep, several of them simulated in one batch; report progress as work `tag` twice a second."""
    done, reported = 0, time.monotonic()

    def count_update() -> None:
        nonlocal done, reported
        done += 1
        if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            parallel.report(tag, len(runs) * done / (runs[0].num_updates + 1))

    with one_block_at_a_time(runs[0].mdp.env):
        blocks, advance = _begin_blocks(runs)
        loops = []
        for (mdp, controller, _, num_updates, _), learners in zip(runs, blocks, strict=True):
            state = controller.init(mdp, learners)
            loops.append(update_steps(mdp, controller, learners, state, num_updates, from_start=True))
        segments = in_lockstep(loops, blocks, advance, count_update)
    results = []
    for run, (after, state, history) in zip(runs, segments, strict=True):
        num = len(history.context) if run.num_valid is None else run.num_valid
        report = {name: array[:, :num] for name, array in jax.device_get(run.controller.report(state)).items()}
        results.append(BlockResult(history.select_learners(0, num), np.asarray(after.theta)[:num], report))
    return results


def _begin_blocks(runs: Sequence[BlockRun]) -> tuple[Sequence[Learners], Advance]:
    """Return the learners of every block after their first batch, and a function that applies the next update to all blocks."""
    if len(runs) == 1:
        mdp = runs[0].mdp
        return [mdp.begin(runs[0].tasks)], lambda blocks, chosen: [mdp.advance(blocks[0], chosen[0])]
    mdps = [require_episodic(run.mdp, "a batch of blocks").without_ranges() for run in runs]
    tasks, keeps = [run.tasks for run in runs], [run.controller.keeps_episodes for run in runs]
    settings = simulation_of(mdps[0]), any(keeps)
    context, key = _stacked([each.context for each in tasks]), _stacked([each.key for each in tasks])

    def next_batch(blocks: Sequence[Learners]) -> list[Learners]:
        theta = _stacked([learners.theta for learners in blocks])
        batch, episodes = compiled(_simulate)(settings, theta, context, key, blocks[0].update)
        learners_after = []
        for index, (mdp, learners) in enumerate(zip(mdps, blocks, strict=True)):
            after: Learners = compiled(with_estimate)(mdp, _part(batch, index), learners)
            learners_after.append(after._replace(episodes=_part(episodes, index) if keeps[index] else None))
        return learners_after

    def advance(blocks: Sequence[Learners], chosen: Sequence[Array]) -> list[Learners]:
        return next_batch([compiled(apply_update)(*each) for each in zip(mdps, blocks, chosen, strict=True)])

    return next_batch([compiled(initial_learners)(*each) for each in zip(mdps, tasks, strict=True)]), advance


def simulation_of(mdp: EpisodicMetaMDP) -> Estimator:
    """Return the settings that blocks must share to be simulated together: the estimator without what a batch does not need."""
    return dataclasses.replace(mdp.estimator, damping=None)


def _simulate(
    settings: tuple[Estimator, bool], theta: Array, context: Array, key: Array, update: Array
) -> tuple[Batch, Trajectories | None]:
    """Simulate a batch of every block, and keep its episodes if a controller needs them."""
    estimator, keeps_episodes = settings

    def one(theta: Array, context: Array, key: Array) -> tuple[Batch, Trajectories | None]:
        simulation_key = purpose_key(key, Purpose.SIMULATION, update)
        if not keeps_episodes:
            return estimator.batch(theta, context, simulation_key), None
        episodes = estimator.trajectories(theta, context, simulation_key)
        return (episodes if estimator.solver == "cg" else sums_of(estimator.rollout, theta, episodes)), episodes

    return jax.vmap(one)(theta, context, key)


def _stacked(arrays: Sequence[Array]) -> Array:
    """Stack blocks, padded to a power of two by repeating the last one."""
    # Each number of blocks needs its own program, and compiling one takes longer than simulating the padding.
    missing = (1 << (len(arrays) - 1).bit_length()) - len(arrays)
    return jnp.stack([*arrays, *[arrays[-1]] * missing])


def _part(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], stacked)


def run_plans(
    plans: Sequence[Plan[Outcome]], advance: Callable[[float], object] = lambda _: None, *, together: int = 1
) -> list[Outcome]:
    """Run plans and return their outcomes; blocks of all plans run in parallel, those of the first plans with priority.

    `advance` is called with the number of blocks done since the last call. A GPU simulates up to `together` blocks in one batch,
    rounded down to a power of two, because other batches would be padded to one.
    """
    requested: list[list[BlockRun]] = [[] for _ in plans]  # by each plan
    results: list[dict[int, BlockResult]] = [{} for _ in plans]  # of the blocks that each plan waits for, by index
    outcomes: list[Any] = [None for _ in plans]

    def resume(plan: int, finished: list[BlockResult] | None) -> list[_Request]:
        """Send a plan the results of its last blocks, and return the blocks that it needs next; none if it has ended."""
        requested[plan], results[plan] = [], {}
        try:
            while not requested[plan]:
                requested[plan], finished = list(plans[plan].send(finished)), []  # type: ignore[arg-type]  # None starts it
        except StopIteration as end:
            outcomes[plan] = end.value
        return [(plan, index, block) for index, block in enumerate(requested[plan])]

    ready = [request for plan in range(len(plans)) for request in resume(plan, None)]
    if not ready:
        return outcomes
    env = ready[0][2].mdp.env
    group_size = 1 << together.bit_length() - 1 if fills_batches(env) else 1
    groups: list[list[_Request]] = []
    waiting: list[tuple[int, int]] = []  # (first plan, number) of groups to run, as a heap
    tally = Tally(advance, {})

    def next_call(is_busy: bool) -> tuple[Any, ...] | None:
        nonlocal ready
        # A batch that is not full waits for more blocks while there is other work.
        new_groups, ready = _group(ready, group_size, only_full=is_busy or bool(waiting))
        for group in new_groups:
            heapq.heappush(waiting, (group[0][0], len(groups)))
            groups.append(group)
        if not waiting:
            return None
        _, number = heapq.heappop(waiting)
        return number, run_blocks, [block for *_, block in groups[number]], number

    with parallel.executor(blocks_at_once(env), tally) as pool:
        for number, group_results in parallel.completed(pool, next_call):
            tally((number, float(len(group_results))))
            for (plan, index, _), result in zip(groups[number], group_results, strict=True):
                results[plan][index] = result
                if len(results[plan]) == len(requested[plan]):
                    ready += resume(plan, [finished for _, finished in sorted(results[plan].items())])
    return outcomes


def _group(ready: list[_Request], size: int, *, only_full: bool) -> tuple[list[list[_Request]], list[_Request]]:
    """Return groups of blocks that can run together and, with `only_full`, the blocks that wait for a full group."""
    compatible: dict[Any, list[_Request]] = {}
    for request in ready:
        plan, index, block = request
        shared: Any = (plan, index)  # a block of the actor-critic meta-MDP is simulated alone
        if isinstance(block.mdp, EpisodicMetaMDP):
            shared = simulation_of(block.mdp), block.mdp.block_size, block.num_updates
        compatible.setdefault(shared, []).append(request)
    groups = [each[start : start + size] for each in compatible.values() for start in range(0, len(each), size)]
    now = [group for group in groups if len(group) == size or not only_full]
    return now, [request for group in groups if len(group) < size and only_full for request in group]

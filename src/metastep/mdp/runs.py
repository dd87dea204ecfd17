"""Blocks of learners under a controller, described as data so that any process can run them, and run many at a time.

A plan is a generator that yields the blocks it wants and receives their results, as often as it likes: to tune a method first,
then to test it. A small block leaves most of a GPU idle, so that several are simulated there in one batch; each gives what it
would give alone, up to rounding.
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
from metastep.mdp import EpisodicMetaMDP, Learners, MetaMDP, Tasks, whole_episodes
from metastep.mdp.blocks import Purpose, purpose_key
from metastep.mdp.controller import Controller
from metastep.mdp.episodes import before_updates, moved, observed
from metastep.mdp.history import History
from metastep.mdp.loop import Advance, following, in_lockstep
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


class Ran(NamedTuple):
    """The results of a block."""

    history: History
    theta: NDArray[np.float32]  # (learners, parameters), after the last update
    report: Mapping[str, NDArray[Any]]  # the controller's report, by name, each (updates, learners)


_Ready = tuple[int, int, BlockRun]  # of which plan, at which place of what it asks for
Plan = Generator[Sequence[BlockRun], list[Ran], Outcome]


def run_blocks(asked: Sequence[BlockRun], tag: int) -> list[Ran]:
    """Run blocks in lockstep, simulated in one batch where there are several, and report progress now and then."""
    done, reported = 0, time.monotonic()

    def count_update() -> None:
        nonlocal done, reported
        done += 1
        if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            parallel.report(tag, len(asked) * done / (asked[0].num_updates + 1))

    with one_block_at_a_time(asked[0].mdp.env):
        blocks, advance = _begun(asked)
        courses = []
        for (mdp, controller, _, num_updates, _), learners in zip(asked, blocks, strict=True):
            state = controller.init(mdp, learners)
            courses.append(following(mdp, controller, learners, state, num_updates, from_start=True))
        ends = in_lockstep(courses, blocks, advance, count_update)
    results = []
    for block, end in zip(asked, ends, strict=True):
        num = len(end.piece.context) if block.num_valid is None else block.num_valid
        report = {name: array[:, :num] for name, array in jax.device_get(block.controller.report(end.state)).items()}
        results.append(Ran(end.piece.part(0, num), np.asarray(end.learners.theta)[:num], report))
    return results


def _begun(asked: Sequence[BlockRun]) -> tuple[Sequence[Learners], Advance]:
    """Return the learners of blocks with their first batch, and the function that makes the next update of each."""
    if len(asked) == 1:
        mdp = asked[0].mdp
        return [mdp.begin(asked[0].tasks)], lambda blocks, chosen: [mdp.advance(blocks[0], chosen[0])]
    mdps = [whole_episodes(block.mdp, "a batch of blocks").without_ranges() for block in asked]
    tasks, keeps = [block.tasks for block in asked], [block.controller.keeps_episodes for block in asked]
    how = simulation_of(mdps[0]), any(keeps)
    context, key = _stacked([each.context for each in tasks]), _stacked([each.key for each in tasks])

    def next_batch(blocks: Sequence[Learners]) -> list[Learners]:
        theta = _stacked([learners.theta for learners in blocks])
        batch, episodes = compiled(_simulate)(how, theta, context, key, blocks[0].update)
        found = []
        for index, (mdp, learners) in enumerate(zip(mdps, blocks, strict=True)):
            after: Learners = compiled(observed)(mdp, _part(batch, index), learners)
            found.append(after._replace(episodes=_part(episodes, index) if keeps[index] else None))
        return found

    def advance(blocks: Sequence[Learners], chosen: Sequence[Array]) -> list[Learners]:
        return next_batch([compiled(moved)(*each) for each in zip(mdps, blocks, chosen, strict=True)])

    return next_batch([compiled(before_updates)(*each) for each in zip(mdps, tasks, strict=True)]), advance


def simulation_of(mdp: EpisodicMetaMDP) -> Estimator:
    """Return what blocks must share to be simulated together: all of the estimator that a batch depends on."""
    return dataclasses.replace(mdp.estimator, damping=None)


def _simulate(
    how: tuple[Estimator, bool], theta: Array, context: Array, key: Array, update: Array
) -> tuple[Batch, Trajectories | None]:
    """Simulate a batch of every block, and keep its episodes where a controller looks at them."""
    estimator, keeps_episodes = how

    def one(theta: Array, context: Array, key: Array) -> tuple[Batch, Trajectories | None]:
        simulation_key = purpose_key(key, Purpose.SIMULATION, update)
        if not keeps_episodes:
            return estimator.batch(theta, context, simulation_key), None
        episodes = estimator.trajectories(theta, context, simulation_key)
        return (episodes if estimator.solver == "cg" else sums_of(estimator.rollout, theta, episodes)), episodes

    return jax.vmap(one)(theta, context, key)


def _stacked(arrays: Sequence[Array]) -> Array:
    """Stack blocks, padded to a power of two by repeating the last one."""
    # Every other number would be a program of its own, and compiling one takes longer than simulating the padding.
    missing = (1 << (len(arrays) - 1).bit_length()) - len(arrays)
    return jnp.stack([*arrays, *[arrays[-1]] * missing])


def _part(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], stacked)


def carry_out(
    plans: Sequence[Plan[Outcome]], advance: Callable[[float], object] = lambda _: None, *, together: int = 1
) -> list[Outcome]:
    """Run plans and return their outcomes; blocks of all of them run side by side, those of the first plans first.

    `advance` is called with the number of blocks done since the last call. A GPU simulates up to `together` blocks in one batch,
    rounded down to a power of two: other batches would be padded to one.
    """
    asked: list[list[BlockRun]] = [[] for _ in plans]  # by each plan
    done: list[dict[int, Ran]] = [{} for _ in plans]  # of what it asked for, by place
    outcomes: list[Any] = [None for _ in plans]

    def go_on(index: int, ran: list[Ran] | None) -> list[_Ready]:
        """Send a plan the results of its last blocks, and return what it asks for next; nothing at its end."""
        asked[index], done[index] = [], {}
        try:
            while not asked[index]:
                asked[index], ran = list(plans[index].send(ran)), []  # type: ignore[arg-type]  # None begins
        except StopIteration as end:
            outcomes[index] = end.value
        return [(index, place, block) for place, block in enumerate(asked[index])]

    ready = [block for index in range(len(plans)) for block in go_on(index, None)]
    if not ready:
        return outcomes
    env = ready[0][2].mdp.env
    here, most = blocks_at_once(env), 1 << together.bit_length() - 1 if fills_batches(env) else 1
    groups: list[list[_Ready]] = []
    waiting: list[tuple[int, int]] = []  # (plan, number) of groups, those of the first plans first
    note = Tally(advance, {})

    def next_call(is_busy: bool) -> tuple[Any, ...] | None:
        nonlocal ready
        # A batch that is not full waits for more blocks while there is other work.
        full, ready = _grouped(ready, most, whole=is_busy or bool(waiting))
        for group in full:
            heapq.heappush(waiting, (group[0][0], len(groups)))
            groups.append(group)
        if not waiting:
            return None
        _, number = heapq.heappop(waiting)
        return number, run_blocks, [block for *_, block in groups[number]], number

    with parallel.executor(here, note) as pool:
        for number, results in parallel.completed(pool, next_call):
            note((number, float(len(results))))
            for (index, place, _), ran in zip(groups[number], results, strict=True):
                done[index][place] = ran
                if len(done[index]) == len(asked[index]):
                    ready += go_on(index, [found for _, found in sorted(done[index].items())])
    return outcomes


def _grouped(ready: list[_Ready], most: int, *, whole: bool) -> tuple[list[list[_Ready]], list[_Ready]]:
    """Return groups of blocks that can run together and, where only full groups are wanted, the blocks that wait."""
    alike: dict[Any, list[_Ready]] = {}
    for entry in ready:
        mdp = entry[2].mdp
        same: Any = entry[:2]  # a block of the actor-critic meta-MDP is simulated by itself
        if isinstance(mdp, EpisodicMetaMDP):
            same = simulation_of(mdp), mdp.block_size, entry[2].num_updates
        alike.setdefault(same, []).append(entry)
    groups = [group[start : start + most] for group in alike.values() for start in range(0, len(group), most)]
    now = [group for group in groups if len(group) == most or not whole]
    return now, [entry for group in groups if len(group) < most and whole for entry in group]

"""Blocks of learners that a controller steers: described so that anybody can run them, and run many at a time.

Whoever wants some simulated writes a plan: a generator that asks for blocks and is sent what came of them, as often as it likes
(to tune a method first, then to test it). Blocks of several plans are run side by side.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep.blocks import Stream, block_key
from metastep.crew import Queue, at_work
from metastep.mdp import Process, Tasks
from metastep.meta.controller import Controller
from metastep.meta.history import History
from metastep.meta.loop import run_through
from metastep.simulation.engine import blocks_at_once, one_block_at_a_time

Outcome = TypeVar("Outcome")


class Start(NamedTuple):
    """The learners of a block before their first batch, as arrays and numbers."""

    context: NDArray[np.float32]  # (learners, coordinates)
    theta: NDArray[np.float32]  # (learners, parameters)
    seed: int
    stream: Stream
    block: int

    @property
    def tasks(self) -> Tasks:
        """The same with the key that everything random derives from."""
        return Tasks(jnp.asarray(self.context), jnp.asarray(self.theta), block_key(self.seed, self.stream, self.block))


def start_of(
    mdp: Process, seed: int, stream: Stream, block: int, task_list: NDArray[np.float32] | None = None
) -> Start:
    """The tasks and first policies of a block of a stream."""
    tasks = mdp.tasks(seed, stream, block, task_list)
    return Start(np.asarray(tasks.context), np.asarray(tasks.theta), seed, stream, block)


class BlockRun(NamedTuple):
    """A block of learners to run."""

    mdp: Process
    controller: Controller
    start: Start
    num_updates: int
    num_valid: int | None = None  # learners to keep; the others are padding


class Ran(NamedTuple):
    """What became of a block."""

    history: History
    theta: NDArray[np.float32]  # (learners, parameters), after the last update
    report: Mapping[str, NDArray[Any]]  # what the controller tells of its run, by name, each (updates, learners)


Plan = Generator[Sequence[BlockRun], list[Ran], Outcome]


def run_block(asked: BlockRun) -> Ran:
    """Run one block."""
    with one_block_at_a_time(asked.mdp.env):
        end = run_through(asked.mdp, asked.controller, asked.start.tasks, asked.num_updates)
    report: dict[str, NDArray[Any]] = jax.device_get(asked.controller.report(end.state))
    num = len(end.piece.context) if asked.num_valid is None else asked.num_valid
    told = {name: array[:, :num] for name, array in report.items()}
    return Ran(end.piece.first(num), np.asarray(end.learners.theta)[:num], told)


class _Course:
    """A plan under way: the blocks that it waits for, and those that are through."""

    def __init__(self, plan: Plan[Any]) -> None:
        self.plan, self.outcome = plan, None
        self.asked: list[BlockRun] = []
        self.ran: dict[int, Ran] = {}

    def go_on(self, ran: list[Ran] | None) -> list[BlockRun]:
        """Tell the plan what came of the blocks that it asked for last; what it asks for now, nothing at its end."""
        self.ran = {}
        try:
            while not (asked := list(self.plan.send(ran))):  # type: ignore[arg-type]  # None begins
                ran = []
        except StopIteration as end:
            asked, self.outcome = [], end.value
        self.asked = asked
        return asked

    def take(self, place: int, ran: Ran) -> list[BlockRun]:
        """Take in a block; what the plan asks for once it has them all."""
        self.ran[place] = ran
        if len(self.ran) < len(self.asked):
            return []
        return self.go_on([self.ran[index] for index in range(len(self.asked))])


def carry_out(plans: Sequence[Plan[Outcome]], on_block: Callable[[], object] = lambda: None) -> list[Outcome]:
    """What the plans return; blocks of all of them are run side by side, those of the first ones first.

    `on_block` is called whenever a block is through.
    """
    courses = [_Course(plan) for plan in plans]
    first = [(index, blocks) for index, course in enumerate(courses) if (blocks := course.go_on(None))]
    here = blocks_at_once(first[0][1][0].mdp.env) if first else 1
    with at_work(here) as crew:
        queue = Queue(crew, crew.slots(here))

        def add(index: int, blocks: Sequence[BlockRun]) -> None:
            for place, block in enumerate(blocks):
                queue.add(index, (index, place), run_block, block)

        for index, blocks in first:
            add(index, blocks)
        while queue:
            for (index, place), ran in queue.take():
                on_block()
                add(index, courses[index].take(place, ran))
    return [course.outcome for course in courses]  # type: ignore[misc]  # every plan is at its end

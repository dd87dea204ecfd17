"""Simulate several blocks in one batch; everything else is done block by block.

A small block leaves most of a GPU idle. Blocks of several methods, grid points and tasks keep their own tasks, first policies and
random numbers, so that each gives what it would give alone, up to rounding.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from metastep.mdp import EpisodicMetaMDP, Learners, Tasks
from metastep.mdp.blocks import Purpose, purpose_key
from metastep.mdp.controller import Controller
from metastep.mdp.episodes import before_updates, moved, observed, without_ranges
from metastep.mdp.loop import Stretch, following
from metastep.simulation.engine import compiled
from metastep.simulation.gradients import Batch, Estimator
from metastep.simulation.rollouts import Trajectories
from metastep.simulation.sums import sums_of


def simulation_of(mdp: EpisodicMetaMDP) -> Estimator:
    """Return what blocks must share to be simulated together: all of the estimator that a batch depends on."""
    return dataclasses.replace(mdp.estimator, damping=None)


def _simulate(estimator: Estimator, theta: Array, context: Array, key: Array, update: Array) -> Batch:
    def one(theta: Array, context: Array, key: Array) -> Batch:
        return estimator.batch(theta, context, purpose_key(key, Purpose.SIMULATION, update))

    return jax.vmap(one)(theta, context, key)


def _simulate_and_keep(
    estimator: Estimator, theta: Array, context: Array, key: Array, update: Array
) -> tuple[Batch, Trajectories]:
    def one(theta: Array, context: Array, key: Array) -> tuple[Batch, Trajectories]:
        rollout, simulation_key = estimator.rollout, purpose_key(key, Purpose.SIMULATION, update)
        episodes = estimator.engine.trajectories(rollout, theta, context, simulation_key)
        return (episodes if estimator.solver == "cg" else sums_of(rollout, theta, episodes)), episodes

    return jax.vmap(one)(theta, context, key)


class Together:
    """The learners of several blocks, which are simulated together.

    Args:
        mdps: of each block; what `simulation_of` them gives must be the same.
        tasks: of each block.
        keeps: for each block, whether its controller looks at the episodes of a batch.
    """

    def __init__(self, mdps: Sequence[EpisodicMetaMDP], tasks: Sequence[Tasks], keeps: Sequence[bool]) -> None:
        self._mdps, self._keeps = [without_ranges(mdp) for mdp in mdps], keeps
        self._context, self._key = (_stacked([each[part] for each in tasks]) for part in (0, 2))
        begun = [compiled(before_updates)(mdp, block) for mdp, block in zip(self._mdps, tasks, strict=True)]
        self.learners = self._next_batch(begun)

    def advance(self, hyperparameters: Sequence[Array]) -> list[Learners]:
        """Make one transition of the meta-MDP for the learners of every block."""
        blocks = zip(self._mdps, self.learners, hyperparameters, strict=True)
        self.learners = self._next_batch([compiled(moved)(*block) for block in blocks])
        return self.learners

    def _next_batch(self, blocks: Sequence[Learners]) -> list[Learners]:
        """Simulate a batch of every block."""
        theta = _stacked([learners.theta for learners in blocks])
        given = simulation_of(self._mdps[0]), theta, self._context, self._key, blocks[0].update
        batch, episodes = (
            compiled(_simulate_and_keep)(*given) if any(self._keeps) else (compiled(_simulate)(*given), None)
        )
        found = []
        for index, (mdp, learners) in enumerate(zip(self._mdps, blocks, strict=True)):
            after: Learners = compiled(observed)(mdp, _part(batch, index), learners)
            found.append(after._replace(episodes=_part(episodes, index) if self._keeps[index] else None))
        return found


def _stacked(arrays: Sequence[Array]) -> Array:
    """Stack blocks, padded to a power of two by repeating the last one.

    Every other number would be a program of its own, and compiling one takes longer than simulating the padding.
    """
    missing = (1 << (len(arrays) - 1).bit_length()) - len(arrays)
    return jnp.stack([*arrays, *[arrays[-1]] * missing])


def _part(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda array: array[index], stacked)


def run_together(
    blocks: Sequence[tuple[EpisodicMetaMDP, Controller, Tasks]],
    num_updates: int,
    on_update: Callable[[], object] = lambda: None,
) -> list[Stretch]:
    """Return what `metastep.mdp.loop.run_through` gives for each block; all make their updates in lockstep."""
    mdps, controllers, tasks = zip(*blocks, strict=True)
    together = Together(mdps, tasks, [controller.keeps_episodes for controller in controllers])
    courses = [
        following(mdp, controller, learners, controller.init(mdp, learners), num_updates, from_start=True)
        for mdp, controller, learners in zip(mdps, controllers, together.learners, strict=True)
    ]
    chosen = [next(course) for course in courses]
    for _ in range(num_updates - 1):
        after = together.advance(chosen)
        on_update()
        chosen = [course.send(learners) for course, learners in zip(courses, after, strict=True)]
    ends: list[Stretch] = []
    for course, learners in zip(courses, together.advance(chosen), strict=True):
        try:
            course.send(learners)
        except StopIteration as end:
            ends.append(end.value)
    return ends

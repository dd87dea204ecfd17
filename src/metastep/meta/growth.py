"""A block of learners that grows stretch by stretch, and what is kept of it between two stretches."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep.errors import InputError
from metastep.gradients import Estimate
from metastep.meta.loop import Controller, Episode, follow, joined
from metastep.meta.mdp import Learners, MetaMDP, Tasks, begin
from metastep.meta.parts import Part

_PIECE, _LEARNERS = "piece.", "learners."


class Growth(NamedTuple):
    """A block after some updates: the record so far, and the learners to go on with."""

    updates: int
    pieces: tuple[Episode, ...]
    learners: Learners


def grow(
    mdp: MetaMDP,
    controller: Controller,
    tasks: Tasks,
    num_updates: int,
    *,
    stretch: int,
    begun: Growth | None = None,
) -> Iterator[Growth]:
    """Let a block make `num_updates` updates in all, with a halt after every `stretch` of them.

    `begun` is where an interrupted block goes on; the controller must be memoryless then.
    """
    updates, pieces, learners = begun or Growth(0, (), begin(mdp, tasks))
    state = controller.init(mdp, learners)
    while updates < num_updates:
        count = min(stretch, num_updates - updates)
        learners, state, piece = follow(mdp, controller, learners, state, count, from_start=updates == 0)
        updates, pieces = updates + count, (*pieces, piece)
        yield Growth(updates, pieces, learners)


def to_part(growth: Growth, since: int) -> Part:
    """What is new since another halt, and the learners.

    All of the estimate is kept although the episodes could be simulated again: a program compiled for that could differ from
    the loop's in the last bits.
    """
    ends = accumulate(len(piece.hyperparameters) for piece in growth.pieces)
    piece = joined([piece for piece, end in zip(growth.pieces, ends, strict=True) if end > since])
    arrays = {f"{_PIECE}{name}": array for name, array in piece._asdict().items()}
    for name, leaf in _leaves(growth.learners).items():
        arrays[name] = np.asarray(leaf)
    return Part(since, growth.updates, arrays)


def from_parts(parts: Sequence[Part], mdp: MetaMDP, tasks: Tasks) -> Growth:
    """The block where its last part ends."""
    blank = _blank(mdp, tasks)
    kinds = {name: (leaf.shape, leaf.dtype) for name, leaf in _leaves(blank).items()}
    pieces = []
    for part in parts:
        names = [f"{_PIECE}{name}" for name in Episode._fields]
        found = {name: (array.shape, array.dtype) for name, array in part.arrays.items() if name not in names}
        if found != kinds or not part.arrays.keys() >= set(names):
            raise InputError(f"Its part that ends at update {part.updates} does not hold what this version keeps.")
        pieces.append(Episode(*(part.arrays[name] for name in names)))
    # Copies: the files behind these arrays will be removed.
    leaves = [jnp.array(parts[-1].arrays[name]) for name in kinds]
    kept = jax.tree.unflatten(jax.tree.structure(_without_key(blank)), leaves)
    return Growth(parts[-1].updates, tuple(pieces), Learners(**kept, key=tasks.key))


def _without_key(learners: Learners) -> dict[str, Any]:
    """The key is the block's, which the seed gives again, and is no array of numbers."""
    return {name: value for name, value in learners._asdict().items() if name != "key"}


def _leaves(learners: Learners) -> dict[str, Array]:
    """Every array of the learners, in the tree's order, by a name like learners.estimate.gradient."""
    leaves = jax.tree_util.tree_leaves_with_path(_without_key(learners))
    return {_LEARNERS + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _blank(mdp: MetaMDP, tasks: Tasks) -> Learners:
    """Learners of the right form; their numbers mean nothing."""
    row, number = jnp.zeros_like(tasks.theta), jnp.zeros(len(tasks.theta), jnp.float32)
    estimate = Estimate(number, number, row, row, number)
    state = mdp.rule.init(tasks.theta)
    return Learners(tasks.context, tasks.theta, state, estimate, number > 0.0, tasks.key, jnp.uint32(0))

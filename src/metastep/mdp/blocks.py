"""Blocks of learners and their random keys: the result for a task does not depend on processes, order or number of tasks.

Every random number comes from `fold_in(seed, stream, block, purpose, update)`, with one draw for all learners of a block.
Vectorised floating-point results are bitwise equal only for equal batch sizes, so an incomplete last block is simulated with
padding, which is cut off afterwards: task 7 is the same among 20 tasks and among 200.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import jax
from jax import Array


class Stream(IntEnum):
    """Disjoint sources of tasks: a method must never be tested on tasks that it was trained, selected or tuned on."""

    TRAIN = 0
    VALIDATION = 1
    TUNING = 2
    TEST = 3


class Purpose(IntEnum):
    """The use of random numbers of a block; each use has its own key."""

    CONTEXT = 0
    INITIAL_POLICY = 1
    SIMULATION = 2
    CONTROLLER = 3
    UPDATE = 4


@dataclass(frozen=True)
class Blocks:
    """A number of learners cut into blocks of fixed size."""

    num_learners: int
    size: int

    def __len__(self) -> int:
        return -(-self.num_learners // self.size)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def num_valid(self, block: int) -> int:
        """Return how many learners of a block are not padding."""
        return min(self.size, self.num_learners - block * self.size)


def block_key(seed: int, stream: Stream, block: int) -> Array:
    """Return the key from which all random numbers of a block derive."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), int(stream)), block)


def purpose_key(key: Array, purpose: Purpose, update: int | Array = 0) -> Array:
    """Return the key for one purpose at one update of a block."""
    return jax.random.fold_in(jax.random.fold_in(key, int(purpose)), update)

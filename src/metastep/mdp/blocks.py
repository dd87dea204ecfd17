"""Blocks and keys: a result does not depend on which process computed it, when, or on how much else was asked for.

Every random number comes from `fold_in(seed, stream, block, purpose, update)` with one draw for all lanes, the learners of a
block. Vectorised floating point is bitwise stable for one batch size only: a last block with fewer learners is computed whole and
cut afterwards, so that task 7 is the same task whether 20 or 200 are asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import jax
from jax import Array


class Stream(IntEnum):
    """Disjoint sources of tasks: what a method was tuned or selected on must never be what it is judged on."""

    TRAIN = 0
    VALIDATION = 1
    TUNING = 2
    TEST = 3


class Purpose(IntEnum):
    """What the random numbers of a block are for."""

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
        """Return how many lanes of the block are wanted; the rest is padding."""
        return min(self.size, self.num_learners - block * self.size)


def block_key(seed: int, stream: Stream, block: int) -> Array:
    """Return the key that everything random in a block derives from."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), int(stream)), block)


def purpose_key(key: Array, purpose: Purpose, update: int | Array = 0) -> Array:
    """Return the key for one purpose at one update of a block."""
    return jax.random.fold_in(jax.random.fold_in(key, int(purpose)), update)

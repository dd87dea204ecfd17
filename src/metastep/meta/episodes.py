"""Meta-episodes of learners in lockstep as arrays, and the observations made of them.

A meta-episode of T updates is T+1 observations: the tuple of update t is `(x_t, h_t, l_t, x_{t+1})` with
`l_t = j_{t+1} - j_t` (SPEC section 3; a generative tuple is an episode with T = 1).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from metastep.errors import InputError

OBSERVATION_PARTS = ("theta", "gradient", "context", "return")
DEFAULT_PARTS = ("theta", "gradient", "context")

_HEADER_BYTES = 4096  # of a block's file, at most


class Block(NamedTuple):
    """The learners of one block, in lockstep; float32 but for the flags."""

    context: NDArray[np.float32]  # (learners, coordinates)
    theta: NDArray[np.float32]  # (updates + 1, learners, parameters)
    gradient: NDArray[np.float32]  # (updates + 1, learners, parameters), the natural gradient
    mean_return: NDArray[np.float32]  # (updates + 1, learners)
    stepsize: NDArray[np.float32]  # (updates, learners, hyperparameters)
    flagged: NDArray[np.bool_]  # (updates + 1, learners), a zero or non-finite estimate


class Layout(NamedTuple):
    """The shape of a dataset: who is in it, and how it is cut into blocks."""

    context_names: tuple[str, ...]
    num_parameters: int
    num_updates: int
    num_learners: int
    block_size: int
    num_hyperparameters: int = 1

    @property
    def num_blocks(self) -> int:
        """Blocks needed for all learners; the last one may be smaller."""
        return math.ceil(self.num_learners / self.block_size)

    def learners_in(self, block: int) -> int:
        """Number of learners of one block."""
        return min(self.block_size, self.num_learners - block * self.block_size)

    def shapes(self, block: int) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of one block."""
        observations, learners = self.num_updates + 1, self.learners_in(block)
        return {
            "context": (learners, len(self.context_names)),
            "theta": (observations, learners, self.num_parameters),
            "gradient": (observations, learners, self.num_parameters),
            "mean_return": (observations, learners),
            "stepsize": (self.num_updates, learners, self.num_hyperparameters),
            "flagged": (observations, learners),
        }

    def num_bytes(self, block: int) -> int:
        """Disk space that one block takes at most."""
        return sum(4 * math.prod(shape) for shape in self.shapes(block).values()) + _HEADER_BYTES

    def check(self, index: int, block: Block, where: str) -> None:
        """Refuse a block whose tensors do not have the shapes of this layout."""
        for name, expected in self.shapes(index).items():
            if (found := getattr(block, name).shape) != expected:
                raise InputError(f"{where}: {name} has shape {found}, expected is {expected}.")


def trim(block: Block, num_learners: int) -> Block:
    """The first `num_learners` lanes of a block as NumPy arrays of the stored types."""

    def lanes(array: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        return np.asarray(array)[:, :num_learners].astype(dtype, copy=False)

    return Block(
        context=np.asarray(block.context)[:num_learners].astype(np.float32, copy=False),
        theta=lanes(block.theta),
        gradient=lanes(block.gradient),
        mean_return=lanes(block.mean_return),
        stepsize=lanes(block.stepsize),
        flagged=lanes(block.flagged, np.bool_),
    )


def feature_names(parts: Sequence[str], num_parameters: int, context_names: Sequence[str]) -> tuple[str, ...]:
    """Names of the observation's columns: `theta[0]`, ..., `gradient[0]`, ..., the context's own names, `return`."""
    names = {part: [f"{part}[{index}]" for index in range(num_parameters)] for part in ("theta", "gradient")}
    names |= {"context": list(context_names), "return": ["return"]}
    if not parts or len(set(parts)) != len(parts) or not set(parts) <= names.keys():
        allowed = ", ".join(OBSERVATION_PARTS)
        raise InputError(f"The observation parts are {list(parts)}, but must be one or more of {allowed}, each once.")
    return tuple(name for part in parts for name in names[part])


def observe(block: Block, parts: Sequence[str] = DEFAULT_PARTS) -> NDArray[np.float32]:
    """The given parts side by side, in that order: (updates + 1, learners, features)."""
    columns = {
        "theta": block.theta,
        "gradient": block.gradient,
        "context": np.broadcast_to(block.context, (*block.mean_return.shape, block.context.shape[1])),
        "return": block.mean_return[:, :, np.newaxis],
    }
    return np.concatenate([columns[part] for part in parts], axis=2)


def rewards(block: Block) -> NDArray[np.float32]:
    """The improvement of the return by each update, `l_t = j_{t+1} - j_t`: (updates, learners)."""
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged learner's reward is non-finite, and counted as such
        return np.diff(block.mean_return, axis=0)


def usable(block: Block) -> NDArray[np.bool_]:
    """Which tuples hold finite numbers only: (updates, learners)."""
    finite = np.all(np.isfinite(observe(block, OBSERVATION_PARTS)), axis=2)
    steps = np.all(np.isfinite(block.stepsize), axis=2)
    return finite[:-1] & finite[1:] & steps & np.isfinite(rewards(block))

"""The Q function over a menu: the direction of an update and the step along it, one `QFunction` for each direction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep.fqi.qfunction import QFunction, Stepsizes
from metastep.fqi.regressors import Head

_FEW_ROWS = 1024
"""Of observations, which one thread walks: then the threads share the directions, else each direction's rows."""


class MenuMaximum(NamedTuple):
    """The best direction of each state and the best step along it; ties go to the first direction, then the smallest step."""

    value: NDArray[np.float64]  # (states,)
    direction: NDArray[np.int64]  # (states,), its position
    stepsize: NDArray[np.float32]  # (states,)


@dataclass(frozen=True)
class MenuQ:
    """The Q function of one iteration over (direction, step): that of each direction, by its position."""

    functions: tuple[QFunction, ...]

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads of all directions, one direction after the other."""
        return tuple(head for function in self.functions for head in function.heads)

    @property
    def is_forest(self) -> bool:
        """Whether every head is a flat forest."""
        return all(function.is_forest for function in self.functions)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> MenuMaximum:
        """The exact maximum over all directions and steps for each observation `(rows, features)`."""
        few = len(np.asarray(observation)) <= _FEW_ROWS
        outer, inner = (threads, 1) if few else (1, threads)
        found = map_threads(lambda function: function.maximum(observation, inner), self.functions, outer)
        values = np.stack([best.value for best in found])
        direction = values.argmax(axis=0)  # the first of equals
        rows = np.arange(values.shape[1])
        return MenuMaximum(
            values[direction, rows], direction, np.stack([best.stepsize for best in found])[direction, rows]
        )

    def act(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float32]:
        """The best direction, by its position, and step of each observation: `(rows, 2)`.

        One that is not finite gets the first direction's smallest step: it is that of a diverged learner.
        """
        first = self.functions[0]
        matrix, finite = first.finite_rows(observation)
        best = self.maximum(matrix, threads)
        stepsize = np.where(finite, best.stepsize, first.stepsizes.grid[0])
        return np.stack([np.where(finite, best.direction, 0), stepsize], axis=1).astype(np.float32)

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Values of every observation at every step of every direction's grid, `(rows, directions, num)`."""
        return np.stack([function.values(observation, threads) for function in self.functions], axis=1)


def q_function(heads: Sequence[Head], stepsizes: Mapping[str, Stepsizes], lam: float) -> QFunction | MenuQ:
    """Of heads that follow one another by direction, as many for each; a direction without a name stands alone."""
    each = len(heads) // len(stepsizes)
    functions = tuple(
        QFunction(tuple(heads[index * each : (index + 1) * each]), steps, lam)
        for index, steps in enumerate(stepsizes.values())
    )
    return functions[0] if "" in stepsizes else MenuQ(functions)


def pick_iteration(q_functions: Sequence[QFunction | MenuQ], iteration: int | None) -> QFunction | MenuQ:
    """The Q function of an iteration counted from 1; None is the last."""
    chosen = len(q_functions) if iteration is None else iteration
    if not 1 <= chosen <= len(q_functions):
        raise InputError(f"iteration is {iteration}, allowed is 1 to {len(q_functions)}.")
    return q_functions[chosen - 1]

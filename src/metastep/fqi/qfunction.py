"""The Q function of one iteration: one or two regressors over (observation, step size) that act greedily together."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep.errors import InputError
from metastep.fqi.forest import Forest
from metastep.fqi.maximise import (
    Maximum,
    Plan,
    maximise,
    maximise_general,
    prepare,
    stepsize_cells,
    stepsize_grid,
)

MOST_STEPSIZES = 10_000
"""Most step sizes of a grid; the continuous maximum is cheaper than a grid as fine as that."""


@dataclass(frozen=True)
class Stepsizes:
    """Where step sizes are looked for: `num` evenly spaced values of `[low, high]`, or all of it when continuous."""

    low: float = 0.0
    high: float = 1.0
    num: int = 101
    continuous: bool = False

    def __post_init__(self) -> None:
        # Forests compare in float32, where larger numbers are infinite.
        largest = float(np.finfo(np.float32).max)
        if not -largest <= self.low < self.high <= largest or not np.isfinite(self.high - self.low):
            raise InputError(
                f"step sizes: low is {self.low} and high {self.high}, allowed are low < high that are finite in float32."
            )
        if not 2 <= self.num <= MOST_STEPSIZES:
            raise InputError(f"num_stepsizes is {self.num}, allowed is 2 to {MOST_STEPSIZES}.")
        if not (np.isfinite(self.grid).all() and (self.grid[1:] > self.grid[:-1]).all()):
            raise InputError(
                f"num_stepsizes is {self.num}, too many between {self.low} and {self.high} to tell apart in float32."
            )

    @cached_property
    def grid(self) -> NDArray[np.float32]:
        """The evenly spaced values."""
        return stepsize_grid(self.low, self.high, self.num)


@dataclass(frozen=True)
class QFunction:
    """`lam*min(Q1, Q2) + (1-lam)*max(Q1, Q2)` of two heads, or the value of the only one (SPEC section 4).

    A head is a `Forest`, or any fitted scikit-learn regressor; forests are maximised by the interval walk, others by
    predicting on every step size of the grid.
    """

    heads: tuple[Any, ...]
    stepsizes: Stepsizes
    lam: float = 1.0

    @property
    def is_forest(self) -> bool:
        """Whether every head is a flat forest."""
        return all(isinstance(head, Forest) for head in self.heads)

    @cached_property
    def _grid_plan(self) -> Plan:
        return prepare(self.heads, self.stepsizes.grid, self.lam)

    @cached_property
    def _greedy_plan(self) -> Plan:
        if not self.stepsizes.continuous:
            return self._grid_plan
        return prepare(self.heads, stepsize_cells(self.heads, self.stepsizes.low, self.stepsizes.high), self.lam)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> Maximum:
        """The best step size of each observation `(rows, features)` and its value; ties go to the smallest."""
        if self.is_forest:
            return maximise(self._greedy_plan, observation, threads=threads)
        return maximise_general(self.heads, observation, self.stepsizes.grid, self.lam)

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Values of every observation at every step size of the grid, `(rows, num)`."""
        if self.is_forest:
            found = maximise(self._grid_plan, observation, threads=threads, with_values=True)
        else:
            found = maximise_general(self.heads, observation, self.stepsizes.grid, self.lam, with_values=True)
        assert found.values is not None
        return found.values

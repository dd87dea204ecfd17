"""The Q function of one iteration: one or two regressors over (observation, step size) that act greedily together."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.fqi.forest import Forest, as_inputs
from metastep.fqi.maximise import Maximum, Plan, maximise, maximise_general, prepare, stepsize_cells, stepsize_grid
from metastep.fqi.regressors import Head
from metastep.rules.spaces import Range, Scale

NumStepsizes = Annotated[int, Ge(2), Le(10_000)]
"""Of a grid; the continuous maximum is cheaper than a grid finer than that."""
Weight = Annotated[float, Gt(0.5), Le(1.0)]
"""Of the smaller of two values."""


@dataclass(frozen=True)
class Stepsizes:
    """Where step sizes are looked for: `num` values of `[low, high]`, evenly spaced along its scale, or all of it."""

    low: float = 0.0
    high: float = 1.0
    num: NumStepsizes = 101
    continuous: bool = False
    scale: Scale = "linear"

    def __post_init__(self) -> None:
        # Forests compare in float32, where larger numbers are infinite.
        largest = float(np.finfo(np.float32).max)
        if not -largest <= self.low < self.high <= largest or not np.isfinite(self.high - self.low):
            raise InputError(
                f"step sizes: low is {self.low} and high {self.high}, allowed are low < high that are finite in float32."
            )
        for points in (self.points, self.grid):
            if not (np.isfinite(points).all() and (points[1:] > points[:-1]).all()):
                raise InputError(
                    f"num_stepsizes is {self.num}, too many between {self.low} and {self.high} to tell apart in float32."
                )

    @cached_property
    def range(self) -> Range:
        """The interval and its scale."""
        return Range(self.low, self.high, self.scale)

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """The grid as heads see it: along the scale."""
        return stepsize_grid(*self.range.axis, self.num)

    @cached_property
    def grid(self) -> NDArray[np.float32]:
        """The evenly spaced values."""
        return self.range.from_axis(self.points)


@dataclass(frozen=True)
class QFunction:
    """`lam*min(Q1, Q2) + (1-lam)*max(Q1, Q2)` of two heads, or the value of the only one.

    Forests are maximised by the interval walk, other heads by predicting on every step size of the grid. Heads see step sizes
    along their scale; all that is asked and answered here is the step sizes themselves.
    """

    heads: tuple[Head, ...]
    stepsizes: Stepsizes
    lam: float = 1.0

    def __post_init__(self) -> None:
        if self.stepsizes.continuous and not self.is_forest:
            raise InputError("fqi.maximum: 'continuous' must be 'grid' with a regressor whose heads are not forests.")

    @property
    def is_forest(self) -> bool:
        """Whether every head is a flat forest."""
        return all(isinstance(head, Forest) for head in self.heads)

    @property
    def _forests(self) -> list[Forest]:
        return [head for head in self.heads if isinstance(head, Forest)]

    @cached_property
    def _grid_plan(self) -> Plan:
        return prepare(self._forests, self.stepsizes.points, self.lam)

    @cached_property
    def _greedy_plan(self) -> Plan:
        if not self.stepsizes.continuous:
            return self._grid_plan
        cells = stepsize_cells(self._forests, *self.stepsizes.range.axis)
        return prepare(self._forests, cells, self.lam)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> Maximum:
        """The best step size of each observation `(rows, features)` and its value; ties go to the smallest."""
        if self.is_forest:
            found = maximise(self._greedy_plan, observation, threads=threads)
        else:
            found = maximise_general(self.heads, observation, self.stepsizes.points, self.lam)
        return found._replace(stepsize=self.stepsizes.range.from_axis(found.stepsize))

    def act(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float32]:
        """The best step size of each observation, `(rows,)`; one that is not finite gets the smallest.

        It is that of a diverged learner: no step would bring it back, and a regressor may refuse what is not finite.
        """
        matrix, finite = self.finite_rows(observation)
        return np.where(finite, self.maximum(matrix, threads).stepsize, self.stepsizes.grid[0])

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Values of every observation at every step size of the grid, `(rows, num)`."""
        matrix = self._checked(observation)
        if self.is_forest:
            found = maximise(self._grid_plan, matrix, threads=threads, with_values=True)
        else:
            found = maximise_general(self.heads, matrix, self.stepsizes.points, self.lam, with_values=True)
        assert found.values is not None
        return found.values

    def finite_rows(self, observation: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Observations with zeros for those that are not finite, and which of them are, (rows,)."""
        matrix = self._checked(observation)
        finite = np.isfinite(matrix).all(axis=1, keepdims=True)
        return np.where(finite, matrix, np.float32(0.0)), finite.ravel()

    def _checked(self, observation: ArrayLike) -> NDArray[np.float32]:
        return as_inputs(observation, self.heads[0].num_features - 1, "observation")

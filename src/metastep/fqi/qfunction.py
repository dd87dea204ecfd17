"""The Q function of one iteration: one or two regressors over (observation, step size), for each branch of a menu.

A branch is a direction of an update, or a combination of other choices, with its own range of steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple, cast

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep.fqi.forest import Forest, as_inputs
from metastep.fqi.maximise import Maximum, Plan, maximise, maximise_general, prepare, stepsize_cells
from metastep.fqi.regressors import Head
from metastep.rules.spaces import Range, Scale

NumStepsizes = Annotated[int, Ge(2), Le(10_000)]
"""Of a grid; the continuous maximum is cheaper than a grid finer than that."""
Weight = Annotated[float, Gt(0.5), Le(1.0)]
"""Of the smaller of two values."""
_FEW_ROWS = 1024
"""With at most so many observations, threads share the branches; otherwise they share the rows of each branch."""


@dataclass(frozen=True)
class Stepsizes:
    """The step sizes to maximise over: `num` values of `[low, high]`, evenly spaced along its scale, or all of it."""

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
        """The grid as heads see it: along the scale, in float32."""
        return np.linspace(*self.range.axis, self.num).astype(np.float32)

    @cached_property
    def grid(self) -> NDArray[np.float32]:
        """The evenly spaced values."""
        return self.range.from_axis(self.points)


@dataclass(frozen=True)
class QFunction:
    """`lam*min(Q1, Q2) + (1-lam)*max(Q1, Q2)` of two heads, or the value of the only one.

    Forests are maximised by the interval walk, other heads by predicting on every step size of the grid. Heads see step sizes
    along their scale; arguments and results here are the step sizes themselves.
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

    @cached_property
    def _grid_plan(self) -> Plan:
        return prepare(cast(tuple[Forest, ...], self.heads), self.stepsizes.points, self.lam)

    @cached_property
    def _greedy_plan(self) -> Plan:
        if not self.stepsizes.continuous:
            return self._grid_plan
        forests = cast(tuple[Forest, ...], self.heads)
        return prepare(forests, stepsize_cells(forests, *self.stepsizes.range.axis), self.lam)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> Maximum:
        """Return the best step size of each observation `(rows, features)` and its value; ties go to the smallest."""
        if self.is_forest:
            found = maximise(self._greedy_plan, observation, threads=threads)
        else:
            found = maximise_general(self.heads, observation, self.stepsizes.points, self.lam)
        return found._replace(stepsize=self.stepsizes.range.from_axis(found.stepsize))

    def act(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float32]:
        """Return the best step size of each observation, `(rows,)`; one that is not finite gets the smallest.

        Such an observation is that of a diverged learner: no step would help, and a regressor may refuse it.
        """
        matrix, finite = self.finite_rows(observation)
        return np.where(finite, self.maximum(matrix, threads).stepsize, self.stepsizes.grid[0])

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Return the values of every observation at every step size of the grid, `(rows, num)`."""
        matrix = self._checked(observation)
        if self.is_forest:
            return maximise(self._grid_plan, matrix, threads=threads, with_values=True).values
        return maximise_general(self.heads, matrix, self.stepsizes.points, self.lam, with_values=True).values

    def finite_rows(self, observation: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return observations with zeros for those that are not finite, and which are finite, (rows,)."""
        matrix = self._checked(observation)
        finite = np.isfinite(matrix).all(axis=1, keepdims=True)
        return np.where(finite, matrix, np.float32(0.0)), finite.ravel()

    def _checked(self, observation: ArrayLike) -> NDArray[np.float32]:
        return as_inputs(observation, self.heads[0].num_features - 1, "observation")


class MenuMaximum(NamedTuple):
    """The best branch of each state and the best step; ties go to the first branch, then to the smallest step."""

    value: NDArray[np.float64]  # (states,)
    branch: NDArray[np.int64]  # (states,), its position
    stepsize: NDArray[np.float32]  # (states,)


@dataclass(frozen=True)
class MenuQ:
    """The Q function of one iteration over (branch, step): that of each branch, by its position."""

    functions: tuple[QFunction, ...]

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads of all branches, one branch after the other."""
        return tuple(head for function in self.functions for head in function.heads)

    @property
    def is_forest(self) -> bool:
        """Whether every head is a flat forest."""
        return all(function.is_forest for function in self.functions)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> MenuMaximum:
        """Return the exact maximum over all branches and steps for each observation `(rows, features)`."""
        few = len(np.asarray(observation)) <= _FEW_ROWS
        outer, inner = (threads, 1) if few else (1, threads)
        found = map_threads(lambda function: function.maximum(observation, inner), self.functions, outer)
        values = np.stack([best.value for best in found])
        branch, rows = values.argmax(axis=0), np.arange(values.shape[1])  # the first of equals
        return MenuMaximum(values[branch, rows], branch, np.stack([best.stepsize for best in found])[branch, rows])

    def act(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float32]:
        """Return the position of the best branch and the best step of each observation: `(rows, 2)`.

        One that is not finite gets the first branch's smallest step.
        """
        first = self.functions[0]
        matrix, finite = first.finite_rows(observation)
        best = self.maximum(matrix, threads)
        stepsize = np.where(finite, best.stepsize, first.stepsizes.grid[0])
        return np.stack([np.where(finite, best.branch, 0), stepsize], axis=1).astype(np.float32)

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Return the values of every observation at every step of every branch's grid, `(rows, branches, num)`."""
        return np.stack([function.values(observation, threads) for function in self.functions], axis=1)


def q_function(heads: Sequence[Head], stepsizes: Mapping[str, Stepsizes], lam: float) -> QFunction | MenuQ:
    """Return the Q function of heads ordered by branch, as many for each; a branch without a name is the only one."""
    each = len(heads) // len(stepsizes)
    functions = tuple(
        QFunction(tuple(heads[index * each : (index + 1) * each]), steps, lam)
        for index, steps in enumerate(stepsizes.values())
    )
    return functions[0] if "" in stepsizes else MenuQ(functions)


def pick_iteration(q_functions: Sequence[QFunction | MenuQ], iteration: int | None) -> QFunction | MenuQ:
    """Return the Q function of an iteration counted from 1; None is the last."""
    chosen = len(q_functions) if iteration is None else iteration
    if not 1 <= chosen <= len(q_functions):
        raise InputError(f"iteration is {iteration}, allowed is 1 to {len(q_functions)}.")
    return q_functions[chosen - 1]

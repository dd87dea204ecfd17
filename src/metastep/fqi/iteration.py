"""Fitted Q-Iteration on the meta-MDP (the paper's section 5), and the Q-function of one iteration.

A Q-function has one or two regressors over (observation, step size) for each branch of a menu: a branch is a direction of an
update, or a combination of other choices, with its own range of steps.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from metastep._core.errors import InputError, shown
from metastep._core.parallel import map_threads
from metastep._core.settings import Count, Share, check_fields
from metastep.fqi.forest import Forest, as_inputs
from metastep.fqi.maximise import Maximum, Plan, Ties, maximise, maximise_general, prepare, stepsize_cells, tied
from metastep.fqi.regressors import Head, Regressor, resolve
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range, Scale

NumStepsizes = Annotated[int, Ge(2), Le(10_000)]  # of a grid; the continuous maximum is cheaper than a finer one
Weight = Annotated[float, Gt(0.5), Le(1.0)]  # of the smaller of two values
Lower = Annotated[float, Ge(0.0), Le(0.5)]  # a quantile
_FEW_ROWS = 1024


@dataclass(frozen=True)
class Stepsizes(Range):
    """The step sizes to maximise over: `num` values of the interval, evenly spaced along its scale, or the whole interval."""

    num: NumStepsizes = 101
    continuous: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        with np.errstate(over="ignore", invalid="ignore"):
            both = self.points, self.grid(self.num)
        # Forests compare in float32, where larger numbers are infinite.
        if not all(np.isfinite(points).all() and (points[1:] > points[:-1]).all() for points in both):
            allowed = f"allowed are as many as float32 can tell apart between {self.low} and {self.high}"
            raise InputError(f"num_stepsizes is {self.num}, {allowed}.")

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """The grid on the scale that heads use, in float32."""
        return np.linspace(*self.axis, self.num).astype(np.float32)


@dataclass(frozen=True)
class QFunction:
    """The Q-function of one iteration: `lam*min(Q1, Q2) + (1-lam)*max(Q1, Q2)` of two heads, or the value of the only one.

    Forests are maximised by the interval walk (`metastep.fqi.maximise`), other heads by predicting on the grid. Heads
    take step sizes on their scale; arguments and results of methods are the step sizes themselves.
    """

    heads: tuple[Head, ...]  # one or two for each branch, in the order of the branches
    stepsizes: Mapping[str, Stepsizes]  # by branch; without a menu, the only branch has the name ""
    lam: float = 1.0
    ties: Ties = "smallest"

    def __post_init__(self) -> None:
        if self._is_continuous and not self.is_forest:
            raise InputError("fqi.maximum: 'continuous' must be 'grid' with a regressor whose heads are not forests.")
        if self._is_continuous and self.ties != "smallest":
            raise InputError(f"fqi.ties: {self.ties!r} must be 'smallest' where fqi.maximum is 'continuous'.")

    @property
    def is_forest(self) -> bool:
        """Whether all heads are forests."""
        return all(isinstance(head, Forest) for head in self.heads)

    @property
    def _is_continuous(self) -> bool:
        return any(steps.continuous for steps in self.stepsizes.values())

    @property
    def by_branch(self) -> list[tuple[tuple[Any, ...], Stepsizes]]:
        """The heads and the step sizes of each branch."""
        each = len(self.heads) // len(self.stepsizes)
        return [(self.heads[i * each : (i + 1) * each], own) for i, own in enumerate(self.stepsizes.values())]

    @cached_property
    def _grid_plans(self) -> list[Plan]:
        return [prepare(forests, own.points, self.lam) for forests, own in self.by_branch]

    @cached_property
    def _greedy_plans(self) -> list[Plan]:
        if not self._is_continuous:
            return self._grid_plans
        return [prepare(heads, stepsize_cells(heads, *own.axis), self.lam) for heads, own in self.by_branch]

    def _search(self, observation: ArrayLike, threads: int | None, with_values: bool = False) -> list[Maximum]:
        """Return the maximum of each branch, on its scale; with values, on its grid."""
        states = as_inputs(observation, self.heads[0].num_features - 1, "observation")
        if not self.is_forest:
            how: Any = {"lam": self.lam, "with_values": with_values}
            return [maximise_general(heads, states, own.points, **how) for heads, own in self.by_branch]
        plans = self._grid_plans if with_values else self._greedy_plans
        # Threads share the branches if there are few observations, otherwise the rows of each branch.
        outer, inner = (threads, 1) if len(states) <= _FEW_ROWS and len(plans) > 1 else (1, threads)
        return map_threads(lambda plan: maximise(plan, states, threads=inner, with_values=with_values), plans, outer)

    def maximum(self, observation: ArrayLike, threads: int | None = None) -> Maximum:
        """Return value and best step of observations `(rows, features)`; ties choose the first branch, then as `ties` says."""
        has_rule = self.ties != "smallest"  # the search itself returns the smallest
        maxima = self._search(observation, threads, with_values=has_rule)
        values = np.stack([best.value for best in maxima])
        branch, rows = values.argmax(axis=0), np.arange(values.shape[1])  # the first in case of ties
        steps = [
            own.from_axis(own.points[tied(best.values, self.ties)] if has_rule else best.stepsize)
            for own, best in zip(self.stepsizes.values(), maxima, strict=True)
        ]
        return Maximum(values[branch, rows], np.stack(steps)[branch, rows], branch=branch)

    def act(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float32]:
        """Return the best step of each observation, `(rows,)`; with a menu, the branch's index and the step, `(rows, 2)`.

        For an observation that is not finite, it is the smallest step of the first branch: the learner has diverged, no step
        would help, and a regressor may raise an error.
        """
        matrix = as_inputs(observation, self.heads[0].num_features - 1, "observation")
        whole = np.isfinite(matrix).all(axis=1, keepdims=True)
        best, finite = self.maximum(np.where(whole, matrix, np.float32(0.0)), threads), whole.ravel()
        stepsize = np.where(finite, best.stepsize, next(iter(self.stepsizes.values())).grid(2)[0])
        if "" in self.stepsizes:
            return stepsize
        return np.stack([np.where(finite, best.branch, 0), stepsize], axis=1).astype(np.float32)

    def values(self, observation: ArrayLike, threads: int | None = None) -> NDArray[np.float64]:
        """Return values at every step size of the grid, `(rows, num)`; with a menu, `(rows, branches, num)`."""
        by_branch = [best.values for best in self._search(observation, threads, with_values=True)]
        return by_branch[0] if "" in self.stepsizes else np.stack(by_branch, axis=1)


def pick_iteration(q_functions: Sequence[QFunction], iteration: int | None) -> QFunction:
    """Return the Q-function of an iteration, counted from 1; None is the last."""
    chosen = len(q_functions) if iteration is None else iteration
    if not 1 <= chosen <= len(q_functions):
        raise InputError(f"iteration is {iteration}, allowed is 1 to {len(q_functions)}.")
    return q_functions[chosen - 1]


def forest_seed(random_state: int, iteration: int, head: int) -> int:
    """Return the random state of one regressor: different for every iteration (from 1) and head (from 0)."""
    return int(np.random.SeedSequence((random_state, iteration, head)).generate_state(1)[0])


@dataclass(eq=False, repr=False)
class MetaFQI(BaseEstimator):
    """Learn step sizes offline: `Q_N(x, h)` regresses `l + gamma * max_h' Q_{N-1}(x', h')`, `Q_0 = 0`.

    Every iteration is kept in `q_functions_` and can act: `N` is the number of updates planned ahead. With a menu, an action is
    a branch (a direction, or another choice) and a step: each branch has regressors of its own, fitted on its own tuples, and
    the maximum is over all branches and steps.

    Args:
        iterations: number of iterations N.
        regressor: of the Q function: a registered name, a `Regressor`, or any of scikit-learn, whose models cannot be saved.
        meta_discount: discount of future improvements, gamma.
        double: whether two regressors learn every Q function, combined as `lam*min + (1-lam)*max` (clipped double Q).
        lam: weight of the smaller of the two values.
        random_state: seed from which that of every regressor is derived.
        stepsize_low: smallest step size.
        stepsize_high: largest step size.
        stepsize_scale: how step sizes are spaced and shown to the regressor: as they are, or by their logarithm.
        menu: the branches to choose from by name, each with the range of its steps, which replaces the step sizes above; the
            `stepsize` of a tuple is then the position of its branch and the step.
        num_stepsizes: evenly spaced step sizes among which the maximum is taken, in each branch.
        maximum: whether the maximum is taken over those (grid) or over the whole interval (continuous, forests only).
        ties: which of several best steps is taken: the smallest, the middle, the largest, or the middle of the longest run of
            neighbours on the grid; values and targets do not depend on it.
        reward_floor: quantile of all rewards; lower ones count as this quantile. Use it where steps may cost many times what good
            ones gain, so that the noise of their costs hides the gains. Plan one update with it: longer plans may take ruinous
            steps, from which later updates gain.
        threads: threads used, by default as many as there are processors; no result depends on it.
    """

    iterations: Annotated[int, Ge(1), Le(1000)] = 5
    regressor: str | Regressor | BaseEstimator = "extra-trees"
    meta_discount: Share = 1.0
    double: bool = True
    lam: Weight = 1.0
    random_state: Annotated[int, Ge(0)] = 0
    _: KW_ONLY
    stepsize_low: float = 0.0
    stepsize_high: float = 1.0
    stepsize_scale: Scale = "linear"
    menu: Mapping[str, Range] | None = None
    num_stepsizes: NumStepsizes = 101
    maximum: Literal["grid", "continuous"] = "grid"
    ties: Ties = "smallest"
    reward_floor: Lower = 0.0
    threads: Count | None = None

    record = None  # only models have one

    def fit(self, data: Any, progress: Callable[[int, float], None] | None = None) -> Self:
        """Run all iterations on `Transitions`, or on a dataset's default ones; call `progress(iteration, seconds)` after each."""
        check_fields(self, "fqi")
        regressor, menu = resolve(self.regressor), self.menu
        if menu is None:
            menu = {"": Range(self.stepsize_low, self.stepsize_high, self.stepsize_scale)}
        elif not (
            isinstance(menu, Mapping) and menu and all(menu) and all(isinstance(r, Range) for r in menu.values())
        ):
            raise InputError(f"fqi.menu: {shown(menu)} must give one name or more, each with a Range.")
        options: Any = {"num": self.num_stepsizes, "continuous": self.maximum == "continuous"}
        stepsizes = {name: Stepsizes(**vars(bounds), **options) for name, bounds in menu.items()}
        transitions = data.transitions() if callable(getattr(data, "transitions", None)) else data
        if not all(hasattr(transitions, name) for name in Transitions._fields):
            raise InputError(f"fit: got a {type(data).__name__}, allowed are Transitions, or a dataset that has them.")
        observation = np.asarray(transitions.observation, dtype=np.float32)
        next_observation = np.ascontiguousarray(transitions.next_observation, dtype=np.float32)
        chosen = np.asarray(transitions.stepsize, dtype=np.float32)
        reward = np.asarray(transitions.reward, dtype=np.float64)
        if observation.ndim != 2 or 0 in observation.shape:
            raise InputError(f"observation has shape {observation.shape}, allowed is (tuples, features), not empty.")
        tuples, is_menu = len(observation), self.menu is not None
        given: dict[str, Any] = {"next_observation": next_observation, "stepsize": chosen, "reward": reward}
        shapes = observation.shape, (tuples, 2) if is_menu else (tuples,), (tuples,)
        for (name, array), shape in zip(given.items(), shapes, strict=True):
            if array.shape != shape:
                raise InputError(f"{name} has shape {array.shape}, allowed is {shape}.")
        finite = np.isfinite(reward)
        for matrix in (observation, next_observation, chosen.reshape(tuples, -1)):
            finite &= np.isfinite(matrix).all(axis=1)
        if len(broken := np.flatnonzero(~finite)):
            raise InputError(f"transitions: {len(broken)} tuples are not finite, the first at {broken[0]}.")
        reward = np.maximum(reward, np.quantile(reward, self.reward_floor))  # of all directions, tasks and updates
        position = chosen[:, 0] if is_menu else np.zeros(tuples, np.float32)
        if len(wrong := np.flatnonzero(~np.isin(position, np.arange(len(stepsizes), dtype=np.float32)))):
            allowed = f"the position 0 to {len(stepsizes) - 1} of {', '.join(stepsizes)}"
            direction = f"direction of tuple {wrong[0]} is {position[wrong[0]]:g}"
            raise InputError(f"stepsize: the {direction}, allowed is {allowed}.")
        rows_of: list[NDArray[np.intp]] = [np.flatnonzero(position == index) for index in range(len(stepsizes))]
        steps = chosen.reshape(tuples, -1)[:, -1].copy()  # a copy, so that the caller's array is unchanged
        for rows, (name, own) in zip(rows_of, stepsizes.items(), strict=True):
            if is_menu and len(rows) < 2:
                raise InputError(f"transitions: direction {name!r} has {len(rows)} tuples, allowed are 2 or more.")
            taken, of = steps[rows], f" of {name!r}" if name else ""
            if taken.min() < np.float32(own.low) or taken.max() > np.float32(own.high):
                spans = f"spans {taken.min()} to {taken.max()}"
                raise InputError(f"stepsize{of} {spans}, allowed is {own.low} to {own.high}.")
            steps[rows] = own.to_axis(taken)
        inputs = np.column_stack([observation, steps])  # the step size comes last, along its scale
        del transitions, observation  # they may be large
        parts = [inputs[rows] for rows in rows_of] if is_menu else [inputs]
        q_functions: list[QFunction] = []
        seconds: list[float] = []
        for iteration in range(1, self.iterations + 1):
            began = time.perf_counter()
            targets = reward
            if q_functions:
                values_only = replace(q_functions[-1], ties="smallest")  # the fastest
                targets = reward + self.meta_discount * values_only.maximum(next_observation, self.threads).value
            heads: list[Head] = []
            for part, rows in zip(parts, rows_of, strict=True):
                for _ in range(2 if self.double else 1):
                    seed = forest_seed(self.random_state, iteration, len(heads))
                    heads.append(regressor.fit(part, targets[rows], seed=seed, threads=self.threads))
            q_functions.append(QFunction(tuple(heads), stepsizes, float(self.lam), self.ties))
            seconds.append(time.perf_counter() - began)
            if progress is not None:
                progress(iteration, seconds[-1])
        self.q_functions_, self.stepsizes_ = tuple(q_functions), stepsizes
        self.seconds_, self.regressor_ = tuple(seconds), regressor
        self.n_features_in_ = inputs.shape[1] - 1
        self.feature_low_, self.feature_high_ = inputs[:, :-1].min(axis=0), inputs[:, :-1].max(axis=0)
        return self

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """Return greedy step sizes of observations, like `QFunction.act`, after `iteration` (from 1; None is the last)."""
        return self._function(iteration).act(observation, self.threads)

    def values(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float64]:
        """Return values of observations at every step size of the grid, `(rows, num)` or `(rows, branches, num)`."""
        return self._function(iteration).values(observation, self.threads)

    def _function(self, iteration: int | None) -> QFunction:
        check_is_fitted(self, "q_functions_")
        return pick_iteration(self.q_functions_, iteration)

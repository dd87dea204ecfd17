"""Fitted Q-Iteration on the meta-MDP (the paper's section 5)."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from metastep._core.errors import InputError, shown
from metastep._core.settings import Count, Share, check_fields
from metastep.fqi.qfunction import MenuQ, NumStepsizes, QFunction, Stepsizes, Weight, pick_iteration, q_function
from metastep.fqi.regressors import Head, Regressor, resolve
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range, Scale


def forest_seed(random_state: int, iteration: int, head: int) -> int:
    """Return the random state of one regressor: different for every iteration (from 1) and head (from 0)."""
    return int(np.random.SeedSequence((random_state, iteration, head)).generate_state(1)[0])


class MetaFQI(BaseEstimator):
    """Learn step sizes offline: `Q_N(x, h)` regresses `l + gamma * max_h' Q_{N-1}(x', h')`, `Q_0 = 0`.

    Every iteration is kept in `q_functions_` and can act: `N` is the number of updates planned ahead. With a menu, an action is
    a branch (a direction, or another choice) and a step: each branch has regressors of its own, fitted on its own tuples, and
    the maximum is over all branches and steps.

    Args:
        iterations: number of iterations N.
        regressor: of the Q function, as a registered name, a `Regressor` with its options, or any scikit-learn regressor
            (whose models cannot be saved).
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
        threads: threads used, by default as many as there are processors; no result depends on it.
    """

    def __init__(
        self,
        iterations: Annotated[int, Ge(1), Le(1000)] = 5,
        regressor: str | Regressor | BaseEstimator = "extra-trees",
        meta_discount: Share = 1.0,
        double: bool = True,
        lam: Weight = 1.0,
        random_state: Annotated[int, Ge(0)] = 0,
        *,
        stepsize_low: float = 0.0,
        stepsize_high: float = 1.0,
        stepsize_scale: Scale = "linear",
        menu: Mapping[str, Range] | None = None,
        num_stepsizes: NumStepsizes = 101,
        maximum: Literal["grid", "continuous"] = "grid",
        threads: Count | None = None,
    ) -> None:
        self.iterations = iterations
        self.regressor = regressor
        self.meta_discount = meta_discount
        self.double = double
        self.lam = lam
        self.random_state = random_state
        self.stepsize_low = stepsize_low
        self.stepsize_high = stepsize_high
        self.stepsize_scale = stepsize_scale
        self.menu = menu
        self.num_stepsizes = num_stepsizes
        self.maximum = maximum
        self.threads = threads

    record = None  # a model has one

    def fit(self, data: Any, progress: Callable[[int, float], None] | None = None) -> Self:
        """Run all iterations on `Transitions`, or on a dataset with its default observation.

        `progress(iteration, seconds)` is called after each.
        """
        check_fields(self, "fqi")
        regressor, num, continuous = resolve(self.regressor), self.num_stepsizes, self.maximum == "continuous"
        if self.menu is None:
            stepsizes = {"": Stepsizes(self.stepsize_low, self.stepsize_high, num, continuous, self.stepsize_scale)}
        elif (
            isinstance(self.menu, Mapping)
            and self.menu
            and all(isinstance(name, str) and name and isinstance(steps, Range) for name, steps in self.menu.items())
        ):
            stepsizes = {name: Stepsizes(r.low, r.high, num, continuous, r.scale) for name, r in self.menu.items()}
        else:
            raise InputError(f"fqi.menu: {shown(self.menu)} must give one name or more, each with a Range.")
        inputs, reward, next_observation, rows_of = _checked(data, stepsizes)
        parts = [inputs[rows] for rows in rows_of] if len(rows_of) > 1 else [inputs]
        q_functions: list[QFunction | MenuQ] = []
        seconds: list[float] = []
        for iteration in range(1, self.iterations + 1):
            began = time.perf_counter()
            targets = reward
            if q_functions:
                targets = reward + self.meta_discount * q_functions[-1].maximum(next_observation, self.threads).value
            heads: list[Head] = []
            for part, rows in zip(parts, rows_of, strict=True):
                for _ in range(2 if self.double else 1):
                    seed = forest_seed(self.random_state, iteration, len(heads))
                    heads.append(regressor.fit(part, targets[rows], seed=seed, threads=self.threads))
            q_functions.append(q_function(heads, stepsizes, float(self.lam)))
            seconds.append(time.perf_counter() - began)
            if progress is not None:
                progress(iteration, seconds[-1])
        self.q_functions_, self.stepsizes_ = tuple(q_functions), stepsizes
        self.seconds_, self.regressor_ = tuple(seconds), regressor
        self.n_features_in_ = inputs.shape[1] - 1
        self.feature_low_, self.feature_high_ = inputs[:, :-1].min(axis=0), inputs[:, :-1].max(axis=0)
        return self

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """Return greedy step sizes of observations `(rows, features)` after `iteration` (from 1; None is the last).

        `(rows,)`, or with a menu `(rows, 2)`: the position of the branch and the step.
        """
        return self._function(iteration).act(observation, self.threads)

    def values(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float64]:
        """Return values of observations at every step size of the grid, `(rows, num)` or `(rows, branches, num)`."""
        return self._function(iteration).values(observation, self.threads)

    def _function(self, iteration: int | None) -> QFunction | MenuQ:
        check_is_fitted(self, "q_functions_")
        return pick_iteration(self.q_functions_, iteration)


def _checked(
    data: Any, stepsizes: Mapping[str, Stepsizes]
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float32], list[NDArray[np.intp]]]:
    """Return regression inputs `(tuples, features + 1)`, rewards, next observations, and the rows of each branch.

    The step size is the last input, along its scale.
    """
    transitions = data.transitions() if callable(getattr(data, "transitions", None)) else data
    if not all(hasattr(transitions, name) for name in Transitions._fields):
        raise InputError(
            f"fit: got a {type(data).__name__}, allowed are Transitions, or a dataset whose transitions() gives them."
        )
    observation = np.asarray(transitions.observation, dtype=np.float32)
    following = np.ascontiguousarray(transitions.next_observation, dtype=np.float32)
    chosen = np.asarray(transitions.stepsize, dtype=np.float32)
    reward = np.asarray(transitions.reward, dtype=np.float64)
    if observation.ndim != 2 or 0 in observation.shape:
        raise InputError(f"observation has shape {observation.shape}, allowed is (tuples, features), not empty.")
    tuples, is_menu = len(observation), "" not in stepsizes
    for name, array, shape in (
        ("next_observation", following, observation.shape),
        ("stepsize", chosen, (tuples, 2) if is_menu else (tuples,)),
        ("reward", reward, (tuples,)),
    ):
        if array.shape != shape:
            raise InputError(f"{name} has shape {array.shape}, allowed is {shape}.")
    finite = np.isfinite(reward)
    for matrix in (observation, following, chosen.reshape(tuples, -1)):
        finite &= np.isfinite(matrix).all(axis=1)
    if len(broken := np.flatnonzero(~finite)):
        raise InputError(
            f"transitions: {len(broken)} tuples are not finite, the first at {broken[0]}; allowed is none."
        )
    position = chosen[:, 0] if is_menu else np.zeros(tuples, np.float32)
    if len(wrong := np.flatnonzero(~np.isin(position, np.arange(len(stepsizes), dtype=np.float32)))):
        raise InputError(
            f"stepsize: the direction of tuple {wrong[0]} is {position[wrong[0]]:g}, allowed is the position 0 to "
            f"{len(stepsizes) - 1} of {', '.join(stepsizes)}."
        )
    rows_of: list[NDArray[np.intp]] = [np.flatnonzero(position == index) for index in range(len(stepsizes))]
    steps = chosen.reshape(tuples, -1)[:, -1].copy()  # leaves the caller's array unchanged
    for rows, (name, allowed) in zip(rows_of, stepsizes.items(), strict=True):
        if is_menu and len(rows) < 2:
            raise InputError(f"transitions: direction {name!r} has {len(rows)} tuples, allowed are 2 or more.")
        taken, of = steps[rows], f" of {name!r}" if name else ""
        if taken.min() < np.float32(allowed.low) or taken.max() > np.float32(allowed.high):
            raise InputError(
                f"stepsize{of} spans {taken.min()} to {taken.max()}, allowed is {allowed.low} to {allowed.high}."
            )
        steps[rows] = allowed.range.to_axis(taken)
    return np.column_stack([observation, steps]), reward, following, rows_of

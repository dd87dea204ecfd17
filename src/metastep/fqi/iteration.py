"""Fitted Q-Iteration on the meta-MDP (the paper's section 5)."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, Self, cast

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from metastep.errors import InputError
from metastep.fqi.qfunction import NumStepsizes, QFunction, Stepsizes, Weight, pick_iteration
from metastep.fqi.regressors import Regressor, resolve
from metastep.meta.history import Transitions
from metastep.settings import Count, Share, check_fields


class HasTransitions(Protocol):
    """A dataset, to the estimator."""

    def transitions(self) -> Transitions:
        """Its tuples."""
        ...


def forest_seed(random_state: int, iteration: int, head: int) -> int:
    """Random state of one regressor: different for every iteration (from 1) and head (0 or 1)."""
    return int(np.random.SeedSequence((random_state, iteration, head)).generate_state(1)[0])


class MetaFQI(BaseEstimator):
    """Learns offline which step size to take: `Q_N(x, h)` regresses `l + gamma * max_h' Q_{N-1}(x', h')`, `Q_0 = 0`.

    Every iteration is kept in `q_functions_` and can act: `N` is the number of updates planned ahead.

    Args:
        iterations: number of iterations N.
        regressor: what learns the Q function, as a registered name, a `Regressor` with its options, or any scikit-learn
            regressor (whose models cannot be saved).
        meta_discount: discount of future improvements, gamma.
        double: whether two regressors learn every Q function, combined as `lam*min + (1-lam)*max` (clipped double Q).
        lam: weight of the smaller of the two values.
        random_state: seed from which that of every regressor is derived.
        stepsize_low: smallest step size.
        stepsize_high: largest step size.
        num_stepsizes: evenly spaced step sizes among which the maximum is taken.
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
        self.num_stepsizes = num_stepsizes
        self.maximum = maximum
        self.threads = threads

    record = None  # of what it was fitted for, a model has one

    def fit(self, data: Transitions | HasTransitions, progress: Callable[[int, float], None] | None = None) -> Self:
        """Run all iterations on tuples, or on a dataset with its default observation.

        `progress(iteration, seconds)` is called after each.
        """
        check_fields(self, "fqi")
        regressor = resolve(self.regressor)
        stepsizes = Stepsizes(
            self.stepsize_low, self.stepsize_high, self.num_stepsizes, continuous=self.maximum == "continuous"
        )
        inputs, reward, next_observation = _checked(_transitions_of(data), self.stepsize_low, self.stepsize_high)
        q_functions: list[QFunction] = []
        seconds: list[float] = []
        for iteration in range(1, self.iterations + 1):
            began = time.perf_counter()
            targets = reward
            if q_functions:
                following = q_functions[-1].maximum(next_observation, self.threads).value
                targets = reward + self.meta_discount * following
            seeds = [forest_seed(self.random_state, iteration, head) for head in range(2 if self.double else 1)]
            heads = tuple(regressor.fit(inputs, targets, seed=seed, threads=self.threads) for seed in seeds)
            q_functions.append(QFunction(heads, stepsizes, float(self.lam)))
            seconds.append(time.perf_counter() - began)
            if progress is not None:
                progress(iteration, seconds[-1])
        self.q_functions_ = tuple(q_functions)
        self.seconds_ = tuple(seconds)
        self.regressor_ = regressor
        self.n_features_in_ = inputs.shape[1] - 1
        self.feature_low_, self.feature_high_ = inputs[:, :-1].min(axis=0), inputs[:, :-1].max(axis=0)
        return self

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """Greedy step sizes of observations `(rows, features)` after `iteration` (from 1; None is the last)."""
        return self._function(iteration).act(observation, self.threads)

    def values(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float64]:
        """Values of observations `(rows, features)` at every step size of the grid, `(rows, num_stepsizes)`."""
        return self._function(iteration).values(observation, self.threads)

    def _function(self, iteration: int | None) -> QFunction:
        check_is_fitted(self, "q_functions_")
        return pick_iteration(self.q_functions_, iteration)


def _transitions_of(data: Any) -> Transitions:
    found = data.transitions() if callable(getattr(data, "transitions", None)) else data
    if not all(hasattr(found, name) for name in Transitions._fields):
        raise InputError(
            f"fit: got a {type(data).__name__}, allowed are Transitions, or a dataset whose transitions() gives them."
        )
    return cast(Transitions, found)


def _checked(
    transitions: Transitions, low: float, high: float
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float32]]:
    """Regression inputs `(tuples, features + 1)` with the step size last, rewards, next observations."""
    observation = np.asarray(transitions.observation, dtype=np.float32)
    following = np.ascontiguousarray(transitions.next_observation, dtype=np.float32)
    stepsize = np.asarray(transitions.stepsize, dtype=np.float32)
    reward = np.asarray(transitions.reward, dtype=np.float64)
    if observation.ndim != 2 or 0 in observation.shape:
        raise InputError(f"observation has shape {observation.shape}, allowed is (tuples, features), not empty.")
    for name, array in (("next_observation", following), ("stepsize", stepsize), ("reward", reward)):
        if array.shape != (wanted := observation.shape if array is following else observation.shape[:1]):
            raise InputError(f"{name} has shape {array.shape}, allowed is {wanted}.")
    finite = np.isfinite(stepsize) & np.isfinite(reward)
    for matrix in (observation, following):
        finite &= np.isfinite(matrix).all(axis=1)
    if len(broken := np.flatnonzero(~finite)):
        raise InputError(
            f"transitions: {len(broken)} tuples are not finite, the first at {broken[0]}; allowed is none."
        )
    if stepsize.min() < np.float32(low) or stepsize.max() > np.float32(high):
        raise InputError(f"stepsize spans {stepsize.min()} to {stepsize.max()}, allowed is {low} to {high}.")
    return np.column_stack([observation, stepsize]), reward, following

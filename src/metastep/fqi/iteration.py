"""Fitted Q-Iteration on the meta-MDP (the paper's section 5; SPEC section 4)."""

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.utils.validation import check_is_fitted

from metastep.errors import InputError
from metastep.fqi.forest import as_inputs, from_sklearn
from metastep.fqi.native import NativeExtraTreesRegressor, fit_forest, minimum_split
from metastep.fqi.qfunction import QFunction, Stepsizes
from metastep.fqi.threads import count_threads
from metastep.meta.transitions import Transitions

_FORESTS = (ExtraTreesRegressor, RandomForestRegressor, NativeExtraTreesRegressor)
"""Regressors that become flat forests, which the interval walk maximises."""


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
        trees: trees of each forest.
        min_samples_split: fewest rows of a node that is split: a share of all rows (float) or a number (int).
        meta_discount: discount `gamma` of future improvements, in [0, 1].
        double: two forests per iteration, combined as `lam*min + (1-lam)*max` (clipped double Q); else one.
        lam: weight of the smaller of the two, in (0.5, 1].
        random_state: seed from which every forest's own is derived.
        forest: "native" (Numba) or "sklearn" (the reference).
        regressor: any scikit-learn regressor, used instead of `forest`; the maximum is slower unless it is a forest.
        stepsize_low: smallest step size.
        stepsize_high: largest step size.
        num_stepsizes: evenly spaced step sizes among which the maximum is taken.
        maximum: "grid" takes the maximum over those, "continuous" over all of `[low, high]` (forests only).
        threads: threads used; None takes all processors. No result depends on it.
    """

    def __init__(
        self,
        iterations: int = 10,
        trees: int = 50,
        min_samples_split: int | float = 0.01,
        meta_discount: float = 1.0,
        double: bool = True,
        lam: float = 1.0,
        random_state: int = 0,
        *,
        forest: Literal["native", "sklearn"] = "native",
        regressor: Any = None,
        stepsize_low: float = 0.0,
        stepsize_high: float = 1.0,
        num_stepsizes: int = 101,
        maximum: Literal["grid", "continuous"] = "grid",
        threads: int | None = None,
    ) -> None:
        self.iterations = iterations
        self.trees = trees
        self.min_samples_split = min_samples_split
        self.meta_discount = meta_discount
        self.double = double
        self.lam = lam
        self.random_state = random_state
        self.forest = forest
        self.regressor = regressor
        self.stepsize_low = stepsize_low
        self.stepsize_high = stepsize_high
        self.num_stepsizes = num_stepsizes
        self.maximum = maximum
        self.threads = threads

    def fit(self, data: Transitions | HasTransitions, progress: Callable[[int, float], None] | None = None) -> Self:
        """Run all iterations on tuples, or on a dataset with its default observation.

        `progress(iteration, seconds)` is called after each.
        """
        self._check_settings()
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
            heads = range(2 if self.double else 1)
            fitted = tuple(
                self._fit_head(inputs, targets, forest_seed(self.random_state, iteration, head)) for head in heads
            )
            q_functions.append(QFunction(fitted, stepsizes, float(self.lam)))
            seconds.append(time.perf_counter() - began)
            if progress is not None:
                progress(iteration, seconds[-1])
        self.q_functions_ = tuple(q_functions)
        self.seconds_ = tuple(seconds)
        self.n_features_in_ = inputs.shape[1] - 1
        return self

    def act(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float32]:
        """Greedy step sizes of observations `(rows, features)` after `iteration` (from 1; None is the last)."""
        function = self._function(iteration)
        return function.maximum(as_inputs(observation, self.n_features_in_, "observation"), self.threads).stepsize

    def values(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float64]:
        """Values of observations `(rows, features)` at every step size of the grid, `(rows, num_stepsizes)`."""
        function = self._function(iteration)
        return function.values(as_inputs(observation, self.n_features_in_, "observation"), self.threads)

    def _function(self, iteration: int | None) -> QFunction:
        check_is_fitted(self, "q_functions_")
        return pick_iteration(self.q_functions_, iteration)

    def _fit_head(self, inputs: NDArray[np.float32], targets: NDArray[np.float64], seed: int) -> Any:
        if self.regressor is None and self.forest == "native":
            return fit_forest(
                inputs,
                targets,
                num_trees=self.trees,
                min_samples_split=self.min_samples_split,
                seed=seed,
                threads=self.threads,
            )
        if self.regressor is None:
            regressor: Any = ExtraTreesRegressor(
                self.trees,
                min_samples_split=self.min_samples_split,
                random_state=seed,
                n_jobs=count_threads(self.threads),
            )
        else:
            regressor = clone(self.regressor)
            regressor.set_params(**_random_states(regressor, seed))
        # Trees read one feature of many rows at a time: columns first halves scikit-learn's time on wide data.
        regressor.fit(np.asfortranarray(inputs), targets)
        if isinstance(regressor, NativeExtraTreesRegressor):
            return regressor.forest_
        return from_sklearn(regressor) if isinstance(regressor, _FORESTS) else regressor

    def _check_settings(self) -> None:
        problems = {
            f"iterations is {self.iterations}, allowed is at least 1.": self.iterations < 1,
            f"trees is {self.trees}, allowed is at least 1.": self.trees < 1,
            f"meta_discount is {self.meta_discount}, allowed is 0 to 1.": not 0 <= self.meta_discount <= 1,
            f"lam is {self.lam}, allowed is above 0.5 and at most 1.": not 0.5 < self.lam <= 1,
            f"random_state is {self.random_state}, allowed is 0 or more.": self.random_state < 0,
            f"forest is {self.forest!r}, allowed is 'native' or 'sklearn'.": self.forest not in ("native", "sklearn"),
            f"maximum is {self.maximum!r}, allowed is 'grid' or 'continuous'.": self.maximum
            not in ("grid", "continuous"),
            "maximum is 'continuous', allowed is only 'grid' with a regressor that is no forest.": self.maximum
            == "continuous"
            and not (self.regressor is None or isinstance(self.regressor, _FORESTS)),
        }
        for sentence, wrong in problems.items():
            if wrong:
                raise InputError(sentence)
        minimum_split(self.min_samples_split, 2)
        count_threads(self.threads)


def pick_iteration(q_functions: tuple[QFunction, ...], iteration: int | None) -> QFunction:
    """The Q function of an iteration counted from 1; None is the last."""
    chosen = len(q_functions) if iteration is None else iteration
    if not 1 <= chosen <= len(q_functions):
        raise InputError(f"iteration is {iteration}, allowed is 1 to {len(q_functions)}.")
    return q_functions[chosen - 1]


def _random_states(regressor: Any, seed: int) -> dict[str, int]:
    """A value for every random state of a regressor: the seed for its own, one derived from it for each inside it."""
    names = [name for name in sorted(regressor.get_params()) if name.rpartition("__")[2] == "random_state"]
    inner = np.random.SeedSequence(seed).generate_state(len(names) + 1)
    return {name: seed if name == "random_state" else int(state) for name, state in zip(names, inner[1:], strict=True)}


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
    if following.shape != observation.shape:
        raise InputError(f"next_observation has shape {following.shape}, allowed is {observation.shape}.")
    for name, array in (("stepsize", stepsize), ("reward", reward)):
        if array.shape != observation.shape[:1]:
            raise InputError(f"{name} has shape {array.shape}, allowed is {observation.shape[:1]}.")
    finite = np.isfinite(stepsize) & np.isfinite(reward)
    for matrix in (observation, following):
        finite &= np.isfinite(matrix).all(axis=1)
    broken = np.flatnonzero(~finite)
    if len(broken):
        raise InputError(
            f"transitions: {len(broken)} tuples are not finite, the first at {broken[0]}; allowed is none."
        )
    if stepsize.min() < np.float32(low) or stepsize.max() > np.float32(high):
        raise InputError(f"stepsize spans {stepsize.min()} to {stepsize.max()}, allowed is {low} to {high}.")
    return np.column_stack([observation, stepsize]), reward, following

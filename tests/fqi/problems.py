"""Small regression and meta-MDP problems shared by the tests."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.fqi.forest import LEAF, Forest
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range

HIGH = 4.0


def regression(rows: int, features: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Inputs with the step size last, and a target in which it matters."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(rows, features)).astype(np.float32)
    inputs[:, -1] = draw.uniform(0, HIGH, rows)
    signal = np.sin(2 * inputs[:, 0]) - 0.3 * (inputs[:, -1] - 1.5 - inputs[:, 1]) ** 2
    return inputs, signal + 0.2 * draw.normal(size=rows)


def transitions(tuples: int, features: int, seed: int) -> Transitions:
    """Random tuples whose reward depends on the step size and whose next observation on the last one."""
    inputs, reward = regression(tuples, features + 1, seed)
    observation, stepsize = inputs[:, :-1], inputs[:, -1]
    following = (0.8 * observation + 0.1 * stepsize[:, None]).astype(np.float32)
    return Transitions(observation, stepsize, reward.astype(np.float32), following)


def leaf_counts(forest: Forest) -> NDArray[np.int64]:
    """Number of leaves of each tree."""
    return np.add.reduceat((forest.feature == LEAF).astype(np.int64), forest.offsets[:-1])


def all_actions(observation: NDArray[np.float32], stepsizes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every observation with every step size: the rows that brute force predicts on."""
    repeated = np.repeat(observation, len(stepsizes), axis=0)
    return np.column_stack([repeated, np.tile(stepsizes, len(observation))]).astype(np.float32)


MENU = {"natural": Range(1e-3, 1.0, "divergence"), "plain": Range(0.0, HIGH), "adam": Range(0.01, 2.0, "log")}


def menu_transitions(tuples: int, features: int, seed: int) -> Transitions:
    """Random tuples of `MENU`; which branch is best, and how far to go, depends on the observation."""
    draw = np.random.default_rng(seed)
    observation = draw.normal(size=(tuples, features)).astype(np.float32)
    branch = draw.integers(len(MENU), size=tuples)
    axis = np.array([bounds.axis for bounds in MENU.values()])[branch]
    coordinate = axis[:, 0] + (axis[:, 1] - axis[:, 0]) * draw.uniform(size=tuples)
    step = np.stack([bounds.from_axis(coordinate) for bounds in MENU.values()], axis=1)[np.arange(tuples), branch]
    share = (coordinate - axis[:, 0]) / (axis[:, 1] - axis[:, 0])
    reward = observation[:, 0] * (branch - 1) - (share - 0.5 - 0.2 * observation[:, 1]) ** 2
    following = (0.8 * observation + 0.1 * share[:, None]).astype(np.float32)
    return Transitions(observation, np.stack([branch, step], axis=1).astype(np.float32), reward, following)


class Line(NamedTuple):
    """A linear function."""

    weights: Any
    importances: Any = None

    @property
    def num_features(self) -> Any:
        return len(self.weights)

    def predict(self, inputs: Any) -> Any:
        return np.asarray(inputs, np.float64) @ self.weights

    def arrays(self) -> Any:
        return {"weights": self.weights}


@dataclass(frozen=True)
class LeastSquares:
    """Linear regression, whose heads may be of another class."""

    ridge: float = 1e-3
    name: ClassVar[Any] = "least-squares"
    head: ClassVar[Any] = Line

    def fit(self, inputs: Any, targets: Any, *, seed: int, threads: int | None) -> Any:
        x = np.asarray(inputs, np.float64)
        return self.head(np.linalg.solve(x.T @ x + self.ridge * np.eye(x.shape[1]), x.T @ targets))

    def load(self, arrays: Any) -> Any:
        if arrays.keys() != {"weights"}:
            raise InputError("least-squares: the only array must be weights.")
        return self.head(arrays["weights"])

"""Small regression and meta-MDP problems shared by the tests."""

import numpy as np
from numpy.typing import NDArray

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

"""How far test tasks lie from the training tasks, and what that can cost.

If the return of every policy is L-Lipschitz in the context, then a policy that earns j in a training task earns at least
`j - L d` in a task at distance d, and the best policy of the training task is at most `2 L d` worse than the best of the other:
one L d for each of the two policies to change tasks. L is a theorem where the environment's constants are known, and otherwise
what pairs of tasks show, which is an estimate from below.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from metastep.contexts import ContextSpace
from metastep.envs.lqr import LQR
from metastep.envs.nav2d import Nav2D
from metastep.errors import InputError
from metastep.rollouts import Rollout
from metastep.theory import lqr
from metastep.theory.constants import context_q_constant
from metastep.theory.measure import Z_99, measure_return_differences
from metastep.theory.nav2d import nav2d_constants

Floats = NDArray[np.float64]
Kind = Literal["bound", "measured", "unknown"]


class Coverage(NamedTuple):
    """One entry a test task."""

    distance: Floats  # (tests,): to the nearest training task
    nearest: NDArray[np.int64]  # (tests,): which one that is
    outside: NDArray[np.bool_]  # (tests,): beyond the smallest or largest training value of some coordinate
    spacing: float  # median distance of a training task to its nearest fellow: the scale to judge distances by
    constant: float | None  # change of the return a unit of distance
    kind: Kind  # where the constant comes from
    return_change: Floats | None  # (tests,): constant * distance
    return_lost: Floats | None  # (tests,): 2 * constant * distance


class Smoothness(NamedTuple):
    """How the return of one policy changes between pairs of tasks; distances in widths of the context box."""

    distance: Floats  # (pairs,)
    difference: Floats  # (pairs,): |J - J'|
    half_width: Floats  # (pairs,): of its 99 % interval
    steepest: float  # largest difference / distance over resolved pairs: estimates the Lipschitz constant from below
    steepest_low: float  # the same with every difference at the lower end of its interval
    median: float  # of difference / distance over all pairs


def coverage(
    train_contexts: ArrayLike,
    test_contexts: ArrayLike,
    *,
    constant: float | None = None,
    kind: Kind = "unknown",
    scale: ArrayLike | None = None,
) -> Coverage:
    """Distances from test tasks (tests, coordinates) to training tasks (tasks, coordinates), and their price.

    Args:
        train_contexts, test_contexts: the tasks.
        constant: L, if known.
        kind: "bound" for a theorem's constant, "measured" for an estimate.
        scale: divides each coordinate first; it must be the metric in which `constant` was obtained.
    """
    train, test = _tasks(train_contexts, "train_contexts"), _tasks(test_contexts, "test_contexts")
    if train.shape[1] != test.shape[1]:
        raise InputError(f"test_contexts: {test.shape[1]} coordinates, expected {train.shape[1]} as in training.")
    if (constant is None) != (kind == "unknown"):
        raise InputError(f"kind: {kind!r} does not fit constant = {constant}; without a constant it is 'unknown'.")
    width = np.ones(train.shape[1]) if scale is None else np.asarray(scale, np.float64)
    if width.shape != (train.shape[1],) or not np.all(width > 0.0):
        raise InputError(f"scale: {width.tolist()} must be {train.shape[1]} positive numbers.")
    tree = cKDTree(train / width)
    found = tree.query(test / width)
    distance, nearest = np.asarray(found[0], np.float64), np.asarray(found[1], np.int64)
    fellow = np.asarray(tree.query(train / width, k=2)[0])[:, 1] if len(train) > 1 else np.zeros(1)
    outside = np.any((test < train.min(axis=0)) | (test > train.max(axis=0)), axis=1)
    change = None if constant is None else constant * distance
    lost = None if change is None else 2.0 * change
    return Coverage(distance, nearest, outside, float(np.median(fellow)), constant, kind, change, lost)


def describe(result: Coverage, names: tuple[str, ...] = ()) -> list[str]:
    """A few sentences for people."""
    num, worst = len(result.distance), int(np.argmax(result.distance))
    of = f" in {', '.join(names)}" if names else ""
    lines = [
        f"{num} test tasks{of}: distance to the nearest training task median {np.median(result.distance):.3g}, "
        f"largest {result.distance[worst]:.3g} (task {worst}); training tasks lie {result.spacing:.3g} apart.",
        f"{int(result.outside.sum())} of {num} lie outside the range of the training tasks.",
    ]
    if result.return_change is None or result.return_lost is None:
        return [*lines, "No constant is known for this environment, so distances have no price in return."]
    source = "The bound says" if result.kind == "bound" else "Measured smoothness (an estimate, not a guarantee) says"
    least = "at most" if result.kind == "bound" else "about"
    return [
        *lines,
        f"{source}: a policy's return changes by {least} {result.constant:.3g} a unit of distance, so by {least} "
        f"{result.return_change[worst]:.3g} for the farthest test task (median {np.median(result.return_change):.3g}); "
        f"the best policy of the nearest training task loses {least} {result.return_lost[worst]:.3g} there.",
    ]


def known_return_constant(rollout: Rollout, theta: ArrayLike) -> float | None:
    """L of the return in the context for one policy, where the constants are exact; None elsewhere. Euclidean contexts.

    On Nav2D the bound is that of the environment that does not end at the goal.
    """
    env, sigma, gamma, horizon = rollout.env, rollout.policy.sigma, rollout.discount, rollout.horizon
    if not rollout.policy.is_linear:
        return None
    if isinstance(env, Nav2D):
        cmdp, policy, _ = nav2d_constants(env, theta, sigma=sigma, gamma=gamma, horizon=horizon)
    elif isinstance(env, LQR):
        family = lqr.from_env(env, gamma, horizon)
        gaussian = lqr.policy_from_theta(theta, env.num_observations, env.num_actions, sigma)
        corners = np.array([env.context_space.low, env.context_space.high])
        cmdp, policy, _ = lqr.lqr_constants(family, gaussian, corners)
    else:
        return None
    return float(context_q_constant(cmdp, policy, horizon))


def measure_smoothness(rollout: Rollout, theta: ArrayLike, *, num_pairs: int, num_blocks: int, seed: int) -> Smoothness:
    """|J - J'| over random pairs of tasks with common random numbers; half of the pairs are neighbours.

    A pair is resolved when its interval is at most half as wide as its difference; where none is, the upper ends count.
    """
    space = rollout.env.context_space
    rng = np.random.default_rng(seed)
    pairs = rng.uniform(space.low, space.high, size=(num_pairs, 2, space.num_coordinates))
    pairs[::2, 1] = pairs[::2, 0] + 0.1 * (pairs[::2, 1] - pairs[::2, 0])
    pairs = pairs.astype(np.float32).astype(np.float64)
    change = measure_return_differences(rollout, theta, pairs, num_blocks=num_blocks, seed=seed)
    distance = np.linalg.norm((pairs[:, 1] - pairs[:, 0]) / box_widths(space), axis=1)
    difference, half = np.abs(change.mean), Z_99 * change.standard_error
    safe = np.maximum(distance, 1e-9)
    # Neighbours differ by little, so their noise divided by a small distance would win the maximum.
    resolved = half <= 0.5 * difference
    steepest = np.where(resolved, difference, 0.0) if resolved.any() else difference + half
    return Smoothness(
        distance,
        difference,
        half,
        steepest=float(np.max(steepest / safe)),
        steepest_low=float(np.max(np.maximum(difference - half, 0.0) / safe)),
        median=float(np.median(difference / safe)),
    )


def coverage_report(
    rollout: Rollout,
    theta: ArrayLike,
    train_contexts: ArrayLike,
    test_contexts: ArrayLike,
    *,
    num_pairs: int = 32,
    num_blocks: int = 1,
    seed: int = 0,
) -> tuple[Coverage, list[str]]:
    """Coverage priced by the bound where there is one, by the measured smoothness of the policy's return elsewhere."""
    space = rollout.env.context_space
    constant = known_return_constant(rollout, theta)
    if constant is not None:
        result = coverage(train_contexts, test_contexts, constant=constant, kind="bound")
    else:
        smoothness = measure_smoothness(rollout, theta, num_pairs=num_pairs, num_blocks=num_blocks, seed=seed)
        result = coverage(
            train_contexts, test_contexts, constant=smoothness.steepest, kind="measured", scale=box_widths(space)
        )
    return result, describe(result, space.names)


def box_widths(space: ContextSpace) -> Floats:
    """The widths of a context box; a coordinate that does not vary counts as it is."""
    width = np.subtract(space.high, space.low)
    return np.where(width > 0.0, width, 1.0)


def _tasks(contexts: ArrayLike, field: str) -> Floats:
    tasks = np.asarray(contexts, np.float64)
    if tasks.ndim != 2 or not tasks.size:
        raise InputError(
            f"{field}: an array of shape {tasks.shape}, expected (tasks, coordinates) with at least one task."
        )
    if not np.all(np.isfinite(tasks)):
        raise InputError(f"{field}: task {int(np.argwhere(~np.isfinite(tasks))[0, 0])} is not finite.")
    return tasks

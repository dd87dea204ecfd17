"""How far test tasks lie from the training tasks, and what that can cost.

If the return of every policy is L-Lipschitz in the context, then a policy that earns j in a training task earns at least
`j - L d` in a task at distance d, and the best policy of the training task is at most `2 L d` worse than the best of the other:
one L d for each of the two policies to change tasks. L is a theorem where the environment's constants are known, and otherwise
what pairs of tasks show, which is an estimate from below. Only on Nav2D does it hold for every policy. Elsewhere it is the
largest of some policies; the best ones may be steeper, and the text says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace
from metastep.envs.lqr import LQR
from metastep.envs.nav2d import Nav2D
from metastep.simulation.engine import engine_of
from metastep.simulation.rollouts import Rollout
from paper.theory import lqr
from paper.theory.constants import Bounds, Floats, times
from paper.theory.measure import Z_99, context_pairs, measure_return_differences
from paper.theory.nav2d import nav2d_constants
from paper.theory.policy import policy_from_theta

_LEAST_EPISODES = 100  # to measure a difference with: fewer may agree by chance, and seem to be without noise


class Price(NamedTuple):
    """What a distance between tasks may cost."""

    constant: float  # change of the return for a unit of distance
    # A theorem's constant, one of a theorem that leaves out that episodes may end, or an estimate from below.
    kind: Literal["bound", "bound without endings", "measured"]
    num_policies: int | None = None  # of which the constant is the largest; None: it holds for every policy


class Coverage(NamedTuple):
    """Where test tasks lie, and the price of that."""

    distance: Floats  # (tests,): to the nearest training task
    nearest: NDArray[np.int64]  # (tests,): which one that is
    outside: NDArray[np.bool_]  # (tests,): beyond the smallest or largest training value of some coordinate
    spacing: float  # median distance of a training task to the nearest other one, 0 where there is none: the scale of distances
    scaled: bool  # distances count widths of the context box
    price: Price | None  # None where nothing is known

    @property
    def return_change(self) -> Floats | None:
        """How much the return of a policy may change from the nearest training task to each test task."""
        return None if self.price is None else times(self.price.constant, self.distance)

    @property
    def return_lost(self) -> Floats | None:
        """How much worse the best policy of the nearest training task may be than the best one of each test task."""
        return None if self.return_change is None else 2.0 * self.return_change


class Smoothness(NamedTuple):
    """How the return of one policy changes between pairs of tasks; distances in widths of the context box."""

    distance: Floats  # (pairs,)
    difference: Floats  # (pairs,): |J - J'|
    half_width: Floats  # (pairs,): of its 99 % interval
    num_resolved: int  # pairs whose difference is positive and at least twice the half-width
    steepest: float  # largest difference / distance over resolved pairs: estimates the Lipschitz constant from below
    steepest_low: float  # the same with every difference at the lower end of its interval; never above `steepest`
    median: float  # of difference / distance over all pairs


def coverage(
    train_contexts: ArrayLike, test_contexts: ArrayLike, price: Price | None = None, scale: ArrayLike | None = None
) -> Coverage:
    """Distances from test tasks (tests, coordinates) to training tasks (tasks, coordinates), and their price.

    Args:
        train_contexts, test_contexts: the tasks; training tasks may repeat.
        price: of a unit of distance, if known.
        scale: divides each coordinate first; it must be the metric in which the price was obtained.
    """
    train, test = _tasks(train_contexts, "train_contexts"), _tasks(test_contexts, "test_contexts")
    if train.shape[1] != test.shape[1]:
        raise InputError(f"test_contexts: {test.shape[1]} coordinates, expected {train.shape[1]} as in training.")
    width = np.ones(train.shape[1]) if scale is None else np.asarray(scale, np.float64)
    if width.shape != (train.shape[1],) or not np.all(width > 0.0):
        raise InputError(f"scale: {width.tolist()} must be {train.shape[1]} positive numbers.")
    found = cKDTree(train / width).query(test / width)
    distance, nearest = np.asarray(found[0], np.float64), np.asarray(found[1], np.int64)
    outside = np.any((test < train.min(axis=0)) | (test > train.max(axis=0)), axis=1)
    return Coverage(distance, nearest, outside, _spacing(train / width), scale is not None, price)


def describe(result: Coverage, names: tuple[str, ...] = ()) -> list[str]:
    """A few sentences for people."""
    num, worst = len(result.distance), int(np.argmax(result.distance))
    of = f" in {', '.join(names)}" if names else ""
    unit = " (1 is the width of the environment's range)" if result.scaled else ""
    fellows = f"training tasks lie {result.spacing:.3g} apart" if result.spacing else "there is one training task"
    tasks = "test task" if num == 1 else "test tasks"
    return [
        f"{num} {tasks}{of}: distance to the nearest training task{unit} median {np.median(result.distance):.3g}, "
        f"largest {result.distance[worst]:.3g} (task {worst}); {fellows}.",
        f"{int(result.outside.sum())} of {num} lie outside the range of the training tasks.",
        _describe_price(result, worst),
    ]


def _describe_price(result: Coverage, worst: int) -> str:
    """What the farthest test task may cost, in words that promise no more than the constant does."""
    if result.price is None or result.return_change is None or result.return_lost is None:
        return "No constant is known for this environment, so distances have no price in return."
    constant, kind, num_policies = result.price
    source = {
        "bound": "The bound says",
        "bound without endings": "The bound says for episodes that do not end at the goal (an end is a jump, with no bound)",
        "measured": "Measured smoothness (an estimate, not a guarantee) says",
    }[kind]
    least = "about" if kind == "measured" else "at most"
    lost = f"the nearest training task loses {least} {result.return_lost[worst]:.3g} there"
    if num_policies is None:
        whose, loser = "a policy's return", f"the best policy of {lost}"
    else:
        policies = "the policy" if num_policies == 1 else f"the steepest of {num_policies} policies"
        whose = f"the return of {policies} of the training data"
        loser = f"the best policies may be steeper, and if they are not, that of {lost}"
    return (
        f"{source}: {whose} changes by {least} {constant:.3g} a unit of distance, so by {least} "
        f"{result.return_change[worst]:.3g} for the farthest test task (median {np.median(result.return_change):.3g}); {loser}."
    )


def known_price(rollout: Rollout, theta: ArrayLike, tasks: ArrayLike | None = None) -> Price | None:
    """Theorem 1 for the return, where the constants are exact; None elsewhere. Euclidean contexts.

    On Nav2D it is the same for every policy, and that of the environment that does not end at the goal.

    Args:
        rollout: the environment, horizon, discount and kind of policy.
        theta: (..., parameters); of several policies the largest constant.
        tasks: (tasks, coordinates) between which it is to hold; the environment's box unless given.
    """
    env, gamma, horizon = rollout.env, rollout.discount, rollout.horizon
    if not rollout.policy.is_linear or not isinstance(env, Nav2D | LQR):
        return None
    policy = policy_from_theta(theta, env.num_observations, env.num_actions, rollout.policy.sigma)
    if isinstance(env, Nav2D):
        cmdp, of_policy, _ = nav2d_constants(env, policy, gamma, horizon)
    else:
        held = _tasks((env.context_space.low, env.context_space.high) if tasks is None else tasks, "tasks")
        corners = np.array([held.min(axis=0), held.max(axis=0)])  # all there are, for its one coordinate
        cmdp, of_policy, _ = lqr.lqr_constants(lqr.from_env(env, gamma, horizon), policy, corners)
    constant = float(np.max(Bounds(cmdp, of_policy, horizon=horizon).L_omega_Q))
    if isinstance(env, Nav2D):
        return Price(constant, "bound without endings" if env.goal_radius > 0.0 else "bound")
    return Price(constant, "bound", policy.L_pi.size)


def measure_smoothness(rollout: Rollout, theta: ArrayLike, *, num_pairs: int, num_blocks: int, seed: int) -> Smoothness:
    """|J - J'| over `context_pairs` with common random numbers.

    A pair is resolved when it differs at all and the half-width of its interval is at most half of the difference; the others
    count with the lower end of their interval, or, where none is resolved, all with the upper one.
    """
    space = rollout.env.context_space
    pairs = context_pairs(np.random.default_rng(seed), space, num_pairs)
    change = measure_return_differences(rollout, theta, pairs, num_blocks=num_blocks, seed=seed)
    distance = np.linalg.norm((pairs[:, 1] - pairs[:, 0]) / box_widths(space), axis=1)
    difference, half = np.abs(change.mean), Z_99 * change.standard_error
    safe = np.maximum(distance, 1e-9)
    low = np.maximum(difference - half, 0.0)
    # Neighbours differ by little, so their noise divided by a small distance would win the maximum. Two equal returns, as of
    # policies that always miss, have no noise at all and still say nothing on the others.
    resolved = (difference > 0.0) & (half <= 0.5 * difference)
    steepest = np.where(resolved, difference, low) if resolved.any() else difference + half
    return Smoothness(
        distance,
        difference,
        half,
        num_resolved=int(resolved.sum()),
        steepest=float(np.max(steepest / safe)),
        steepest_low=float(np.max(low / safe)),
        median=float(np.median(difference / safe)),
    )


def steepest_of(policies: Sequence[Smoothness]) -> float:
    """The steepest of several policies, by the same rule as among the pairs of one: what is resolved, else lower ends."""
    if not any(policy.num_resolved for policy in policies):
        return max(policy.steepest for policy in policies)
    return max(policy.steepest if policy.num_resolved else policy.steepest_low for policy in policies)


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
    """Coverage priced by the bound where there is one, by the measured smoothness of the return elsewhere.

    Args:
        rollout: the environment with its own context box, and how its policies are run.
        theta: policies of the training data, (policies, parameters) or (parameters,).
        train_contexts, test_contexts: (tasks, coordinates), inside the box or not.
        num_pairs, num_blocks, seed: of the measurement, for each policy; its pairs of tasks come from the box.
    """
    space, policies = rollout.env.context_space, np.atleast_2d(np.asarray(theta, np.float64))
    train, test = _tasks(train_contexts, "train_contexts"), _tasks(test_contexts, "test_contexts")
    price = None
    if engine_of(rollout.env).is_compiled and len(policies):
        price = known_price(rollout, policies, np.concatenate([train, test])) or _measured_price(
            rollout, policies, num_pairs=num_pairs, num_blocks=num_blocks, seed=seed
        )
    is_bound = price is not None and price.kind != "measured"
    result = coverage(train, test, price, scale=None if is_bound else box_widths(space))
    lines = describe(result, space.names)
    # In float32, the simulation's type: 0.7 is within a bound that was itself rounded from 0.7.
    seen, low, high = (np.asarray(values, np.float32) for values in (test, space.low, space.high))
    beyond = int(np.any((seen < low) | (seen > high), axis=1).sum())
    if price is not None and not is_bound and beyond:
        lines.append(f"{beyond} of {len(test)} lie outside the environment's range, where nothing was measured.")
    return result, lines


def _measured_price(rollout: Rollout, policies: Floats, *, num_pairs: int, num_blocks: int, seed: int) -> Price | None:
    """Returns that are not finite, or that no pair of tasks changes, say nothing on what a distance costs."""
    enough = replace(rollout, num_episodes=max(rollout.num_episodes, _LEAST_EPISODES))
    with np.errstate(invalid="ignore"):  # returns that overflowed
        found = [
            measure_smoothness(enough, policy, num_pairs=num_pairs, num_blocks=num_blocks, seed=seed)
            for policy in policies
        ]
    finite = [policy for policy in found if np.isfinite(policy.steepest)]
    constant = steepest_of(finite) if finite else 0.0
    return Price(constant, "measured", len(finite)) if constant > 0.0 else None


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


def _spacing(tasks: Floats) -> float:
    distinct = np.unique(tasks, axis=0)  # learners may share tasks, and a task is not a neighbour of itself
    if len(distinct) < 2:
        return 0.0
    return float(np.median(np.asarray(cKDTree(distinct).query(distinct, k=2)[0])[:, 1]))

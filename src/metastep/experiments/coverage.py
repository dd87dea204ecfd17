"""Measure the distance of test tasks from the training tasks, and estimate its effect on the return.

If the return of every policy is L-Lipschitz in the context, the best policy of a training task is at most `2 L d` worse than the
best policy of a task at distance d: L d for each of the two policies. L is estimated from pairs of tasks and some policies.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from metastep.envs.contexts import ContextSpace, load_tasks
from metastep.experiments.config import build_mdp
from metastep.experiments.run import Run
from metastep.mdp import require_episodic
from metastep.simulation.engine import compiled, is_compiled
from metastep.simulation.rollouts import Rollout, discounted_returns

Floats = NDArray[np.float64]

Z_99 = 2.5758293035489004  # two-sided 99 % of a normal


class Difference(NamedTuple):
    """Means of paired differences, second context minus first, with their standard errors."""

    mean: Floats  # (pairs, ...)
    standard_error: Floats  # (pairs, ...)


def inspect_coverage(path: Path, task_file: Path, *, allow_imports: bool = False) -> str:
    """Describe how far test contexts, also outside the environment's range, lie from a run's training contexts."""
    run = Run.open(path).importing(allow_imports)
    # Distances are relative to the environment's own range, also if training used a single context.
    mdp = build_mdp(run.config.model_copy(update={"env": run.config.env.model_copy(update={"fixed_context": None})}))
    rollout = require_episodic(mdp, "inspect: the coverage").estimator.rollout
    space = rollout.env.context_space
    largest = (float(np.finfo(np.float32).max),) * space.num_coordinates
    tests = load_tasks(task_file, ContextSpace(space.names, tuple(-bound for bound in largest), largest))
    blocks = list(run.dataset.blocks())
    thetas = [history.features["theta"] for history in blocks]
    policies = np.concatenate([theta[np.isfinite(theta).all(axis=-1)] for theta in thetas])
    chosen = np.random.default_rng(0).choice(len(policies), min(10, len(policies)), replace=False)
    train = np.concatenate([block.context for block in blocks])
    return "\n".join(coverage_report(rollout, policies[np.sort(chosen)], train, tests))


def coverage_report(
    rollout: Rollout, policies: ArrayLike, train_contexts: ArrayLike, test_contexts: ArrayLike, *, num_pairs: int = 32
) -> list[str]:
    """Describe distances of test tasks to training tasks, and an estimate of their effect on the return."""
    space = rollout.env.context_space
    train, test = np.asarray(train_contexts, np.float64), np.asarray(test_contexts, np.float64)
    width = box_widths(space)
    distance = np.asarray(cKDTree(train / width).query(test / width)[0], np.float64)
    num, worst = len(test), int(np.argmax(distance))
    distinct = np.unique(train / width, axis=0)  # learners may share tasks, and a task is not a neighbour of itself
    apart = "there is one training task"
    if len(distinct) > 1:
        spacing = np.median(np.asarray(cKDTree(distinct).query(distinct, k=2)[0])[:, 1])
        apart = f"training tasks lie {spacing:.3g} apart"
    outside = np.any((test < train.min(axis=0)) | (test > train.max(axis=0)), axis=1).sum()
    lines = [
        f"{num} test {'task' if num == 1 else 'tasks'} in {', '.join(space.names)}: distance to the nearest training "
        f"task (1 is the width of the environment's range) median {np.median(distance):.3g}, largest "
        f"{distance[worst]:.3g} (task {worst}); {apart}.",
        f"{outside} of {num} lie outside the range of the training tasks.",
    ]
    constant, num_policies = measured_constant(rollout, policies, num_pairs=num_pairs)
    if not constant:
        return [*lines, "No constant is known for this environment, so distances have no price in return."]
    change = constant * distance
    farthest = f"{change.max():.3g} for the farthest test task (median {np.median(change):.3g})"
    changes = f"changes by about {constant:.3g} a unit of distance, so by about {farthest}"
    lost = f"loses about {2.0 * change.max():.3g} there"
    policy = "the policy" if num_policies == 1 else f"the steepest of {num_policies} policies"
    lines.append(
        f"Measured smoothness (an estimate, not a guarantee) says: the return of {policy} of the training data {changes}; the "
        f"best policies may be steeper; if not, that of the nearest training task {lost}."
    )
    # In float32, the simulation's type: 0.7 is within a bound that was itself rounded from 0.7.
    seen, low, high = (np.asarray(values, np.float32) for values in (test, space.low, space.high))
    if beyond := np.any((seen < low) | (seen > high), axis=1).sum():
        lines.append(f"{beyond} of {num} lie outside the environment's range, where nothing was measured.")
    return lines


def measured_constant(rollout: Rollout, policies: ArrayLike, *, num_pairs: int) -> tuple[float, int]:
    """Return the steepest change of the return per box width, 0 if it cannot be measured, and the number of policies used."""
    if not is_compiled(rollout.env):
        return 0.0, 0
    enough = replace(rollout, num_episodes=max(rollout.num_episodes, 100))  # fewer may agree by chance
    pairs = context_pairs(np.random.default_rng(0), space := rollout.env.context_space, num_pairs)
    with np.errstate(invalid="ignore"):  # returns that overflowed
        thetas = np.atleast_2d(np.asarray(policies, np.float64))
        differences = [return_differences(enough, theta, pairs, num_blocks=1, seed=0) for theta in thetas]
    finite = [each for each in differences if np.isfinite(each).all()]
    distance = np.linalg.norm((pairs[:, 1] - pairs[:, 0]) / box_widths(space), axis=1)
    return steepest(distance, Difference(*np.stack(finite, axis=1))) if finite else 0.0, len(finite)


def steepest(distance: Floats, change: Difference) -> float:
    """Return the largest |J - J'| / distance over policies and pairs of tasks, (policies, pairs).

    A pair is resolved when it differs at all and the half-width of its interval is at most half of the difference. Other pairs
    count with the lower end of their interval or, where none is resolved, all with the upper one.
    """
    difference, half = np.abs(change.mean), Z_99 * change.standard_error
    # Neighbours differ little, so their noise, divided by a small distance, would dominate the maximum. Equal returns, as of
    # policies that always miss, have no noise, but carry no information about other pairs.
    resolved = (difference > 0.0) & (half <= 0.5 * difference)
    low, high = np.maximum(difference - half, 0.0), difference + half
    counted = np.where(resolved, difference, low) if resolved.any() else high
    return float(np.max(counted / np.maximum(distance, 1e-9)))


def context_pairs(rng: np.random.Generator, space: ContextSpace, num_pairs: int) -> Floats:
    """Draw random contexts (pairs, 2, coordinates); half of the pairs are neighbours at a tenth of the distance."""
    pairs = rng.uniform(space.low, space.high, size=(num_pairs, 2, space.num_coordinates))
    pairs[::2, 1] = pairs[::2, 0] + 0.1 * (pairs[::2, 1] - pairs[::2, 0])
    # Rounded to float32, so that distances are those of the contexts in the simulation.
    return pairs.astype(np.float32).astype(np.float64)


def return_differences(
    rollout: Rollout, theta: ArrayLike, pairs: ArrayLike, *, num_blocks: int, seed: int
) -> Difference:
    """Measure differences of the return (pairs,) of pairs (pairs, 2, coordinates), with the same noise in all contexts."""
    policy, contexts = jnp.asarray(theta, jnp.float32), jnp.concatenate(jnp.asarray(pairs, jnp.float32))
    keys = [jax.random.fold_in(jax.random.key(seed), block) for block in range(num_blocks)]
    blocks = [np.asarray(compiled(_returns)(rollout, policy, contexts, key), np.float64) for key in keys]
    returns = np.concatenate(blocks, axis=1)
    return paired_difference(returns[1::2] - returns[::2])


def paired_difference(change: Floats) -> Difference:
    """Return the mean and standard error of differences (..., episodes)."""
    return Difference(change.mean(axis=-1), np.sqrt(change.var(axis=-1) / change.shape[-1]))


def _returns(rollout: Rollout, theta: Array, contexts: Array, key: Array) -> Array:
    """Simulate every context with the same noise, (contexts, episodes)."""
    return lax.map(lambda context: discounted_returns(rollout, theta[None], context[None], key)[:, 0], contexts)


def box_widths(space: ContextSpace) -> Floats:
    """Return the width of each coordinate's range; 1 for a coordinate that does not vary."""
    width = np.subtract(space.high, space.low)
    return np.where(width > 0.0, width, 1.0)

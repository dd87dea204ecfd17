"""A search after some generations, and how it is kept."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.search.network import Level


class Course(NamedTuple):
    """A search after some generations."""

    generation: int
    state: Any  # the strategy's, a tree of arrays
    best: NDArray[np.float32]  # weights with the best score so far
    branch: NDArray[np.float32]  # the mean from which the next level begins
    best_generation: int
    scores: tuple[tuple[int, float], ...]  # generation and mean score on the validation tasks
    steps: float  # environment steps so far, validation and those of the simpler levels that it began from included
    branch_steps: float = 0.0  # those up to the branch


# Fields of a course that are no arrays.
NUMBERS = {"generation": int, "best_generation": int, "steps": float, "branch_steps": float}


class Files(NamedTuple):
    """How a search is kept, by level."""

    begun: Callable[[Level, Any], Course | None] = lambda *_: None  # where it goes on, given a state of the right form
    keep: Callable[[Level, Course], object] = lambda *_: None  # called with every generation's course


def course_arrays(course: Course) -> dict[str, NDArray[Any]]:
    """Return a course as arrays by name, as a file holds them."""
    leaves = {f"state/{index}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(course.state))}
    rows = {"best": course.best, "branch": course.branch}
    return leaves | rows | {"scores": np.asarray(course.scores, np.float64).reshape(-1, 2)}


def course_from(arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any], like: Any) -> Course:
    """Invert `course_arrays`; `numbers` are the other fields, `like` is a state of the same strategy."""
    leaves, tree = jax.tree.flatten(like)
    kept = [arrays[f"state/{index}"] for index in range(len(leaves))]
    for array, leaf in zip(kept, map(np.asarray, leaves), strict=True):
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise InputError("search: the state was written by another strategy or with other settings.")
    others: dict[str, Any] = {name: kind(numbers[name]) for name, kind in NUMBERS.items()}
    others["scores"] = tuple((int(generation), float(found)) for generation, found in arrays["scores"])
    state = jax.tree.unflatten(tree, map(jnp.asarray, kept))
    return Course(state=state, best=arrays["best"], branch=arrays["branch"], **others)

"""What episodes of environments of both kinds must keep to."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from metastep.envs.base import choices_of
from metastep.envs.contexts import ContextSpace
from metastep.testing.subject import Subject, named, same

_COUNTS = (("num_observations", 1), ("num_actions", 1), ("reset_noise", 0), ("step_noise", 0))

Contexts = NDArray[np.float32]  # (learners, coordinates)


class Played(NamedTuple):
    """Time first, learners last."""

    observation: NDArray[Any]  # (steps, observations, episodes, learners)
    reward: NDArray[Any]  # (steps, episodes, learners), zero after termination
    alive: NDArray[np.bool_]  # (steps, episodes, learners): the step was taken


def declared(env: Any) -> Subject:
    """The environment, after checking the fields of `TaskFamily`, and that it selects a program."""
    subject = named("env", env)
    is_space = isinstance(getattr(env, "context_space", None), ContextSpace)
    subject.require(is_space, "`context_space` must be a metastep.envs.contexts.ContextSpace")
    for field, least in _COUNTS:
        subject.count(field, getattr(env, field, None), least)
    choices = choices_of(env)
    if choices is not None:
        subject.count("num_choices", choices, 2)
        one = env.num_actions == 1
        subject.require(one, f"`num_actions` is {env.num_actions}, it must be 1 where `num_choices` is declared")
    subject.words("packages", getattr(env, "packages", None))
    subject.hashable()
    return subject


def corners(space: ContextSpace) -> tuple[Contexts, Contexts]:
    """Learner i has coordinate i at its lower, then at its upper bound, and the others in the middle.

    At least two learners: each must have a neighbour.
    """
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    lower = np.tile((low + high) / np.float32(2), (max(len(low), 2), 1))
    upper, diagonal = lower.copy(), np.arange(len(low))
    lower[diagonal, diagonal], upper[diagonal, diagonal] = low, high
    return lower, upper


def check_episodes(subject: Subject, play: Callable[[Contexts], Played], seed: int, *, thorough: bool = True) -> None:
    """Random episodes in random tasks; where it is `thorough`, then in tasks that differ by one coordinate.

    `play` gives the episodes of some tasks, always with the same random numbers.
    """
    space: ContextSpace = subject.part.context_space
    lower, upper = corners(space)
    drawn = np.asarray(space.sample(jax.random.key(seed), len(lower)))
    for tasks in (lower, drawn, upper):
        episodes = play(tasks)
        _check_finite(subject, space, tasks, episodes)
        check_frozen(subject, episodes)
    if not thorough:
        return
    left, right = play(lower), play(upper)
    subject.require(
        same(episodes, right),
        "the same seeds, noise and actions give different episodes; randomness must come from the seeds and normals it is "
        "given",
    )
    for index, (name, low, high) in enumerate(zip(space.names, space.low, space.high, strict=True)):
        # A fixed task has nothing to vary.
        matters = low == high or any(not same(a[..., index], b[..., index]) for a, b in zip(left, right, strict=True))
        subject.require(
            matters,
            f"{name} = {low:g} and {name} = {high:g} give the same episodes over {len(left.alive)} steps; every coordinate "
            "of the context must matter",
        )


def _check_finite(subject: Subject, space: ContextSpace, tasks: Contexts, episodes: Played) -> None:
    """Also of the state that ends an episode: it stays in the batch, with weight zero."""
    seen = np.moveaxis(episodes.observation, 1, 0)
    for what, values in (("the reward", episodes.reward), *((f"observation {i}", each) for i, each in enumerate(seen))):
        for step, episode, learner in np.argwhere(~np.isfinite(values))[:1]:
            task = ", ".join(f"{name} = {value:g}" for name, value in zip(space.names, tasks[learner], strict=True))
            value = values[step, episode, learner]
            subject.require(False, f"{what} is {value} at step {step} of an episode in the task {task}")


def check_frozen(subject: Subject, episodes: Played) -> None:
    """Nothing happens to an episode after its end."""
    seen, reward, alive = episodes
    subject.require(not (alive[1:] & ~alive[:-1]).any(), "an episode goes on after `terminated`")
    subject.require((reward[~alive] == 0.0).all(), "an episode earns a reward after `terminated`")
    moves = (seen[1:] != seen[:-1]).any(axis=1) & ~alive[:-1]
    subject.require(not moves.any(), "the state of an episode changes after `terminated`")

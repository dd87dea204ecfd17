"""The contract of environments on the host."""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.envs.base import choices_of
from metastep.envs.host.base import Bools, HostEnv, HostStep
from metastep.testing.episodes import Contexts, Played, check_episodes, check_frozen, corners, declared
from metastep.testing.subject import Subject, read_only, same

_EPISODES = 2


def check_host_env(env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.host.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); shapes
    and values of observations, rewards and `terminated`; that the arrays it is given stay as they are (they are read-only,
    here as in a run); that the same seeds, noise and actions give the same episodes; that an episode depends neither on other
    episodes of its learner nor on other learners; that an ended episode stays; that every coordinate of the context changes
    the episodes; and, where episodes have a method `restart`, that it begins those anew that it should, and no others.

    Args:
        env: the environment.
        horizon: steps of the episodes; more where the context matters late.
        sigma: standard deviation of the random actions, around a mean of zero; choose it to match the actions' scale. Discrete
            actions are equally likely.
        seed: of the episodes.
    """
    subject = declared(env)
    subject.methods("start_episodes")
    tasks, _ = corners(env.context_space)
    shape = (horizon, _EPISODES, len(tasks), env.num_actions)
    rng, choices = np.random.default_rng(seed), choices_of(env)
    actions: NDArray[Any]
    if choices is None:
        actions = (sigma * rng.standard_normal(shape)).astype(np.float32)
        opposite = -actions
    else:
        actions = rng.integers(choices, size=shape, dtype=np.int32)
        opposite = np.int32(choices - 1) - actions
    play = partial(_play, subject, env, seed)
    check_episodes(subject, partial(play, actions=actions), seed)
    # Other neighbours; the shapes stay, so that an environment that ignores neighbours computes the same bits.
    usual, others = play(tasks, actions), actions.copy()
    others[:, 1:] = opposite[:, 1:]
    beside = play(tasks, others)
    alone = all(same(left[..., 0, :], right[..., 0, :]) for left, right in zip(usual, beside, strict=True))
    subject.require(alone, "an episode changes with the actions of another one")
    others = actions.copy()
    others[:, :, 1:] = opposite[:, :, 1:]
    beside = play(np.repeat(tasks[:1], len(tasks), axis=0), others)
    alone = all(same(left[..., 0], right[..., 0]) for left, right in zip(usual, beside, strict=True))
    subject.require(alone, "an episode changes with the task or the actions of another learner")
    # One episode of each learner has ended before it begins, so that the others cannot.
    alive = np.arange(_EPISODES)[:, None].repeat(len(tasks), axis=1) > 0
    check_frozen(subject, play(tasks, np.ones_like(actions[:2]), alive))
    _check_restart(subject, env, seed, tasks, actions)


def _check_restart(subject: Subject, env: HostEnv, seed: int, tasks: Contexts, actions: NDArray[Any]) -> None:
    """Every other episode begins anew after a step, and must go on like one that starts with the same numbers."""
    rng, shape = np.random.default_rng(seed), actions.shape[1:3]
    noise, moved_by = (rng.standard_normal((2, *shape, num), np.float32) for num in (env.reset_noise, env.step_noise))
    seeds = np.arange(seed, seed + 2 * math.prod(shape), dtype=np.uint32).reshape(2, *shape)
    everything, which = np.ones(shape, np.bool_), np.indices(shape).sum(axis=0) % 2 == 0
    episodes: Any = env.start_episodes(*read_only(tasks, noise[0], seeds[0]))
    if not callable(getattr(episodes, "restart", None)):
        return  # whole episodes do without it
    episodes.step(*read_only(actions[0], moved_by[0], everything))
    before = np.array(episodes.observe())
    subject.call("restart", episodes.restart, *read_only(which, noise[1], seeds[1]))
    anew = _seen(episodes, actions[1], moved_by[1], which)
    subject.require(same(anew[0][~which], before[~which]), "`restart` changes episodes that should go on")
    fresh = _seen(env.start_episodes(*read_only(tasks, noise[1], seeds[1])), actions[1], moved_by[1], which)
    subject.require(
        all(same(left[which], right[which]) for left, right in zip(anew, fresh, strict=True)),
        "an episode that `restart` begins differs from one that starts with the same seed and noise",
    )


def _seen(episodes: Any, action: NDArray[Any], noise: NDArray[Any], alive: Bools) -> tuple[NDArray[Any], ...]:
    """Observations before and after a step, and its rewards."""
    start = np.array(episodes.observe())
    after = episodes.step(*read_only(action, noise, alive))
    return start, np.array(episodes.observe()), np.array(after.reward)


def _play(
    subject: Subject, env: HostEnv, seed: int, tasks: Contexts, actions: NDArray[Any], alive: Bools | None = None
) -> Played:
    """Played of the user's environment; whatever it returns is checked."""
    rng, shape = np.random.default_rng(seed), actions.shape[1:3]
    alive = np.ones(shape, np.bool_) if alive is None else alive
    seeds = np.arange(seed, seed + alive.size, dtype=np.uint32).reshape(shape)
    noise = rng.standard_normal((*shape, env.reset_noise), np.float32)
    episodes = subject.call("start_episodes", env.start_episodes, *read_only(tasks, noise, seeds))
    for method in ("observe", "step"):
        there = callable(getattr(episodes, method, None))
        subject.require(there, f"what `start_episodes` returns has no method `{method}`")
    steps = []
    for action in actions:
        seen = subject.call("observe", episodes.observe)
        subject.array("the observation", seen, (*shape, env.num_observations), np.number)
        seen = np.moveaxis(np.array(seen), -1, 0)
        noise = rng.standard_normal((*shape, env.step_noise), np.float32)
        after = subject.call("step", episodes.step, *read_only(action, noise, alive))
        subject.returns("step", after, "metastep.envs.host.HostStep", *HostStep._fields)
        for field, dtype in (("reward", np.number), ("terminated", np.bool_), ("truncated", np.bool_)):
            if field != "truncated" or after.truncated is not None:
                subject.array(f"`{field}`", getattr(after, field), shape, dtype)
        steps.append((seen, np.where(alive, after.reward, 0.0), alive))
        alive = alive & ~after.over
    return Played(*(np.stack(arrays) for arrays in zip(*steps, strict=True)))

"""The contract of environments on the host."""

import math
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from metastep.envs.base import choices_of, range_of
from metastep.envs.host.base import Bools, HostEnv, HostStep
from metastep.testing.episodes import Contexts, Played, check_episodes, check_frozen, corners, declared
from metastep.testing.subject import Subject, read_only, same

_EPISODES = 2


def check_host_env(
    env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0, thorough: bool = True
) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.host.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); shapes
    and values of observations, rewards and `terminated`; that the arrays it is given stay as they are (they are read-only,
    here as in a run); that the same seeds, noise and actions give the same episodes; that an episode depends neither on other
    episodes of its learner nor on other learners; that an ended episode stays; that every coordinate of the context changes
    the episodes; and, where episodes have a method `restart`, that it begins those anew that it should, also after their end, and
    no others.

    Args:
        env: the environment.
        horizon: steps of the episodes; more where the context matters late.
        sigma: standard deviation of the random actions, around a mean of zero; choose it to match the actions' scale. Discrete
            actions are equally likely.
        seed: of the episodes.
        thorough: as of `check_env`; False also leaves out neighbours and `restart`.
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
    if not thorough and choices is None:
        actions = np.clip(actions, *(range_of(env) or (-np.inf, np.inf)))
    check_episodes(subject, partial(play, actions=actions), seed, thorough=thorough)
    if not thorough:
        return
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
    """What has ended first begins anew, or every other episode where none ends; then all go on.

    Those must be like ones that start with the same numbers, and the others as if nothing had happened.
    """
    rng, shape = np.random.default_rng(seed), actions.shape[1:3]
    noise = rng.standard_normal((2, *shape, env.reset_noise), np.float32)
    seeds = np.arange(seed, seed + 2 * math.prod(shape), dtype=np.uint32).reshape(2, *shape)
    everything = np.ones(shape, np.bool_)

    def start(turn: int) -> Any:
        return env.start_episodes(*read_only(tasks, noise[turn], seeds[turn]))

    def play(turn: int, episodes: Any, alive: Bools, num: int = len(actions)) -> tuple[Played, Bools]:
        return _moves(subject, env, np.random.default_rng([seed, turn]), episodes, actions[:num], alive)

    episodes = start(0)
    if not callable(getattr(episodes, "restart", None)):
        return  # whole episodes do without it
    played, alive = play(0, episodes, everything)
    after = np.stack([*played.alive[1:], alive])
    until = min(len(after), 1 + int(after.all(axis=(1, 2)).sum()))
    alive = after[until - 1]
    which = np.indices(shape).sum(axis=0) % 2 == 0 if alive.all() else ~alive
    episodes = start(0)  # a simulator may know one batch only, so none is played beside another
    play(0, episodes, everything, until)
    usual = play(1, episodes, alive)
    episodes = start(0)
    play(0, episodes, everything, until)
    subject.call("restart", episodes.restart, *read_only(which, noise[1], seeds[1]))
    anew, fresh = play(1, episodes, everything), play(1, start(1), everything)
    for lanes, expected, message in (
        (~which, usual, "`restart` changes episodes that should go on"),
        (which, fresh, "an episode that `restart` begins differs from one that starts with the same seed and noise"),
    ):
        found, right = (jax.tree.map(lambda array, lanes=lanes: array[..., lanes], each) for each in (anew, expected))
        subject.require(same(found, right), message)


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
    return _moves(subject, env, rng, episodes, actions, alive)[0]


def _moves(
    subject: Subject, env: HostEnv, rng: np.random.Generator, episodes: Any, actions: NDArray[Any], alive: Bools
) -> tuple[Played, Bools]:
    """What happens to episodes under these actions, and which are alive after them."""
    steps, shape = [], alive.shape
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
    return Played(*(np.stack(arrays) for arrays in zip(*steps, strict=True))), alive

"""What every environment on the host must keep to, checked on a few short episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.envs.declared import check_declared
from metastep.envs.host.base import Bools, Floats, HostEnv
from metastep.errors import InputError

_EPISODES = 2


class _Record(NamedTuple):
    observation: Floats  # (steps + 1, episodes, learners, observations)
    reward: Floats  # (steps, episodes, learners)
    alive: Bools  # (steps, episodes, learners)


def check_host_env(env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.host.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); shapes
    and values of observations, rewards and `terminated`; that the same seeds, noise and actions give the same episodes; that
    an episode does not depend on its neighbours; that an ended episode stays; and that every coordinate of the context
    changes the episodes.

    Args:
        env: the environment.
        horizon: steps of the episodes; more where the context matters late.
        sigma: standard deviation of the random actions, around a mean of zero; choose it to match the actions' scale.
        seed: of the episodes.
    """
    check_declared(env, ("start_episodes",))
    tasks, varied = _tasks(env.context_space)
    # All tasks get the same random numbers, so that only the context can make them differ.
    normals = np.random.default_rng(seed).standard_normal((horizon, _EPISODES, 1, env.num_actions))
    actions = np.repeat(sigma * normals, len(tasks), axis=2).astype(np.float32)
    usual = _play(env, tasks, actions, seed)
    if not _same(usual, _play(env, tasks, actions, seed)):
        raise InputError(
            f"env {env.name!r}: the same seeds, noise and actions give different episodes; randomness must come from the "
            "seeds and normals it is given."
        )
    actions[:, 1:] = -actions[:, 1:]
    beside = _play(env, tasks, actions, seed)
    if not all(np.array_equal(left[:, :1], right[:, :1]) for left, right in zip(usual, beside, strict=True)):
        raise InputError(f"env {env.name!r}: an episode changes with the actions of another one.")
    for row, coordinate in enumerate(varied, start=1):
        if all(np.array_equal(array[:, :, 0], array[:, :, row]) for array in usual):
            space = env.context_space
            index = space.names.index(coordinate)
            raise InputError(
                f"env {env.name!r}: {coordinate} = {space.low[index]:g} and {coordinate} = {space.high[index]:g} give "
                f"the same episodes over {horizon} steps; every coordinate of the context must matter."
            )
    _check_frozen(env, tasks, seed)


def _tasks(space: ContextSpace) -> tuple[NDArray[np.float32], list[str]]:
    """The task at all lower bounds, then one task a coordinate that varies, with that coordinate at its upper bound."""
    varied = [index for index in range(space.num_coordinates) if space.low[index] < space.high[index]]
    tasks = np.tile(np.asarray(space.low, np.float32), (1 + len(varied), 1))
    for row, index in enumerate(varied, start=1):
        tasks[row, index] = space.high[index]
    return tasks, [space.names[index] for index in varied]


def _same(left: _Record, right: _Record) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def _noise(num: int, num_tasks: int, seed: int) -> NDArray[np.float32]:
    normals = np.random.default_rng(seed).standard_normal((_EPISODES, 1, num)).astype(np.float32)
    return np.repeat(normals, num_tasks, axis=1)


def _call(env: HostEnv, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method on behalf of the user: whatever goes wrong becomes a sentence."""
    try:
        return function(*arguments)
    except InputError:
        raise
    except Exception as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise InputError(f"env {env.name!r}: `{what}` fails with {type(error).__name__}: {text}") from error


def _start(env: HostEnv, tasks: NDArray[np.float32], seed: int) -> Any:
    seeds = np.repeat(np.arange(seed, seed + _EPISODES, dtype=np.uint32)[:, None], len(tasks), axis=1)
    noise = _noise(env.reset_noise, len(tasks), seed)
    return _call(env, "start_episodes", env.start_episodes, tasks, noise, seeds)


def _play(env: HostEnv, tasks: NDArray[np.float32], actions: NDArray[np.float32], seed: int) -> _Record:
    """A few episodes, with every returned array checked."""
    shape = (_EPISODES, len(tasks))
    episodes = _start(env, tasks, seed)
    alive = np.ones(shape, np.bool_)
    observations, rewards, lives = [_observed(env, _call(env, "observe", episodes.observe), shape)], [], []
    for t, action in enumerate(actions):
        lives.append(alive)
        noise = _noise(env.step_noise, len(tasks), seed + t)
        after = _call(env, "step", episodes.step, action, noise, alive)
        for field in ("reward", "terminated"):
            if np.shape(getattr(after, field)) != shape:
                raise InputError(
                    f"env {env.name!r}: `{field}` has the shape {np.shape(getattr(after, field))}, expected {shape}."
                )
        if np.asarray(after.terminated).dtype != np.bool_:
            raise InputError(
                f"env {env.name!r}: `terminated` has dtype {np.asarray(after.terminated).dtype}, it must be bool."
            )
        if not np.isfinite(after.reward[alive]).all():
            raise InputError(f"env {env.name!r}: the reward is not finite at step {t}.")
        rewards.append(np.where(alive, after.reward, 0.0))
        observations.append(_observed(env, _call(env, "observe", episodes.observe), shape))
        alive = alive & ~after.terminated
    return _Record(np.stack(observations), np.stack(rewards), np.stack(lives))


def _observed(env: HostEnv, observation: Floats, shape: tuple[int, int]) -> Floats:
    expected = (*shape, env.num_observations)
    if np.shape(observation) != expected:
        raise InputError(f"env {env.name!r}: observations have the shape {np.shape(observation)}, expected {expected}.")
    if not np.isfinite(observation).all():
        raise InputError(f"env {env.name!r}: an observation is not finite.")
    return np.array(observation)


def _check_frozen(env: HostEnv, tasks: NDArray[np.float32], seed: int) -> None:
    shape = (_EPISODES, len(tasks))
    episodes = _start(env, tasks, seed)
    before = np.array(episodes.observe())
    alive = np.ones(shape, np.bool_)
    alive[0] = False
    action = np.ones((*shape, env.num_actions), np.float32)
    episodes.step(action, _noise(env.step_noise, len(tasks), seed), alive)
    if not np.array_equal(np.asarray(episodes.observe())[0], before[0]):
        raise InputError(f"env {env.name!r}: the state of an episode changes after `terminated`.")

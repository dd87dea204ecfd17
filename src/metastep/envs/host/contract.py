"""What every environment on the host must keep to, checked on a few short episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.contexts import ContextSpace
from metastep.envs.declared import check_declared
from metastep.envs.host.base import Bools, Floats, HostEnv, HostStep
from metastep.errors import InputError

_EPISODES = 2


class _Record(NamedTuple):
    observation: Floats  # (steps + 1, episodes, learners, observations)
    reward: Floats  # (steps, episodes, learners)
    alive: Bools  # (steps, episodes, learners)


def check_host_env(env: HostEnv, *, horizon: int = 20, sigma: float = 1.0, seed: int = 0) -> None:
    """Raise `InputError` with one sentence unless `env` keeps the contract of `metastep.envs.host.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); shapes
    and values of observations, rewards and `terminated`; that the arrays it is given stay as they are (they are read-only,
    here as in a run); that the same seeds, noise and actions give the same episodes; that an episode depends neither on other
    episodes of its learner nor on other learners; that an ended episode stays; and that every coordinate of the context
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
    _check_independence(env, tasks, actions, usual, seed)
    for row, coordinate in enumerate(varied, start=1):
        if all(np.array_equal(array[:, :, 0], array[:, :, row]) for array in usual):
            space = env.context_space
            index = space.names.index(coordinate)
            raise InputError(
                f"env {env.name!r}: {coordinate} = {space.low[index]:g} and {coordinate} = {space.high[index]:g} give "
                f"the same episodes over {horizon} steps; every coordinate of the context must matter."
            )
    _check_frozen(env, tasks, seed)


def _check_independence(
    env: HostEnv, tasks: NDArray[np.float32], actions: NDArray[np.float32], usual: _Record, seed: int
) -> None:
    """Play with other neighbours; the shapes stay, so that whoever has no neighbours in mind computes the same bits."""
    others = actions.copy()
    others[:, 1:] = -others[:, 1:]
    beside = _play(env, tasks, others, seed)
    if not all(np.array_equal(left[:, :1], right[:, :1]) for left, right in zip(usual, beside, strict=True)):
        raise InputError(f"env {env.name!r}: an episode changes with the actions of another one.")
    others = actions.copy()
    others[:, :, 1:] = -others[:, :, 1:]
    beside = _play(env, np.repeat(tasks[:1], len(tasks), axis=0), others, seed)
    if not all(np.array_equal(left[:, :, 0], right[:, :, 0]) for left, right in zip(usual, beside, strict=True)):
        raise InputError(f"env {env.name!r}: an episode changes with the task or the actions of another learner.")


def _tasks(space: ContextSpace) -> tuple[NDArray[np.float32], list[str]]:
    """The task at all lower bounds, then one task a coordinate that varies, with that coordinate at its upper bound.

    Two at least, if need be the same twice: a learner must have a neighbour.
    """
    varied = [index for index in range(space.num_coordinates) if space.low[index] < space.high[index]]
    tasks = np.tile(np.asarray(space.low, np.float32), (max(1 + len(varied), 2), 1))
    for row, index in enumerate(varied, start=1):
        tasks[row, index] = space.high[index]
    return tasks, [space.names[index] for index in varied]


def _same(left: _Record, right: _Record) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to, as the views of JAX arrays that a run hands out."""
    view = array.view()
    view.setflags(write=False)
    return view


def _noise(num: int, num_tasks: int, seed: int) -> NDArray[np.float32]:
    normals = np.random.default_rng(seed).standard_normal((_EPISODES, 1, num)).astype(np.float32)
    return np.repeat(normals, num_tasks, axis=1)


def _call(env: HostEnv, what: str, function: Callable[..., Any], *arguments: NDArray[Any]) -> Any:
    """Call a method on behalf of the user: whatever goes wrong becomes a sentence."""
    try:
        return function(*map(_read_only, arguments))
    except InputError:
        raise
    except Exception as error:
        text = str(error).split("\n", maxsplit=1)[0]
        raise InputError(f"env {env.name!r}: `{what}` fails with {type(error).__name__}: {text}") from error


class _Player:
    """Episodes of the user's environment; whatever they return is checked."""

    def __init__(self, env: HostEnv, tasks: NDArray[np.float32], seed: int) -> None:
        self._env, self._shape, self._seed, self._steps = env, (_EPISODES, len(tasks)), seed, 0
        seeds = np.repeat(np.arange(seed, seed + _EPISODES, dtype=np.uint32)[:, None], len(tasks), axis=1)
        noise = _noise(env.reset_noise, len(tasks), seed)
        self._episodes = _call(env, "start_episodes", env.start_episodes, tasks, noise, seeds)
        for method in ("observe", "step"):
            if not callable(getattr(self._episodes, method, None)):
                raise InputError(f"env {env.name!r}: what `start_episodes` returns has no method `{method}`.")

    def observe(self) -> Floats:
        """A copy of the observations."""
        observation = _call(self._env, "observe", self._episodes.observe)
        self._check_array("the observation", observation, (*self._shape, self._env.num_observations), "fiu")
        if not np.isfinite(observation).all():
            raise InputError(f"env {self._env.name!r}: an observation is not finite.")
        return np.array(observation)

    def step(self, action: NDArray[np.float32], alive: Bools) -> HostStep:
        """Move the episodes that are alive."""
        name = self._env.name
        noise = _noise(self._env.step_noise, alive.shape[1], self._seed + self._steps)
        after = _call(self._env, "step", self._episodes.step, action, noise, alive)
        for field, kinds in (("reward", "fiu"), ("terminated", "b")):
            if not hasattr(after, field):
                raise InputError(
                    f"env {name!r}: `step` must return a metastep.envs.host.HostStep, its result has no `{field}`."
                )
            self._check_array(f"`{field}`", getattr(after, field), self._shape, kinds)
        if not np.isfinite(after.reward[alive]).all():
            raise InputError(f"env {name!r}: the reward is not finite at step {self._steps}.")
        self._steps += 1
        return HostStep(after.reward, after.terminated)

    def _check_array(self, what: str, array: Any, shape: tuple[int, ...], kinds: str) -> None:
        name = self._env.name
        if not isinstance(array, np.ndarray):
            raise InputError(f"env {name!r}: {what} must be a NumPy array, got a {type(array).__name__}.")
        if array.shape != shape:
            raise InputError(f"env {name!r}: {what} has the shape {array.shape}, expected {shape}.")
        if array.dtype.kind not in kinds:
            expected = "bool" if kinds == "b" else "float"
            raise InputError(f"env {name!r}: {what} has dtype {array.dtype}, it must be {expected}.")


def _play(env: HostEnv, tasks: NDArray[np.float32], actions: NDArray[np.float32], seed: int) -> _Record:
    player = _Player(env, tasks, seed)
    alive = np.ones((_EPISODES, len(tasks)), np.bool_)
    observations, rewards, lives = [player.observe()], [], []
    for action in actions:
        lives.append(alive)
        after = player.step(action, alive)
        rewards.append(np.where(alive, after.reward, 0.0))
        observations.append(player.observe())
        alive = alive & ~after.terminated
    return _Record(np.stack(observations), np.stack(rewards), np.stack(lives))


def _check_frozen(env: HostEnv, tasks: NDArray[np.float32], seed: int) -> None:
    player = _Player(env, tasks, seed)
    before = player.observe()
    alive = np.ones((_EPISODES, len(tasks)), np.bool_)
    alive[0] = False
    player.step(np.ones((*alive.shape, env.num_actions), np.float32), alive)
    if not np.array_equal(player.observe()[0], before[0]):
        raise InputError(f"env {env.name!r}: the state of an episode changes after `terminated`.")

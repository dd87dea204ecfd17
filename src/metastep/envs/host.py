"""Simulators that are not JAX: their protocol, a batch of episodes stepped together in C or Python, and Gymnasium's.

Arrays are NumPy, (episodes, learners, numbers); learners of the same column share a task and a policy. A result depends on the
key alone: simulators get standard normals, and a seed for every episode if they bring a generator of their own.

Simulation happens outside compiled functions, not in a callback from within one: XLA's CPU runtime deadlocks when the
threads it waits for are the ones that serve the callback, and an exception in a callback loses its type.

A factory `make(context)` and a context space turn any Gymnasium environment into a family of tasks. These run in Python, one
object for each episode: a run has `num_episodes` (or `num_envs`) times `block_size` of them open.
"""

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.envs.base import TaskFamily
from metastep.envs.contexts import ContextSpace

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Seeds = NDArray[np.uint32]


class HostStep(NamedTuple):
    """What one move of every episode leads to."""

    reward: Floats  # (episodes, learners)
    terminated: Bools  # (episodes, learners): there is no future
    truncated: Bools | None = None  # (episodes, learners): the simulator itself cuts an episode off, which has a future

    @property
    def over(self) -> Bools:
        """Whether an episode cannot go on, (episodes, learners)."""
        return self.terminated if self.truncated is None else self.terminated | self.truncated


class Episodes(Protocol):
    """A batch of episodes under way."""

    def observe(self) -> Floats:
        """What the policies see: (episodes, learners, observations)."""

    def step(self, action: NDArray[Any], noise: Floats, alive: Bools) -> HostStep:
        """Move the episodes that are `alive`, (episodes, learners); what is returned for others is ignored.

        `action` is (episodes, learners, actions), float32, or with `num_choices` (episodes, learners, 1), int32; `noise` are
        standard normals, (episodes, learners, step_noise).
        """


@runtime_checkable
class Restartable(Episodes, Protocol):
    """Episodes that give way to new ones, for rules that learn from batches of steps, such as PPO."""

    def restart(self, which: Bools, noise: NDArray[np.float32], seeds: Seeds) -> None:
        """Restart the episodes `which`, (episodes, learners), in the same tasks; noise and seeds as in `start_episodes`."""


@runtime_checkable
class HostEnv(TaskFamily, Protocol):
    """A contextual MDP on the host: the counterpart of `metastep.envs.Env`."""

    def start_episodes(self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds) -> Episodes:
        """Begin episodes in tasks (learners, coordinates); for rules that learn from batches of steps, `Restartable` ones.

        `noise` are standard normals, (episodes, learners, reset_noise); `seeds` (episodes, learners) are below 2^31.
        """


def _sizes(env: Any) -> dict[str, int | None]:
    """What the spaces of an environment amount to."""
    spaces = {"observations": env.observation_space, "actions": env.action_space}
    choices = getattr(env.action_space, "n", None)
    sizes = {f"num_{name}": int(np.prod(space.shape)) for name, space in spaces.items()}
    return sizes | {"num_choices": None if choices is None else int(choices)}


class _Lanes:
    """The environments of some tasks, (episodes, learners) in row-major order, closed with the last use."""

    def __init__(self, owner: "GymnasiumEnv", context: NDArray[np.float32], num_episodes: int) -> None:
        self.users = 0  # the newest one has this number
        with ExitStack() as building:
            tasks = np.tile(context, (num_episodes, 1))
            self.envs = [building.enter_context(closing(owner.build(task))) for task in tasks]
            if len({id(env) for env in self.envs}) < len(self.envs):
                raise InputError("env.make: it gave the same environment twice; every call must make a new one.")
            for task, sizes in enumerate(map(_sizes, self.envs[: len(context)])):
                if sizes != (usual := {name: getattr(owner, name) for name in sizes}):
                    raise InputError(f"env.make: task {task} has {sizes}, others {usual}; they must not differ.")
            self.close = weakref.finalize(self, building.pop_all().close)


@dataclass(frozen=True)
class GymnasiumEnv:
    """The tasks `make(context)`, with context a record of floats named as in the context space.

    Observations are flattened, actions clipped to the bounds of the task's action space; a discrete action space becomes
    `num_choices`. An episode ends where the environment says `terminated` or `truncated`; the wrapper `TimeLimit` is lifted,
    because the horizon belongs to the rollout. The environments are kept for as long as the tasks stay the same.

    Args:
        make: builds the environment of one task; every call must give a new object. The function itself is part of the
            environment's identity: define it once, not for every use, so that compiled programs are reused.
        context_space: the family of tasks.
        name: identifier in files and tables.
        packages: whose versions decide the numbers and are recorded with every result; add a simulator's.
    """

    make: Callable[[Any], Any]
    context_space: ContextSpace
    name: str = "gymnasium"
    packages: tuple[str, ...] = ("gymnasium",)
    num_observations: int = field(init=False, compare=False)
    num_actions: int = field(init=False, compare=False)
    num_choices: int | None = field(init=False, compare=False)
    # Of the last tasks asked for, by their number and contexts.
    _lanes: dict[tuple[int, bytes], _Lanes] = field(init=False, compare=False, repr=False, default_factory=dict)

    reset_noise, step_noise = 0, 0

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise InputError(f"env.make: {self.make!r} must be a function of a context.")
        probe = self.build(np.mean([self.context_space.low, self.context_space.high], axis=0).astype(np.float32))
        for declared, value in _sizes(probe).items():
            object.__setattr__(self, declared, value)
        probe.close()
        try:
            hash(self)
        except TypeError as error:
            raise InputError(f"env.make: it must be hashable to select a compiled program, but {error}.") from None

    def build(self, context: NDArray[np.float32]) -> Any:
        """The environment of one task (coordinates,), its spaces checked."""
        try:
            import gymnasium
        except ImportError:
            raise InputError('env: Gymnasium is not installed, use pip install "metastep[gym]".') from None
        task = self.context_space.unpack(context)  # type: ignore[arg-type]
        env = self.make(type(task)(*map(float, task)))
        if not isinstance(env, gymnasium.Env):
            raise InputError(f"env.make: the factory gave a {type(env).__name__}, expected a gymnasium.Env.")
        for role, other in (("observation_space", ()), ("action_space", gymnasium.spaces.Discrete)):
            space = getattr(env, role)
            is_box = isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)
            if not is_box and not isinstance(space, other):
                allowed = "a Box of floats" + (" or Discrete" if other else "")
                raise InputError(f"env.make: the {role} of {self.name!r} is {space}, allowed is {allowed}; wrap it.")
        layer: Any = env
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, gymnasium.wrappers.TimeLimit):
                layer._max_episode_steps = sys.maxsize  # as part of a stack of wrappers it cannot be taken out
            layer = layer.env
        return env

    def start_episodes(self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds) -> Restartable:
        """Reset every lane with its seed; episodes of an earlier call cannot be continued."""
        tasks = len(seeds), np.ascontiguousarray(context).tobytes()
        if tasks not in self._lanes:
            self.close()
            self._lanes[tasks] = _Lanes(self, context, len(seeds))
        return _GymnasiumEpisodes(self._lanes[tasks], seeds)

    def close(self) -> None:
        """Close the environments of all lanes; episodes under way end, and new ones build what they need."""
        while self._lanes:
            self._lanes.popitem()[1].close()


class _GymnasiumEpisodes:
    def __init__(self, lanes: _Lanes, seeds: Seeds) -> None:
        lanes.users += 1
        self._lanes, self._number, self._shape = lanes, lanes.users, seeds.shape
        spaces = self._spaces = [env.action_space for env in lanes.envs]
        # (lanes, actions): the context may change the bounds. Discrete actions need not begin at 0.
        is_discrete = hasattr(spaces[0], "n")
        self._low = np.stack([[space.start] if is_discrete else space.low.ravel() for space in spaces])
        self._high = np.stack([[space.start + space.n - 1] if is_discrete else space.high.ravel() for space in spaces])
        self._zero = self._low if is_discrete else 0
        self._observation = np.stack([self._reset(lane, seed) for lane, seed in enumerate(seeds.flat)])

    def _reset(self, lane: int, seed: np.uint32) -> Floats:
        return np.asarray(self._lanes.envs[lane].reset(seed=int(seed))[0], np.float64).ravel()

    def restart(self, which: Bools, noise: Floats, seeds: Seeds) -> None:
        self._require_newest()
        for lane in np.flatnonzero(which).tolist():
            self._observation[lane] = self._reset(lane, seeds.flat[lane])

    def observe(self) -> Floats:
        return self._observation.reshape(*self._shape, -1).copy()

    def step(self, action: NDArray[Any], noise: Floats, alive: Bools) -> HostStep:
        self._require_newest()
        bounded = np.clip(self._zero + action.reshape(self._low.shape), self._low, self._high)
        reward, terminated = np.zeros(alive.shape), np.zeros(alive.shape, np.bool_)
        truncated = terminated.copy()
        for lane in np.flatnonzero(alive):
            space = self._spaces[lane]
            move = bounded[lane].reshape(space.shape).astype(space.dtype)[()]  # a scalar in a space of scalars
            seen, reward.flat[lane], terminated.flat[lane], truncated.flat[lane], _ = self._lanes.envs[lane].step(move)
            self._observation[lane] = np.ravel(seen)
        return HostStep(reward, terminated, truncated)

    def _require_newest(self) -> None:
        if self._number != self._lanes.users or not self._lanes.close.alive:
            raise RuntimeError("These episodes ended when newer ones were started or the environment was closed.")

"""Any Gymnasium environment as a family of tasks: a factory `make(context)` and a context space.

    def make(context):
        env = gymnasium.make("Pendulum-v1")
        env.unwrapped.m = context.mass
        return env

    env = GymnasiumEnv(make, ContextSpace(("mass",), (0.5,), (2.0,), ("kg",)), name="gym_pendulum")

The environments run in Python, one object for each episode, all episodes in lockstep so that the policies are evaluated
together: a run has `num_episodes` times `block_size` of them open; `num_envs` times `block_size` where a rule learns from steps.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace
from metastep.envs.host.base import Bools, Floats, HostStep, Seeds


class _Sizes(NamedTuple):
    """What the spaces of an environment amount to."""

    num_observations: int
    num_actions: int
    num_choices: int | None

    @classmethod
    def of(cls, env: Any) -> "_Sizes":
        observations, actions = (int(np.prod(space.shape)) for space in (env.observation_space, env.action_space))
        choices = getattr(env.action_space, "n", None)
        return cls(observations, actions, None if choices is None else int(choices))

    @property
    def in_words(self) -> str:
        actions = f"{self.num_actions} actions" if self.num_choices is None else f"{self.num_choices} discrete actions"
        return f"{self.num_observations} observations and {actions}"


@dataclass(frozen=True)
class GymnasiumEnv:
    """The tasks `make(context)`, with context a record of floats named as in the context space.

    Observations are flattened, actions clipped to the bounds of the task's action space; a discrete action space becomes
    `num_choices`. An episode ends where the environment says `terminated` or `truncated`; the wrapper `TimeLimit` is lifted,
    because the horizon belongs to the rollout. Each episode is reset with a seed of its own that derives from the rollout's key.

    The environments are kept, and shared by equal objects of this class, for as long as the tasks stay the same. They are
    closed when others take their place, by `close`, and at the end of the process.

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
    _lanes: "_Lanes" = field(init=False, compare=False, repr=False)

    reset_noise: ClassVar[int] = 0
    step_noise: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise InputError(f"env.make: {self.make!r} must be a function of a context.")
        centre = np.mean([self.context_space.low, self.context_space.high], axis=0)
        probe = self.build(centre.astype(np.float32))
        for declared, value in _Sizes.of(probe)._asdict().items():
            object.__setattr__(self, declared, value)
        probe.close()
        try:
            # Every stage of an experiment builds its environment again: equal ones need not build all lanes again.
            object.__setattr__(self, "_lanes", _SHARED.setdefault(self, _Lanes()))
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
        for role, allowed in (
            ("observation_space", "a Box of floats"),
            ("action_space", "a Box of floats or Discrete"),
        ):
            space = getattr(env, role)
            is_box = isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)
            if not is_box and not (role == "action_space" and isinstance(space, gymnasium.spaces.Discrete)):
                raise InputError(
                    f"env.make: the {role} of {self.name!r} is {space}, allowed is {allowed}; wrap the environment."
                )
        layer: Any = env
        while isinstance(layer, gymnasium.Wrapper):
            if isinstance(layer, gymnasium.wrappers.TimeLimit):
                layer._max_episode_steps = sys.maxsize  # as part of a stack of wrappers it cannot be taken out
            layer = layer.env
        return env

    def start_episodes(
        self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds
    ) -> "_GymnasiumEpisodes":
        """Reset every lane with its seed; episodes of an earlier call cannot be continued."""
        return _GymnasiumEpisodes(self._lanes, self._lanes.serve(self, context, len(seeds)), seeds)

    def close(self) -> None:
        """Close the environments of all lanes; episodes under way end, and new ones build what they need."""
        self._lanes.close()


class _Lanes:
    """The environments of the last tasks asked for, (episodes, learners) in row-major order."""

    def __init__(self) -> None:
        self.envs: list[Any] = []  # one list for good, so that the finalizer closes what is open at the end
        self.ticket = 0
        self._tasks: tuple[int, bytes] | None = None
        weakref.finalize(self, _close_all, self.envs)

    def close(self) -> None:
        self.ticket += 1
        self._tasks = None
        _close_all(self.envs)

    def serve(self, owner: GymnasiumEnv, context: NDArray[np.float32], num_episodes: int) -> int:
        """Build the environments of these tasks unless they are open; return a ticket that only the newest user holds."""
        tasks = (num_episodes, np.ascontiguousarray(context).tobytes())
        if tasks != self._tasks:
            self.close()
            try:
                self._build(owner, context, num_episodes)
            except BaseException:  # what a factory may raise, or an impatient user; half of the lanes are of no use
                self.close()
                raise
            self._tasks = tasks
        self.ticket += 1
        return self.ticket

    def _build(self, owner: GymnasiumEnv, context: NDArray[np.float32], num_episodes: int) -> None:
        for _ in range(num_episodes):
            for row in context:
                self.envs.append(owner.build(row))
        if len({id(env) for env in self.envs}) < len(self.envs):
            raise InputError("env.make: the factory gave the same environment twice, every call must make a new one.")
        usual = _Sizes(owner.num_observations, owner.num_actions, owner.num_choices)
        for lane, env in enumerate(self.envs[: len(context)]):
            if (sizes := _Sizes.of(env)) != usual:
                raise InputError(
                    f"env.make: task {lane} has {sizes.in_words}, the others {usual.in_words}; the context must not change "
                    "their number."
                )


# The compiled programs keep the first of equal environments alive; later ones find its lanes here.
_SHARED: "weakref.WeakKeyDictionary[GymnasiumEnv, _Lanes]" = weakref.WeakKeyDictionary()


def _close_all(envs: list[Any]) -> None:
    while envs:
        envs.pop().close()


class _GymnasiumEpisodes:
    def __init__(self, lanes: _Lanes, ticket: int, seeds: Seeds) -> None:
        self._lanes, self._ticket, self._shape = lanes, ticket, seeds.shape
        self._spaces = [env.action_space for env in lanes.envs]
        # (lanes, actions): the context may change the bounds. The numbers of discrete actions need not begin at 0.
        low, high, zero = zip(*map(_bounds, self._spaces), strict=True)
        self._low, self._high, self._zero = np.stack(low), np.stack(high), np.stack(zero)
        starts = [self._reset(lane, seed) for lane, seed in enumerate(seeds.flat)]
        self._observation = np.stack(starts)

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
        if self._ticket != self._lanes.ticket:
            raise RuntimeError("These episodes ended when newer ones were started or the environment was closed.")


def _bounds(space: Any) -> tuple[NDArray[Any], ...]:
    """The smallest and the largest action, and the one that 0 stands for."""
    if hasattr(space, "n"):
        return np.asarray([space.start]), np.asarray([space.start + space.n - 1]), np.asarray([space.start])
    low = space.low.ravel()
    return low, space.high.ravel(), np.zeros_like(low)

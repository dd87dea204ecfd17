"""The environment protocol: one learner, one episode, scalar fields."""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array

from metastep.envs.contexts import ContextSpace

State = Any
Context = Any


class Step(NamedTuple):
    """What one move leads to; `terminated` says that the state has no future, not that the time is up."""

    state: State
    reward: Array
    terminated: Array


class TaskFamily(Protocol):
    """What rollouts must know of any contextual MDP, in JAX or on the host.

    An environment is a frozen dataclass: it is hashable, so it selects a compiled program, and its fields are the options.

    Two declarations may be left out, and then are None; read them with `choices_of` and `range_of`:

    - `num_choices: int | None`, for discrete actions: how many there are to choose from. `num_actions` is 1 then, and the
      action is a tuple of one int32, from 0 to `num_choices` - 1. Without it actions are real numbers.
    - `action_range: tuple[float, float] | None`: what every number of an action should lie between. Batches of steps cut
      actions off there before they are made, as Stable-Baselines3 does; whole episodes do not.
    """

    @property
    def name(self) -> str:
        """Identifier in the registry, in files and in tables."""

    @property
    def context_space(self) -> ContextSpace:
        """The family of tasks."""

    @property
    def num_observations(self) -> int:
        """Numbers the policy sees."""

    @property
    def num_actions(self) -> int:
        """Numbers it chooses; 1 where it chooses among `num_choices`."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages besides JAX and NumPy whose versions decide the numbers; recorded with every result."""

    @property
    def reset_noise(self) -> int:
        """How many standard normals a reset takes."""

    @property
    def step_noise(self) -> int:
        """How many standard normals a step takes."""


@runtime_checkable
class Env(TaskFamily, Protocol):
    """A contextual MDP in pure JAX.

    Functions are written for one learner and one episode: every field of `state`, of `context` and of the tuples `action`,
    `noise` and the observation is a scalar, so that batching turns each quantity into one array of shape (episodes, learners).
    Actions are float32, or the int32 index of a discrete one. There is no control flow on values; use `jnp.where`. `noise` are
    the declared numbers of standard normals. The horizon belongs to the rollout.
    """

    def reset(self, context: Context, noise: tuple[Array, ...]) -> State:
        """The first state of an episode."""

    def observe(self, context: Context, state: State) -> tuple[Array, ...]:
        """What the policy sees of a state."""

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """One move."""


def choices_of(env: TaskFamily) -> int | None:
    """How many actions there are to choose from; None where actions are real numbers."""
    return getattr(env, "num_choices", None)


def range_of(env: TaskFamily) -> tuple[float, float] | None:
    """What every number of an action should lie between; None where the environment does not say."""
    return getattr(env, "action_range", None)


def _as_inside() -> Any:
    """A field that is read from the environment inside, which alone makes two wrappers equal."""
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True)
class Wrapper:
    """Declares what the environment inside declares; a subclass adds the methods, and sets what it declares otherwise."""

    env: TaskFamily
    name: str = _as_inside()
    context_space: ContextSpace = _as_inside()
    num_observations: int = _as_inside()
    num_actions: int = _as_inside()
    packages: tuple[str, ...] = _as_inside()
    reset_noise: int = _as_inside()
    step_noise: int = _as_inside()

    def __post_init__(self) -> None:
        for declared in fields(Wrapper)[1:]:
            object.__setattr__(self, declared.name, getattr(self.env, declared.name))

    @property
    def num_choices(self) -> int | None:
        """That of the environment inside, where it declares one."""
        return choices_of(self.env)

    @property
    def action_range(self) -> tuple[float, float] | None:
        """That of the environment inside, where it declares one."""
        return range_of(self.env)

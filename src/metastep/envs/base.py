"""The environment protocol: one learner, one episode, scalar fields."""

from dataclasses import dataclass
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


class FullyObserved:
    """What environments have in common whose policies see the whole state, a tuple of scalars, and that need JAX alone."""

    packages = ()

    def observe(self, context: Context, state: Any) -> tuple[Array, ...]:
        return tuple(state)


def _inside(declared: str) -> Any:
    """Return a property that reads what the environment inside declares, None where it declares nothing."""
    return property(lambda wrapper: getattr(wrapper.env, declared, None), doc=f"The {declared} of what is inside.")


@dataclass(frozen=True)
class Wrapper:
    """Does and declares what the environment inside does and declares; a subclass sets what differs."""

    env: Env
    name, context_space, packages = map(_inside, ("name", "context_space", "packages"))
    num_observations, num_actions = map(_inside, ("num_observations", "num_actions"))
    reset_noise, step_noise = map(_inside, ("reset_noise", "step_noise"))
    num_choices, action_range = map(_inside, ("num_choices", "action_range"))
    reset, observe, step = map(_inside, ("reset", "observe", "step"))

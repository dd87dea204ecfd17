"""The environment protocol: one learner, one episode, scalar fields."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array

from metastep.contexts import ContextSpace
from metastep.errors import not_registered

State = Any
Context = Any


class Step(NamedTuple):
    """What one move leads to."""

    state: State
    reward: Array
    terminated: Array


def packages_of(env: "TaskFamily") -> tuple[str, ...]:
    """The packages whose versions decide an environment's numbers, where it names any (`packages`), besides JAX and NumPy."""
    return tuple(getattr(env, "packages", ()))


class TaskFamily(Protocol):
    """What rollouts must know of any contextual MDP, in JAX or on the host.

    An environment is a frozen dataclass: it is hashable, so it selects a compiled program, and its fields are the options.
    """

    @property
    def name(self) -> str:
        """Identifier in the registry, in files and in tables."""
        ...

    @property
    def context_space(self) -> ContextSpace:
        """The family of tasks."""
        ...

    @property
    def num_observations(self) -> int:
        """Numbers the policy sees."""
        ...

    @property
    def num_actions(self) -> int:
        """Numbers it chooses."""
        ...

    @property
    def reset_noise(self) -> int:
        """How many standard normals a reset takes."""
        ...

    @property
    def step_noise(self) -> int:
        """How many standard normals a step takes."""
        ...


@runtime_checkable
class Env(TaskFamily, Protocol):
    """A contextual MDP in pure JAX.

    Functions are written for one learner and one episode: every field of `state`, of `context` and of the tuples `action`,
    `noise` and the observation is a scalar, so that batching turns each quantity into one array of shape (episodes,
    learners). There is no control flow on values; use `jnp.where`. The random numbers are standard normals that the rollout
    provides: `reset_noise` of them for a reset, `step_noise` for a step. The horizon belongs to the rollout.
    """

    def reset(self, context: Context, noise: tuple[Array, ...]) -> State:
        """The first state of an episode."""
        ...

    def observe(self, context: Context, state: State) -> tuple[Array, ...]:
        """What the policy sees of a state."""
        ...

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        """One move."""
        ...


def check_options(env: str, options: Iterable[str], factory: Callable[..., Any], more: tuple[str, ...] = ()) -> None:
    """Refuse options that `factory` and `more` do not name; a factory that takes any keyword checks for itself."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a callable that does not tell
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = (*more, *(parameter.name for parameter in parameters))
    for option in options:
        if option not in known:
            # The context space has a setting of its own, and no value that a file could hold.
            allowed = [name for name in known if name != "context_space"]
            raise not_registered("env.options", option, allowed, f"is not an option of {env}")

"""What most families have in common."""

from dataclasses import dataclass
from typing import Any, dataclass_transform

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, to_uniform
from metastep.envs.base import State

Scalars = tuple[Array, ...]


def tasks(text: str) -> ContextSpace:
    """Return tasks whose coordinates are listed with their ends and, some of them, units: "mass 0.5 1.5 kg, wind -1 1"."""
    rows = ([*part.split(maxsplit=3), ""][:4] for part in text.split(", "))
    names, low, high, units = zip(*rows, strict=True)
    return ContextSpace(names, tuple(map(float, low)), tuple(map(float, high)), units)


@dataclass_transform(frozen_default=True)
class Family:
    """A family whose numbers all start uniformly and are all seen; actions are from -1 to 1, or `num_choices` of them.

    A class sets `name`, `state`, a named tuple, and `starts`: for every number of the state the bounds that it starts between,
    or where it always starts. It becomes a frozen dataclass, whose fields are the tasks and the options.
    """

    name: Any
    state: Any
    starts: Any

    packages: tuple[str, ...] = ()
    num_actions: Any = 1
    step_noise: Any = 0
    num_choices: Any = None
    num_observations: Any = property(lambda self: len(self.starts))
    reset_noise: Any = property(lambda self: sum(isinstance(start, tuple) for start in self.starts))
    action_range: Any = property(lambda self: (-1.0, 1.0) if self.num_choices is None else None)

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def reset(self, context: Context, noise: Scalars) -> State:
        """Draw the first state of an episode."""
        normals, starts = iter(noise), self.starts
        drawn = (to_uniform(next(normals), *at) if isinstance(at, tuple) else jnp.float32(at) for at in starts)
        return self.state(*drawn)

    def observe(self, context: Context, state: State) -> Scalars:
        """Return all numbers of the state."""
        return tuple(state)


def clipped(action: Scalars) -> Scalars:
    """Return an action within its range."""
    return tuple(jnp.clip(part, -1.0, 1.0) for part in action)


def cell_of(normal: Array, size: int) -> Array:
    """Return a uniform whole number from 0 to size - 1."""
    return jnp.clip(jnp.floor(to_uniform(normal, 0.0, float(size))), 0.0, size - 1.0)


def centred(cell: Array, size: int) -> Array:
    """Return a whole number from 0 to size - 1 as one from -1 to 1."""
    return 2.0 * cell / (size - 1.0) - 1.0

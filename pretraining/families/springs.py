"""Three masses in a row between two walls, joined by springs: push the first one so that the last one rests at a target."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, to_uniform


class SpringsState(NamedTuple):
    """Where the masses are, from their rest, and how fast they move."""

    places: tuple[Array, Array, Array]
    speeds: tuple[Array, Array, Array]


@dataclass(frozen=True)
class Springs:
    """A step pays minus the squared distance of the last mass to the target, and minus 0.01 times the squared action.

    The action is a share of the motor's force, cut off at -1 and 1. An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(
        ("mass", "stiffness", "damping", "force", "target"),
        (0.5, 2.0, 0.1, 2.0, -0.5),
        (1.5, 8.0, 0.5, 4.0, 0.5),
        ("kg", "N/m", "N s/m", "N", "m"),
    )

    name, packages = "springs", ()
    num_observations, num_actions, reset_noise, step_noise = 7, 1, 3, 0
    action_range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> SpringsState:
        first, second, third = (to_uniform(normal, -0.2, 0.2) for normal in noise)
        still = jnp.zeros_like(first)
        return SpringsState((first, second, third), (still, still, still))

    def observe(self, context: Context, state: SpringsState) -> tuple[Array, ...]:
        """Places, speeds, and how far the last mass is from the target."""
        return *state.places, *state.speeds, state.places[2] - context.target

    def step(self, context: Context, state: SpringsState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        share = self.share(action[0])

        def derivative(state: SpringsState) -> SpringsState:
            (left, middle, right), speeds = state
            pulls = (middle - 2.0 * left, left - 2.0 * middle + right, middle - 2.0 * right)
            pushes = (context.force * share, 0.0, 0.0)
            parts = zip(pulls, speeds, pushes, strict=True)
            rates = [(context.stiffness * a - context.damping * b + c) / context.mass for a, b, c in parts]
            return SpringsState(speeds, (rates[0], rates[1], rates[2]))

        moved = runge_kutta(derivative, state, 0.1)
        return Step(moved, -((moved.places[2] - context.target) ** 2) - 0.01 * share**2, jnp.bool_(False))

    def share(self, action: Array) -> Array:
        """Return the share of the motor's force that an action takes."""
        return jnp.clip(action, -1.0, 1.0)


@dataclass(frozen=True)
class DiscreteSprings(Springs):
    """The same with full force to the left (0), none (1) or full force to the right (2)."""

    name, num_choices, action_range = "springs-discrete", 3, None

    def share(self, action: Array) -> Array:
        return action.astype(jnp.float32) - 1.0

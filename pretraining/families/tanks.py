"""Three water tanks in a cascade: pump into the first one so that the last one has the right level."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform


class TanksState(NamedTuple):
    """Levels."""

    first: Array
    second: Array
    third: Array


@dataclass(frozen=True)
class Tanks:
    """Set the pump between off (-1) and full power (1); a step pays minus the distance of the last level to the target.

    A tank loses the square root of its level times its leak, into the next one; what overflows at 2 is lost.
    """

    context_space: ContextSpace = ContextSpace(
        ("power", "leak_1", "leak_2", "leak_3", "target"), (1.2, 0.6, 0.6, 0.6, 0.4), (2.0, 1.0, 1.0, 1.0, 1.0)
    )

    name, packages = "tanks", ()
    num_observations, num_actions, reset_noise, step_noise = 4, 1, 3, 0
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> TanksState:
        return TanksState(*(to_uniform(normal, 0.0, 1.0) for normal in noise))

    def observe(self, context: Context, state: TanksState) -> tuple[Array, ...]:
        """Levels, and how much the last one lacks."""
        return *state, context.target - state.third

    def step(self, context: Context, state: TanksState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        flow, levels = 0.5 * context.power * (1.0 + jnp.clip(action[0], *self.action_range)), []
        for level, leak in zip(state, (context.leak_1, context.leak_2, context.leak_3), strict=True):
            lost = jnp.minimum(leak * jnp.sqrt(level), 10.0 * level)
            levels.append(jnp.clip(level + 0.1 * (flow - lost), 0.0, 2.0))
            flow = lost
        return Step(TanksState(*levels), -jnp.abs(levels[2] - context.target), jnp.bool_(False))

"""Keep predators and prey in balance by hunting the predators (Lotka and Volterra's equations)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, runge_kutta, to_uniform


class PreyState(NamedTuple):
    """How many prey and predators there are, in units of a balance of neither hunting nor growth."""

    prey: Array
    predators: Array


@dataclass(frozen=True)
class Prey:
    """Hunt prey and predators, each with an effort between none (-1) and full (1); a step pays how near both are to a target.

    An episode ends where either is below a twentieth.
    """

    context_space: ContextSpace = ContextSpace(
        ("growth", "death", "effort", "target"), (0.5, 0.5, 0.5, 0.6), (1.5, 1.5, 1.0, 1.4)
    )

    name, packages = "prey", ()
    num_observations, num_actions, reset_noise, step_noise = 2, 2, 2, 2
    action_range = (-1.0, 1.0)

    def reset(self, context: Context, noise: tuple[Array, ...]) -> PreyState:
        return PreyState(*(to_uniform(normal, 0.3, 2.0) for normal in noise))

    def observe(self, context: Context, state: PreyState) -> tuple[Array, ...]:
        """Logarithms."""
        return jnp.log(state.prey), jnp.log(state.predators)

    def step(self, context: Context, state: PreyState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        efforts = [context.effort * 0.5 * (1.0 + jnp.clip(part, *self.action_range)) for part in action]

        def derivative(state: PreyState) -> PreyState:
            prey = state.prey * (context.growth * (1.0 - state.predators) - efforts[0])
            return PreyState(prey, state.predators * (context.death * (state.prey - 1.0) - efforts[1]))

        moved = runge_kutta(derivative, state, 0.1)
        after = PreyState(*(jnp.clip(x * (1.0 + 0.02 * z), 0.01, 20.0) for x, z in zip(moved, noise, strict=True)))
        missed = (after.prey - context.target) ** 2 + (after.predators - 0.7) ** 2
        is_over = jnp.minimum(after.prey, after.predators) < 0.05
        return Step(after, jnp.exp(-missed), is_over)

"""Swim up a river, after RiverSwim (Strehl and Littman, 2008): a small reward is near, a large one far."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

PLACES = 8


class RiverState(NamedTuple):
    """The place, from 0."""

    place: Array


@dataclass(frozen=True)
class River:
    """Drift left (0) or swim right (1), which succeeds with the probability `strength`, else stays or, rarely, drifts.

    A step from the left end to itself pays `near`, swimming at the right end 1. An episode has no end but its time limit.
    """

    context_space: ContextSpace = ContextSpace(("strength", "current", "near"), (0.35, 0.02, 0.005), (0.7, 0.1, 0.05))

    name, packages = "river", ()
    num_observations, num_actions, reset_noise, step_noise = PLACES, 1, 1, 1
    num_choices = 2

    def reset(self, context: Context, noise: tuple[Array, ...]) -> RiverState:
        """At one of the two leftmost places."""
        return RiverState(jnp.where(noise[0] < 0.0, 0, 1).astype(jnp.int32))

    def observe(self, context: Context, state: RiverState) -> tuple[Array, ...]:
        """One number for each place, 1 where it is."""
        return tuple((state.place == index).astype(jnp.float32) for index in range(PLACES))

    def step(self, context: Context, state: RiverState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        chance = to_uniform(noise[0], 0.0, 1.0)
        swum = jnp.where(chance < context.strength, 1, jnp.where(chance > 1.0 - context.current, -1, 0))
        place = jnp.clip(state.place + jnp.where(action[0] == 1, swum, -1), 0, PLACES - 1)
        pays_near = (action[0] == 0) & (state.place == 0)
        is_far = (action[0] == 1) & (state.place == PLACES - 1) & (place == PLACES - 1)
        return Step(RiverState(place), jnp.where(pays_near, context.near, is_far.astype(jnp.float32)), jnp.bool_(False))

"""Collect treasures and avoid enemies that cross the field in lanes, after MinAtar's Asterix."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

LANES, EDGE, NEAR = 6, 4.0, 0.6


class AsterixState(NamedTuple):
    """Player, and in every lane what crosses it: its place, speed (0 where there is nothing) and whether it is a treasure."""

    x: Array
    lane: Array
    places: tuple[Array, ...]
    speeds: tuple[Array, ...]
    treasures: tuple[Array, ...]  # 1 or 0


@dataclass(frozen=True)
class Asterix:
    """Stay (0), move left (1), right (2), down (3) or up (4); a treasure pays 1 and is gone, an enemy ends the episode.

    In every step something may enter one lane, with the probability `rate` where the lane is empty, from either side.
    """

    context_space: ContextSpace = ContextSpace(("speed", "rate", "treasures"), (0.2, 0.3, 0.3), (0.6, 0.8, 0.6))

    name, packages = "asterix", ()
    num_observations, num_actions, reset_noise, step_noise = 2 + 3 * LANES, 1, 2, 3
    num_choices = 5

    def reset(self, context: Context, noise: tuple[Array, ...]) -> AsterixState:
        x = jnp.round(to_uniform(noise[0], -EDGE, EDGE))
        lane = jnp.clip(jnp.floor(to_uniform(noise[1], 0.0, float(LANES))), 0.0, LANES - 1.0)
        return AsterixState(x, lane, *((jnp.zeros_like(x),) * LANES,) * 3)

    def observe(self, context: Context, state: AsterixState) -> tuple[Array, ...]:
        """The player, and for every lane how far away its thing is, where it goes and whether it is a treasure."""
        beside = (
            (place - state.x) / EDGE * (speed != 0.0) for place, speed in zip(state.places, state.speeds, strict=True)
        )
        return (
            state.x / EDGE,
            2.0 * state.lane / (LANES - 1.0) - 1.0,
            *beside,
            *map(jnp.sign, state.speeds),
            *state.treasures,
        )

    def step(self, context: Context, state: AsterixState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        move, (which, chance, kind) = action[0], (to_uniform(normal, 0.0, 1.0) for normal in noise)
        x = jnp.clip(state.x + jnp.where(move == 2, 1.0, 0.0) - jnp.where(move == 1, 1.0, 0.0), -EDGE, EDGE)
        lane = jnp.clip(state.lane + jnp.where(move == 4, 1.0, 0.0) - jnp.where(move == 3, 1.0, 0.0), 0.0, LANES - 1.0)
        reward, is_over, things = jnp.float32(0.0), jnp.bool_(False), []
        side = jnp.where(
            kind < context.treasures, 2.0 * kind / context.treasures, 2.0 * (1.0 - kind) / (1.0 - context.treasures)
        )
        for number, (place, speed, treasure) in enumerate(zip(*state[2:], strict=True)):
            place = place + speed
            speed = jnp.where(jnp.abs(place) > EDGE + 1.0, 0.0, speed)
            enters = (speed == 0.0) & (jnp.floor(which * LANES) == number) & (chance < context.rate)
            start = jnp.where(side < 1.0, -EDGE, EDGE)
            place, speed = jnp.where(enters, start, place), jnp.where(enters, -jnp.sign(start) * context.speed, speed)
            treasure = jnp.where(enters, (kind < context.treasures).astype(jnp.float32), treasure)
            meets = (speed != 0.0) & (lane == number) & (jnp.abs(place - x) < NEAR)
            reward = reward + jnp.where(meets, treasure, 0.0)
            is_over = is_over | (meets & (treasure == 0.0))
            speed = jnp.where(meets, 0.0, speed)
            things.append((place, speed, jnp.where(speed == 0.0, 0.0, treasure)))
        places, speeds, treasures = zip(*things, strict=True)
        return Step(AsterixState(x, lane, places, speeds, treasures), reward, is_over)

"""Breakout on 10 x 10 cells, after MinAtar, with a paddle that may be wider and may skid."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform

SIZE, ROWS = 10, 3
FULL = 2 ** (SIZE * ROWS) - 1  # one bit a brick; the topmost row of the field has none


class BreakoutState(NamedTuple):
    """Cells of the paddle and the ball, row 0 on top, where the ball goes (-1 or 1), and the bricks as bits."""

    paddle: Array
    x: Array
    y: Array
    right: Array
    down: Array
    bricks: Array


@dataclass(frozen=True)
class Breakout:
    """Move left (0), not at all (1) or right (2); a brick that the ball hits pays 1, and a ball that is missed ends.

    The ball moves along diagonals and bounces off walls, bricks and paddle. The paddle stays with the probability `skid`
    and catches up to `reach` cells beside it; at its edge it sends the ball back where it came from. Bricks come again when
    all are gone.
    """

    context_space: ContextSpace = ContextSpace(("skid", "reach"), (0.0, 0.0), (0.3, 2.0))

    name, packages = "breakout", ()
    num_observations, num_actions, reset_noise, step_noise = 5 + SIZE, 1, 2, 1
    num_choices = 3

    def reset(self, context: Context, noise: tuple[Array, ...]) -> BreakoutState:
        """A ball below the bricks at either wall, on its way down."""
        right = jnp.where(noise[0] < 0.0, 1.0, -1.0)
        x = jnp.where(right > 0.0, 0.0, SIZE - 1.0)
        paddle = jnp.clip(jnp.floor(to_uniform(noise[1], 0.0, float(SIZE))), 0.0, SIZE - 1.0)
        return BreakoutState(paddle, x, jnp.full_like(x, 3.0), right, jnp.ones_like(x), jnp.int32(FULL))

    def observe(self, context: Context, state: BreakoutState) -> tuple[Array, ...]:
        """Places from -1 to 1, directions, and how many bricks every column has."""
        places = (2.0 * at / (SIZE - 1.0) - 1.0 for at in state[:3])
        counts = (sum((state.bricks >> (row * SIZE + x)) & 1 for row in range(ROWS)) for x in range(SIZE))
        return *places, state.right, state.down, *(jnp.asarray(count, jnp.float32) / ROWS for count in counts)

    def step(self, context: Context, state: BreakoutState, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        push = jnp.where(to_uniform(noise[0], 0.0, 1.0) < context.skid, 0.0, action[0].astype(jnp.float32) - 1.0)
        paddle = jnp.clip(state.paddle + push, 0.0, SIZE - 1.0)
        x, y = state.x + state.right, state.y + state.down
        right = jnp.where((x < 0.0) | (x > SIZE - 1.0), -state.right, state.right)
        x = jnp.clip(x, 0.0, SIZE - 1.0)
        place = ((y - 1.0) * SIZE + x).astype(jnp.int32)
        is_brick = (y >= 1.0) & (y <= ROWS) & (((state.bricks >> jnp.clip(place, 0, 30)) & 1) == 1)
        bricks = jnp.where(is_brick, state.bricks & ~(1 << jnp.clip(place, 0, 30)), state.bricks)
        is_low, beside = y >= SIZE - 1.0, jnp.abs(x - paddle)
        is_caught = is_low & (beside <= context.reach)
        right = jnp.where(is_caught & (beside > 0.0) & (beside + 1.0 > context.reach), -state.right, right)
        turns = is_brick | is_caught | (y < 0.0)
        bricks = jnp.where(is_caught & (bricks == 0), FULL, bricks)
        after = BreakoutState(
            paddle, x, jnp.where(turns, state.y, y), right, jnp.where(turns, -state.down, state.down), bricks
        )
        return Step(after, is_brick.astype(jnp.float32), is_low & ~is_caught)

"""Navigation in the plane: reach a goal that differs from task to task (paper, appendix B.1; after MAML's point robot)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep.contexts import ContextSpace
from metastep.envs.base import Context, Step


class Position(NamedTuple):
    """Where the agent is."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Nav2D:
    """Start at the origin, move at most 0.1 along each axis, pay the distance to the goal after every move."""

    context_space: ContextSpace = ContextSpace(("goal_x", "goal_y"), (-0.5, -0.5), (0.5, 0.5))
    max_move: float = 0.1
    goal_radius: float = 0.01

    name: ClassVar[str] = "nav2d"
    packages: ClassVar[tuple[str, ...]] = ()
    num_observations, num_actions = 2, 2
    reset_noise, step_noise = 0, 0

    def reset(self, context: Context, noise: tuple[Array, ...]) -> Position:
        return Position(jnp.float32(0.0), jnp.float32(0.0))

    def observe(self, context: Context, state: Position) -> tuple[Array, ...]:
        """The position; the goal has to be found."""
        return state.x, state.y

    def step(self, context: Context, state: Position, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        x = state.x + jnp.clip(action[0], -self.max_move, self.max_move)
        y = state.y + jnp.clip(action[1], -self.max_move, self.max_move)
        distance = jnp.sqrt((x - context.goal_x) ** 2 + (y - context.goal_y) ** 2)
        return Step(Position(x, y), -distance, distance < self.goal_radius)

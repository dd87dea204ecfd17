"""Navigation in the plane: reach a goal that differs from task to task (paper, appendix B.1; after MAML's point robot)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Positive, check_fields
from metastep.envs.base import Context, Step
from metastep.envs.contexts import ContextSpace


class Position(NamedTuple):
    """Where the agent is."""

    x: Array
    y: Array


_GOALS = ContextSpace(("goal_x", "goal_y"), (-0.5, -0.5), (0.5, 0.5))


@dataclass(frozen=True)
class Nav2D:
    """Start at the origin, move at most 0.1 along each axis, pay the distance to the goal after every move.

    Args:
        goal_range: the goals' coordinates are uniform on plus and minus this. The paper's prose has 1, its list of parameters
            0.5.
        goal_radius: an episode ends this near to the goal; the paper does not say how near.
    """

    context_space: ContextSpace = _GOALS
    goal_range: Positive = field(default=0.5, metadata={"of": "tasks"})  # another range is the same environment
    max_move: float = 0.1
    goal_radius: float = 0.01

    name, packages = "nav2d", ()
    num_observations, num_actions, reset_noise, step_noise = 2, 2, 0, 0

    def __post_init__(self) -> None:
        check_fields(self, "env")
        if self.context_space == _GOALS:
            ends = (self.goal_range, self.goal_range)
            space = ContextSpace(_GOALS.names, (-ends[0], -ends[1]), ends)
            object.__setattr__(self, "context_space", space)

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

"""Find the way to a goal: on grids, through a door, round an obstacle; most rewards are sparse."""

from collections import namedtuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs.base import State
from pretraining.families.base import Family, Scalars, cell_of, centred, clipped, tasks

SIZE = 7
Cell = namedtuple("Cell", "column row key")  # whole numbers from 0, and whether the key was found, 1 or 0
Place = namedtuple("Place", "x y")  # from -1 to 1
RoomState = namedtuple("RoomState", "x y x_speed y_speed")


def moved(cell: Cell, move: Array) -> tuple[Array, Array]:
    """Return the cell to the left (0), right (1), below (2) or above (3), or the same at a wall."""
    way, along = (2 * (move % 2) - 1).astype(jnp.float32), move < 2
    column, row = cell.column + jnp.where(along, way, 0.0), cell.row + jnp.where(along, 0.0, way)
    return jnp.clip(column, 0.0, SIZE - 1.0), jnp.clip(row, 0.0, SIZE - 1.0)


class _OnGrid(Family):
    """Starts in any cell of a grid of 7 x 7 cells, and sees it."""

    num_choices, reset_noise, num_observations = 4, 2, 2

    def reset(self, context: Context, noise: Scalars) -> Cell:
        return Cell(cell_of(noise[0], SIZE), cell_of(noise[1], SIZE), jnp.float32(0.0))

    def observe(self, context: Context, state: State) -> Scalars:
        return centred(state.column, SIZE), centred(state.row, SIZE)


class Grid(_OnGrid):
    """Move left (0), right (1), down (2) or up (3) on 7 x 7 cells; every step pays -1, and reaching the goal 0, which ends.

    With the probability `slip` the move is another one, each as likely. The goal is not seen.
    """

    context_space: ContextSpace = tasks("goal_column 0 6, goal_row 0 6, slip 0 0.3")
    name, step_noise = "grid", 1

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        chance = to_uniform(noise[0], 0.0, 1.0)
        other = 1 + jnp.clip(jnp.floor(3.0 * chance / jnp.maximum(context.slip, 1e-6)), 0.0, 2.0).astype(jnp.int32)
        column, row = moved(state, jnp.where(chance < context.slip, (action[0] + other) % 4, action[0]))
        is_there = (column == jnp.round(context.goal_column)) & (row == jnp.round(context.goal_row))
        return Step(Cell(column, row, state.key), jnp.where(is_there, 0.0, -1.0), is_there)


class Key(_OnGrid):
    """Move as on a grid, without slips: the exit pays 1 and ends, once the cell of the key was visited.

    Args:
        cost: what every step costs.
    """

    context_space: ContextSpace = tasks("key_column 0 6, key_row 0 6, exit_column 0 6, exit_row 0 6")
    cost: float = 0.0
    name, num_observations = "key", 7

    def observe(self, context: Context, state: State) -> Scalars:
        """The cell, whether it has the key, and where key and exit are from here."""
        columns = ((jnp.round(goal) - state.column) / SIZE for goal in (context.key_column, context.exit_column))
        rows = ((jnp.round(goal) - state.row) / SIZE for goal in (context.key_row, context.exit_row))
        return *super().observe(context, state), state.key, *columns, *rows

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        column, row = moved(state, action[0])
        at_key = (column == jnp.round(context.key_column)) & (row == jnp.round(context.key_row))
        key = jnp.where(at_key, 1.0, state.key)
        is_out = (column == jnp.round(context.exit_column)) & (row == jnp.round(context.exit_row)) & (key == 1.0)
        return Step(Cell(column, row, key), is_out.astype(jnp.float32) - self.cost, is_out)


class Door(Family):
    """Move by up to `speed` along each axis from the left room to a goal in the right one, which pays 1 and ends.

    Args:
        wall: whether there is a wall at x = 0, open for 0.25 on either side of the height `door`.
        dense: whether every step pays how much nearer the goal is than before, too.
    """

    context_space: ContextSpace = tasks("door -.7 .7, goal_x .3 .9, goal_y -.8 .8, speed .1 .2, drift -.02 .02")
    wall: bool = True
    dense: bool = False
    name, state, starts, num_actions, num_observations = "door", Place, ((-0.9, -0.1), (-0.9, 0.9)), 2, 4

    def observe(self, context: Context, state: State) -> Scalars:
        """Place, how high the door is from here, and how far the goal is."""
        return state.x, state.y, context.door - state.y, self.distance(context, state)

    def distance(self, context: Context, state: State) -> Array:
        """Return how far the goal is, as the crow flies."""
        return jnp.hypot(context.goal_x - state.x, context.goal_y - state.y)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        push_x, push_y = clipped(action)
        x = jnp.clip(state.x + context.speed * push_x, -1.0, 1.0)
        y = jnp.clip(state.y + context.speed * push_y + context.drift, -1.0, 1.0)
        is_stopped = (x * state.x <= 0.0) & (jnp.abs(y - context.door) > 0.25) & self.wall
        after = Place(jnp.where(is_stopped, jnp.where(state.x < 0.0, -0.01, 0.01), x), y)
        is_there = self.distance(context, after) < 0.2
        nearer = self.distance(context, state) - self.distance(context, after) if self.dense else 0.0
        return Step(after, is_there.astype(jnp.float32) + nearer, is_there)


class Room(Family):
    """Push the agent, which slides, from the left wall to a goal at the right wall, round a round obstacle.

    A step pays minus the distance to the goal, and -1 more where the agent runs into the obstacle, which stops it. Walls stop
    it, too. An episode ends within 0.1 of the goal.
    """

    context_space: ContextSpace = tasks("goal -0.8 0.8, obstacle -0.4 0.4, radius 0.2 0.4, power 1 3, drag 0.2 1")
    name, state, starts, num_actions, num_observations = "room", RoomState, (-0.9, (-0.8, 0.8), 0.0, 0.0), 2, 6

    def observe(self, context: Context, state: State) -> Scalars:
        """The state, how high the goal is from here, and how far the edge of the obstacle."""
        return *state, context.goal - state.y, jnp.hypot(state.x, state.y - context.obstacle) - context.radius

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        pushes = zip(state[2:], clipped(action), strict=True)
        speeds = [speed + 0.1 * (context.power * push - context.drag * speed) for speed, push in pushes]
        x, y = (jnp.clip(at + 0.1 * speed, -1.0, 1.0) for at, speed in zip(state[:2], speeds, strict=True))
        hits = jnp.hypot(x, y - context.obstacle) < context.radius
        x, y = jnp.where(hits, state.x, x), jnp.where(hits, state.y, y)
        stops = (hits | (jnp.abs(at) >= 1.0) for at in (x, y))
        speeds = [jnp.where(stop, 0.0, speed) for stop, speed in zip(stops, speeds, strict=True)]
        distance = jnp.hypot(x - 0.9, y - context.goal)
        return Step(RoomState(x, y, *speeds), -distance - hits.astype(jnp.float32), distance < 0.1)

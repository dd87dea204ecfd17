"""Games on a small field, some after bsuite and MinAtar (Young and Tian, 2019), seen as a few numbers, and ways to a goal."""

from collections import namedtuple

import jax.numpy as jnp
from jax import Array

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs.base import State
from pretraining.families.base import Family, Scalars, cell_of, centred, clipped, tasks

CatchState = namedtuple("CatchState", "ball height paddle")  # across from -1 to 1, and from 1 down to 0
PursuitState = namedtuple("PursuitState", "x y other_x other_y")  # where both are, from -1 to 1
SIZE, ROWS = 10, 3
FULL = 2 ** (SIZE * ROWS) - 1  # one bit a brick; the topmost row of the field has none
BreakoutState = namedtuple("BreakoutState", "paddle x y right down bricks")  # row 0 is on top; directions are -1 or 1
ROAD, WIDTH = 8, 10.0  # lanes, and where cars come again
FreewayState = namedtuple("FreewayState", "row cars")  # the walker's, from 0 to 9, and where the cars are from it
LANES, EDGE = 6, 4.0
AsterixState = namedtuple("AsterixState", "x lane places speeds treasures")  # by lane; speed 0 is nothing there
CELLS = 7
Cell = namedtuple("Cell", "column row key")  # whole numbers from 0, and whether the key was found, 1 or 0
Place = namedtuple("Place", "x y")  # from -1 to 1
RoomState = namedtuple("RoomState", "x y x_speed y_speed")


class Catch(Family):
    """Move the paddle left (0), not at all (1) or right (2); the ball that reaches it pays 1, one that does not -1, and ends."""

    context_space: ContextSpace = tasks("fall 0.05 0.1, wind -0.03 0.03, speed 0.06 0.15, width 0.1 0.25")
    name, state, starts, num_choices = "catch", CatchState, ((-1.0, 1.0), 1.0, (-0.3, 0.3)), 3

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        push = context.speed * (action[0].astype(jnp.float32) - 1.0)
        ball, paddle = (jnp.clip(at, -1.0, 1.0) for at in (state.ball + context.wind, state.paddle + push))
        height = state.height - context.fall
        is_down, is_caught = height <= 0.0, jnp.abs(ball - paddle) < context.width
        reward = jnp.where(is_down, jnp.where(is_caught, 1.0, -1.0), 0.0)
        return Step(CatchState(ball, height, paddle), reward, is_down)


class Pursuit(Family):
    """Stay (0) or run left (1), right (2), down (3) or up (4); a step pays minus the distance, a catch 5, which ends.

    The other one runs straight away, slower by the factor `pace`, and stumbles about.
    """

    context_space: ContextSpace = tasks("speed 0.08 0.16, pace 0.3 0.8, stumble 0 0.05")
    name, state, starts, num_choices = "pursuit", PursuitState, ((-0.9, 0.9),) * 4, 5
    num_observations, step_noise = 6, 2

    def observe(self, context: Context, state: State) -> Scalars:
        return *state, state.other_x - state.x, state.other_y - state.y

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        way = jnp.where(action[0] % 2 == 0, context.speed, -context.speed) * (action[0] > 0)
        x, y = state.x + jnp.where(action[0] < 3, way, 0.0), state.y + jnp.where(action[0] < 3, 0.0, way)
        run = context.pace * context.speed / (jnp.hypot(state.other_x - x, state.other_y - y) + 1e-6)
        other_x = state.other_x + run * (state.other_x - x) + context.stumble * noise[0]
        other_y = state.other_y + run * (state.other_y - y) + context.stumble * noise[1]
        after = PursuitState(*(jnp.clip(at, -1.0, 1.0) for at in (x, y, other_x, other_y)))
        far = jnp.hypot(after.other_x - after.x, after.other_y - after.y)
        return Step(after, jnp.where(far < 0.15, 5.0, -far), far < 0.15)


class Breakout(Family):
    """Move left (0), not at all (1) or right (2); a brick that the ball hits pays 1, and a ball that is missed ends.

    The ball moves along diagonals and bounces off walls, bricks and paddle. The paddle stays with the probability `skid`
    and catches up to `reach` cells beside it; at its edge it sends the ball back where it came from. Bricks come again when
    all are gone.
    """

    context_space: ContextSpace = tasks("skid 0 0.3, reach 0 2")
    name, num_choices, num_observations, reset_noise, step_noise = "breakout", 3, 5 + SIZE, 2, 1

    def reset(self, context: Context, noise: Scalars) -> State:
        """A ball below the bricks at either wall, on its way down."""
        right = jnp.where(noise[0] < 0.0, 1.0, -1.0)
        start = jnp.where(right > 0.0, 0.0, SIZE - 1.0), jnp.float32(3.0), right, jnp.float32(1.0)
        return BreakoutState(cell_of(noise[1], SIZE), *start, jnp.int32(FULL))

    def observe(self, context: Context, state: State) -> Scalars:
        """Places from -1 to 1, directions, and how many bricks every column has."""
        counts = (sum((state.bricks >> (row * SIZE + x)) & 1 for row in range(ROWS)) for x in range(SIZE))
        columns = (jnp.asarray(count, jnp.float32) / ROWS for count in counts)
        return *(centred(at, SIZE) for at in state[:3]), state.right, state.down, *columns

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        push = jnp.where(to_uniform(noise[0], 0.0, 1.0) < context.skid, 0.0, action[0].astype(jnp.float32) - 1.0)
        paddle = jnp.clip(state.paddle + push, 0.0, SIZE - 1.0)
        x, y = state.x + state.right, state.y + state.down
        right = jnp.where((x < 0.0) | (x > SIZE - 1.0), -state.right, state.right)
        x = jnp.clip(x, 0.0, SIZE - 1.0)
        place = jnp.clip(((y - 1.0) * SIZE + x).astype(jnp.int32), 0, SIZE * ROWS)
        is_brick = (y >= 1.0) & (y <= ROWS) & (((state.bricks >> place) & 1) == 1)
        bricks = jnp.where(is_brick, state.bricks & ~(1 << place), state.bricks)
        is_low, beside = y >= SIZE - 1.0, jnp.abs(x - paddle)
        is_caught = is_low & (beside <= context.reach)
        right = jnp.where(is_caught & (beside > 0.0) & (beside + 1.0 > context.reach), -state.right, right)
        bricks = jnp.where(is_caught & (bricks == 0), FULL, bricks)
        turns = is_brick | is_caught | (y < 0.0)
        y, down = jnp.where(turns, state.y, y), jnp.where(turns, -state.down, state.down)
        return Step(BreakoutState(paddle, x, y, right, down, bricks), is_brick.astype(jnp.float32), is_low & ~is_caught)


class Freeway(Family):
    """Go back (0), stay (1) or go ahead (2); the other side pays 1 and a car pays nothing, and both lead back to the start.

    Cars of neighbouring lanes differ in speed and direction. An episode has no end but its time limit.
    """

    context_space: ContextSpace = tasks("speed 0.3 0.9, phase 0 6, length 0.5 1.5")
    name, num_choices, num_observations, reset_noise = "freeway", 3, 1 + ROAD, ROAD

    def reset(self, context: Context, noise: Scalars) -> State:
        return FreewayState(jnp.float32(0.0), tuple(to_uniform(z, -0.5 * WIDTH, 0.5 * WIDTH) for z in noise))

    def observe(self, context: Context, state: State) -> Scalars:
        return state.row / (ROAD + 1.0), *(2.0 * car / WIDTH for car in state.cars)

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        row, is_hit, cars = state.row + action[0].astype(jnp.float32) - 1.0, jnp.bool_(False), []
        for lane, car in enumerate(state.cars, 1):
            moved = car + context.speed * (1.0 + 0.5 * jnp.sin(context.phase + 2.4 * lane)) * (-1) ** lane
            cars.append(moved - WIDTH * jnp.round(moved / WIDTH))
            is_hit = is_hit | ((row == lane) & (jnp.abs(cars[-1]) < 0.5 * context.length))
        is_over = row > ROAD
        row = jnp.where(is_hit | is_over, 0.0, jnp.maximum(row, 0.0))
        return Step(FreewayState(row, tuple(cars)), is_over.astype(jnp.float32), jnp.bool_(False))


class Asterix(Family):
    """Stay (0), move left (1), right (2), down (3) or up (4); a treasure pays 1 and is gone, an enemy ends the episode.

    In every step something may enter one lane, with the probability `rate` where the lane is empty, from either side.
    """

    context_space: ContextSpace = tasks("speed 0.2 0.6, rate 0.3 0.8, treasures 0.3 0.6")
    name, num_choices, num_observations, reset_noise, step_noise = "asterix", 5, 2 + 3 * LANES, 2, 4

    def reset(self, context: Context, noise: Scalars) -> State:
        nothing = ((jnp.float32(0.0),) * LANES,) * 3
        return AsterixState(jnp.round(to_uniform(noise[0], -EDGE, EDGE)), cell_of(noise[1], LANES), *nothing)

    def observe(self, context: Context, state: State) -> Scalars:
        """The player, and for every lane how far away its thing is, where it goes and whether it is a treasure."""
        things = zip(state.places, state.speeds, strict=True)
        beside = (jnp.where(speed == 0.0, 0.0, (place - state.x) / EDGE) for place, speed in things)
        return state.x / EDGE, centred(state.lane, LANES), *beside, *map(jnp.sign, state.speeds), *state.treasures

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        left, right, down, up = ((action[0] == move).astype(jnp.float32) for move in range(1, 5))
        x, lane = jnp.clip(state.x + right - left, -EDGE, EDGE), jnp.clip(state.lane + up - down, 0.0, LANES - 1.0)
        chance, kind = (to_uniform(normal, 0.0, 1.0) for normal in noise[1:3])
        start = jnp.where(noise[3] < 0.0, -EDGE, EDGE)
        reward, is_over, things = jnp.float32(0.0), jnp.bool_(False), []
        for number, (place, speed, treasure) in enumerate(zip(*state[2:], strict=True)):
            place = place + speed
            is_empty = (speed == 0.0) | (jnp.abs(place) > EDGE + 1.0)
            enters = is_empty & (cell_of(noise[0], LANES) == number) & (chance < context.rate)
            speed = jnp.where(is_empty, jnp.where(enters, -jnp.sign(start) * context.speed, 0.0), speed)
            place = jnp.where(enters, start, place)
            treasure = jnp.where(is_empty, (enters & (kind < context.treasures)).astype(jnp.float32), treasure)
            meets = (speed != 0.0) & (lane == number) & (jnp.abs(place - x) < 0.6)
            reward, is_over = reward + jnp.where(meets, treasure, 0.0), is_over | (meets & (treasure == 0.0))
            things.append((place, jnp.where(meets, 0.0, speed), jnp.where(meets, 0.0, treasure)))
        return Step(AsterixState(x, lane, *zip(*things, strict=True)), reward, is_over)


def moved(cell: Cell, move: Array) -> tuple[Array, Array]:
    """Return the cell to the left (0), right (1), below (2) or above (3), or the same at a wall."""
    way, along = (2 * (move % 2) - 1).astype(jnp.float32), move < 2
    column, row = cell.column + jnp.where(along, way, 0.0), cell.row + jnp.where(along, 0.0, way)
    return jnp.clip(column, 0.0, CELLS - 1.0), jnp.clip(row, 0.0, CELLS - 1.0)


class _OnGrid(Family):
    """Starts in any cell of a grid of 7 x 7 cells, and sees it."""

    num_choices, reset_noise, num_observations = 4, 2, 2

    def reset(self, context: Context, noise: Scalars) -> Cell:
        return Cell(cell_of(noise[0], CELLS), cell_of(noise[1], CELLS), jnp.float32(0.0))

    def observe(self, context: Context, state: State) -> Scalars:
        return centred(state.column, CELLS), centred(state.row, CELLS)


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
    """Move as on a grid, without slips: the exit pays 1 and ends, once the cell of the key was visited."""

    context_space: ContextSpace = tasks("key_column 0 6, key_row 0 6, exit_column 0 6, exit_row 0 6")
    cost: float = 0.0  # what every step costs
    name, num_observations = "key", 7

    def observe(self, context: Context, state: State) -> Scalars:
        """The cell, whether it has the key, and where key and exit are from here."""
        columns = ((jnp.round(goal) - state.column) / CELLS for goal in (context.key_column, context.exit_column))
        rows = ((jnp.round(goal) - state.row) / CELLS for goal in (context.key_row, context.exit_row))
        return *super().observe(context, state), state.key, *columns, *rows

    def step(self, context: Context, state: State, action: Scalars, noise: Scalars) -> Step:
        column, row = moved(state, action[0])
        at_key = (column == jnp.round(context.key_column)) & (row == jnp.round(context.key_row))
        key = jnp.where(at_key, 1.0, state.key)
        is_out = (column == jnp.round(context.exit_column)) & (row == jnp.round(context.exit_row)) & (key == 1.0)
        return Step(Cell(column, row, key), is_out.astype(jnp.float32) - self.cost, is_out)


class Door(Family):
    """Move by up to `speed` along each axis from the left room to a goal in the right one, which pays 1 and ends."""

    context_space: ContextSpace = tasks("door -.7 .7, goal_x .3 .9, goal_y -.8 .8, speed .1 .2, drift -.02 .02")
    wall: bool = True  # whether there is a wall at x = 0, open for 0.25 on either side of the height `door`
    dense: bool = False  # whether every step pays how much nearer the goal is than before, too
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

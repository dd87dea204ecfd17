"""Games on a small field, some of them after bsuite and MinAtar (Young and Tian, 2019), seen as a few numbers."""

from collections import namedtuple

import jax.numpy as jnp

from metastep.envs import Context, ContextSpace, Step, to_uniform
from metastep.envs.base import State
from pretraining.families.base import Family, Scalars, cell_of, centred, tasks

CatchState = namedtuple("CatchState", "ball height paddle")  # across from -1 to 1, and from 1 down to 0
PursuitState = namedtuple("PursuitState", "x y other_x other_y")  # where both are, from -1 to 1
SIZE, ROWS = 10, 3
FULL = 2 ** (SIZE * ROWS) - 1  # one bit a brick; the topmost row of the field has none
BreakoutState = namedtuple("BreakoutState", "paddle x y right down bricks")  # row 0 is on top; directions are -1 or 1
ROAD, WIDTH = 8, 10.0  # lanes, and where cars come again
FreewayState = namedtuple("FreewayState", "row cars")  # the walker's, from 0 to 9, and where the cars are from it
LANES, EDGE = 6, 4.0
AsterixState = namedtuple("AsterixState", "x lane places speeds treasures")  # by lane; speed 0 is nothing there


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

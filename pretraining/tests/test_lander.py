"""The lander falls, turns and is paid as closed forms say, and can be landed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretraining.families.systems import Lander, LanderState

ENV, DT = Lander(), 0.05
SPACE = ENV.context_space
TASK = (1.6, 6.0, 1.1, 0.3, 0.15)  # gravity, power, mass, inertia, wind


def move(state: Any, action: int, task: Any = TASK) -> Any:
    numbers = LanderState(*(jnp.float32(value) for value in state))
    return ENV.step(SPACE.unpack(jnp.asarray(task, jnp.float32)), numbers, (jnp.int32(action),), ())


def fly(state: Any, action: int, steps: int) -> np.ndarray:
    """States (steps, 6) of one action held."""

    @jax.jit
    def flown() -> Any:
        start = LanderState(*(jnp.float32(value) for value in state))
        return jax.lax.scan(lambda now, _: (move(now, action).state,) * 2, start, None, length=steps)[1]

    return np.stack(flown(), axis=1)


@pytest.mark.parametrize("action", [0, 1, 2, 3])
def test_bodies_fall_and_turn_as_in_closed_form(action: int) -> None:
    """Upright and without spin, all forces of no engine and of the main one are constant, and so is every torque."""
    gravity, power, mass, inertia, wind = TASK
    steps = 40 if action in (0, 2) else 1  # a side engine tilts itself
    time = DT * np.arange(1, steps + 1)
    found = fly((0.5, 8.0, 0.0, -0.7, 0.3, 0.0), action, steps)
    side = {1: 0.1 * power, 3: -0.1 * power}.get(action, 0.0)  # the left engine pushes to the right
    up = (power if action == 2 else 0.0) / mass - gravity
    np.testing.assert_allclose(found[:, 0], 0.5 - 0.7 * time + (wind + side) / mass * time**2 / 2, rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], 8.0 + 0.3 * time + up * time**2 / 2, rtol=1e-5)
    np.testing.assert_allclose(found[:, 4], 0.3 + up * time, rtol=1e-4, atol=1e-5)
    spun = fly((0.5, 8.0, 0.2, -0.7, 0.3, -0.4), action, 20)
    time, turn = DT * np.arange(1, 21), -side * 0.5 / inertia  # a push above the centre, at 0.5 m
    np.testing.assert_allclose(spun[:, 2], 0.2 - 0.4 * time + turn * time**2 / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(spun[:, 5], -0.4 + turn * time, rtol=1e-4, atol=1e-5)


def test_a_tilted_engine_pushes_along_the_body() -> None:
    """At a tilt of 0.3 to the left the main engine pushes up and to the left, at right angles to the side engines."""
    pushes = {}
    for action in range(4):
        after = move((0.0, 8.0, 0.3, 0.0, 0.0, 0.0), action).state
        pushes[action] = np.array([after.x_speed, after.y_speed]) / DT
    still = pushes[0]
    np.testing.assert_allclose(pushes[2] - still, 6.0 / 1.1 * np.array([-np.sin(0.3), np.cos(0.3)]), rtol=1e-4)
    np.testing.assert_allclose(pushes[1] - still, 0.6 / 1.1 * np.array([np.cos(0.3), np.sin(0.3)]), rtol=1e-3)
    np.testing.assert_allclose(pushes[3] - still, still - pushes[1], atol=1e-4)


@pytest.mark.parametrize(
    ("state", "reward"),
    [
        ((3.0, 0.51, 0.0, 0.3, -0.8, 0.1), 100.0),  # soft, wherever it is
        ((0.0, 0.51, 0.0, 0.0, -1.0, 0.0), -100.0),  # too fast: gravity adds to it
        ((0.0, 0.51, 0.0, 1.1, -0.5, 0.0), -100.0),  # sideways
        ((0.0, 0.60, 0.35, 0.0, -0.5, 0.0), -100.0),  # tilted: the lower foot touches first
        ((0.0, 0.51, 0.0, 0.0, -0.5, 0.6), -100.0),  # turning
        ((9.99, 5.0, 0.0, 2.0, 0.0, 0.0), -100.0),  # beside the field
        ((0.0, 15.99, 0.0, 0.0, 2.0, 0.0), -100.0),  # above it
        ((0.0, 0.60, 0.0, 0.0, -0.5, 0.0), None),  # in the air, the same height as the tilted one
    ],
)
def test_how_episodes_end(state: Any, reward: float | None) -> None:
    after = move(state, 0)
    assert bool(after.terminated) == (reward is not None)
    assert reward is None or after.reward == reward


def test_rewards_add_up_to_the_change_of_the_potential_less_fuel() -> None:
    def potential(state: Any) -> float:
        x, y, angle, x_speed, y_speed, _ = (float(value) for value in state)
        return -100.0 * (np.hypot(x, y - 0.5) / 10.0 + np.hypot(x_speed, y_speed) / 5.0 + abs(angle))

    state, total, costs = LanderState(*map(np.float32, (1.0, 8.0, 0.1, -0.5, -0.5, 0.0))), 0.0, (0.0, 0.03, 0.3, 0.03)
    start = potential(state)
    for action in (0, 2, 2, 1, 3, 2, 1, 0):
        after = move(state, action)
        total, state = total + float(after.reward) + costs[action], after.state
    assert total == pytest.approx(potential(state) - start, abs=1e-3)


def test_left_and_right_are_alike() -> None:
    rng = np.random.default_rng(0)
    for action, other in ((0, 0), (1, 3), (2, 2), (3, 1)):
        state = rng.uniform((-9, 2, -1, -3, -3, -1), (9, 8, 1, 3, 3, 1))
        mirror = state * (-1, 1, -1, -1, 1, -1)
        here, there = move(state, action), move(mirror, other, (*TASK[:4], -TASK[4]))
        np.testing.assert_allclose(np.array(here.state) * (-1, 1, -1, -1, 1, -1), there.state, atol=1e-5)
        assert here.reward == pytest.approx(float(there.reward), abs=1e-3)


def test_a_simple_pilot_lands_in_all_corners_of_the_family_and_a_random_one_does_not() -> None:
    def pilot(seen: Any, random: Any) -> Any:
        x, y, x_speed, y_speed, angle, spin = seen
        lean = jnp.clip(0.5 * x + 4.0 * x_speed, -0.3, 0.3)  # to the left where it is, or drifts, to the right
        turn = lean - angle - 2.0 * spin
        is_fast = 5.0 * y_speed < -0.6 - 2.5 * (y - 0.05)
        side = jnp.where(turn > 0.03, 3, jnp.where(turn < -0.03, 1, 0))
        return jnp.where(is_fast & (jnp.abs(turn) < 0.3), 2, side)

    def episode(act: Any, task: Any, normals: Any) -> Any:
        context = SPACE.unpack(task)

        def step(carry: Any, random: Any) -> Any:
            state, alive, total, landed = carry
            after = ENV.step(context, state, (act(ENV.observe(context, state), random),), ())
            landed = landed | (alive & (after.reward == 100.0))
            total = total + jnp.where(alive, after.reward, 0.0)
            return (after.state, alive & ~after.terminated, total, landed), None

        start = ENV.reset(context, tuple(normals)), jnp.bool_(True), jnp.float32(0.0), jnp.bool_(False)
        choices = jax.random.randint(jax.random.key(1), (200,), 0, 4)
        return jax.lax.scan(step, start, choices)[0][2:]

    corners = np.stack(np.meshgrid(*zip(SPACE.low, SPACE.high, strict=True)), axis=-1).reshape(-1, 5)
    tasks = jnp.asarray(np.tile(corners, (8, 1)), jnp.float32)
    normals = jax.random.normal(jax.random.key(0), (len(tasks), 5), jnp.float32)
    total, landed = jax.jit(jax.vmap(lambda *given: episode(pilot, *given)))(tasks, normals)
    assert landed.mean() > 0.9
    assert total.mean() > 100.0
    total, landed = jax.jit(jax.vmap(lambda *given: episode(lambda _, random: random, *given)))(tasks, normals)
    assert landed.mean() < 0.1
    assert total.mean() < -100.0

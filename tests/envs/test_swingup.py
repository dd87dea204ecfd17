import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError
from metastep.envs import Step, SwingUp
from metastep.envs.cartpole import CartPoleState

LENGTH, GRAVITY, DT = 0.5, 9.8, 0.05


def step(mass: ArrayLike, state: ArrayLike, action: ArrayLike) -> Step:
    """One step of each row: masses (cases,), states (cases, 4), actions (cases,)."""
    env = SwingUp()
    context = env.context_space.unpack(jnp.asarray(mass, jnp.float32)[:, None])
    columns = CartPoleState(*jnp.asarray(state, jnp.float32).T)
    force = (jnp.asarray(action, jnp.float32),)
    return jax.jit(jax.vmap(lambda c, s, a: env.step(c, s, a, ())))(context, columns, force)


def by_lagrange(mass: float, state: NDArray[np.float64], force: float) -> NDArray[np.float64]:
    """Euler step of the equations of motion, as a linear system for the two accelerations, in float64.

    (1 + m) x'' + m l cos(angle) angle'' = F + m l angle'^2 sin(angle),    cos(angle) x'' + 4/3 l angle'' = g sin(angle).
    """
    position, velocity, angle, spin = state
    matrix = np.array([[1.0 + mass, mass * LENGTH * np.cos(angle)], [np.cos(angle), 4.0 / 3.0 * LENGTH]])
    right = [force + mass * LENGTH * spin**2 * np.sin(angle), GRAVITY * np.sin(angle)]
    acceleration, angular_acceleration = np.linalg.solve(matrix, right)
    return np.array(
        [position + DT * velocity, velocity + DT * acceleration, angle + DT * spin, spin + DT * angular_acceleration]
    )


def test_steps_follow_the_equations_of_motion() -> None:
    generator = np.random.default_rng(3)
    masses = generator.uniform(0.1, 2.0, 300)
    states = generator.uniform([-2.5, -4.0, -10.0, -8.0], [2.5, 4.0, 10.0, 8.0], (300, 4))
    forces = generator.uniform(-10.0, 10.0, 300)
    after = step(masses, states, forces)
    expected = np.stack([by_lagrange(*case) for case in zip(masses, states, forces, strict=True)])
    np.testing.assert_allclose(np.stack(after.state, axis=1), expected, atol=2e-5)
    np.testing.assert_allclose(after.reward, np.cos(expected[:, 2]), atol=2e-6)
    assert not np.asarray(after.terminated).any()


def test_by_hand_hanging_at_rest() -> None:
    """m = 1, l = 1/2, F = 10: x'' = 10/2 + (1/2) angle''/2, angle'' = 5 / (1/2 (4/3 - 1/2)) = 12, so x'' = 8."""
    after = step([1.0], [[0.0, 0.0, np.pi, 0.0]], [10.0])
    np.testing.assert_allclose(np.ravel(after.state), [0.0, 0.4, np.pi, 0.6], atol=1e-5)
    np.testing.assert_allclose(after.reward, [-1.0], atol=1e-6)


@pytest.mark.parametrize(("action", "force"), [(10.5, 10.0), (1e9, 10.0), (-11.0, -10.0), (3.0, 3.0)])
def test_the_force_is_clipped(action: float, force: float) -> None:
    state = [[0.0, 0.1, 2.0, -0.3]]
    np.testing.assert_array_equal(
        np.ravel(step([0.7], state, [action]).state), np.ravel(step([0.7], state, [force]).state)
    )


def test_upright_pays_one() -> None:
    after = step([0.5], [[0.0, 0.0, 0.0, 0.0]], [0.0])
    assert float(after.reward[0]) == 1.0
    np.testing.assert_array_equal(np.ravel(after.state), np.zeros(4))


def test_leaving_the_track_costs_a_hundred_and_ends() -> None:
    """The position after a step is x + 0.05 x': just inside, just outside, on both sides."""
    states = [[2.9, 1.99, 0.0, 0.0], [2.9, 2.01, 0.0, 0.0], [-2.9, -1.99, 0.0, 0.0], [-2.9, -2.01, 0.0, 0.0]]
    after = step([1.0] * 4, states, [0.0] * 4)
    np.testing.assert_array_equal(after.terminated, [False, True, False, True])
    np.testing.assert_allclose(after.reward, [1.0, -100.0, 1.0, -100.0])


def test_episodes_start_hanging() -> None:
    env = SwingUp()
    normals = jax.random.normal(jax.random.key(0), (4, 4000), jnp.float32)
    start = np.stack(jax.vmap(lambda *noise: env.reset(None, noise))(*normals))
    offset = start - np.array([[0.0], [0.0], [np.pi], [0.0]])
    assert np.abs(offset).max() <= 0.05 + 5e-7
    np.testing.assert_allclose(offset.var(axis=1), 0.05**2 / 3, rtol=0.06)


def test_there_is_no_limit_on_the_angle() -> None:
    after = step([1.0], [[0.0, 0.0, 40.0, 3.0]], [0.0])
    assert not bool(after.terminated[0])


def test_a_wide_start_is_rllabs() -> None:
    noise = tuple(jax.random.normal(key, (4000,)) for key in jax.random.split(jax.random.key(0), 4))
    env = SwingUp(start="wide")
    start = np.stack(jax.vmap(lambda normals: env.reset(None, normals))(noise))
    half = np.array([1.0, 2.0, 1.0, 3.0])
    assert (np.abs(start - np.array([[0.0], [0.0], [np.pi], [0.0]])) < half[:, None] + 1e-5).all()
    np.testing.assert_allclose(start.std(axis=1), half / np.sqrt(3.0), rtol=0.05)
    with pytest.raises(InputError, match=r"env.start: 'upright' must be one of hanging, wide"):
        SwingUp(start="upright")  # type: ignore[arg-type]


def test_a_scaled_action_is_a_share_of_the_force() -> None:
    state, mass = CartPoleState(*map(jnp.float32, (0.0, 0.1, 2.0, -0.3))), SwingUp().context_space.unpack(jnp.ones(1))
    plain, scaled = SwingUp(), SwingUp(action_scale=10.0)
    for share, force in ((0.3, 3.0), (1.0, 10.0), (-7.0, -10.0)):
        after = scaled.step(mass, state, (jnp.float32(share),), ())
        np.testing.assert_allclose(after.state, plain.step(mass, state, (jnp.float32(force),), ()).state, rtol=1e-6)

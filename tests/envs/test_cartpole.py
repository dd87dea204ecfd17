import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep.envs import CartPole
from metastep.envs.cartpole import CartPoleState

Floats = NDArray[np.float64]
NUM_CASES = 1000


@pytest.fixture(scope="module")
def cases() -> tuple[Floats, Floats, Floats]:
    """Random states (cases, 4) in and out of bounds, Gaussian actions (cases,), contexts (cases, 2), all exact in float32."""
    generator = np.random.default_rng(7)
    states = generator.uniform([-2.6, -3.0, -0.25, -3.0], [2.6, 3.0, 0.25, 3.0], (NUM_CASES, 4))
    actions = generator.normal(0.5, 1.0, NUM_CASES)
    contexts = generator.uniform([0.1, 0.5], [2.0, 1.5], (NUM_CASES, 2))
    return tuple(array.astype(np.float32).astype(np.float64) for array in (states, actions, contexts))  # type: ignore


def ours(env: CartPole, cases: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    states, actions, contexts = (jnp.asarray(array, jnp.float32) for array in cases)

    def step(context: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        after = env.step(env.context_space.unpack(context), CartPoleState(*state), (action,), ())
        return jnp.stack(after.state), after.reward, after.terminated

    after, reward, terminated = jax.jit(jax.vmap(step))(contexts, states, actions)
    return np.asarray(after, np.float64), np.asarray(reward, np.float64), np.asarray(terminated)


def gymnasiums(
    cases: tuple[Floats, Floats, Floats], stale: tuple[str, ...] = (), forces: Floats | None = None
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Gymnasium's own step, its derived quantities recomputed except the `stale` ones; with other forces where given."""
    rows = []
    for index, (state, action, (mass, length)) in enumerate(zip(*cases, strict=True)):
        env = CartPoleEnv()
        env.masspole, env.length = mass, length
        for name, value in (("total_mass", mass + env.masscart), ("polemass_length", mass * length)):
            if name not in stale:
                setattr(env, name, value)
        env.state = state
        if forces is not None:
            env.force_mag, action = forces[index], 1.0  # to the right, with this force
        _, reward, terminated, _, _ = env.step(int(action > 0.5))
        rows.append((env.state, reward, terminated))
    after, rewards, terminated = zip(*rows, strict=True)
    return np.stack(after), np.asarray(rewards), np.asarray(terminated)


def test_step_equals_gymnasiums(cases: tuple[Floats, Floats, Floats]) -> None:
    states, rewards, terminated = ours(CartPole(), cases)
    expected_states, expected_rewards, expected_terminated = gymnasiums(cases)
    print(f"largest difference from Gymnasium over {NUM_CASES} steps: {np.abs(states - expected_states).max():.1e}")
    np.testing.assert_allclose(states, expected_states, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(rewards, expected_rewards)
    np.testing.assert_array_equal(terminated, expected_terminated)
    assert 0.1 < terminated.mean() < 0.9  # both outcomes are among the cases


@pytest.mark.parametrize("stale", ["total_mass", "polemass_length"])
def test_a_stale_derived_quantity_would_be_seen(cases: tuple[Floats, Floats, Floats], stale: str) -> None:
    """The comparison above has teeth: Gymnasium with one quantity left at its default is far off."""
    states, _, _ = ours(CartPole(), cases)
    wrong, _, _ = gymnasiums(cases, stale=(stale,))
    assert np.mean(np.abs(states - wrong).max(axis=1) > 1e-4) > 0.9


def test_the_threshold_of_the_action_is_a_half() -> None:
    states = np.zeros((2, 4))
    contexts = np.full((2, 2), 1.0)
    after, _, _ = ours(CartPole(), (states, np.array([0.5, 0.50001]), contexts))
    assert after[0, 1] < 0 < after[1, 1]
    np.testing.assert_allclose(after[0], -after[1])


def test_a_continuous_force_is_proportional_and_clipped() -> None:
    env = CartPole(force="continuous")
    actions = np.array([-3.0, -1.0, 0.0, 0.25, 0.5, 1.0, 3.0])
    after, _, _ = ours(env, (np.zeros((7, 4)), actions, np.full((7, 2), 1.0)))
    np.testing.assert_allclose(after[:, 1] / after[5, 1], [-1.0, -1.0, 0.0, 0.25, 0.5, 1.0, 1.0], atol=1e-6)
    bang, _, _ = ours(CartPole(), (np.zeros((1, 4)), np.array([1.0]), np.full((1, 2), 1.0)))
    np.testing.assert_allclose(after[5], bang[0], rtol=1e-6)


def test_a_force_in_newtons_is_the_action_clipped(cases: tuple[Floats, Floats, Floats]) -> None:
    states, actions, contexts = cases
    spread = (8.0 * actions).astype(np.float32).astype(np.float64)  # many of them beyond what is allowed
    forces = np.clip(spread, -10.0, 10.0)
    assert 0.1 < np.mean(np.abs(spread) > 10.0) < 0.9
    after, rewards, terminated = ours(CartPole(force="newtons"), (states, spread, contexts))
    expected_after, expected_rewards, expected_terminated = gymnasiums(cases, forces=forces)
    np.testing.assert_allclose(after, expected_after, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(rewards, expected_rewards)
    np.testing.assert_array_equal(terminated, expected_terminated)


def test_episodes_start_uniformly_near_upright() -> None:
    env = CartPole()
    normals = jax.random.normal(jax.random.key(0), (4, 4000), jnp.float32)
    start = np.stack(jax.vmap(lambda *noise: env.reset(None, noise))(*normals))
    assert np.abs(start).max() <= 0.05
    np.testing.assert_allclose(start.mean(axis=1), 0.0, atol=4 * 0.05 / np.sqrt(3 * 4000))
    np.testing.assert_allclose(start.var(axis=1), 0.05**2 / 3, rtol=0.06)


def test_the_policy_sees_the_whole_state() -> None:
    state = CartPoleState(*(jnp.float32(value) for value in (1.0, 2.0, 3.0, 4.0)))
    assert [float(value) for value in CartPole().observe(None, state)] == [1.0, 2.0, 3.0, 4.0]


def test_an_unknown_kind_of_force_is_refused() -> None:
    with pytest.raises(InputError, match=r"env.force: 'bangbang' must be one of bang-bang, continuous, newtons"):
        CartPole(force="bangbang")  # type: ignore[arg-type]

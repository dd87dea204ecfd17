"""Pendulum, Acrobot, CartPole and MountainCarContinuous are those of Gymnasium, step by step and as whole episodes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from scipy.stats import ks_2samp

from metastep import envs
from metastep.envs.cartpole import CartPole, CartPoleState
from metastep.envs.small import AcrobotState, CarState, PendulumState

NUM_CASES = 300


def pendulum(context: Any) -> PendulumEnv:
    env = PendulumEnv()
    env.m, env.l, env.g = context.mass, context.length, context.gravity
    return env


def acrobot(context: Any) -> AcrobotEnv:
    env = AcrobotEnv()
    env.LINK_MASS_1, env.LINK_MASS_2 = context.mass_1, context.mass_2
    env.LINK_LENGTH_1, env.LINK_LENGTH_2 = context.length_1, context.length_2
    env.LINK_COM_POS_1, env.LINK_COM_POS_2 = context.length_1 / 2, context.length_2 / 2
    return env


def cartpole(context: Any) -> CartPoleEnv:
    env = CartPoleEnv()
    env.masscart, env.masspole, env.length, env.force_mag = context
    env.total_mass, env.polemass_length = env.masscart + env.masspole, env.masspole * env.length
    return env


class PushedCartPole(CartPoleEnv):
    """A cart pushed by what becomes of a real number."""

    def __init__(self, context: Any, force_of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.masspole, self.length = context
        self.total_mass, self.polemass_length = self.masscart + self.masspole, self.masspole * self.length
        self.force_of = force_of

    def step(self, action: Any) -> Any:
        self.force_mag = self.force_of(action[0])
        return super().step(1)  # to the right, with this force


class MountainCar(Continuous_MountainCarEnv):
    """Gymnasium has the gravity in its code: what another one changes is added to the speed before the step."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.power, self.gravity = context

    def step(self, action: Any) -> Any:
        position, speed = self.state
        self.state = np.array([position, speed + (0.0025 - self.gravity) * np.cos(3 * position)])
        return super().step(action)


class Case(NamedTuple):
    """One environment on both sides."""

    ours: Any
    gymnasium: Callable[[Any], Any]
    state: type[Any]
    reach: tuple[float, ...]  # states are drawn within plus and minus this
    tolerance: float  # of a step; Acrobot turns by radians in one, which amplifies rounding
    name: str = ""  # in Gymnasium's registry
    limit: int = 0  # of steps
    task: tuple[float, ...] = ()  # for whole episodes, away from Gymnasium's own
    act: Any = None  # a policy, neither hopeless nor perfect: of NumPy or JAX and the observation


CARTS = (2.6, 3.0, 0.25, 3.0)
CASES = {
    "pendulum": Case(
        *(envs.make("pendulum"), pendulum, PendulumState, (9.0, 8.0), 2e-6, "Pendulum-v1", 200, (0.7, 0.6, 9.0)),
        lambda xp, seen: -2.0 * xp.sign(seen[1] + 0.3 * seen[2]),
    ),
    "acrobot": Case(
        *(envs.make("acrobot"), acrobot, AcrobotState, (np.pi, np.pi, 9.0, 18.0), 1e-4, "Acrobot-v1", 500),
        (0.7, 1.4, 0.8, 1.3),
        lambda xp, seen: xp.where(seen[5] > 0.0, 2, 0),
    ),
    "cartpole-v1": Case(
        *(envs.make("cartpole-v1"), cartpole, CartPoleState, CARTS, 1e-6, "CartPole-v1", 500, (0.6, 0.14, 0.3, 7.0)),
        lambda xp, seen: xp.where(seen[2] > 0.0, 1, 0),
    ),
    "mountaincar": Case(
        *(envs.make("mountaincar"), MountainCar, CarState, (1.2, 0.07), 2e-7, "MountainCarContinuous-v0", 999),
        (0.001, 0.003),
        lambda xp, seen: xp.where(seen[1] >= 0.0, 1.2, -0.9),
    ),
}
WHOLE = list(CASES)
for kind, force_of in {
    "bang-bang": lambda action: 10.0 if action > 0.5 else -10.0,
    "continuous": lambda action: 10.0 * np.clip(action, -1.0, 1.0),
    "newtons": lambda action: np.clip(action, -10.0, 10.0),
}.items():
    theirs = partial(PushedCartPole, force_of=force_of)
    CASES[f"cartpole, {kind}"] = Case(CartPole(force=kind), theirs, CartPoleState, CARTS, 1e-5)


def to_gymnasium(env: Any, action: float) -> Any:
    """The action of a policy as the environment of Gymnasium takes it."""
    is_discrete = hasattr(env.action_space, "n") and not isinstance(env, PushedCartPole)
    return int(action) if is_discrete else np.asarray([action], np.float32)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_gymnasium(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(5)
    env, choices, reach = case.ours, envs.choices_of(case.ours), np.asarray(case.reach)
    tasks = rng.uniform(env.context_space.low, env.context_space.high, (NUM_CASES, env.context_space.num_coordinates))
    states = rng.uniform(-reach, reach, (NUM_CASES, len(reach)))
    scale = 8.0 if "newtons" in name else 2.0  # many beyond what is allowed
    actions = rng.normal(0.0, scale, NUM_CASES) if choices is None else rng.integers(choices, size=NUM_CASES)
    tasks, states = tasks.astype(np.float32), states.astype(np.float32)  # exact on both sides
    actions = actions.astype(np.float32 if choices is None else np.int32)

    def step(task: Any, numbers: Any, action: Any) -> Any:
        context = env.context_space.unpack(task)
        after = env.step(context, case.state(*numbers), (action,), ())
        return jnp.stack(after.state), jnp.stack(env.observe(context, after.state)), after.reward, after.terminated

    found = [np.asarray(array) for array in jax.jit(jax.vmap(step))(tasks, states, actions)]
    rows = []
    for task, state, action in zip(tasks.astype(float), states.astype(float), actions, strict=True):
        theirs = case.gymnasium(env.context_space.unpack(task))
        theirs.state = state
        seen, reward, terminated, _, _ = theirs.step(to_gymnasium(theirs, action))
        rows.append((np.asarray(theirs.state), seen, reward, terminated))
    expected = [np.stack(column) for column in zip(*rows, strict=True)]
    turns = np.round((found[0] - expected[0]) / (2 * np.pi)) * (name == "acrobot")  # -pi and pi are one angle
    np.testing.assert_allclose(found[0] - 2 * np.pi * turns, expected[0], rtol=0, atol=case.tolerance)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=case.tolerance)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[3], expected[3])
    assert name == "pendulum" or 0.02 < found[3].mean() < 0.98  # both outcomes are among the cases


def returns(case: Case, tasks: Any) -> list[Any]:
    """Returns of 400 whole episodes for each task in JAX, cut off at the time limit."""
    env = case.ours

    def episode(context: Any, normals: Any) -> Any:
        task = env.context_space.unpack(context)

        def move(carry: Any, _: None) -> tuple[Any, None]:
            state, alive, total = carry
            after = env.step(task, state, (case.act(jnp, env.observe(task, state)),), ())
            state = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after.state, state)
            return (state, alive & ~after.terminated, total + jnp.where(alive, after.reward, 0.0)), None

        start = env.reset(task, tuple(normals)), jnp.bool_(True), jnp.float32(0.0)
        return jax.lax.scan(move, start, None, length=case.limit)[0][2]

    normals = jax.random.normal(jax.random.key(3), (400, env.reset_noise), jnp.float32)
    program = jax.jit(jax.vmap(jax.vmap(episode, in_axes=(None, 0)), in_axes=(0, None)))
    return list(np.asarray(program(jnp.asarray(tasks, jnp.float32), normals)))


@pytest.mark.parametrize("name", WHOLE)
def test_returns_of_whole_episodes_are_distributed_as_in_gymnasium(name: str) -> None:
    case = CASES[name]
    registered, space = gymnasium.make(case.name), case.ours.context_space
    assert case.limit == registered.spec.max_episode_steps
    assert envs.choices_of(case.ours) == getattr(registered.action_space, "n", None)
    assert (case.ours.num_observations,) == registered.observation_space.shape
    own, others = returns(case, np.stack([case.task, np.mean([space.low, space.high], axis=0)]))
    theirs = []
    for seed in range(40):
        one = case.gymnasium(space.unpack(np.asarray(case.task)))
        seen, _ = one.reset(seed=seed)
        total, ended, length = 0.0, False, 0
        while not ended and length < case.limit:
            seen, reward, ended, _, _ = one.step(to_gymnasium(one, case.act(np, seen)))
            total, length = total + reward, length + 1
        theirs.append(total)
    assert ks_2samp(theirs, own).pvalue > 0.01
    assert ks_2samp(theirs, others).pvalue < 0.001

"""The classic environments of Gymnasium beside ours: the same tasks on both sides, and a policy for each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from jax import Array

from metastep.envs.acrobot import AcrobotState
from metastep.envs.cartpole import CartPoleState
from metastep.envs.mountaincar import CarState
from metastep.envs.pendulum import PendulumState


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


class MountainCarOfAnyGravity(Continuous_MountainCarEnv):
    """Gymnasium's continuous car has the gravity in its code; its discrete sibling moves alike and has it as an attribute."""

    def __init__(self, power: float, gravity: float) -> None:
        super().__init__()
        self.power, self.gravity = power, gravity

    def step(self, action: Any) -> Any:
        sibling = MountainCarEnv()
        sibling.gravity, sibling.goal_position = self.gravity, self.goal_position
        sibling.force = self.power * float(np.clip(action[0], -1.0, 1.0))
        sibling.state = tuple(self.state)
        seen, _, terminated, _, _ = sibling.step(2)  # forward, with this force
        self.state = np.array(sibling.state)
        return seen, 100.0 * terminated - 0.1 * action[0] ** 2, terminated, False, {}


Policy = Callable[[Any, Any, Any], Any]  # of NumPy or JAX, the task and the observation


class Case(NamedTuple):
    """One environment on both sides."""

    gymnasium: Callable[[Any], Any]
    state: type[Any]
    reach: tuple[float, ...]  # states are drawn within plus and minus this
    task: tuple[float, ...]  # for whole episodes, away from Gymnasium's own
    act: Policy  # neither hopeless nor perfect


CASES = {
    "pendulum": Case(
        pendulum,
        PendulumState,
        (9.0, 8.0),
        (0.7, 0.6, 9.0),
        lambda xp, task, seen: -2.0 * xp.sign(seen[1] + 0.3 * seen[2]),
    ),
    "acrobot": Case(
        acrobot,
        AcrobotState,
        (np.pi, np.pi, 9.0, 18.0),
        (0.7, 1.4, 0.8, 1.3),
        lambda xp, task, seen: xp.where(seen[5] > 0.0, 2, 0),
    ),
    "cartpole-v1": Case(
        cartpole,
        CartPoleState,
        (2.6, 3.0, 0.25, 3.0),
        (0.6, 0.14, 0.3, 7.0),
        lambda xp, task, seen: xp.where(seen[2] > 0.0, 1, 0),
    ),
    "mountaincar": Case(
        lambda context: MountainCarOfAnyGravity(*context),
        CarState,
        (1.2, 0.07),
        (0.001, 0.003),
        lambda xp, task, seen: xp.where(seen[1] >= 0.0, 1.2, -0.9),
    ),
}

LIMITS = {"pendulum": 200, "acrobot": 500, "cartpole-v1": 500, "mountaincar": 999}


def to_gymnasium(env: Any, action: float) -> Any:
    """The action of a policy as the environment of Gymnasium takes it."""
    return int(action) if hasattr(env.action_space, "n") else np.asarray([action], np.float32)


def returns(env: Any, act: Policy, tasks: Any, num: int) -> list[Any]:
    """Returns, lengths and last observations of whole episodes in JAX, (tasks, episodes, ...), cut off at the time limit."""

    def episode(context: Array, normals: Array) -> tuple[Array, ...]:
        task = env.context_space.unpack(context)

        def move(carry: Any, _: None) -> tuple[Any, None]:
            state, alive, total, steps = carry
            after = env.step(task, state, (act(jnp, task, env.observe(task, state)),), ())
            state = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after.state, state)
            total = total + jnp.where(alive, after.reward, 0.0)
            return (state, alive & ~after.terminated, total, jnp.where(alive, steps + 1, steps)), None

        start = env.reset(task, tuple(normals)), jnp.bool_(True), jnp.float32(0.0), jnp.int32(0)
        (state, _, total, steps), _ = jax.lax.scan(move, start, None, length=LIMITS[env.name])
        return total, steps, jnp.stack(env.observe(task, state))

    normals = jax.random.normal(jax.random.key(3), (num, env.reset_noise), jnp.float32)
    program = jax.jit(jax.vmap(jax.vmap(episode, in_axes=(None, 0)), in_axes=(0, None)))
    return [np.asarray(array) for array in program(jnp.asarray(tasks, jnp.float32), normals)]

"""Rollouts of environments on the host: the counterparts of `sums.stream` and `rollouts.trajectories`.

Each step is two short compiled functions around the environment's own: one chooses the actions, as in the compiled rollouts, and
one adds the step to the sums while the next step is simulated.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep.envs.base import Env
from metastep.envs.host import HostEnv
from metastep.policies import Arrays
from metastep.simulation.rollouts import Move, Rollout, Trajectories, keys_of
from metastep.simulation.sums import Accumulator, Sums, accumulate, empty, finish

_SEED_STREAM = 2  # keys_of takes 0 and 1


# One step of every lane, numbers last: observation, action and its noise (episodes, learners, numbers), reward and whether the
# step was taken (episodes, learners). NumPy arrays outside compiled functions, JAX arrays within.
_HostMove = tuple[Any, Any, Any, Any, Any]


def _pieces(array: Array) -> Arrays:
    return tuple(jnp.moveaxis(array, -1, 0))


def numbers_last(pieces: Arrays, shape: tuple[int, int]) -> Array:
    """Stack pieces of this shape, of which there may be none."""
    return jnp.stack(pieces, axis=-1) if pieces else jnp.zeros((*shape, 0), jnp.float32)


def draw_seeds(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw seeds for the simulators' own generators: 31 bits, which any accepts."""
    return jax.random.bits(key, shape, jnp.uint32) >> np.uint32(1)


@partial(jax.jit, static_argnums=(1, 2))
def _reset_noise(key: Array, num: int, shape: tuple[int, int]) -> tuple[Array, Array]:
    """The normals of the resets, `num` a lane, and a seed for every lane."""
    normals = standard_normals(keys_of(key)[0], 0, num, shape)
    return numbers_last(normals, shape), draw_seeds(jax.random.fold_in(key, _SEED_STREAM), shape)


@partial(jax.jit, static_argnums=0)
def _choose(rollout: Rollout, theta: Array, key: Array, t: Array, observation: Array) -> Arrays:
    """The actions of step t, their noise and the environment's, numbers last; drawn as by the compiled rollouts."""
    policy, shape = rollout.policy, (observation.shape[0], observation.shape[1])
    normals = standard_normals(keys_of(key)[1], t, policy.num_actions + rollout.env.step_noise, shape)
    action_noise, env_noise = normals[: policy.num_actions], normals[policy.num_actions :]
    mean = policy.mean(theta.T, _pieces(observation))
    action = tuple(m + policy.sigma * z for m, z in zip(mean, action_noise, strict=True))
    return tuple(numbers_last(pieces, shape) for pieces in (action, action_noise, env_noise))


_begin_sums, _finish_sums = jax.jit(empty, static_argnums=0), jax.jit(finish, static_argnums=0)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _add(rollout: Rollout, theta: Array, sums: Accumulator, moved: _HostMove) -> Accumulator:
    observation, action, noise, reward, alive = moved
    move = Move(_pieces(observation), _pieces(action), _pieces(noise), jnp.where(alive, reward, 0.0))
    return accumulate(rollout, theta.T, sums, move, alive)


def _moves(rollout: Rollout, env: HostEnv, theta: Array, context: Array, key: Array) -> Iterator[_HostMove]:
    """Simulate. Every array is a fresh copy: JAX may read a NumPy array later, and without copying it."""
    shape = (rollout.num_episodes, theta.shape[0])
    noise, seeds = (np.asarray(array) for array in _reset_noise(key, env.reset_noise, shape))
    episodes = env.start_episodes(np.asarray(context), noise, seeds)
    alive = np.ones(shape, np.bool_)
    for t in range(rollout.horizon):
        observation = np.array(episodes.observe(), np.float32)
        action, action_noise, env_noise = _choose(rollout, theta, key, np.uint32(t), observation)
        alive.setflags(write=False)  # as the others that a simulator is handed
        after = episodes.step(np.asarray(action), np.asarray(env_noise), alive)
        yield observation, action, action_noise, np.array(after.reward, np.float32), alive
        alive = alive & ~after.over


def require_host_env(env: Env | HostEnv, theta: Array) -> HostEnv:
    """Return the environment, or refuse to simulate it inside a compiled function."""
    if not isinstance(env, HostEnv):
        raise InputError(f"env: {env.name!r} is not an environment on the host.")
    if isinstance(theta, jax.core.Tracer):
        raise InputError(f"env: {env.name!r} is simulated on the host and cannot be called inside a compiled function.")
    return env


def stream(rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
    """Simulate and reduce on the fly: memory does not depend on the horizon. The arguments are those of `simulate`."""
    env = require_host_env(rollout.env, theta)
    sums = _begin_sums(rollout, theta.T)
    for moved in _moves(rollout, env, theta, context, key):
        sums = _add(rollout, theta, sums, moved)
    return _finish_sums(rollout, sums)


def trajectories(rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
    """The same simulation as `stream` with the same key, every step returned."""
    steps = zip(*_moves(rollout, require_host_env(rollout.env, theta), theta, context, key), strict=True)
    *arrays, reward, alive = (np.stack(column) for column in steps)
    parts = *(np.moveaxis(array, -1, 1) for array in arrays), np.where(alive, reward, np.float32(0.0)), alive
    return Trajectories(*map(jnp.asarray, parts))

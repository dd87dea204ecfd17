"""Simulate environments in JAX or on the host, and compile the programs for it.

In JAX, a separate compiled program simulates a batch: it takes longest to compile, and is the same for all update rules. On the
host, each step of the environment comes between two short compiled functions: one chooses the actions, as in compiled rollouts,
and one adds the step to the sums while the next step is simulated.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep._core.parallel import count_threads
from metastep.envs.base import Env
from metastep.envs.host import HostEnv
from metastep.policies import Arrays
from metastep.simulation import rollouts
from metastep.simulation.rollouts import Accumulator, Move, Rollout, Sums, Trajectories, keys_of

Function = Callable[..., Any]
# One step of all episodes: observation, action and its noise, each (episodes, learners, numbers), reward and whether the step was
# taken, each (episodes, learners). NumPy arrays outside compiled functions, JAX arrays inside.
_HostMove = tuple[Any, Any, Any, Any, Any]


@cache
def compiled(function: Function) -> Function:
    """Compile a function whose first argument is static: one program for each value of it."""
    return jax.jit(function, static_argnums=0)


def _pieces(array: Array) -> Arrays:
    return tuple(jnp.moveaxis(array, -1, 0))


def numbers_last(pieces: Arrays, shape: tuple[int, int]) -> Array:
    """Stack arrays of this shape, perhaps none, along a new last axis."""
    return jnp.stack(pieces, axis=-1) if pieces else jnp.zeros((*shape, 0), jnp.float32)


def draw_seeds(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw seeds for the simulators' own generators, with 31 bits, which all generators accept."""
    return jax.random.bits(key, shape, jnp.uint32) >> np.uint32(1)


@partial(jax.jit, static_argnums=(1, 2))
def _reset_noise(key: Array, num: int, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return `num` normals for the reset of every episode, and a seed for every episode."""
    seeds = draw_seeds(jax.random.fold_in(key, 2), shape)  # keys_of takes 0 and 1
    return numbers_last(standard_normals(keys_of(key)[0], 0, num, shape), shape), seeds


@partial(jax.jit, static_argnums=0)
def _choose(rollout: Rollout, theta: Array, key: Array, t: Array, observation: Array) -> Arrays:
    """Return the actions of step t, their noise and that of the environment, drawn as in compiled rollouts."""
    policy, shape = rollout.policy, (observation.shape[0], observation.shape[1])
    normals = standard_normals(keys_of(key)[1], t, policy.num_actions + rollout.env.step_noise, shape)
    action_noise, env_noise = normals[: policy.num_actions], normals[policy.num_actions :]
    mean = policy.mean(theta.T, _pieces(observation))
    action = tuple(m + policy.sigma * z for m, z in zip(mean, action_noise, strict=True))
    return tuple(numbers_last(pieces, shape) for pieces in (action, action_noise, env_noise))


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _add(rollout: Rollout, theta: Array, sums: Accumulator, moved: _HostMove) -> Accumulator:
    observation, action, noise, reward, alive = moved
    move = Move(_pieces(observation), _pieces(action), _pieces(noise), jnp.where(alive, reward, 0.0))
    return rollouts.accumulate(rollout, theta.T, sums, move, alive)[0]


def require_host_env(env: Env | HostEnv, theta: Array) -> HostEnv:
    """Return the host environment; inside a compiled function, which cannot simulate it, raise an error."""
    if isinstance(theta, jax.core.Tracer):
        raise InputError(f"env: {env.name!r} is simulated on the host and cannot be called inside a compiled function.")
    assert isinstance(env, HostEnv)
    return env


def _moves(rollout: Rollout, theta: Array, context: Array, key: Array) -> Iterator[_HostMove]:
    """Simulate on the host; yield new copies of arrays, because JAX may read a NumPy array later without copying it."""
    env, shape = require_host_env(rollout.env, theta), (rollout.num_episodes, theta.shape[0])
    noise, seeds = (np.asarray(array) for array in _reset_noise(key, env.reset_noise, shape))
    episodes = env.start_episodes(np.asarray(context), noise, seeds)
    alive = np.ones(shape, np.bool_)
    for t in range(rollout.horizon):
        observation = np.array(episodes.observe(), np.float32)
        action, action_noise, env_noise = _choose(rollout, theta, key, np.uint32(t), observation)
        alive.setflags(write=False)  # like the other arrays that a simulator receives
        after = episodes.step(np.asarray(action), np.asarray(env_noise), alive)
        yield observation, action, action_noise, np.array(after.reward, np.float32), alive
        alive = alive & ~after.over


def is_compiled(env: Env | HostEnv) -> bool:
    """Return whether simulation can be part of a compiled program."""
    return not isinstance(env, HostEnv)


def compiled_for(env: Env | HostEnv, function: Function) -> Function:
    """Compile a function that simulates, like `compiled`, if the environment is in JAX; otherwise return it unchanged."""
    return compiled(function) if is_compiled(env) else function


def stream(rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
    """Simulate a batch and return the sums that an estimate needs; episodes are not stored."""
    if is_compiled(rollout.env):
        return compiled(rollouts.stream)(rollout, theta, context, key)
    sums = compiled(rollouts.empty)(rollout, theta.T)
    for moved in _moves(rollout, theta, context, key):
        sums = _add(rollout, theta, sums, moved)
    return compiled(rollouts.finish)(rollout, sums)


def trajectories(rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
    """Simulate the same batch and return all steps."""
    if is_compiled(rollout.env):
        return compiled(rollouts.trajectories)(rollout, theta, context, key)
    *arrays, reward, alive = (np.stack(column) for column in zip(*_moves(rollout, theta, context, key), strict=True))
    parts = *(np.moveaxis(array, -1, 1) for array in arrays), np.where(alive, reward, np.float32(0.0)), alive
    return Trajectories(*map(jnp.asarray, parts))


def start_episode(env: Env | HostEnv) -> Any:
    """Start an episode, to detect missing requirements; return the episodes of a host environment."""
    low = env.context_space.low
    if isinstance(env, HostEnv):
        noise = np.zeros((1, 1, env.reset_noise), np.float32)
        return env.start_episodes(np.asarray([low], np.float32), noise, np.zeros((1, 1), np.uint32))
    context = env.context_space.unpack(jnp.asarray(low, jnp.float32))
    return jax.eval_shape(env.reset, context, tuple(jnp.zeros((env.reset_noise,), jnp.float32)))


def blocks_at_once(env: Env | HostEnv) -> int:
    """Return how many blocks are simulated in parallel: one per core on a CPU, otherwise one."""
    return count_threads(None) if is_compiled(env) and rollouts.on_cpu() else 1


def fills_batches(env: Env | HostEnv) -> bool:
    """Return whether it is better to simulate several blocks in one batch: on a GPU, which one block may not fill."""
    return is_compiled(env) and not rollouts.on_cpu()


_HOST_IN_USE = Lock()


def one_block_at_a_time(env: Env | HostEnv) -> AbstractContextManager[Any]:
    """Return a lock against other threads that simulate on the host, because a simulator may hold one batch only."""
    return nullcontext() if is_compiled(env) else _HOST_IN_USE

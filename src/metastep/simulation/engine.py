"""Where an environment is simulated, in JAX or on the host, and how the programs around it are compiled.

In JAX, a batch is simulated by a compiled program of its own: it takes longest to compile, and is the same for all update rules.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from metastep._core.parallel import count_threads
from metastep.envs.base import Env
from metastep.envs.host import HostEnv
from metastep.simulation import host, rollouts, sums
from metastep.simulation.rollouts import Rollout, Trajectories
from metastep.simulation.sums import Sums

Function = Callable[..., Any]


@cache
def compiled(function: Function) -> Function:
    """Compile a function to one program for every value of its first argument."""
    return jax.jit(function, static_argnums=0)


@dataclass(eq=False)
class Engine:
    """How batches (of a rollout, theta, context and key) are simulated, and how the functions around that are compiled."""

    is_compiled: bool  # whether simulation can be part of a compiled program
    steps_between_halts: int  # environment steps after which a long simulation may pause
    stream: Callable[[Rollout, Array, Array, Array], Sums]  # what an estimate needs of a batch, reduced on the fly
    trajectories: Callable[[Rollout, Array, Array, Array], Trajectories]  # the same batch, every step returned
    mean_return: Callable[[Rollout, Array, Array, Array], Array]  # of every learner
    whole: Callable[[Function], Function]  # one program, where possible, of a function that simulates; see `compiled`
    map: Callable[[Function, Array, int], Array]  # a function that simulates, so many values side by side


_DEVICE = Engine(
    is_compiled=True,
    steps_between_halts=10_000_000,  # some seconds of HalfCheetah, more than a block of CartPole has
    stream=compiled(sums.stream),
    trajectories=compiled(rollouts.trajectories),
    mean_return=lambda *batch: jnp.mean(rollouts.discounted_returns(*batch), axis=0),
    whole=compiled,
    map=lambda function, values, side_by_side: lax.map(function, values, batch_size=side_by_side),
)
# A simulator of its own steps between compiled pieces; it is waited for after every step anyway.
_HOST = Engine(
    is_compiled=False,
    steps_between_halts=1,
    stream=host.stream,
    trajectories=host.trajectories,
    mean_return=lambda *batch: host.stream(*batch).mean_return,
    whole=lambda function: function,
    map=lambda function, values, _: jnp.stack([function(value) for value in values]),
)


def start_episode(env: Env | HostEnv) -> Any:
    """Begin an episode, to notice what is missing for it; return what a simulator on the host keeps of it."""
    low = env.context_space.low
    if isinstance(env, HostEnv):
        noise = np.zeros((1, 1, env.reset_noise), np.float32)
        return env.start_episodes(np.asarray([low], np.float32), noise, np.zeros((1, 1), np.uint32))
    context = env.context_space.unpack(jnp.asarray(low, jnp.float32))
    return jax.eval_shape(env.reset, context, tuple(jnp.zeros((env.reset_noise,), jnp.float32)))


def blocks_at_once(env: Env | HostEnv) -> int:
    """Return how many blocks are simulated side by side: on a CPU one for each processor, otherwise one."""
    return count_threads(None) if engine_of(env).is_compiled and rollouts.on_cpu() else 1


def fills_batches(env: Env | HostEnv) -> bool:
    """Return whether several blocks are better simulated in one batch: on a GPU, which a block may not fill."""
    return engine_of(env).is_compiled and not rollouts.on_cpu()


_HOST_IN_USE = Lock()


def one_block_at_a_time(env: Env | HostEnv) -> AbstractContextManager[Any]:
    """Keep other threads from simulating on the host meanwhile: a simulator may hold one batch only."""
    return nullcontext() if engine_of(env).is_compiled else _HOST_IN_USE


def engine_of(env: Env | HostEnv) -> Engine:
    """Return the engine that simulates an environment."""
    return _HOST if isinstance(env, HostEnv) else _DEVICE

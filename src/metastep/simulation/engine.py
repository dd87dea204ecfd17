"""Where an environment is simulated: the one place that knows whether that is JAX or the host.

On the device, simulation is part of a compiled program, which may hold everything around it as well. On the host it happens
between programs, so that only the pieces before and after it are compiled.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from metastep.envs.base import Env
from metastep.envs.host.base import HostEnv
from metastep.simulation import host, rollouts, sums
from metastep.simulation.rollouts import Rollout, Trajectories
from metastep.simulation.sums import Sums

Function = Callable[..., Any]


@cache
def compiled(function: Function) -> Function:
    """The function as one program for every value of its first argument."""
    return jax.jit(function, static_argnums=0)


class Engine:
    """How batches are simulated, and how the functions around that are compiled: here by JAX, as part of a program."""

    is_compiled = True
    """Whether simulation can be part of a compiled program."""
    steps_between_halts = 10_000_000
    """Environment steps after which a long simulation may pause: seconds on MJX, more than a block of CartPole has."""

    def stream(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
        """Everything an estimate needs of a batch, reduced on the fly."""
        return sums.stream(rollout, theta, context, key)

    def trajectories(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
        """The same batch, every step returned."""
        return rollouts.trajectories(rollout, theta, context, key)

    def mean_return(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Array:
        """The mean return of every learner, (learners,)."""
        return jnp.mean(rollouts.discounted_returns(rollout, theta, context, key), axis=0)

    def whole(self, function: Function) -> Function:
        """Make a program of a function that simulates; its first argument is static."""
        return compiled(function)

    def piece(self, function: Function) -> Function:
        """Make a program of a function that does not simulate, unless it is part of one already."""
        return function

    def map(self, function: Callable[[Array], Array], values: Array, side_by_side: int) -> Array:
        """The results of a function that simulates, one for each value."""
        return lax.map(function, values, batch_size=side_by_side)

    def start(self, env: Any) -> None:
        """Begin an episode, so that whatever is missing for it is noticed."""
        context = env.context_space.unpack(jnp.asarray(env.context_space.low, jnp.float32))
        jax.eval_shape(env.reset, context, tuple(jnp.zeros((env.reset_noise,), jnp.float32)))


class _Host(Engine):
    """A simulator of its own steps between compiled pieces; it is waited for after every step anyway."""

    is_compiled = False
    steps_between_halts = 1

    def stream(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Sums:
        return host.stream(rollout, theta, context, key)

    def trajectories(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Trajectories:
        return host.trajectories(rollout, theta, context, key)

    def mean_return(self, rollout: Rollout, theta: Array, context: Array, key: Array) -> Array:
        return host.stream(rollout, theta, context, key).mean_return

    def whole(self, function: Function) -> Function:
        return function

    def piece(self, function: Function) -> Function:
        return compiled(function)

    def map(self, function: Callable[[Array], Array], values: Array, side_by_side: int) -> Array:
        return jnp.stack([function(value) for value in values])

    def start(self, env: Any) -> None:
        noise = np.zeros((1, 1, env.reset_noise), np.float32)
        env.start_episodes(np.asarray([env.context_space.low], np.float32), noise, np.zeros((1, 1), np.uint32))


_DEVICE, _HOST = Engine(), _Host()


def engine_of(env: Env | HostEnv) -> Engine:
    """Who simulates an environment."""
    return _HOST if isinstance(env, HostEnv) else _DEVICE

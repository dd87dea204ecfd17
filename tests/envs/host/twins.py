"""JAX environments stepped through the protocol of the host: the same tasks on both sides."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from metastep.envs.base import Wrapper
from metastep.envs.host import HostStep


@partial(jax.jit, static_argnums=0)
def _reset(env, context, noise):
    reset = jax.vmap(lambda task, normals: env.reset(task, tuple(normals)))
    return jax.vmap(reset, in_axes=(None, 0))(env.context_space.unpack(context), noise)


@partial(jax.jit, static_argnums=0)
def _observe(env, context, state):
    observe = jax.vmap(lambda task, lane: jnp.stack(env.observe(task, lane)))
    return jax.vmap(observe, in_axes=(None, 0))(env.context_space.unpack(context), state)


@partial(jax.jit, static_argnums=0)
def _step(env, context, state, action, noise, alive):
    step = jax.vmap(lambda task, lane, a, z: env.step(task, lane, tuple(a), tuple(z)))
    after = jax.vmap(step, in_axes=(None, 0, 0, 0))(env.context_space.unpack(context), state, action, noise)
    return jax.tree.map(lambda new, old: jnp.where(alive, new, old), after.state, state), after.reward, after.terminated


@dataclass(frozen=True)
class Twin(Wrapper):
    """The same environment, on the host."""

    def start_episodes(self, context, noise, seeds):
        return _TwinEpisodes(self.env, context, noise)


def _require_read_only(*arrays):
    assert not any(array.flags.writeable for array in arrays)


class _TwinEpisodes:
    def __init__(self, env, context, noise):
        _require_read_only(context, noise)
        self.env, self.context = env, context
        self.state = _reset(env, context, noise)

    def restart(self, which, noise, seeds):
        _require_read_only(which, noise, seeds)
        fresh = _reset(self.env, self.context, noise)
        self.state = jax.tree.map(lambda new, old: jnp.where(which, new, old), fresh, self.state)

    def observe(self):
        return np.asarray(_observe(self.env, self.context, self.state))

    def step(self, action, noise, alive):
        _require_read_only(action, noise, alive)
        self.state, reward, terminated = _step(self.env, self.context, self.state, action, noise, alive)
        return HostStep(np.asarray(reward), np.asarray(terminated))

"""Print what every setting of the table is like under random actions: `python -m pretraining.families [NAME ...]`."""

import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import InputError
from metastep.envs import Env, choices_of, range_of
from pretraining.families import SETTINGS, TEST, build

EPISODES = 1024


class Played(NamedTuple):
    """One episode in each of many tasks."""

    returns: NDArray[np.float32]
    lengths: NDArray[np.int32]
    ended: NDArray[np.bool_]
    compiling: float  # s
    rate: float  # steps a second, those after the end included


def play(env: Env, horizon: int, num: int = EPISODES, seed: int = 0) -> Played:
    """Play one episode in each of `num` tasks, with uniform actions."""
    choices, space, (low, high) = choices_of(env), env.context_space, range_of(env) or (-1.0, 1.0)

    def draw(key: Array) -> tuple[Array, ...]:
        if choices is not None:
            return (jax.random.randint(key, (), 0, choices, jnp.int32),)
        return tuple(jax.random.uniform(key, (env.num_actions,), minval=low, maxval=high))

    def episode(context: Array, key: Array) -> tuple[Array, Array, Array]:
        def step(carry: Any, key: Array) -> tuple[Any, None]:
            (state, paid, length), alive = carry
            chosen, moved = jax.random.split(key)
            after = env.step(task, state, draw(chosen), tuple(jax.random.normal(moved, (env.step_noise,))))
            new = after.state, paid + after.reward, length + 1
            return (jax.tree.map(partial(jnp.where, alive), new, carry[0]), alive & ~after.terminated), None

        task = space.unpack(context)
        first = env.reset(task, tuple(jax.random.normal(jax.random.fold_in(key, 1), (env.reset_noise,))))
        start = (first, jnp.float32(0.0), jnp.int32(0)), jnp.bool_(True)
        ((_, paid, length), alive), _ = jax.lax.scan(step, start, jax.random.split(key, horizon))
        return paid, length, ~alive

    tasks, keys = jax.random.split(jax.random.key(seed))
    contexts = space.sample(tasks, num)
    if "reward_power" in space.names:  # returns are of the family's own rewards
        contexts = contexts.at[:, space.names.index("reward_power")].set(0.0)
    given, began = (contexts, jax.random.split(keys, num)), time.perf_counter()
    program = jax.jit(jax.vmap(episode)).lower(*given).compile()
    ready = time.perf_counter()
    returns, lengths, ended = map(np.asarray, program(*given))
    return Played(returns, lengths, ended, ready - began, num * horizon / (time.perf_counter() - ready))


def main(names: list[str]) -> None:
    """Print a row for each setting."""
    print(f"{'setting':20} seen  actions     return  (spread)   ends  steps  compiling  steps/s")
    for name in names or SETTINGS:
        env = build(name)
        found, choices = play(env, SETTINGS[name].horizon), choices_of(env)
        actions = f"{env.num_actions} real" if choices is None else f"1 of {choices}"
        paid = f"{found.returns.mean():10.4g} ({found.returns.std():8.3g})"
        ends = f"{found.ended.mean():6.0%} {found.lengths.mean():6.0f} {found.compiling:8.1f} s {found.rate:8.2g}"
        print(f"{name:20} {env.num_observations:4}  {actions:8} {paid} {ends} {'test' if name in TEST else ''}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)

"""Print what every setting of the table is like under random actions: `python -m pretraining.families [NAME ...]`."""

import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep import InputError
from metastep.envs import Env, choices_of, range_of
from pretraining.families import SETTINGS, TEST, build

EPISODES = 1024


def play(env: Env, horizon: int, num: int = EPISODES, seed: int = 0) -> list[NDArray[Any]]:
    """Play one episode in each of `num` tasks, with uniform actions; return their returns, lengths and whether they ended."""
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
    return [np.asarray(part) for part in jax.jit(jax.vmap(episode))(contexts, jax.random.split(keys, num))]


def main(names: list[str]) -> None:
    """Print a row for each setting."""
    print(f"{'setting':20} seen  actions     return  (spread)   ends  steps  seconds")
    for name in names or SETTINGS:
        env, began = build(name), time.perf_counter()
        (returns, lengths, ended), choices = play(env, SETTINGS[name].horizon), choices_of(env)
        actions = f"{env.num_actions} real" if choices is None else f"1 of {choices}"
        paid, took = f"{returns.mean():10.4g} ({returns.std():8.3g})", time.perf_counter() - began
        ends = f"{ended.mean():6.0%} {lengths.mean():6.0f} {took:8.1f} {'test' if name in TEST else ''}"
        print(f"{name:20} {env.num_observations:4}  {actions:8} {paid} {ends}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)

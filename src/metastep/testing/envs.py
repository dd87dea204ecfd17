"""The contract of environments in JAX."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metastep._core.noise import to_uniform
from metastep.envs.base import Context, Env, State, Step, choices_of, range_of
from metastep.envs.host.base import HostEnv
from metastep.envs.wrapper import Wrapper
from metastep.policies import LinearGaussian
from metastep.simulation.engine import engine_of
from metastep.simulation.rollouts import Rollout, trajectories
from metastep.testing.episodes import Contexts, Played, check_episodes, corners, declared
from metastep.testing.host_envs import check_host_env
from metastep.testing.subject import Subject, same

_NUM_PROBES = 64  # single moves from as many first states


@dataclass(frozen=True)
class _Driven(Wrapper):
    """An environment that is given other actions than those that are chosen."""

    env: Env

    def reset(self, context: Context, noise: tuple[Array, ...]) -> State:
        return self.env.reset(context, noise)

    def observe(self, context: Context, state: State) -> tuple[Array, ...]:
        return self.env.observe(context, state)


class _Cut(_Driven):
    """Cut off at their declared range, as batches of steps do."""

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        limits = range_of(self.env) or (-np.inf, np.inf)
        return self.env.step(context, state, tuple(jnp.clip(each, *limits) for each in action), noise)


class _Drawn(_Driven):
    """Discrete ones, with equal chances by a standard normal."""

    @property
    def num_choices(self) -> None:
        return None

    def step(self, context: Context, state: State, action: tuple[Array, ...], noise: tuple[Array, ...]) -> Step:
        choices = choices_of(self.env) or 1
        index = jnp.floor(to_uniform(action[0], 0.0, float(choices)))
        return self.env.step(context, state, (jnp.clip(index, 0.0, choices - 1.0).astype(jnp.int32),), noise)


def check_env(
    env: Env | HostEnv,
    *,
    num_episodes: int = 32,
    horizon: int = 50,
    sigma: float = 1.0,
    seed: int = 0,
    thorough: bool = True,
) -> None:
    """Raise `InputError` unless `env` keeps the contract of `metastep.envs.Env`, or of `metastep.envs.HostEnv`.

    Checked are: the declared fields; that the environment can select a compiled program (hashable, equal copies equal); that
    state, observation, reward and `terminated` are scalars of the right dtype and number; that the same input gives the same
    bits; that every declared action and normal has an effect; that random episodes stay finite; that `terminated` freezes
    the state and the reward; and that every coordinate of the context changes the episodes.

    Args:
        env: the environment.
        num_episodes, horizon: size of the simulations; longer ones where the context matters late in an episode. On the host
            two episodes for each task are enough (see `check_host_env`).
        sigma: standard deviation of the random actions, around a mean of zero; choose it to match the actions' scale. Discrete
            actions are equally likely.
        seed: of the simulations.
        thorough: False leaves out that the same input gives the same bits and that all that is declared has an effect, and cuts
            actions off at their declared range. `metastep run` and `metastep collect` check environments of your own so.
    """
    subject = declared(env)
    if not engine_of(env).is_compiled:
        check_host_env(subject.part, horizon=horizon, sigma=sigma, seed=seed, thorough=thorough)
        return
    subject.methods("reset", "observe", "step")
    _check_shapes(subject, subject.part)
    driven: Env = subject.part
    if choices_of(env) is not None:
        driven, sigma = _Drawn(driven), 1.0
    elif not thorough:
        driven = _Cut(driven)
    if thorough:
        _check_moves(subject, driven, sigma, seed)
    rollout = Rollout(driven, LinearGaussian(env.num_observations, env.num_actions, sigma), num_episodes, horizon)
    theta = jnp.zeros((len(corners(env.context_space)[0]), rollout.policy.num_parameters), jnp.float32)
    simulate = jax.jit(partial(trajectories, rollout))

    def play(tasks: Contexts) -> Played:
        result = subject.call("step", simulate, theta, jnp.asarray(tasks), jax.random.key(seed))
        return Played(*(np.asarray(array) for array in (result.observation, result.reward, result.alive)))

    check_episodes(subject, play, seed, thorough=thorough)


def _scalars(num: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct((), jnp.float32) for _ in range(num))


def _check_shapes(subject: Subject, env: Env) -> None:
    """Trace the three methods for one lane; nothing is computed."""
    context = env.context_space.unpack(jnp.asarray(env.context_space.low, jnp.float32))
    state = subject.trace(f"reset with {env.reset_noise} normals", env.reset, context, _scalars(env.reset_noise))
    subject.require(jax.tree.leaves(state), "the state that `reset` returns holds no numbers")
    for leaf in jax.tree.leaves(state):
        right = isinstance(leaf.dtype, np.dtype)
        subject.require(
            right, "the state that `reset` returns holds a random key; random numbers come from the normals"
        )
        subject.array("a field of the state that `reset` returns", leaf, (), leaf.dtype)

    seen, num_seen = subject.trace("observe", env.observe, context, state), env.num_observations
    kind = type(seen).__name__
    subject.require(isinstance(seen, tuple), f"`observe` returns a {kind}, it must return a tuple of scalars")
    right = len(seen) == num_seen
    subject.require(right, f"`observe` returns {len(seen)} numbers, but num_observations is {num_seen}")
    for index, value in enumerate(seen):
        subject.array(f"observation {index}", value, ())

    what = f"step with {env.num_actions} actions and {env.step_noise} normals"
    kind = jnp.float32 if choices_of(env) is None else jnp.int32
    actions = tuple(jax.ShapeDtypeStruct((), kind) for _ in range(env.num_actions))
    after = subject.trace(what, env.step, context, state, actions, _scalars(env.step_noise))
    subject.returns("step", after, "metastep.envs.Step", *Step._fields)
    subject.alike("what `step` returns", after.state, state)
    subject.array("the reward", after.reward, ())
    subject.array("`terminated`", after.terminated, (), np.bool_)


def _check_moves(subject: Subject, env: Env, sigma: float, seed: int) -> None:
    """Single moves from first states: the same twice, and every declared action and normal changes some result."""

    def move(context: Array, action: Array, reset_noise: Array, step_noise: Array) -> tuple[Any, ...]:
        task = env.context_space.unpack(context)
        start = env.reset(task, tuple(reset_noise))
        after = env.step(task, start, tuple(action), tuple(step_noise))
        return start, env.observe(task, start), after

    sizes = {"num_actions": env.num_actions, "reset_noise": env.reset_noise, "step_noise": env.step_noise}
    first, *keys = jax.random.split(jax.random.key(seed), 4)
    context = env.context_space.sample(first, _NUM_PROBES)
    inputs = {
        field: (sigma if field == "num_actions" else 1.0) * jax.random.normal(key, (_NUM_PROBES, size), jnp.float32)
        for key, (field, size) in zip(keys, sizes.items(), strict=True)
    }
    usual = subject.repeat(("reset", "observe", "step"), jax.vmap(move), context, *inputs.values())
    program = jax.jit(jax.vmap(move))
    names = ("action", "normal of the reset", "normal of the step")
    for what, (field, values) in zip(names, inputs.items(), strict=True):
        for index in range(sizes[field]):
            changed = values.at[:, index].set(jnp.roll(values[:, index], 1))
            matters = not same(usual, program(context, *(inputs | {field: changed}).values()))
            subject.require(matters, f"{field} is {sizes[field]}, but {what} number {index} changes nothing")

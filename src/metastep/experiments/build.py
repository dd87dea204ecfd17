"""From a configuration to the objects that run it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metastep import envs
from metastep.errors import InputError
from metastep.experiments.config import Experiment
from metastep.gradients import Estimator
from metastep.meta.mdp import InitialPolicy, MetaMDP
from metastep.meta.spaces import HyperparameterSpace
from metastep.policies import LinearGaussian, MLPGaussian, Policy
from metastep.simulation.rollouts import Rollout


def build_env(config: Experiment) -> envs.Env | envs.HostEnv:
    """The environment, every task equal where the configuration fixes the context."""
    env = envs.make(config.env.name, **config.env.options)
    values = config.env.fixed_context
    if values is None:
        return env
    names = env.context_space.names
    if len(values) != len(names):
        raise InputError(f"env.fixed_context: {list(values)} must hold one number for each of {', '.join(names)}.")
    if not dataclasses.is_dataclass(type(env)):
        raise InputError(f"env.fixed_context: the context of {config.env.name} cannot be fixed, it is no dataclass.")
    record: Any = env  # a protocol says nothing on how it is implemented
    fixed: envs.Env | envs.HostEnv = dataclasses.replace(record, context_space=env.context_space.fixed(values))
    return fixed


def require_available(env: envs.Env | envs.HostEnv) -> None:
    """Start an episode, so that what an environment needs and does not find is said before anything is written."""
    try:
        _start(env)
    except ImportError as error:
        raise InputError(f"env: {env.name} needs something that is not installed: {error}.") from None


def _start(env: envs.Env | envs.HostEnv) -> None:
    space = env.context_space
    if isinstance(env, envs.HostEnv):
        noise = np.zeros((1, 1, env.reset_noise), np.float32)
        env.start_episodes(np.asarray([space.low], np.float32), noise, np.zeros((1, 1), np.uint32))
        return
    context = space.unpack(jnp.asarray(space.low, jnp.float32))
    jax.eval_shape(env.reset, context, tuple(jnp.zeros((env.reset_noise,), jnp.float32)))


def build_mdp(config: Experiment) -> MetaMDP:
    """The meta-MDP that a configuration describes."""
    env = build_env(config)
    policy: Policy
    if config.policy.kind == "linear":
        policy = LinearGaussian(env.num_observations, env.num_actions, config.policy.sigma)
    else:
        policy = MLPGaussian(env.num_observations, env.num_actions, config.policy.sigma, config.policy.hidden)
    rollout, meta, initial = config.rollout, config.meta, config.initial
    used = ("mean", "variance") if initial.kind == "normal" else ("low", "high")
    for name in used:
        numbers = getattr(initial, name)
        if len(numbers) not in (1, policy.num_parameters):
            raise InputError(
                f"initial.{name}: {list(numbers)} must hold one number, or one for each of the "
                f"{policy.num_parameters} parameters."
            )
    return MetaMDP(
        estimator=Estimator(
            Rollout(env, policy, rollout.num_episodes, rollout.horizon, rollout.discount, rollout.baseline),
            damping=rollout.damping,
            cg_iterations=rollout.cg_iterations,
        ),
        space=HyperparameterSpace((meta.stepsize_low,), (meta.stepsize_high,), (meta.stepsize_scale,)),
        initial=InitialPolicy(initial.kind, *(getattr(initial, name) for name in used)),
        meta_discount=meta.meta_discount,
        observation=meta.observation,
        block_size=rollout.block_size,
    )


def updates_collected(config: Experiment) -> int:
    """T of the training data: the generative method samples every tuple afresh, which is an episode of one update."""
    return 1 if config.collect.method == "generative" else config.meta.num_updates

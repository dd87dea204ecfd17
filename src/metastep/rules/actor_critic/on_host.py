"""Batches of steps from simulators that are not JAX: between compiled functions, a step of all environments at a time.

A simulator cannot be kept in arrays, so every batch begins with new episodes in all environments: what a learner becomes
depends on its arrays and keys alone, also where a run is taken up again. An episode that ends within the batch, or is cut off
by its simulator or at the horizon, gives way to a new one in the same task. Actor, critic, random numbers and whatever is made
of the steps are those of environments in JAX.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from metastep._core.errors import InputError
from metastep._core.numerics import standard_normals
from metastep.envs.base import range_of
from metastep.envs.host import Bools, Episodes, HostEnv, Restartable
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic.steps import Played
from metastep.simulation.host import draw_seeds, numbers_last, on_host

if TYPE_CHECKING:
    from metastep.rules.actor_critic.experience import Sampler

_RESETS, _SEEDS = 2**32 - 1, 2**32 - 2  # beside the batch's own key, in whose stream no environment has such a number


@partial(jax.jit, static_argnums=(0, 2))
def _draw(sampler: "Sampler", key: Array, num_learners: int) -> tuple[Array, Array, Array]:
    """All random numbers of a batch, learners before environments: normals of the steps and of the first resets, and seeds.

    The first two are drawn as for environments in JAX.
    """
    env, shape = sampler.env, (num_learners, sampler.num_envs)
    resets = standard_normals(jax.random.fold_in(key, _RESETS), 0, env.reset_noise, shape)
    seeds = draw_seeds(jax.random.fold_in(key, _SEEDS), (sampler.num_steps, *shape))
    return sampler.normals(key, num_learners), numbers_last(resets, shape), seeds


@partial(jax.jit, static_argnums=0)
def _choose(policy: ActorCritic, theta: Array, observation: Array, normals: Array) -> Array:
    """Actions where (learners, envs, observations) are seen."""

    def choose_one(theta: Array, observation: Array, normals: Array) -> Array:
        return policy.act(policy.split(theta), observation).sample(normals)

    return jax.vmap(choose_one)(theta, observation, normals)


def _swapped(array: Any) -> NDArray[Any]:
    """Learners first for arrays of the simulator, which has environments first, and the other way round: a read-only copy."""
    copy = np.array(np.swapaxes(array, 0, 1), order="C")
    copy.setflags(write=False)
    return copy


def restartable(env: HostEnv, episodes: Episodes) -> Restartable:
    """Return the episodes, or refuse those that cannot restart, which batches of steps need."""
    if not isinstance(episodes, Restartable):
        raise InputError(
            f"env.name: {env.name!r} has episodes without a method `restart`, which batches of steps need to begin new ones."
        )
    return episodes


def _hold(
    sampler: "Sampler", episodes: Episodes, action: NDArray[Any], noise: NDArray[Any], elapsed: NDArray[Any]
) -> tuple[NDArray[Any], Bools, Bools, NDArray[Any]]:
    """Hold the action until its time, or that of the episode, is over.

    Reward, whether there is no future, whether the episode has ended, and its steps.
    """
    num, reward = sampler.env.step_noise, np.zeros(elapsed.shape)
    terminated, ended = np.zeros((2, *elapsed.shape), np.bool_)
    for index in range(sampler.hold):
        goes_on = ~ended
        goes_on.setflags(write=False)  # as all arrays that a simulator is handed
        after = episodes.step(action, noise[..., index * num : (index + 1) * num], goes_on)
        reward = np.where(goes_on, reward + after.reward, reward)
        terminated = terminated | (goes_on & after.terminated)
        elapsed = elapsed + goes_on
        ended = ended | (goes_on & after.over) | (elapsed >= sampler.horizon)
    ended.setflags(write=False)
    return reward, terminated, ended, elapsed


def play_batch(sampler: "Sampler", theta: Array, context: Array, key: Array) -> Played:
    """Step every environment of every learner `num_steps` times, from the start of an episode on."""
    env, policy = on_host(sampler.env, theta), sampler.policy
    normals, resets, seeds = (np.asarray(array) for array in _draw(sampler, key, len(theta)))
    chosen_by, moved_by = policy.num_actions, policy.num_actions + sampler.hold * env.step_noise
    limits = None if policy.is_discrete else range_of(env)
    episodes = restartable(env, env.start_episodes(np.asarray(context), _swapped(resets), _swapped(seeds[0])))
    steps = []
    elapsed = np.zeros((sampler.num_envs, len(theta)), np.int64)
    seen = _swapped(episodes.observe()).astype(np.float32)
    for t in range(sampler.num_steps):
        action = np.asarray(_choose(policy, theta, seen, normals[t, ..., :chosen_by]))
        made = _swapped(action if limits is None else np.clip(action, *limits))
        noise = _swapped(normals[t, ..., chosen_by:moved_by])
        reward, terminated, ended, elapsed = _hold(sampler, episodes, made, noise, elapsed)
        seen_next = _swapped(episodes.observe()).astype(np.float32)
        paid = _swapped(reward).astype(np.float32)
        steps.append((seen, action, paid, seen_next, _swapped(terminated), _swapped(ended)))  # as in Played
        seen = seen_next
        if ended.any() and t + 1 < sampler.num_steps:
            episodes.restart(ended, _swapped(normals[t, ..., moved_by:]), _swapped(seeds[t + 1]))
            elapsed = np.where(ended, 0, elapsed)
            seen = _swapped(episodes.observe()).astype(np.float32)
    played: Any = (np.stack(arrays, axis=1) for arrays in zip(*steps, strict=True))
    return Played(*played)

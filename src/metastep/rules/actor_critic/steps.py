"""The steps of a batch, and generalised advantage estimation (Schulman and others, 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep.policies.actor_critic import ActorCritic, Parts


class Played(NamedTuple):
    """What the environments give in a batch; every array is (learners, steps, envs, ...)."""

    observation: Array
    action: Array
    reward: Array
    seen_next: Array  # where a step led, before a new episode began there
    terminated: Array  # the episode has no future
    ended: Array  # terminated, or cut off at the horizon


class Steps(NamedTuple):
    """What was seen, done and paid; every array is (learners, steps, envs, ...)."""

    observation: Array
    action: Array
    log_density: Array  # log pi(action)
    entropy: Array
    reward: Array
    value: Array  # the critic's, of where a step began
    next_value: Array  # of where it led, before a new episode began there
    terminated: Array  # the episode has no future
    ended: Array  # terminated, or cut off at the horizon


def steps_of(policy: ActorCritic, parts: Parts, played: Played) -> Steps:
    """Evaluate actor and critic of one learner on its whole batch; the arrays of `played` have no axis of learners."""
    distribution = policy.act(parts, played.observation)
    return Steps(
        observation=played.observation,
        action=played.action,
        log_density=distribution.log_density(played.action),
        entropy=distribution.entropy(),
        reward=played.reward,
        value=policy.value(parts, played.observation),
        next_value=policy.value(parts, played.seen_next),
        terminated=played.terminated,
        ended=played.ended,
    )


def steps_at_once() -> int:
    """Return how many steps of a loop are compiled as one.

    A GPU takes about as long to begin a step of a small network as to make it: four at once are a quarter faster with one
    learner. A CPU gains nothing, and would compile four times as much.
    """
    return 4 if jax.default_backend() == "gpu" else 1


def in_first_episode(ended: Array) -> Array:
    """Return whether a step (..., steps, envs) belongs to the first episode of its environment, its last step included."""
    ends = ended.astype(jnp.int32)
    return jnp.cumsum(ends, axis=-2) == ends  # none has ended before


def advantages(steps: Steps, discount: float, gae_lambda: float) -> Array:
    """A_t = d_t + gamma lambda A_{t+1}, d_t = r_t + gamma V(s_{t+1}) - V(s_t): (learners, steps, envs).

    A state without a future is worth nothing. Where an episode was cut off, or goes on in the next batch, the critic says what
    would have come; the sum over later steps never reaches into the next episode.
    """
    future = jnp.where(steps.terminated, 0.0, steps.next_value)
    surprise = steps.reward + discount * future - steps.value
    decay = jnp.where(steps.ended, 0.0, discount * gae_lambda)

    def back(later: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        total = now[0] + now[1] * later
        return total, total

    in_time = tuple(jnp.swapaxes(array, 0, 1) for array in (surprise, decay))
    _, found = lax.scan(back, jnp.zeros_like(surprise[:, 0]), in_time, reverse=True)
    return jnp.swapaxes(found, 0, 1)

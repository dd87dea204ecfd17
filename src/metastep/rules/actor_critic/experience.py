"""One batch of steps and what an update learns from it, with generalised advantage estimation (Schulman and others, 2016)."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from metastep.envs.base import State
from metastep.policies.actor_critic import ActorCritic, Parts


class Lanes(NamedTuple):
    """Environments between two batches; every array is (learners, envs)."""

    state: State  # nothing on the host, where a simulator keeps its own
    elapsed: Array  # steps of the episode that is running
    paid: Array  # its rewards so far
    last_return: Array  # of the episode that ended last; on the host, of the first one of the batch
    has_ended: Array  # whether there is one


class Played(NamedTuple):
    """What the environments give in a batch; every array is (learners, steps, envs, ...)."""

    observation: Array
    action: Array
    reward: Array
    seen_next: Array  # where a step led, before a new episode began there
    terminated: Array  # the episode has no future
    ended: Array  # terminated, or cut off at the horizon


class Steps(NamedTuple):
    """The same with what actor and critic say about it; every array is (learners, steps, envs, ...)."""

    observation: Array
    action: Array
    log_density: Array  # log pi(action)
    entropy: Array
    reward: Array
    value: Array  # the critic's, of where a step began
    next_value: Array  # of where it led
    terminated: Array
    ended: Array


class Experience(NamedTuple):
    """What an update learns from, and what a batch says about each learner; learners first, then all steps."""

    observation: Array  # (learners, batch, observations)
    action: Array  # (learners, batch, actions)
    log_density: Array  # (learners, batch): log pi(action) when it was taken
    value: Array  # (learners, batch): the critic's
    advantage: Array  # (learners, batch)
    target: Array  # (learners, batch): what the critic should have said
    mean_return: Array  # (learners,): j, of the `last_return` of every environment, without discount
    return_error: Array  # (learners,): its standard error
    entropy: Array  # (learners,): of the policy, mean over the batch
    num_steps: Array  # (learners,): environment steps
    lanes: Lanes  # where the next batch goes on
    differences: tuple[Array, Array] | None = None  # `temporal_differences`, where lambda is chosen for each update


def steps_of(policy: ActorCritic, parts: Parts, played: Played) -> Steps:
    """Evaluate actor and critic of one learner on its whole batch; the arrays of `played` have no axis of learners."""
    given, distribution = played._asdict(), policy.act(parts, played.observation)
    return Steps(
        next_value=policy.value(parts, given.pop("seen_next")),
        value=policy.value(parts, played.observation),
        log_density=distribution.log_density(played.action),
        entropy=distribution.entropy(),
        **given,
    )


def in_first_episode(ended: Array) -> Array:
    """Return whether a step (..., steps, envs) belongs to the first episode of its environment, its last step included."""
    ends = ended.astype(jnp.int32)
    return jnp.cumsum(ends, axis=-2) == ends  # none has ended before


def temporal_differences(steps: Steps, discount: float, gae_lambda: float = 1.0) -> tuple[Array, Array]:
    """Return d_t = r_t + gamma V(s_{t+1}) - V(s_t), and the weight gamma lambda of A_{t+1}: each (learners, steps, envs).

    A state without a future is worth nothing. Where an episode was cut off, or goes on in the next batch, the critic says what
    would have come; the sum over later steps never reaches into the next episode.
    """
    future = jnp.where(steps.terminated, 0.0, steps.next_value)
    surprise = steps.reward + discount * future - steps.value
    return surprise, jnp.where(steps.ended, 0.0, discount * gae_lambda)


def advantages(surprise: Array, decay: Array) -> Array:
    """A_t = d_t + gamma lambda A_{t+1} of `temporal_differences`: (learners, steps, envs)."""

    def back(later: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        total = now[0] + now[1] * later
        return total, total

    in_time = tuple(jnp.swapaxes(array, 0, 1) for array in (surprise, decay))
    _, found = lax.scan(back, jnp.zeros_like(surprise[:, 0]), in_time, reverse=True)
    return jnp.swapaxes(found, 0, 1)


def with_lambda(batch: Experience, gae_lambda: Array) -> Experience:
    """Return a batch that kept its differences with the advantages and targets of each learner's lambda (learners,)."""
    assert batch.differences is not None
    surprise, discount = batch.differences
    advantage = advantages(surprise, discount * gae_lambda[:, None, None]).reshape(batch.advantage.shape)
    return batch._replace(advantage=advantage, target=advantage + batch.value)

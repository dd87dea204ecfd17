"""What an actor-critic rule is: an update from one batch, with hyperparameters that are chosen for it."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from metastep._core.errors import InputError
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.sampler import steps_at_once
from metastep.rules.base import BaseRule, chosen_rows, finite_rows
from metastep.rules.spaces import Values


class Moments(NamedTuple):
    """Running moments of a gradient, and how many steps they have seen."""

    first: Array  # (learners, parameters)
    second: Array  # (learners, parameters)
    steps: Array  # (learners,)


class Report(NamedTuple):
    """What an update says about itself: numbers of one learner, or (learners,) each; 0 where a rule has no such thing."""

    divergence: Array  # KL between the policies before and after, over the batch
    clip_fraction: Array | float = 0.0  # share of the batch whose ratio of densities was clipped
    last_clip_fraction: Array | float = 0.0  # of the last epoch
    gradient_norm: Array | float = 0.0  # of the loss, before it is cut, mean over all gradient steps
    actor_gradient_norm: Array | float = 0.0  # of the actor's part of it
    gradient_steps: Array | float = 0.0  # how many there were


class Trained(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: Moments
    flagged: Array  # (learners,): it would have left the range of float32, so theta and state stayed
    divergence: Array  # (learners,), like all that follows: the `Report`
    clip_fraction: Array
    last_clip_fraction: Array
    gradient_norm: Array
    actor_gradient_norm: Array
    gradient_steps: Array


class ActorCriticRule(BaseRule):
    """theta' = f(theta, h, batch of steps). A rule of your own is a frozen dataclass that inherits from this."""

    gae_lambda: float = 0.95  # of the advantages
    minibatch_size: int | None = None  # steps of each gradient; None where it takes the whole batch

    def require_batch(self, batch_size: int) -> None:
        """Refuse a number of steps that the rule cannot learn from."""
        if self.minibatch_size and batch_size % self.minibatch_size:
            raise InputError(
                f"meta.rule.minibatch_size: {self.minibatch_size} must divide the {batch_size} steps of a batch, which are "
                "rollout.num_envs times rollout.num_steps."
            )

    def init(self, theta: Array) -> Moments:
        """Return the state before the first update."""
        return Moments(jnp.zeros_like(theta), jnp.zeros_like(theta), jnp.zeros(len(theta), jnp.float32))

    @abstractmethod
    def train(
        self, policy: ActorCritic, key: Array, theta: Array, batch: Experience, values: Values, state: Moments
    ) -> tuple[Array, Moments, Report]:
        """Update one learner; return theta, the state and a report.

        `values` has a number for each coordinate of the space and for each of `optional`; the key is that of all learners.
        """

    def apply(
        self, policy: ActorCritic, theta: Array, experience: Experience, values: Values, state: Moments, key: Array
    ) -> Trained:
        """Update every learner, `values` (learners,) each; learners that would leave float32's range stay, flagged."""
        # Fields hold where the space does not choose: a number, or the first of several.
        fields = {name: jnp.float32(np.ravel(getattr(self, name))[0]) for name in self.optional}
        usual = {name: jnp.broadcast_to(value, (len(theta),)) for name, value in fields.items()}
        train = jax.vmap(partial(self.train, policy, key))
        moved, after, report = train(theta, experience, usual | values, state)
        usable = finite_rows((moved, after))
        moved, after = chosen_rows(usable, (moved, after), (theta, state))
        return Trained(
            moved, after, ~usable, *(jnp.where(usable & jnp.isfinite(value), value, 0.0) for value in report)
        )


def norms(policy: ActorCritic, gradient: Array) -> tuple[Array, Array]:
    """Return the length of a gradient (parameters,), and that of the actor's part."""
    actor = gradient[: policy.num_actor_parameters]
    return jnp.sqrt(jnp.sum(gradient**2)), jnp.sqrt(jnp.sum(actor**2))


def clipped(gradient: Array, most: float) -> Array:
    """Return a gradient (parameters,) of at most this length, as PyTorch cuts it."""
    return gradient * jnp.minimum(1.0, most / (jnp.sqrt(jnp.sum(gradient**2)) + 1e-6))


_DECAYS = 0.9, 0.999  # of Adam's moments
_EPSILON = 1e-5  # of Adam: larger than usual, as Stable-Baselines3 has it for small networks


def adam_step(theta: Array, gradient: Array, rate: Array, moments: Moments) -> tuple[Array, Moments]:
    """Make one step of Adam downhill, for one learner.

    The order of operations is PyTorch's; optax's Adam multiplies in another one, and gives other last bits.
    """
    steps = moments.steps + 1.0
    first = _DECAYS[0] * moments.first + (1.0 - _DECAYS[0]) * gradient
    second = _DECAYS[1] * moments.second + (1.0 - _DECAYS[1]) * gradient**2
    root = jnp.sqrt(second / (1.0 - _DECAYS[1] ** steps))
    moved = theta - rate / (1.0 - _DECAYS[0] ** steps) * first / (root + _EPSILON)
    return moved, Moments(first, second, steps)


def train_in_minibatches(
    step: Callable[[Any, Any], tuple[Any, Any]], start: Any, batch: Any, key: Array, epochs: int, size: int
) -> tuple[Any, Any]:
    """Scan over minibatches of one learner's batch, in a new order for every epoch, which all learners share.

    Return the end and the mean outputs of every epoch.
    """
    batch_size = len(jax.tree.leaves(batch)[0])
    orders = jax.vmap(lambda one: jax.random.permutation(one, batch_size))(jax.random.split(key, epochs))

    def epoch(carry: Any, order: Array) -> tuple[Any, Any]:
        shuffled = jax.tree.map(lambda array: array[order].reshape(-1, size, *array.shape[1:]), batch)
        carry, outputs = lax.scan(step, carry, shuffled, unroll=steps_at_once())
        return carry, jax.tree.map(jnp.mean, outputs)

    return lax.scan(epoch, start, orders)


def standardised(advantage: Array) -> Array:
    """Return advantages with mean 0 and, but for rounding, standard deviation 1."""
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage, ddof=1) + 1e-8)


def approximate_divergence(log_ratio: Array) -> Array:
    """Estimate KL(before, after) from ratios of densities at actions drawn before: mean of (ratio - 1) - log ratio."""
    return jnp.mean(jnp.expm1(log_ratio) - log_ratio)

"""What an actor-critic rule is: an update from one batch, with hyperparameters that are chosen for it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.steps import steps_at_once
from metastep.rules.base import chosen_rows, finite_rows
from metastep.rules.spaces import Values


class Moments(NamedTuple):
    """Running moments of a gradient, and how many steps they have seen."""

    first: Array  # (learners, parameters)
    second: Array  # (learners, parameters)
    steps: Array  # (learners,)


class Trained(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: Moments
    flagged: Array  # (learners,): it would have left the range of float32, so theta and state stayed
    divergence: Array  # (learners,): KL between the policies before and after, over the batch
    clip_fraction: Array  # (learners,): share of the batch whose ratio of densities was clipped; 0 where nothing clips


class ActorCriticRule(ABC):
    """theta' = f(theta, h, batch). A rule of your own is a frozen dataclass that inherits from this."""

    name: ClassVar[str]  # identifier in the registry
    is_along_a_line: ClassVar[bool] = False
    tells_divergence: ClassVar[bool] = True
    damping: ClassVar[None] = None
    gae_lambda: float = 0.95  # of the advantages
    minibatch_size: int | None = None  # steps of each gradient; None where it takes the whole batch
    optional: ClassVar[tuple[str, ...]] = ()  # fields that a space may have as coordinates, beside the step

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The numbers that every space has as coordinates."""
        return ("stepsize",)

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of categories to choose from before the step; none without a choice."""
        return ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """What these categories stand for."""
        return ()

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
    def apply(
        self, policy: ActorCritic, theta: Array, experience: Experience, values: Values, state: Moments, key: Array
    ) -> Trained:
        """Update every learner; `values` has one array (learners,) for each coordinate of the space."""


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


def orders_of(key: Array, epochs: int, size: int) -> Array:
    """Draw an order of the batch for every epoch, (epochs, size), the same for all learners."""
    return jax.vmap(lambda one: jax.random.permutation(one, size))(jax.random.split(key, epochs))


def train_in_minibatches(
    step: Callable[[Any, Any], tuple[Any, Any]], start: Any, batch: Any, orders: Array, size: int
) -> tuple[Any, Any]:
    """Scan over shuffled minibatches of one learner's batch; return the end and the mean outputs of every epoch."""

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


def kept_finite(theta: Array, state: Moments, trained: Trained) -> Trained:
    """Return the update; learners that would leave float32's range stay where they were, flagged."""
    usable = finite_rows((trained.theta, trained.state))
    moved, after = chosen_rows(usable, (trained.theta, trained.state), (theta, state))
    divergence, clip_fraction = (
        jnp.where(usable & jnp.isfinite(value), value, 0.0) for value in (trained.divergence, trained.clip_fraction)
    )
    return Trained(moved, after, ~usable, divergence, clip_fraction)

"""The interface of actor-critic rules: an update from one batch of steps, with chosen hyperparameters."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.settings import check_fields
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic.sampler import Experience, steps_at_once, with_lambda
from metastep.rules.base import BaseRule, Moments, chosen_rows, finite_rows, no_moments
from metastep.rules.spaces import Values

LEARNERS = "learners"  # name of the axis that `train` is batched over


class Report(NamedTuple):
    """Diagnostics of an update: numbers of one learner, or arrays (learners,); 0 if a rule does not compute them."""

    divergence: Array  # KL between the policies before and after, over the batch
    clip_fraction: Array | float = 0.0  # share of the batch whose ratio of densities was clipped
    last_clip_fraction: Array | float = 0.0  # of the last epoch
    gradient_norm: Array | float = 0.0  # of the loss, before clipping, mean over all gradient steps
    actor_gradient_norm: Array | float = 0.0  # of the actor's part of the gradient
    gradient_steps: Array | float = 0.0  # number of gradient steps


class Trained(NamedTuple):
    """The outcome of one update."""

    theta: Array  # (learners, parameters)
    state: Moments
    flagged: Array  # (learners,): the result exceeded float32, so theta and state are unchanged
    divergence: Array  # (learners,); this and the fields below are those of `Report`
    clip_fraction: Array
    last_clip_fraction: Array
    gradient_norm: Array
    actor_gradient_norm: Array
    gradient_steps: Array


class ActorCriticRule(BaseRule):
    """theta' = f(theta, h, batch of steps). Rules of your own are frozen dataclasses that inherit from this."""

    gae_lambda: float = 0.95  # of the advantages
    minibatch_size: int | None = None  # steps per gradient; None is the whole batch

    def __post_init__(self) -> None:
        check_fields(self, "meta.rule")

    def own_steps(self, batch_size: int) -> int:
        """Return the gradient steps of an update where they are not chosen."""
        return 1

    def require_batch(self, batch_size: int) -> None:
        """Raise an error if the rule cannot learn from a batch of this size."""
        if self.minibatch_size and batch_size % self.minibatch_size:
            steps = f"the {batch_size} steps of a batch, which are rollout.num_envs times rollout.num_steps"
            raise InputError(f"meta.rule.minibatch_size: {self.minibatch_size} must divide {steps}.")

    def init(self, theta: Array) -> Moments:
        """Return the state before the first update."""
        return no_moments(theta)

    @abstractmethod
    def train(
        self, policy: ActorCritic, key: Array, theta: Array, batch: Experience, values: Values, state: Moments
    ) -> tuple[Array, Moments, Report]:
        """Update one learner; return theta, the state and a report.

        `values` has a number for each coordinate of the space; other settings are the rule's fields. Learners share the key.
        """

    def apply(
        self, policy: ActorCritic, theta: Array, experience: Experience, values: Values, state: Moments, key: Array
    ) -> Trained:
        """Update every learner, with `values` (learners,) each; learners that would exceed float32 are unchanged and flagged."""
        if "gae_lambda" in values:
            experience = with_lambda(experience, values["gae_lambda"])
        # `differences` do not have learners as their first axis, and are not needed any more.
        experience = experience._replace(differences=None)
        train = jax.vmap(partial(self.train, policy, key), axis_name=LEARNERS)
        moved, after, report = train(theta, experience, values, state)
        usable = finite_rows((moved, after))
        moved, after = chosen_rows(usable, (moved, after), (theta, state))
        return Trained(moved, after, ~usable, *(jnp.where(usable & jnp.isfinite(each), each, 0.0) for each in report))


Step = Callable[[Any, Any], tuple[Any, Any]]  # (carry, minibatch) -> (carry, outputs), as in `lax.scan`


def train_in_minibatches(
    step: Step, start: Any, batch: Any, key: Array, epochs: int, size: int, most: Array | int | None = None
) -> tuple[Any, Any]:
    """Scan over minibatches of one learner's batch, in a new order for every epoch; all learners share the orders.

    Return the final carry and the mean outputs of every epoch, zero for those skipped after `most` steps of all learners.
    """
    batch_size = len(jax.tree.leaves(batch)[0])
    orders = jax.vmap(lambda one: jax.random.permutation(one, batch_size))(jax.random.split(key, epochs))

    def epoch(carry: Any, order: Array) -> tuple[Any, Any]:
        shuffled = jax.tree.map(lambda array: array[order].reshape(-1, size, *array.shape[1:]), batch)
        carry, outputs = lax.scan(step, carry, shuffled, unroll=steps_at_once())
        return carry, jax.tree.map(jnp.mean, outputs)

    if most is None:
        return lax.scan(epoch, start, orders)
    needed = jnp.ceil(_whole(lax.pmax(jnp.asarray(most, jnp.float32), LEARNERS)) * size / batch_size)
    outputs = jax.eval_shape(epoch, start, orders[0])[1]
    empty = jax.tree.map(lambda one: jnp.zeros((epochs, *one.shape), one.dtype), outputs)

    def go_on(loop: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
        index, carry, outputs = loop
        carry, new = epoch(carry, orders[index])
        return index + 1, carry, jax.tree.map(lambda every, one: every.at[index].set(one), outputs, new)

    last = jnp.minimum(needed, float(epochs)).astype(jnp.int32)
    _, carry, outputs = lax.while_loop(lambda loop: loop[0] < last, go_on, (jnp.int32(0), start, empty))
    return carry, outputs


def _whole(most: Array | int) -> Array:
    """Round a number of steps to an integer, at least 1."""
    return jnp.maximum(jnp.round(most), 1.0)


def limited(step: Step, most: Array | int) -> Step:
    """Return a step that changes nothing after the first `most` calls; it carries their number, and outputs whether it counts."""

    # Learners of a block make different numbers of steps in one compiled program.
    def masked(carry: Any, minibatch: Any) -> tuple[Any, Any]:
        before, made = carry
        after, outputs = step(before, minibatch)
        counts = made < _whole(most)
        after = jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, before)
        outputs = jax.tree.map(lambda output: jnp.where(counts, output, 0.0), outputs)
        return (after, made + 1.0), (outputs, counts.astype(jnp.float32))

    return masked

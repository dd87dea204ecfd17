"""Trust region policy optimisation (Schulman and others, 2015)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from annotated_types import Lt
from jax import Array, lax

from metastep._core.settings import Count, Positive, Share, check_fields
from metastep.policies.actor_critic import ActorCritic
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.ppo import PPO
from metastep.rules.actor_critic.rule import (
    ActorCriticRule,
    Moments,
    Report,
    adam_step,
    norms,
    standardised,
    train_in_minibatches,
)
from metastep.rules.spaces import Range, Values
from metastep.simulation.gradients import conjugate_gradient


@dataclass(frozen=True)
class TRPO(ActorCriticRule):
    """A step along the natural gradient, as long as a bound on the divergence allows, then Adam for the critic.

    The step is that bound: the KL divergence between the policies before and after, mean over the batch. Defaults are those of
    Stable-Baselines3's contributed package.

    Args:
        gae_lambda, normalise_advantages: as of `PPO`.
        cg_iterations: conjugate-gradient steps to the natural gradient (cg_max_steps).
        cg_damping: added to the Fisher matrix's diagonal.
        search_steps: lengths that the line search tries (line_search_max_iter).
        search_factor: between one length and the next (line_search_shrinking_factor).
        critic_rate: learning rate of the critic (learning_rate).
        critic_epochs: passes through the batch for the critic (n_critic_updates).
        minibatch_size: steps of each of the critic's gradients (batch_size), which must divide the batch.
    """

    gae_lambda: Share = 0.95
    normalise_advantages: bool = True
    cg_iterations: Count = 15
    cg_damping: Positive = 0.1
    search_steps: Count = 10
    search_factor: Annotated[Positive, Lt(1.0)] = 0.8
    critic_rate: Positive = 1e-3
    critic_epochs: Count = 10
    minibatch_size: Count = 128

    name: ClassVar[str] = "trpo"
    choices: ClassVar[dict[str, Range]] = {
        "gae_lambda": PPO.choices["gae_lambda"],
        "critic_rate": Range(1e-4, 0.1, "log"),  # a rate of its own: the actor has none
    }

    def __post_init__(self) -> None:
        check_fields(self, "meta.rule")

    def train(
        self, policy: ActorCritic, key: Array, theta: Array, batch: Experience, values: Values, state: Moments
    ) -> tuple[Array, Moments, Report]:
        bound = values["stepsize"]
        before = policy.act(policy.split(theta), batch.observation)
        advantage = standardised(batch.advantage) if self.normalise_advantages else batch.advantage

        def gain(theta: Array) -> Array:
            now = policy.act(policy.split(theta), batch.observation).log_density(batch.action)
            return jnp.mean(advantage * jnp.exp(now - batch.log_density))

        def divergence(theta: Array) -> Array:
            return jnp.mean(before.divergence(policy.act(policy.split(theta), batch.observation)))

        def fisher(vector: Array) -> Array:
            return jax.jvp(jax.grad(divergence), (theta,), (vector,))[1] + self.cg_damping * vector

        start, gradient = jax.value_and_grad(gain)(theta)
        direction = conjugate_gradient(fisher, gradient, jnp.dot, self.cg_iterations)
        curvature = direction @ fisher(direction)
        longest = jnp.sqrt(2.0 * bound / jnp.where(curvature > 0.0, curvature, jnp.inf)) * direction

        def attempt(found: tuple[Array, Array, Array], scale: Array) -> tuple[tuple[Array, Array, Array], None]:
            """Take the first length that improves and keeps the bound."""
            is_found, best, cost = found
            there = theta + scale * longest
            spent = divergence(there)
            serves = (spent < bound) & (gain(there) > start) & ~is_found
            return (is_found | serves, jnp.where(serves, there, best), jnp.where(serves, spent, cost)), None

        scales = jnp.float32(self.search_factor) ** jnp.arange(self.search_steps, dtype=jnp.float32)
        (_, moved, cost), _ = lax.scan(attempt, (jnp.bool_(False), theta, jnp.float32(0.0)), scales)

        def error(theta: Array, observation: Array, target: Array) -> Array:
            return jnp.mean((target - policy.value(policy.split(theta), observation)) ** 2)

        def step(carry: tuple[Array, Moments], data: tuple[Array, ...]) -> tuple[tuple[Array, Moments], None]:
            """Make a step of Adam for the critic; the actor's gradients are zero, so that it stays."""
            theta, moments = carry
            return adam_step(theta, jax.grad(error)(theta, *data), critic_rate, moments), None

        critic_rate = values.get("critic_rate", jnp.float32(self.critic_rate))
        data, size = (batch.observation, batch.target), self.minibatch_size
        (moved, after), _ = train_in_minibatches(step, (moved, state), data, key, self.critic_epochs, size)
        # Gradients are those of the policy's gain; its step and the critic's count alike.
        steps = 1.0 + self.critic_epochs * len(batch.target) / size
        return moved, after, Report(cost, 0.0, 0.0, *norms(policy, gradient), steps)

"""Relatives of PPO: A2C (Mnih and others, 2016) and trust region policy optimisation (Schulman and others, 2015)."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from annotated_types import Lt
from jax import Array, lax

from metastep._core.settings import Count, Float, Positive, Share, check_fields
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.ppo import PPO
from metastep.rules.actor_critic.rule import (
    ActorCriticRule,
    Moments,
    Report,
    adam_step,
    approximate_divergence,
    clipped,
    norms,
    rates,
    standardised,
    train_in_minibatches,
)
from metastep.rules.spaces import Range, Values
from metastep.simulation.gradients import conjugate_gradient


@dataclass(frozen=True)
class A2C(ActorCriticRule):
    """One step of RMSprop on the whole batch; the step is the learning rate. Defaults are Stable-Baselines3's.

    Args:
        gae_lambda, normalise_advantages, entropy_weight, value_weight, max_gradient_norm: as of `PPO`.
        decay: of the running mean of the squared gradient.
        epsilon: added to its root (rms_prop_eps).
        critic_rate: the critic's learning rate over the actor's.
    """

    gae_lambda: Share = 1.0
    normalise_advantages: bool = False
    entropy_weight: Float = 0.0
    value_weight: Float = 0.5
    max_gradient_norm: Positive = 0.5
    decay: Share = 0.99
    epsilon: Positive = 1e-5
    critic_rate: Positive = field(default=1.0, metadata={"newer": "0.3"})

    name: ClassVar[str] = "a2c"
    choices: ClassVar[dict[str, Range]] = {
        name: PPO.choices[name] for name in ("gae_lambda", "entropy_weight", "critic_rate")
    }

    def __post_init__(self) -> None:
        check_fields(self, "meta.rule")

    def loss(self, policy: ActorCritic, parts: Parts, batch: Experience, entropy_weight: Array | float) -> Array:
        """Return what is minimised, for one learner."""
        distribution, value = policy.act(parts, batch.observation), policy.value(parts, batch.observation)
        advantage = standardised(batch.advantage) if self.normalise_advantages else batch.advantage
        towards = -jnp.mean(advantage * distribution.log_density(batch.action))
        error = jnp.mean((batch.target - value) ** 2)
        return towards - entropy_weight * jnp.mean(distribution.entropy()) + self.value_weight * error

    def train(
        self, policy: ActorCritic, key: Array, theta: Array, batch: Experience, values: Values, state: Moments
    ) -> tuple[Array, Moments, Report]:
        entropy_weight = values.get("entropy_weight", self.entropy_weight)
        rate = rates(policy, values["stepsize"], values.get("critic_rate", self.critic_rate))
        gradient = policy.join(jax.grad(self.loss, argnums=1)(policy, policy.split(theta), batch, entropy_weight))
        lengths, gradient = norms(policy, gradient), clipped(gradient, self.max_gradient_norm)
        second = self.decay * state.second + (1.0 - self.decay) * gradient**2
        moved = theta - rate * gradient / (jnp.sqrt(second) + self.epsilon)
        now = policy.act(policy.split(moved), batch.observation).log_density(batch.action)
        report = Report(approximate_divergence(now - batch.log_density), 0.0, 0.0, *lengths, 1.0)
        return moved, Moments(state.first, second, state.steps + 1.0), report


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

"""Advantage actor-critic: one step of RMSprop along the policy gradient (Mnih and others, 2016)."""

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.settings import Float, Positive, Share, check_fields
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.ppo import PPO
from metastep.rules.actor_critic.rule import (
    ActorCriticRule,
    Moments,
    Report,
    approximate_divergence,
    clipped,
    norms,
    rates,
    standardised,
)
from metastep.rules.spaces import Range, Values


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

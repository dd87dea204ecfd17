"""Proximal policy optimisation with clipped ratios (Schulman and others, 2017)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from metastep._core.errors import InputError
from metastep._core.settings import Count, Float, Positive, Several, Share, check_fields
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.experience import Experience
from metastep.rules.actor_critic.rule import (
    ActorCriticRule,
    Moments,
    Report,
    adam_step,
    approximate_divergence,
    clipped,
    limited,
    norms,
    rates,
    standardised,
    train_in_minibatches,
)
from metastep.rules.spaces import Range, Values


class Minibatch(NamedTuple):
    """What the loss looks at, (steps, ...) of one learner."""

    observation: Array
    action: Array
    log_density: Array
    value: Array
    advantage: Array
    target: Array


class Losses(NamedTuple):
    """What the loss of one minibatch consists of, and what practitioners watch."""

    policy: Array
    value: Array
    entropy: Array
    divergence: Array
    clip_fraction: Array


@dataclass(frozen=True)
class PPO(ActorCriticRule):
    """Several epochs of Adam on the clipped surrogate; the step is the learning rate. Defaults are Stable-Baselines3's.

    Args:
        epochs: passes through the batch (n_epochs).
        minibatch_size: steps of each gradient (batch_size), which must divide the batch.
        gae_lambda: lambda of the advantages.
        clip_range: how far from 1 ratios of densities count. With several, one of them is chosen for each update.
        value_clip_range: how far the critic may move in an update (clip_range_vf); None for any distance.
        normalise_advantages: whether those of a minibatch have mean 0 and standard deviation 1.
        entropy_weight: of the policy's entropy in the loss (ent_coef).
        value_weight: of the critic's squared error in the loss (vf_coef).
        max_gradient_norm: what longer gradients are cut to (max_grad_norm).
        gradient_steps: steps of Adam for an update, at most those of all epochs, which are made by default.
        critic_rate: the critic's learning rate over the actor's.
    """

    epochs: Count = 10
    minibatch_size: Several = 64
    gae_lambda: Share = 0.95
    clip_range: tuple[Positive, ...] = (0.2,)
    value_clip_range: Positive | None = None
    normalise_advantages: bool = True
    entropy_weight: Float = 0.0
    value_weight: Float = 0.5
    max_gradient_norm: Positive = 0.5
    gradient_steps: Count | None = field(default=None, metadata={"newer": "0.3"})
    critic_rate: Positive = field(default=1.0, metadata={"newer": "0.3"})

    name: ClassVar[str] = "ppo"
    # What a space may choose for each update: `train` reads it from `values`, one traced number for each learner.
    choices: ClassVar[dict[str, Range]] = {
        "gradient_steps": Range(4.0, 64.0, "log"),
        "clip_range": Range(0.05, 1.0, "log"),
        "gae_lambda": Range(0.8, 1.0),
        "entropy_weight": Range(1e-5, 0.1, "log"),
        "critic_rate": Range(0.2, 10.0, "log"),
    }

    def __post_init__(self) -> None:
        check_fields(self, "meta.rule")
        if not self.clip_range or len(set(self.clip_range)) < len(self.clip_range):
            raise InputError(f"meta.rule.clip_range: {list(self.clip_range)} must hold one number or more, each once.")

    def require_batch(self, batch_size: int) -> None:
        super().require_batch(batch_size)
        most = self.epochs * batch_size // self.minibatch_size
        if self.gradient_steps is not None and self.gradient_steps > most:
            raise InputError(
                f"gradient_steps: {self.gradient_steps} must not exceed {most}, the number of minibatches in all epochs."
            )

    @property
    def hyperparameters(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on the options
        return ("clip_range", "stepsize") if self.numbers else ("stepsize",)

    @property
    def directions(self) -> tuple[str, ...]:
        return tuple(f"clip {value:g}" for value in self.numbers)

    @property
    def numbers(self) -> tuple[float, ...]:  # type: ignore[override]
        """The clip ranges where there are several."""
        return self.clip_range if len(self.clip_range) > 1 else ()

    def loss(
        self,
        policy: ActorCritic,
        parts: Parts,
        batch: Minibatch,
        clip_range: Array,
        entropy_weight: Array | float | None = None,
    ) -> tuple[Array, Losses]:
        """Return what is minimised, for one learner, and its parts."""
        entropy_weight = self.entropy_weight if entropy_weight is None else entropy_weight
        distribution, value = policy.act(parts, batch.observation), policy.value(parts, batch.observation)
        advantage = standardised(batch.advantage) if self.normalise_advantages else batch.advantage
        log_ratio = distribution.log_density(batch.action) - batch.log_density
        ratio = jnp.exp(log_ratio)
        near = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
        if self.value_clip_range is not None:
            value = batch.value + jnp.clip(value - batch.value, -self.value_clip_range, self.value_clip_range)
        losses = Losses(
            policy=-jnp.mean(jnp.minimum(advantage * ratio, advantage * near)),
            value=jnp.mean((batch.target - value) ** 2),
            entropy=-jnp.mean(distribution.entropy()),
            divergence=approximate_divergence(log_ratio),
            clip_fraction=jnp.mean((jnp.abs(ratio - 1.0) > clip_range).astype(jnp.float32)),
        )
        return losses.policy + entropy_weight * losses.entropy + self.value_weight * losses.value, losses

    def train(
        self, policy: ActorCritic, key: Array, theta: Array, batch: Experience, values: Values, state: Moments
    ) -> tuple[Array, Moments, Report]:
        clip_range = values.get("clip_range", jnp.float32(self.clip_range[0]))
        entropy_weight = values.get("entropy_weight", self.entropy_weight)
        rate = rates(policy, values["stepsize"], values.get("critic_rate", self.critic_rate))
        most = values.get("gradient_steps", self.gradient_steps)

        def step(carry: tuple[Array, Moments], minibatch: Minibatch) -> tuple[tuple[Array, Moments], Any]:
            theta, moments = carry
            slopes, losses = jax.grad(self.loss, argnums=1, has_aux=True)(
                policy, policy.split(theta), minibatch, clip_range, entropy_weight
            )
            gradient = policy.join(slopes)
            after = adam_step(theta, clipped(gradient, self.max_gradient_norm), rate, moments)
            return after, (losses, norms(policy, gradient))

        data = Minibatch(*(getattr(batch, name) for name in Minibatch._fields))
        passes = data, key, self.epochs, self.minibatch_size
        all_steps = self.epochs * len(batch.target) / self.minibatch_size
        # As Stable-Baselines3 reports them: the divergence of the last epoch, clip fractions of all.
        if most is None:
            (theta, state), (losses, lengths) = train_in_minibatches(step, (theta, state), *passes)
            shares, (total, actor) = losses.clip_fraction, map(jnp.mean, lengths)
            return theta, state, Report(losses.divergence[-1], jnp.mean(shares), shares[-1], total, actor, all_steps)
        start = (theta, state), jnp.float32(0.0)
        ((theta, state), _), ((losses, lengths), made) = train_in_minibatches(limited(step, most), start, *passes, most)
        last = jnp.sum(made > 0.0) - 1
        divergence, last_share = losses.divergence[last] / made[last], losses.clip_fraction[last] / made[last]
        share, total, actor = (jnp.sum(each) / jnp.sum(made) for each in (losses.clip_fraction, *lengths))
        return theta, state, Report(divergence, share, last_share, total, actor, all_steps * jnp.mean(made))

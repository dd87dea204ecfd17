"""PPO (Schulman and others, 2017) with clipped ratios, A2C (Mnih and others, 2016), and TRPO (Schulman and others, 2015)."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Lt
from jax import Array, lax

from metastep._core.errors import InputError
from metastep._core.settings import Count, Float, Positive, Several, Share
from metastep.policies.actor_critic import ActorCritic, Parts
from metastep.rules.actor_critic.rule import ActorCriticRule, Report, limited, train_in_minibatches
from metastep.rules.actor_critic.sampler import Experience
from metastep.rules.base import Moments
from metastep.rules.spaces import Range, Values
from metastep.simulation.gradients import conjugate_gradient


def norms(policy: ActorCritic, gradient: Array) -> tuple[Array, Array]:
    """Return the norm of a gradient (parameters,), and that of the actor's part."""
    actor = gradient[: -int(policy.is_critic.sum())]  # theta = (actor, critic)
    return jnp.sqrt(jnp.sum(gradient**2)), jnp.sqrt(jnp.sum(actor**2))


def clipped(gradient: Array, most: float) -> Array:
    """Clip a gradient (parameters,) to this norm, as PyTorch does."""
    return gradient * jnp.minimum(1.0, most / (jnp.sqrt(jnp.sum(gradient**2)) + 1e-6))


_DECAYS = 0.9, 0.999  # of Adam's moments
_EPSILON = 1e-5  # of Adam, as in Stable-Baselines3; larger than Adam's default


def adam_step(theta: Array, gradient: Array, rate: Array, moments: Moments) -> tuple[Array, Moments]:
    """Make one descent step of Adam for one learner; the rate may differ between parameters."""
    # The order of operations is PyTorch's; that of optax gives other last bits.
    steps = moments.steps + 1.0
    first = _DECAYS[0] * moments.first + (1.0 - _DECAYS[0]) * gradient
    second = _DECAYS[1] * moments.second + (1.0 - _DECAYS[1]) * gradient**2
    root = jnp.sqrt(second / (1.0 - _DECAYS[1] ** steps))
    moved = theta - rate / (1.0 - _DECAYS[0] ** steps) * first / (root + _EPSILON)
    return moved, Moments(first, second, steps)


def rates(policy: ActorCritic, rate: Array, critic_rate: Array | float) -> Array:
    """Return the learning rate of every parameter: the actor's, and `critic_rate` times it for the critic."""
    if isinstance(critic_rate, float) and critic_rate == 1.0:
        return rate
    return rate * jnp.where(policy.is_critic, critic_rate, 1.0)


def standardised(advantage: Array) -> Array:
    """Return advantages with mean 0 and standard deviation 1, up to rounding."""
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage, ddof=1) + 1e-8)


def approximate_divergence(log_ratio: Array) -> Array:
    """Estimate KL(before, after) from density ratios at actions of the old policy: mean of (ratio - 1) - log ratio."""
    return jnp.mean(jnp.expm1(log_ratio) - log_ratio)


class Minibatch(NamedTuple):
    """Inputs of the loss, (steps, ...) of one learner."""

    observation: Array
    action: Array
    log_density: Array
    value: Array
    advantage: Array
    target: Array


class Losses(NamedTuple):
    """Terms of the loss of one minibatch, and common diagnostics."""

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
    # Hyperparameters that a space may choose for each update; `train` reads them from `values`, traced numbers of one learner.
    choices: ClassVar[dict[str, Range]] = {
        "gradient_steps": Range(4.0, 64.0, "log"),
        "clip_range": Range(0.05, 1.0, "log"),
        "gae_lambda": Range(0.8, 1.0),
        "entropy_weight": Range(1e-5, 0.1, "log"),
        "critic_rate": Range(0.2, 10.0, "log"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip_range or len(set(self.clip_range)) < len(self.clip_range):
            raise InputError(f"meta.rule.clip_range: {list(self.clip_range)} must hold one number or more, each once.")

    def own_steps(self, batch_size: int) -> int:
        return self.gradient_steps or self.epochs * batch_size // self.minibatch_size

    def up_to(self, most: float, batch_size: int) -> "PPO":
        """Return the rule with enough epochs to choose so many gradient steps; unless chosen, they are as many as now."""
        epochs = math.ceil(most / max(1, batch_size // self.minibatch_size))
        return replace(self, epochs=max(self.epochs, epochs), gradient_steps=self.own_steps(batch_size))

    def require_batch(self, batch_size: int) -> None:
        super().require_batch(batch_size)
        most = self.epochs * batch_size // self.minibatch_size
        if self.gradient_steps is not None and self.gradient_steps > most:
            must = f"must not exceed {most}, the number of minibatches in all epochs"
            raise InputError(f"gradient_steps: {self.gradient_steps} {must}.")

    @property
    def hyperparameters(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on the options
        return ("clip_range", "stepsize") if self.numbers else ("stepsize",)

    @property
    def directions(self) -> tuple[str, ...]:
        return tuple(f"clip {value:g}" for value in self.numbers)

    @property
    def numbers(self) -> tuple[float, ...]:  # type: ignore[override]
        """The clip ranges, if there are several."""
        return self.clip_range if len(self.clip_range) > 1 else ()

    def loss(
        self, policy: ActorCritic, parts: Parts, batch: Minibatch, clip_range: Array, entropy_weight: Array | float
    ) -> tuple[Array, Losses]:
        """Return the loss of one learner, and its terms."""
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
        slopes_of = jax.grad(self.loss, argnums=1, has_aux=True)

        def step(carry: tuple[Array, Moments], minibatch: Minibatch) -> tuple[tuple[Array, Moments], Any]:
            theta, moments = carry
            slopes, losses = slopes_of(policy, policy.split(theta), minibatch, clip_range, entropy_weight)
            gradient = policy.join(slopes)
            after = adam_step(theta, clipped(gradient, self.max_gradient_norm), rate, moments)
            return after, (losses, norms(policy, gradient))

        passes = Minibatch(*(getattr(batch, name) for name in Minibatch._fields)), key, self.epochs, self.minibatch_size
        all_steps = self.epochs * len(batch.target) / self.minibatch_size
        # As in Stable-Baselines3, the divergence is that of the last epoch, the clip fraction the mean over all.
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
    choices: ClassVar = {name: PPO.choices[name] for name in ("gae_lambda", "entropy_weight", "critic_rate")}

    def loss(self, policy: ActorCritic, parts: Parts, batch: Experience, entropy_weight: Array | float) -> Array:
        """Return the loss of one learner."""
        distribution, value = policy.act(parts, batch.observation), policy.value(parts, batch.observation)
        advantage = standardised(batch.advantage) if self.normalise_advantages else batch.advantage
        surrogate = -jnp.mean(advantage * distribution.log_density(batch.action))
        error = jnp.mean((batch.target - value) ** 2)
        return surrogate - entropy_weight * jnp.mean(distribution.entropy()) + self.value_weight * error

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
        "critic_rate": Range(1e-4, 0.1, "log"),  # not relative to the actor's, which has no rate
    }

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

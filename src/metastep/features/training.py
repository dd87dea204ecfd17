"""What a loop with an actor and a critic knows after an update: numbers that practitioners watch, none with a unit."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep import diagnostics
from metastep.features.base import Feature
from metastep.features.update import log10
from metastep.mdp import ActorCriticMDP, Learners, Process


class _OfTraining(Feature):
    """Known where an actor and a critic learn from batches of steps."""

    batches: ClassVar[str] = "steps"


class ClipFraction(_OfTraining):
    """Share of the last update's ratios of densities that were clipped, mean over all its minibatches."""

    name: ClassVar[str] = "clip_fraction"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.previous.clip_fraction[:, None]


class EntropyChange(_OfTraining):
    """Entropy of the policy on the current batch minus that on the first one, in nats."""

    name: ClassVar[str] = "entropy_change"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return (learners.estimate.entropy - learners.previous.first_entropy)[:, None]


class FirstEntropy(_OfTraining):
    """Entropy of the policy on the first batch, in nats, to a tenth: what kind of actions there are, and how many."""

    name: ClassVar[str] = "first_entropy"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return jnp.asarray(diagnostics.to_a_tenth(learners.previous.first_entropy, jnp))[:, None]


class ExplainedVariance(_OfTraining):
    """1 - Var(target - value) / Var(target) of the critic on the current batch, -1 at least."""

    name: ClassVar[str] = "explained_variance"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        batch = learners.estimate
        return jnp.asarray(diagnostics.explained_variance(batch.value, batch.target, jnp))[:, None]

    def bounds(self, mdp: Process) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (-1.0,), (1.0,)


class StepRatio(_OfTraining):
    """Decimal logarithm of the length of the last step over that of the one before it; 0 before the second."""

    name: ClassVar[str] = "step_ratio"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return jnp.asarray(diagnostics.step_ratio(learners.previous.ratio, jnp))[:, None]


class StepCosine(_OfTraining):
    """Cosine of the angle between the last step and the one before it; 0 before the second."""

    name: ClassVar[str] = "step_cosine"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.previous.cosine[:, None]


class LastRate(_OfTraining):
    """Decimal logarithm of the learning rate, or bound, that the last update was made with; -6 before the first."""

    name: ClassVar[str] = "last_rate"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return log10(learners.previous.rate)[:, None]


class Budget(_OfTraining):
    """Share of the updates that were made, of those that a learner has; 1 also beyond."""

    name: ClassVar[str] = "budget"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        assert isinstance(mdp, ActorCriticMDP)  # as `batches` says
        share = diagnostics.share_made(learners.update.astype(jnp.float32), float(mdp.budget), jnp)
        return jnp.full((len(learners.theta), 1), share)

    def bounds(self, mdp: Process) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0,), (1.0,)

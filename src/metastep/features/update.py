"""What a learner knows of the updates it may make and of the one it made last; most of it has no unit."""

from itertools import combinations
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep import diagnostics
from metastep.features.base import Feature
from metastep.mdp import Learners, Process, whole_episodes


def log10(values: Array) -> Array:
    """Decimal logarithms, of what is tiny or not positive that of the smallest number that counts."""
    return jnp.asarray(diagnostics.log10(values, jnp))


def _norm(vectors: Array) -> Array:
    """Lengths of the last axis, taken over its largest entry first: squares of float32 numbers leave its range."""
    largest = jnp.max(jnp.abs(vectors), axis=-1)
    safe = jnp.where(largest > 0.0, largest, 1.0)
    return largest * jnp.sqrt(jnp.sum((vectors / safe[..., None]) ** 2, axis=-1))


def _cosine(first: Array, second: Array) -> Array:
    """Of the angle between vectors of the last axis; 0 where one of them is zero."""
    lengths = _norm(first), _norm(second)
    units = (
        v / jnp.where(length > 0.0, length, 1.0)[..., None] for v, length in zip((first, second), lengths, strict=True)
    )
    return jnp.clip(jnp.sum(jnp.prod(jnp.stack(jnp.broadcast_arrays(*units)), axis=0), axis=-1), -1.0, 1.0)


def _steps(mdp: Process, learners: Learners) -> Array:
    """(learners, directions, parameters)."""
    return whole_episodes(mdp, "meta.observation").rule.steps(learners.estimate, learners.rule_state)


def _directions(mdp: Process) -> tuple[str, ...]:
    """The directions there are to choose, by name."""
    return mdp.rule.directions or ((mdp.rule.name,) if mdp.rule.is_along_a_line else ())


class _OfTheDirections(Feature):
    """One number for each direction."""

    batches: ClassVar[str] = "episodes"

    def size(self, mdp: Process) -> int:
        return len(_directions(mdp))

    def columns(self, mdp: Process) -> tuple[str, ...]:
        return tuple(f"{self.name}[{direction}]" for direction in _directions(mdp))


class Steps(Feature):
    """What an update adds to theta at h = 1, along every direction."""

    batches: ClassVar[str] = "episodes"
    name: ClassVar[str] = "steps"

    def size(self, mdp: Process) -> int:
        return len(_directions(mdp)) * mdp.num_parameters

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return _steps(mdp, learners).reshape(len(learners.theta), -1)

    def columns(self, mdp: Process) -> tuple[str, ...]:
        return tuple(f"step[{d}][{index}]" for d in _directions(mdp) for index in range(mdp.num_parameters))


class LogNorms(Feature):
    """Decimal logarithms of the norms of the gradient and of the natural gradient."""

    batches: ClassVar[str] = "episodes"
    name: ClassVar[str] = "log_norms"

    def size(self, mdp: Process) -> int:
        return 2

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        estimate = learners.estimate
        return log10(_norm(jnp.stack([estimate.gradient, estimate.natural_gradient], axis=1)))

    def columns(self, mdp: Process) -> tuple[str, ...]:
        return "log_norm[gradient]", "log_norm[natural_gradient]"


class Slopes(_OfTheDirections):
    """v'g along every direction v: how much the return grows at first, for each unit of h."""

    name: ClassVar[str] = "slopes"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return jnp.sum(_steps(mdp, learners) * learners.estimate.gradient[:, None], axis=-1)


class Curvatures(_OfTheDirections):
    """Decimal logarithm of v'Fv along every direction v: twice the divergence of a step of length 1."""

    name: ClassVar[str] = "curvatures"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return log10(learners.curvature)


class Gains(_OfTheDirections):
    """Decimal logarithm of v'g / sqrt(v'Fv) over the return's standard error: the slope per root of divergence, in errors."""

    name: ClassVar[str] = "gains"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        slope = Slopes()(mdp, learners)
        error = jnp.sqrt(jnp.maximum(learners.curvature, 0.0)) * learners.estimate.return_error[:, None]
        return log10(jnp.where(error > 0.0, slope / jnp.where(error > 0.0, error, 1.0), 0.0))


class Cosines(Feature):
    """Cosines of the angles between all directions, the plain gradient among them."""

    batches: ClassVar[str] = "episodes"
    name: ClassVar[str] = "cosines"

    def size(self, mdp: Process) -> int:
        return len(self.columns(mdp))

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        vectors = jnp.concatenate([_steps(mdp, learners), learners.estimate.gradient[:, None]], axis=1)
        first, second = zip(*combinations(range(vectors.shape[1]), 2), strict=True)
        return _cosine(vectors[:, jnp.asarray(first)], vectors[:, jnp.asarray(second)])

    def columns(self, mdp: Process) -> tuple[str, ...]:
        return tuple(f"cosine[{a}, {b}]" for a, b in combinations((*_directions(mdp), "gradient"), 2))


class LastCosines(_OfTheDirections):
    """Cosines of the angles between every direction and the last step; 0 before the first."""

    name: ClassVar[str] = "last_cosines"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return _cosine(_steps(mdp, learners), learners.previous.step[:, None])


class LastStep(Feature):
    """Decimal logarithm of the length of the last step."""

    name: ClassVar[str] = "last_step"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return log10(_norm(learners.previous.step))[:, None]


class LastDivergence(Feature):
    """Decimal logarithm of the divergence that the last step cost."""

    name: ClassVar[str] = "last_divergence"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return log10(learners.previous.divergence)[:, None]


class ReturnChange(Feature):
    """How much the last update changed the mean return; 0 before the first."""

    name: ClassVar[str] = "return_change"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        change = learners.estimate.mean_return - learners.previous.mean_return
        return jnp.where(learners.update > 0, change, 0.0)[:, None]


class ChangeInErrors(Feature):
    """How much the last update changed the mean return, in standard errors; 0 before the first."""

    name: ClassVar[str] = "change_in_errors"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        error = learners.estimate.return_error[:, None]
        return jnp.asarray(diagnostics.change_in_errors(ReturnChange()(mdp, learners), error, jnp))


class RelativeError(Feature):
    """Decimal logarithm of the return's standard error over the return's absolute value."""

    name: ClassVar[str] = "relative_error"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        estimate = learners.estimate
        return jnp.asarray(diagnostics.relative_error(estimate.mean_return, estimate.return_error, jnp))[:, None]

"""Features of simulated learners: their policy, their task, and the updates they may make. Loops give them by name."""

from itertools import combinations
from typing import Any

import numpy as np

from metastep.features.base import Feature, Seen, Source
from metastep.features.diagnostics import log10


def norm(vectors: Any, xp: Any) -> Any:
    """Return the lengths of the last axis, scaled by its largest entry first: squares of float32 numbers leave its range."""
    largest = xp.max(xp.abs(vectors), axis=-1)
    safe = xp.where(largest > 0.0, largest, 1.0)
    return largest * xp.sqrt(xp.sum((vectors / safe[..., None]) ** 2, axis=-1))


def _cosine(first: Any, second: Any, xp: Any) -> Any:
    """Return cosines of the angles between vectors of the last axis; 0 where one of them is zero."""
    lengths = norm(first, xp), norm(second, xp)
    units = (
        v / xp.where(length > 0.0, length, 1.0)[..., None] for v, length in zip((first, second), lengths, strict=True)
    )
    return xp.clip(xp.sum(xp.prod(xp.stack(xp.broadcast_arrays(*units)), axis=0), axis=-1), -1.0, 1.0)


class _PerParameter(Feature):
    """One number for each parameter of the policy."""

    def size(self, mdp: Source) -> int:
        return mdp.num_parameters

    def columns(self, mdp: Source) -> tuple[str, ...]:
        """Numbered, even a single one."""
        return tuple(f"{self.name}[{index}]" for index in range(mdp.num_parameters))


class Theta(_PerParameter):
    """The policy's parameters."""

    name, needs = "theta", ("theta",)


class Gradient(_PerParameter):
    """The plain gradient of the return."""

    name, needs = "gradient", ("gradient",)


class NaturalGradient(_PerParameter):
    """The natural gradient, with the damping of the rule."""

    name, needs = "natural_gradient", ("natural_gradient",)


class Context(Feature):
    """The task."""

    name, needs = "context", ("context",)

    def size(self, mdp: Source) -> int:
        return mdp.context_space.num_coordinates

    def columns(self, mdp: Source) -> tuple[str, ...]:
        return mdp.context_space.names

    def bounds(self, mdp: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return mdp.context_space.low, mdp.context_space.high


class _PerDirection(Feature):
    """One number for each direction that an update may take."""

    def size(self, mdp: Source) -> int:
        return len(mdp.directions)

    def columns(self, mdp: Source) -> tuple[str, ...]:
        return tuple(f"{self.name}[{direction}]" for direction in mdp.directions)


class Steps(Feature):
    """What an update adds to theta at h = 1, along every direction."""

    name, needs = "steps", ("steps",)

    def __call__(self, seen: Seen) -> Any:
        return seen["steps"].reshape(*seen["steps"].shape[:-2], -1)

    def size(self, mdp: Source) -> int:
        return len(mdp.directions) * mdp.num_parameters

    def columns(self, mdp: Source) -> tuple[str, ...]:
        return tuple(f"step[{direction}][{i}]" for direction in mdp.directions for i in range(mdp.num_parameters))


class LogNorms(Feature):
    """Decimal logarithms of the norms of the gradient and of the natural gradient."""

    name, needs = "log_norms", ("gradient", "natural_gradient")

    def __call__(self, seen: Seen) -> Any:
        return log10(norm(seen.xp.stack([seen["gradient"], seen["natural_gradient"]], axis=-2), seen.xp), seen.xp)

    def size(self, mdp: Source) -> int:
        return 2

    def columns(self, mdp: Source) -> tuple[str, ...]:
        return "log_norm[gradient]", "log_norm[natural_gradient]"


class Slopes(_PerDirection):
    """v'g along every direction v: how much the return grows at first, for each unit of h."""

    name, needs = "slopes", ("steps", "gradient")

    def __call__(self, seen: Seen) -> Any:
        return seen.xp.sum(seen["steps"] * seen["gradient"][..., None, :], axis=-1)


class Curvatures(_PerDirection):
    """Decimal logarithm of v'Fv along every direction v: twice the divergence of a step of length 1."""

    name, needs = "curvatures", ("curvature",)

    def __call__(self, seen: Seen) -> Any:
        return log10(seen["curvature"], seen.xp)


class Gains(_PerDirection):
    """Decimal logarithm of v'g / sqrt(v'Fv) over the return's standard error: the slope per root of divergence, in errors."""

    name, needs = "gains", ("steps", "gradient", "curvature", "return_error")

    def __call__(self, seen: Seen) -> Any:
        xp, slope = seen.xp, Slopes()(seen)
        error = xp.sqrt(xp.maximum(seen["curvature"], 0.0)) * seen["return_error"][..., None]
        return log10(xp.where(error > 0.0, slope / xp.where(error > 0.0, error, 1.0), 0.0), xp)


class Cosines(Feature):
    """Cosines of the angles between all directions, including the plain gradient."""

    name, needs = "cosines", ("steps", "gradient")

    def __call__(self, seen: Seen) -> Any:
        vectors = seen.xp.concatenate([seen["steps"], seen["gradient"][..., None, :]], axis=-2)
        first, second = map(np.asarray, zip(*combinations(range(vectors.shape[-2]), 2), strict=True))
        return _cosine(vectors[..., first, :], vectors[..., second, :], seen.xp)

    def size(self, mdp: Source) -> int:
        return len(self.columns(mdp))

    def columns(self, mdp: Source) -> tuple[str, ...]:
        return tuple(f"cosine[{a}, {b}]" for a, b in combinations((*mdp.directions, "gradient"), 2))


class LastCosines(_PerDirection):
    """Cosines of the angles between every direction and the last step; 0 before the first."""

    name, needs = "last_cosines", ("steps", "step")

    def __call__(self, seen: Seen) -> Any:
        return _cosine(seen["steps"], seen["step"][..., None, :], seen.xp)

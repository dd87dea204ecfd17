"""The controller that is searched: curves over a learner's budget and, with feedback, one tanh layer of features.

With u the point of the unit cube that the space turns into hyperparameters, b the base point, s the share of the budget that is
spent, z the standardised features, and l those of them that describe the training loop and never change:

    logit u = logit b + curve(s) + l L + tanh([z, 1] H / sqrt(features + 1)) O / sqrt(units)

A constant is one knot, a schedule is several knots, feedback adds the layer. All levels know the loop if there were several.
Weights of zero stay at the base point. With the roots, weights of one size matter alike: a search moves all by the same distance.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from metastep._core.errors import InputError
from metastep.features.diagnostics import OF_LOOP

Level = Literal["constant", "schedule", "feedback"]
"""What a controller reacts to: nothing, the share of the budget, or everything it observes. Simpler ones come first."""

LEVELS: tuple[Level, ...] = get_args(Level)
BUDGET = "budget"
LARGEST = 3.0  # standardised features beyond are cut: a controller is not to extrapolate
_MARGIN = 0.02  # distance of a base point from the faces of the cube, where a logit has no slope


class Weights(NamedTuple):
    """What is searched, of one controller or, with a further axis in front, of one for each learner."""

    curves: Any  # (knots, coordinates), added to the logits of the base point
    hidden: Any  # (features + 1, units); the last row is the bias
    output: Any  # (units, coordinates)
    loop: Any  # (features of the loop, coordinates)


@dataclass(frozen=True)
class Network:
    """The form of a controller, and the constants that belong to it."""

    features: tuple[str, ...]  # names of the numbers that it observes, `budget` among them unless it is constant
    mean: tuple[float, ...]  # of each of these numbers; with the spread, it standardises them
    spread: tuple[float, ...]
    base: tuple[float, ...]  # the point of the unit cube where weights of zero stay
    knots: int = 1  # points of each curve, evenly spaced over the budget; 1 for a constant
    units: int = 0  # of the tanh layer; 0 without feedback

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.mean) == len(self.spread):
            raise InputError("network: features, mean and spread must have as many entries.")
        if self.knots > 1 and BUDGET not in self.features:
            raise InputError(f"network: a curve of {self.knots} knots needs the feature {BUDGET!r}.")
        if not all(0.0 <= number <= 1.0 for number in self.base):
            raise InputError(f"network: the base point {list(self.base)} must lie on the unit cube.")

    @property
    def level(self) -> Level:
        """What the controller reacts to."""
        return "feedback" if self.units else "schedule" if self.knots > 1 else "constant"

    @property
    def of_loop(self) -> list[int]:
        """Which features describe the loop."""
        return [index for index, name in enumerate(self.features) if name in OF_LOOP]

    @property
    def shapes(self) -> Weights:
        """The shapes of the weights."""
        coordinates = len(self.base)
        layer = (len(self.features) + 1, self.units), (self.units, coordinates)
        return Weights((self.knots, coordinates), *layer, (len(self.of_loop), coordinates))

    @property
    def num_weights(self) -> int:
        """How many numbers are searched."""
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, flat: Any) -> Weights:
        """Return weights (..., num_weights) as the parts they consist of."""
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.shapes)])
        parts = zip(ends[:-1], ends[1:], self.shapes, strict=True)
        return Weights(*(flat[..., start:end].reshape(*flat.shape[:-1], *shape) for start, end, shape in parts))

    def __call__(self, weights: Weights, seen: Any, xp: Any) -> Any:
        """Return points of the unit cube (..., coordinates) for observations (..., features); xp is numpy or jax.numpy.

        Numbers that are not finite count as usual ones, the mean of their feature.
        """
        base = np.clip(np.asarray(self.base, np.float32), _MARGIN, 1.0 - _MARGIN)
        curves = weights.curves[..., 0, :]
        if self.knots > 1:  # interpolate at the share of the budget that is spent
            share = seen[..., self.features.index(BUDGET), None]
            place = xp.clip(xp.where(xp.isfinite(share), share, 1.0), 0.0, 1.0) * (self.knots - 1)
            near = xp.maximum(1.0 - xp.abs(place - np.arange(self.knots, dtype=np.float32)), 0.0)
            curves = xp.sum(near[..., :, None] * weights.curves, axis=-2)
        logits = np.log(base / (1.0 - base)) + curves
        if self.units or self.of_loop:
            spread = np.maximum(np.asarray(self.spread, np.float32), np.float32(1e-6))
            z = xp.clip((seen - np.asarray(self.mean, np.float32)) / spread, -LARGEST, LARGEST)
            z = xp.where(xp.isfinite(seen), z, 0.0)
            logits = logits + xp.sum(z[..., self.of_loop, None] * weights.loop, axis=-2)
        if self.units:
            z = xp.concatenate([z, xp.ones_like(z[..., :1])], axis=-1)
            units = xp.tanh(xp.sum(z[..., :, None] * weights.hidden, axis=-2) / math.sqrt(z.shape[-1]))
            logits = logits + xp.sum(units[..., :, None] * weights.output, axis=-2) / math.sqrt(self.units)
        return 1.0 / (1.0 + xp.exp(-xp.clip(logits, -15.0, 15.0)))

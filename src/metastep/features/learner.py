"""What a learner knows of itself: its policy, its task, and what its last batch says."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from metastep.features.base import Feature
from metastep.mdp import Learners, Process


class _OfThePolicy(Feature):
    """One number for each parameter of the policy."""

    def size(self, mdp: Process) -> int:
        return mdp.num_parameters

    def columns(self, mdp: Process) -> tuple[str, ...]:
        """Numbered, also where there is only one."""
        return tuple(f"{self.name}[{index}]" for index in range(mdp.num_parameters))


class Theta(_OfThePolicy):
    """The policy's parameters."""

    name: ClassVar[str] = "theta"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.theta


class Gradient(_OfThePolicy):
    """The plain gradient of the return."""

    batches: ClassVar[str] = "episodes"
    name: ClassVar[str] = "gradient"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.estimate.gradient


class NaturalGradient(_OfThePolicy):
    """The natural gradient, with the damping that the rule asks for."""

    batches: ClassVar[str] = "episodes"
    name: ClassVar[str] = "natural_gradient"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.estimate.natural_gradient


class Context(Feature):
    """The task."""

    name: ClassVar[str] = "context"

    def size(self, mdp: Process) -> int:
        return mdp.env.context_space.num_coordinates

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.context

    def columns(self, mdp: Process) -> tuple[str, ...]:
        return mdp.env.context_space.names

    def bounds(self, mdp: Process) -> tuple[tuple[float, ...], tuple[float, ...]]:
        space = mdp.env.context_space
        return space.low, space.high


class Return(Feature):
    """The mean return of the current batch."""

    name: ClassVar[str] = "return"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.estimate.mean_return[:, None]


class ReturnError(Feature):
    """The standard error of the mean return."""

    name: ClassVar[str] = "return_error"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return learners.estimate.return_error[:, None]


class UpdateIndex(Feature):
    """How many updates were made."""

    name: ClassVar[str] = "update"

    def __call__(self, mdp: Process, learners: Learners) -> Array:
        return jnp.full((learners.theta.shape[0], 1), learners.update.astype(jnp.float32))

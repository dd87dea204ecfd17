"""What a feature is, and the records that it reads: the same for simulated learners and for other people's loops."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from metastep._core.registry import Registry

# The largest float32 stands for "any finite number": Gymnasium's checker takes infinite bounds for a mistake.
ANY = float(np.finfo(np.float32).max)


class Memory(NamedTuple):
    """What features of the next update need of earlier ones: numbers, or one for each simulated learner."""

    updates: Any = 0  # how many were made
    sound: Any = 0  # how many of them had finite diagnostics only
    first_entropy: Any = 0.0  # of the policy on the very first batch
    mean_return: Any = 0.0  # of the batch before the current one
    rate: Any = 0.0  # the step that was proposed last
    step_norm: Any = 0.0  # length of the step before the last one
    first_gradient_norm: Any = 0.0  # of the first update; 0 while it is not known, as the next one
    first_target_std: Any = 0.0  # standard deviation of the critic's targets on the very first batch
    best_return: Any = 0.0  # of the batches before the current one
    smoothed_change: Any = 0.0  # of the mean return, up to the batch before the current one


@dataclass(frozen=True, eq=False)
class Seen:
    """What a feature is computed from: `seen["entropy"]` is a diagnostic by name.

    A number of a loop is a scalar, that of simulated learners has shape (learners,); vectors are on the last axes.
    """

    diagnostics: Mapping[str, Any]  # by name; those of the last update are 0 before the first
    memory: Memory  # of the updates before
    xp: Any  # the namespace that computes, `numpy` or `jax.numpy`

    def __getitem__(self, name: str) -> Any:
        return self.diagnostics[name]


class Feature(ABC):
    """A name, the diagnostics it needs, a size and one formula. A feature of your own inherits from this.

    It is known to a loop or a meta-MDP (`mdp`, a `metastep.mdp.MetaMDP`) that has all the diagnostics it needs. Unless the class
    has a formula of its own, the feature is the first of them, unchanged.
    """

    name: ClassVar[str]  # identifier in the registry, in datasets and in models
    needs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, seen: Seen) -> Any:
        """Return the numbers of every learner: (..., size), or (...) for a single number."""
        return seen[self.needs[0]]

    def size(self, mdp: Any) -> int:
        """Return how many numbers it has for each learner."""
        return 1

    def columns(self, mdp: Any) -> tuple[str, ...]:
        """Return a name for each of the numbers."""
        size = self.size(mdp)
        return (self.name,) if size == 1 else tuple(f"{self.name}[{index}]" for index in range(size))

    def bounds(self, mdp: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the smallest and largest values it can have; by default any finite ones."""
        size = self.size(mdp)
        return (-ANY,) * size, (ANY,) * size


REGISTRY: Registry[Feature] = Registry("meta.observation")

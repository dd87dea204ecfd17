"""What a feature is: something a meta-observation can contain."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from jax import Array

from metastep.mdp import Learners, Process

# The largest float32 stands for "any finite number": Gymnasium's checker takes infinite bounds for a mistake.
ANY = float(np.finfo(np.float32).max)


class Feature(ABC):
    """A name, a size and one function of the learners. A feature of your own inherits from this."""

    name: ClassVar[str]  # identifier in the registry, in datasets and in models
    batches: ClassVar[str] = "any"  # where it is known: with batches of "episodes", of "steps", or of "any" kind

    def size(self, mdp: Process) -> int:
        """How many numbers it has for each learner."""
        return 1

    @abstractmethod
    def __call__(self, mdp: Process, learners: Learners) -> Array:
        """The numbers of every learner: (learners, size)."""

    def columns(self, mdp: Process) -> tuple[str, ...]:
        """A name for each of the numbers."""
        size = self.size(mdp)
        return (self.name,) if size == 1 else tuple(f"{self.name}[{index}]" for index in range(size))

    def bounds(self, mdp: Process) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The smallest and largest values it can have; by default any finite ones."""
        size = self.size(mdp)
        return (-ANY,) * size, (ANY,) * size

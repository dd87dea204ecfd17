"""The protocol of simulators that are not JAX: a batch of episodes stepped together in C or Python.

Arrays are NumPy, (episodes, learners, numbers); learners of the same column share a task and a policy. The random numbers come
from the same key as those of a JAX environment: standard normals for the policy and for whatever the environment declares,
and a seed for every episode for simulators that bring a generator of their own. So a result depends on the key alone.

Simulation happens outside compiled functions, not in a callback from within one: XLA's CPU runtime deadlocks when the
threads it waits for are the ones that serve the callback, and an exception in a callback loses its type.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metastep.envs.base import TaskFamily

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Seeds = NDArray[np.uint32]


class HostStep(NamedTuple):
    """What one move of every episode leads to."""

    reward: Floats  # (episodes, learners)
    terminated: Bools  # (episodes, learners): there is no future
    truncated: Bools | None = None  # (episodes, learners): the simulator itself cuts an episode off, which has a future

    @property
    def over(self) -> Bools:
        """Whether an episode cannot go on, (episodes, learners)."""
        return self.terminated if self.truncated is None else self.terminated | self.truncated


class Episodes(Protocol):
    """A batch of episodes under way."""

    def observe(self) -> Floats:
        """What the policies see: (episodes, learners, observations)."""

    def step(self, action: NDArray[Any], noise: Floats, alive: Bools) -> HostStep:
        """Move the episodes that are alive; the others keep their state, and what is returned for them is ignored.

        Args:
            action: (episodes, learners, actions), float32; (episodes, learners, 1), int32 where the environment has
                `num_choices`.
            noise: (episodes, learners, step_noise) standard normals, float32.
            alive: (episodes, learners).
        """


@runtime_checkable
class Restartable(Episodes, Protocol):
    """Episodes that give way to new ones, for rules that learn from batches of steps, such as PPO."""

    def restart(self, which: Bools, noise: NDArray[np.float32], seeds: Seeds) -> None:
        """Restart some episodes in the same tasks; the others keep their state.

        Args:
            which: (episodes, learners).
            noise: (episodes, learners, reset_noise) standard normals, as `start_episodes` takes them.
            seeds: (episodes, learners), as well.
        """


@runtime_checkable
class HostEnv(TaskFamily, Protocol):
    """A contextual MDP on the host: the counterpart of `metastep.envs.Env`."""

    def start_episodes(self, context: NDArray[np.float32], noise: NDArray[np.float32], seeds: Seeds) -> Episodes:
        """Begin episodes; those for rules that learn from batches of steps must be `Restartable`.

        Args:
            context: (learners, coordinates).
            noise: (episodes, learners, reset_noise) standard normals.
            seeds: (episodes, learners) below 2^31, for environments with random generators of their own.
        """

"""Keep any controller inside the space H."""

from dataclasses import dataclass
from typing import NamedTuple

from jax import Array

from metastep.meta.loop import Controller, ControllerState
from metastep.meta.mdp import Learners, MetaMDP


class ClipState(NamedTuple):
    """The space and the state of the controller inside."""

    mdp: MetaMDP
    inner: ControllerState


@dataclass(frozen=True, eq=False)
class Clip:
    """What `controller` proposes, moved to the nearest point of H."""

    controller: Controller

    @property
    def name(self) -> str:
        """After the controller inside."""
        return f"clip({self.controller.name})"

    def init(self, mdp: MetaMDP, learners: Learners) -> ClipState:
        """Start the controller inside."""
        return ClipState(mdp, self.controller.init(mdp, learners))

    def propose(self, state: ClipState, learners: Learners) -> Array:
        """Clip."""
        return state.mdp.space.clip(self.controller.propose(state.inner, learners))

    def observe(self, state: ClipState, before: Learners, hyperparameters: Array, after: Learners) -> ClipState:
        """Pass on what was really used."""
        return state._replace(inner=self.controller.observe(state.inner, before, hyperparameters, after))

    def report(self, state: ClipState) -> dict[str, Array]:
        """What the controller inside has to tell, if anything."""
        reporter = getattr(self.controller, "report", None)
        return reporter(state.inner) if reporter else {}

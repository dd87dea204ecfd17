"""One block of learners under a controller, as a plain call."""

from collections.abc import Sequence

from metastep.mdp import MetaMDP, Tasks
from metastep.mdp.controller import Controller, ControllerState
from metastep.mdp.history import History
from metastep.mdp.loop import run_updates


def run(
    mdp: MetaMDP, controller: Controller, tasks: Tasks, num_updates: int, record: Sequence[str] = ()
) -> tuple[History, ControllerState]:
    """Let the learners of one block make `num_updates` updates; return their history and the controller's state at the end."""
    learners = mdp.begin(tasks)
    state = controller.init(mdp, learners)
    end = run_updates(mdp, controller, learners, state, num_updates, from_start=True, record=record)
    return end.history, end.state

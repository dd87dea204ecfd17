"""The paper's environments: what is particular to each of them in its figures and tables."""

from collections.abc import Mapping
from typing import NamedTuple


class Environment(NamedTuple):
    """How an environment appears in the paper."""

    tuned: Mapping[str, Mapping[str, float]] = {}  # its column of table 1, by method
    is_shown_as_gain: bool = False  # returns differ more between its tasks than learning changes them
    needs_context: bool = False  # the claim is that a model without the context learns slower
    shows_greedy: bool = False  # figure 2 has the first FQI iteration, too
    is_long: bool = False  # facts about more updates than metaFQI was trained on
    widest: float = 0.0  # the range of steps that HOOF and metaFQI have besides, where fixed steps reach beyond theirs
    single_task: float = 0.5  # where in the range of every context coordinate the task of a run in one task lies


def _tuned(rmsprop: float, adam: float, stepsize: float, beta: float, **decay: float) -> dict[str, dict[str, float]]:
    """Return a column of table 1: initial step sizes, and those of metagrad with its beta."""
    column = {"rmsprop": {"stepsize": rmsprop}, "adam": {"stepsize": adam}}
    return column | {"metagrad": {"stepsize": stepsize, "beta": beta}} | ({"decay": decay} if decay else {})


ENVIRONMENTS = {
    "nav2d": Environment(_tuned(0.9, 0.8, 3.0, 0.001, alpha=5.0), single_task=0.75),  # the learner starts at the centre
    "minigolf": Environment(_tuned(0.3, 0.08, 0.3, 5.0, alpha=2.0), widest=8.0),
    "cartpole": Environment(_tuned(0.3, 0.3, 1.0, 0.1, alpha=7.5), needs_context=True, shows_greedy=True, is_long=True),
    "swingup": Environment(),
    "halfcheetah": Environment(_tuned(0.3, 0.5, 0.5, 0.01), is_shown_as_gain=True),  # no decaying rate was tried on it
}
USUAL = ("nav2d", "minigolf", "cartpole")
"""Those of the paper's figures 2 and 3 that take minutes. SwingUp has a figure of its own."""
CHOICE = (*USUAL, "halfcheetah")
"""Those of figures 2 and 3. HalfCheetah takes hours on a few processors: it is made only where it is named."""
EVERY = (*USUAL, "swingup", "halfcheetah")
FOUR = (*USUAL, "swingup")
"""Those that take minutes."""

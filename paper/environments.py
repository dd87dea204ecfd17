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
    single_task: float = 0.5  # where in the range of every context coordinate the task of a run in one task lies


ENVIRONMENTS = {
    "nav2d": Environment(
        tuned={
            "rmsprop": {"stepsize": 0.9},
            "adam": {"stepsize": 0.8},
            "metagrad": {"stepsize": 3.0, "beta": 0.001},
            "decay": {"alpha": 5.0},
        },
        single_task=0.75,  # the learner starts at the centre
    ),
    "minigolf": Environment(
        tuned={
            "rmsprop": {"stepsize": 0.3},
            "adam": {"stepsize": 0.08},
            "metagrad": {"stepsize": 0.3, "beta": 5.0},
            "decay": {"alpha": 2.0},
        }
    ),
    "cartpole": Environment(
        tuned={
            "rmsprop": {"stepsize": 0.3},
            "adam": {"stepsize": 0.3},
            "metagrad": {"stepsize": 1.0, "beta": 0.1},
            "decay": {"alpha": 7.5},
        },
        needs_context=True,
        shows_greedy=True,
        is_long=True,
    ),
    "swingup": Environment(),
    "halfcheetah": Environment(  # no decaying rate was tried on it
        tuned={"rmsprop": {"stepsize": 0.3}, "adam": {"stepsize": 0.5}, "metagrad": {"stepsize": 0.5, "beta": 0.01}},
        is_shown_as_gain=True,
    ),
}
USUAL = ("nav2d", "minigolf", "cartpole")
"""Those of the paper's figures 2 and 3 that take minutes. SwingUp has a figure of its own."""
CHOICE = (*USUAL, "halfcheetah")
"""Those of figures 2 and 3 that can be asked for by name. HalfCheetah takes hours on a few processors: it is made only then."""
EVERY = (*USUAL, "swingup", "halfcheetah")
"""All of them."""
FOUR = (*USUAL, "swingup")
"""Those that take minutes."""

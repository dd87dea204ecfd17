"""Meta-experience as offline learners take it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Transitions(NamedTuple):
    """Tuples `(x, h, l, x')` of the meta-MDP, one in each row."""

    observation: NDArray[np.float32]  # (tuples, features)
    stepsize: NDArray[np.float32]  # (tuples,)
    reward: NDArray[np.float32]  # (tuples,)
    next_observation: NDArray[np.float32]  # (tuples, features)

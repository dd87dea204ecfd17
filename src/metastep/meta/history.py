"""What learners went through, in lockstep over some updates, and the flat view of it that offline learning consumes.

A history of T updates is T+1 observations: the tuple of update t is `(x_t, h_t, l_t, x_{t+1})` with `l_t = j_{t+1} - j_t`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.errors import InputError

_FEATURE = "feature/"


class Transitions(NamedTuple):
    """Tuples `(x, h, l, x')` of the meta-MDP, one in each row."""

    observation: NDArray[np.float32]  # (tuples, columns)
    stepsize: NDArray[np.float32]  # (tuples,), or (tuples, hyperparameters) where there are several
    reward: NDArray[np.float32]  # (tuples,)
    next_observation: NDArray[np.float32]  # (tuples, columns)


class History(NamedTuple):
    """A block of learners over T updates, on the host; time first.

    A piece of it is the history of one stretch; only the first piece has the observation that precedes the updates, a later
    one of T updates has T observations.
    """

    context: NDArray[np.float32]  # (learners, coordinates)
    mean_return: NDArray[np.float32]  # (T+1, learners)
    flagged: NDArray[np.bool_]  # (T+1, learners): the estimate cannot be followed, or the last step could not be taken
    num_steps: NDArray[np.float32]  # (T+1, learners): environment steps before termination
    hyperparameters: NDArray[np.float32]  # (T, learners, coordinates)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T+1, learners, size)

    def first(self, num: int) -> "History":
        """Only the first `num` learners: cuts the padding of a last block."""
        return self._replace(
            context=self.context[:num],
            features={name: array[:, :num] for name, array in self.features.items()},
            **{name: array[:, :num] for name, array in self._in_time()},
        )

    def _in_time(self) -> list[tuple[str, NDArray[Any]]]:
        """The arrays whose first axis is time, but for the features."""
        return [(name, array) for name, array in self._asdict().items() if name not in ("context", "features")]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, as files hold them."""
        arrays = {"context": self.context, **dict(self._in_time())}
        return arrays | {f"{_FEATURE}{name}": array for name, array in self.features.items()}

    @property
    def rewards(self) -> NDArray[np.float32]:
        """The improvement of the return by each update, `l_t = j_{t+1} - j_t`: (T, learners)."""
        with np.errstate(invalid="ignore", over="ignore"):  # a diverged learner's reward is not finite, and counted so
            return np.diff(self.mean_return, axis=0)

    def observe(self, names: Sequence[str]) -> NDArray[np.float32]:
        """The named features side by side, in that order: (T+1, learners, columns)."""
        known = {
            "context": np.broadcast_to(self.context, (*self.mean_return.shape, self.context.shape[1])),
            "return": self.mean_return[:, :, np.newaxis],
            **self.features,
        }
        if missing := [name for name in names if name not in known]:
            raise InputError(
                f"observation: the data does not hold {missing[0]!r}, it holds {', '.join(known)}; collect it anew with "
                "meta.observation naming it."
            )
        return np.concatenate([known[name] for name in names], axis=2)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which tuples hold finite numbers only, in every feature, asked for or not: (T, learners)."""
        finite: NDArray[np.bool_] = np.all(np.isfinite(self.observe(("context", "return", *self.features))), axis=2)
        steps = np.isfinite(self.hyperparameters).all(axis=2)
        return finite[:-1] & finite[1:] & steps & np.isfinite(self.rewards)

    def transitions(self, names: Sequence[str]) -> Transitions:
        """All usable tuples, learner after learner, so that an episode's tuples follow one another."""
        keep = self.usable.T  # (learners, T)
        observed = self.observe(names).swapaxes(0, 1)  # (learners, T+1, columns)
        chosen = self.hyperparameters.swapaxes(0, 1)[keep]
        return Transitions(
            observation=observed[:, :-1][keep],
            stepsize=chosen[:, 0] if chosen.shape[1] == 1 else chosen,
            reward=self.rewards.T[keep],
            next_observation=observed[:, 1:][keep],
        )


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> History:
    """The history whose `to_arrays` gave these."""
    features = {name.removeprefix(_FEATURE): array for name, array in arrays.items() if name.startswith(_FEATURE)}
    rest = {name: array for name, array in arrays.items() if not name.startswith(_FEATURE)}
    return History(**rest, features=features)


def joined(pieces: Sequence[History]) -> History:
    """Pieces that follow one another as one."""
    first, *_ = pieces
    in_time = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name, _ in first._in_time()}
    features = {name: np.concatenate([piece.features[name] for piece in pieces]) for name in first.features}
    return first._replace(**in_time, features=features)

"""What learners went through, in lockstep over some updates, and the flat view of it that offline learning consumes.

A history of T updates is T+1 observations: the tuple of update t is `(x_t, h_t, l_t, x_{t+1})` with `l_t = j_{t+1} - j_t`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError

_FEATURE = "feature/"
_TRIED = "tried/"


class Transitions(NamedTuple):
    """Tuples `(x, h, l, x')` of the meta-MDP, one in each row."""

    observation: NDArray[np.float32]  # (tuples, columns)
    stepsize: NDArray[np.float32]  # (tuples,), or (tuples, hyperparameters) where there are several
    reward: NDArray[np.float32]  # (tuples,)
    next_observation: NDArray[np.float32]  # (tuples, columns)


class Outcomes(NamedTuple):
    """Updates, and what was seen after each; time first. Those that were tried, not made, have the axis `tries`."""

    hyperparameters: NDArray[np.float32]  # (T, tries, learners, coordinates)
    mean_return: NDArray[np.float32]  # (T, tries, learners), after the update, like all that follows
    flagged: NDArray[np.bool_]  # (T, tries, learners)
    num_steps: NDArray[np.float32]  # (T, tries, learners)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T, tries, learners, size)


class History(NamedTuple):
    """A block of learners over T updates, on the host; time first.

    A piece of it is the history of one stretch; only the first piece has the observation that precedes the updates, a later
    one of T updates has T observations.
    """

    context: NDArray[np.float32]  # (learners, coordinates)
    mean_return: NDArray[np.float32]  # (T+1, learners)
    flagged: NDArray[np.bool_]  # (T+1, learners): the estimate cannot be followed, or the last step was impossible
    num_steps: NDArray[np.float32]  # (T+1, learners): environment steps before termination
    hyperparameters: NDArray[np.float32]  # (T, learners, coordinates)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T+1, learners, size)
    tried: Outcomes | None = None  # of updates that were tried and not followed, as further labels

    def part(self, start: int, end: int) -> "History":
        """Return some of the learners, without copying."""
        axes = {name: 2 if name.startswith(_TRIED) else 1 for name in self.to_arrays()} | {"context": 0}
        cuts = {name: (slice(None),) * axis + (slice(start, end),) for name, axis in axes.items()}
        return from_arrays({name: array[cuts[name]] for name, array in self.to_arrays().items()})

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, as files hold them."""
        tried = {} if self.tried is None else _to_arrays(self.tried)
        return _to_arrays(self) | {f"{_TRIED}{name}": array for name, array in tried.items()}

    @property
    def outcomes(self) -> list[Outcomes]:
        """The updates that were made, then those tried, without the axis `tries`: one label of every state in each."""
        features = {name: array[1:] for name, array in self.features.items()}
        made = Outcomes(self.hyperparameters, self.mean_return[1:], self.flagged[1:], self.num_steps[1:], features)
        tries = 0 if self.tried is None else self.tried.mean_return.shape[1]
        return [made, *(jax.tree.map(lambda array, i=i: array[:, i], self.tried) for i in range(tries))]

    def observe(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Return the named features side by side, in that order: (T+1, learners, columns)."""
        return _side_by_side(names, self.context, self)

    def transitions(self, names: Sequence[str]) -> Transitions:
        """Return all usable tuples, learner after learner, so that an episode's tuples follow one another; then those tried."""
        # A tuple is usable if all its numbers are finite, in every feature, asked for or not.
        everything, parts = ("context", "return", *self.features), []
        for after in self.outcomes:
            with np.errstate(invalid="ignore", over="ignore"):
                rewards = after.mean_return - self.mean_return[:-1]
            chosen = after.hyperparameters
            usable = np.isfinite(chosen).all(axis=2) & np.isfinite(rewards)
            usable &= np.isfinite(self.observe(everything)[:-1]).all(axis=2)
            usable &= np.isfinite(_side_by_side(everything, self.context, after)).all(axis=2)
            stepsize = chosen[:, :, 0] if chosen.shape[2] == 1 else chosen
            columns = self.observe(names)[:-1], stepsize, rewards, _side_by_side(names, self.context, after)
            parts.append(Transitions(*(array.swapaxes(0, 1)[usable.T] for array in columns)))
        return parts[0] if len(parts) == 1 else Transitions(*map(np.concatenate, zip(*parts, strict=True)))


def _side_by_side(names: Sequence[str], context: NDArray[np.float32], seen: History | Outcomes) -> NDArray[np.float32]:
    """Return features by name, each (moments, learners, size), as (moments, learners, columns)."""
    known = {
        "context": np.broadcast_to(context, (*seen.mean_return.shape, context.shape[1])),
        "return": seen.mean_return[:, :, np.newaxis],
        **seen.features,
    }
    if missing := [name for name in names if name not in known]:
        holds = f"the data does not hold {missing[0]!r}, it holds {', '.join(known)}"
        raise InputError(f"observation: {holds}; collect it again with meta.observation naming it.")
    return np.concatenate([known[name] for name in names], axis=2)


def _to_arrays(record: History | Outcomes) -> dict[str, NDArray[Any]]:
    arrays = {name: array for name, array in record._asdict().items() if name not in ("features", "tried")}
    return arrays | {f"{_FEATURE}{name}": array for name, array in record.features.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> History:
    """Return the history whose `to_arrays` gave these."""
    fields: dict[str, dict[str, Any]] = {"": {"features": {}}, _TRIED: {"features": {}}}
    for name, array in arrays.items():
        own, place = name.removeprefix(_TRIED), fields[_TRIED if name.startswith(_TRIED) else ""]
        (place["features"] if own.startswith(_FEATURE) else place)[own.removeprefix(_FEATURE)] = array
    return History(**fields[""], tried=Outcomes(**fields[_TRIED]) if len(fields[_TRIED]) > 1 else None)


def joined(pieces: Sequence[History]) -> History:
    """Return pieces that follow one another as one."""
    in_time = [piece.to_arrays() for piece in pieces]
    arrays = {name: np.concatenate([piece[name] for piece in in_time]) for name in in_time[0] if name != "context"}
    return from_arrays({"context": pieces[0].context, **arrays})

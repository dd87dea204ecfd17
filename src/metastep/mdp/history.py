"""Histories: what a block of learners did over some updates, and its flat form, the transitions for offline learning.

A history of T updates has T+1 observations: the transition of update t is `(x_t, h_t, l_t, x_{t+1})` with `l_t = j_{t+1} - j_t`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError

_FEATURE = "feature/"  # prefixes of arrays in files
_CANDIDATES = "tried/"


class Transitions(NamedTuple):
    """Transitions `(x, h, l, x')` of the meta-MDP, one per row."""

    observation: NDArray[np.float32]  # (tuples, columns)
    stepsize: NDArray[np.float32]  # (tuples,), or (tuples, hyperparameters) where there are several
    reward: NDArray[np.float32]  # (tuples,)
    next_observation: NDArray[np.float32]  # (tuples, columns)


class Outcomes(NamedTuple):
    """Updates and what was observed after each; time first. Applied updates do not have the axis `candidates`."""

    hyperparameters: NDArray[np.float32]  # (T, candidates, learners, coordinates)
    mean_return: NDArray[np.float32]  # (T, candidates, learners), after the update, as are the fields below
    flagged: NDArray[np.bool_]  # (T, candidates, learners)
    num_steps: NDArray[np.float32]  # (T, candidates, learners)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T, candidates, learners, size)


class History(NamedTuple):
    """A block of learners over T updates, on the host; time first. A later segment lacks the observation before its first one."""

    context: NDArray[np.float32]  # (learners, coordinates)
    mean_return: NDArray[np.float32]  # (T+1, learners)
    flagged: NDArray[np.bool_]  # (T+1, learners): the estimate is unusable, or the last step was impossible
    num_steps: NDArray[np.float32]  # (T+1, learners): environment steps before termination
    hyperparameters: NDArray[np.float32]  # (T, learners, coordinates)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T+1, learners, size)
    candidates: Outcomes | None = None  # further updates that were evaluated, but not applied

    def select_learners(self, start: int, end: int) -> "History":
        """Return the history of some learners, without copying."""
        axes = {name: 2 if name.startswith(_CANDIDATES) else 1 for name in self.to_arrays()} | {"context": 0}
        cuts = {name: (slice(None),) * axis + (slice(start, end),) for name, axis in axes.items()}
        return from_arrays({name: array[cuts[name]] for name, array in self.to_arrays().items()})

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, as files hold them."""
        candidates = {} if self.candidates is None else _to_arrays(self.candidates)
        return _to_arrays(self) | {f"{_CANDIDATES}{name}": array for name, array in candidates.items()}

    @property
    def outcomes(self) -> list[Outcomes]:
        """The updates that were applied, then every candidate; without the axis `candidates`."""
        features = {name: array[1:] for name, array in self.features.items()}
        applied = Outcomes(self.hyperparameters, self.mean_return[1:], self.flagged[1:], self.num_steps[1:], features)
        num = 0 if self.candidates is None else self.candidates.mean_return.shape[1]
        return [applied, *(jax.tree.map(lambda array, i=i: array[:, i], self.candidates) for i in range(num))]

    def observe(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Return the named features concatenated in that order: (T+1, learners, columns)."""
        return _columns(names, self.context, self)

    def transitions(self, names: Sequence[str]) -> Transitions:
        """Return the usable transitions: those applied, learner by learner in the order of time, then those of each candidate."""
        # A transition is usable if all its numbers are finite, in every feature, requested or not.
        everything, parts = ("context", "return", *self.features), []
        for after in self.outcomes:
            with np.errstate(invalid="ignore", over="ignore"):
                rewards = after.mean_return - self.mean_return[:-1]
            chosen = after.hyperparameters
            usable = np.isfinite(chosen).all(axis=2) & np.isfinite(rewards)
            usable &= np.isfinite(self.observe(everything)[:-1]).all(axis=2)
            usable &= np.isfinite(_columns(everything, self.context, after)).all(axis=2)
            stepsize = chosen[:, :, 0] if chosen.shape[2] == 1 else chosen
            columns = self.observe(names)[:-1], stepsize, rewards, _columns(names, self.context, after)
            parts.append(Transitions(*(array.swapaxes(0, 1)[usable.T] for array in columns)))
        return parts[0] if len(parts) == 1 else Transitions(*map(np.concatenate, zip(*parts, strict=True)))


def _columns(names: Sequence[str], context: NDArray[np.float32], seen: History | Outcomes) -> NDArray[np.float32]:
    """Return the named features, each (times, learners, size), as (times, learners, columns)."""
    available = {
        "context": np.broadcast_to(context, (*seen.mean_return.shape, context.shape[1])),
        "return": seen.mean_return[:, :, np.newaxis],
        **seen.features,
    }
    if missing := [name for name in names if name not in available]:
        holds = f"the data does not hold {missing[0]!r}, it holds {', '.join(available)}"
        raise InputError(f"observation: {holds}; collect it again with meta.observation naming it.")
    return np.concatenate([available[name] for name in names], axis=2)


def _to_arrays(record: History | Outcomes) -> dict[str, NDArray[Any]]:
    arrays = {name: array for name, array in record._asdict().items() if name not in ("features", "candidates")}
    return arrays | {f"{_FEATURE}{name}": array for name, array in record.features.items()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> History:
    """Return the history whose `to_arrays` returned these."""
    applied: dict[str, Any] = {"features": {}}
    candidates: dict[str, Any] = {"features": {}}
    for prefixed, array in arrays.items():
        name, fields = prefixed.removeprefix(_CANDIDATES), candidates if prefixed.startswith(_CANDIDATES) else applied
        (fields["features"] if name.startswith(_FEATURE) else fields)[name.removeprefix(_FEATURE)] = array
    return History(**applied, candidates=Outcomes(**candidates) if len(candidates) > 1 else None)


def concatenate(histories: Sequence[History]) -> History:
    """Return the histories of consecutive segments as one."""
    segments = [history.to_arrays() for history in histories]
    arrays = {name: np.concatenate([each[name] for each in segments]) for name in segments[0] if name != "context"}
    return from_arrays({"context": histories[0].context, **arrays})

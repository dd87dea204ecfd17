"""What learners went through, in lockstep over some updates, and the flat view of it that offline learning consumes.

A history of T updates is T+1 observations: the tuple of update t is `(x_t, h_t, l_t, x_{t+1})` with `l_t = j_{t+1} - j_t`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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


class Tried(NamedTuple):
    """Updates that were tried and not followed, at every state that learners went through; time first.

    They are labels for offline learning: what would have been seen after each of them.
    """

    hyperparameters: NDArray[np.float32]  # (T, tries, learners, coordinates)
    mean_return: NDArray[np.float32]  # (T, tries, learners), after the update, like all that follows
    flagged: NDArray[np.bool_]  # (T, tries, learners)
    num_steps: NDArray[np.float32]  # (T, tries, learners)
    features: Mapping[str, NDArray[np.float32]]  # by name, each (T, tries, learners, size)

    def map(self, change: Callable[[str, NDArray[Any]], NDArray[Any]]) -> "Tried":
        """The same with every array changed, each known by its name."""
        arrays = {name: change(name, array) for name, array in self._asdict().items() if name != "features"}
        features = {name: change(f"{_FEATURE}{name}", array) for name, array in self.features.items()}
        return Tried(**arrays, features=features)


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
    tried: Tried | None = None  # where updates were tried besides those that were made

    def first(self, num: int) -> "History":
        """Only the first `num` learners: cuts the padding of a last block."""
        return self.part(0, num)

    def part(self, start: int, end: int) -> "History":
        """Only some of the learners; nothing is copied."""
        return self._replace(
            context=self.context[start:end],
            features={name: array[:, start:end] for name, array in self.features.items()},
            tried=self.tried and self.tried.map(lambda _, array: array[:, :, start:end]),
            **{name: array[:, start:end] for name, array in self._in_time()},
        )

    def _in_time(self) -> list[tuple[str, NDArray[Any]]]:
        """The arrays whose first axis is time, but for the features and what was tried."""
        others = ("context", "features", "tried")
        return [(name, array) for name, array in self._asdict().items() if name not in others]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, as files hold them."""
        arrays = {"context": self.context, **dict(self._in_time())}
        arrays |= {f"{_FEATURE}{name}": array for name, array in self.features.items()}
        if self.tried is not None:
            self.tried.map(lambda name, array: arrays.setdefault(f"{_TRIED}{name}", array))
        return arrays

    @property
    def rewards(self) -> NDArray[np.float32]:
        """The improvement of the return by each update, `l_t = j_{t+1} - j_t`: (T, learners)."""
        with np.errstate(invalid="ignore", over="ignore"):  # a diverged learner's reward is not finite, and counted so
            return np.diff(self.mean_return, axis=0)

    @property
    def num_tuples(self) -> int:
        """Those of the updates that were made and of those that were tried, usable or not."""
        return self.rewards.size + (0 if self.tried is None else self.tried.mean_return.size)

    @property
    def total_steps(self) -> float:
        """Environment steps of all batches."""
        tried = [] if self.tried is None else [self.tried.num_steps]
        return sum(float(steps.sum(dtype=np.float64)) for steps in (self.num_steps, *tried))

    @property
    def num_flagged(self) -> int:
        """Tuples whose observation or next observation came with an estimate that cannot be followed."""
        before = self.flagged[:-1]
        tried = [] if self.tried is None else [before[:, np.newaxis] | self.tried.flagged]
        return sum(int(flags.sum()) for flags in (before | self.flagged[1:], *tried))

    def observe(self, names: Sequence[str]) -> NDArray[np.float32]:
        """The named features side by side, in that order: (T+1, learners, columns)."""
        return _side_by_side(names, self.context, self.mean_return, self.features)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which tuples hold finite numbers only, in every feature, asked for or not: (T, learners)."""
        finite: NDArray[np.bool_] = np.all(np.isfinite(self.observe(("context", "return", *self.features))), axis=2)
        steps = np.isfinite(self.hyperparameters).all(axis=2)
        usable: NDArray[np.bool_] = finite[:-1] & finite[1:] & steps & np.isfinite(self.rewards)
        return usable

    def transitions(self, names: Sequence[str]) -> Transitions:
        """All usable tuples, learner after learner, so that an episode's tuples follow one another; then what was tried."""
        followed = _rows(
            self.usable, self.observe(names)[:-1], self.hyperparameters, self.rewards, self.observe(names)[1:]
        )
        if self.tried is None:
            return followed
        parts = [followed, *(self._of_try(index, names) for index in range(self.tried.mean_return.shape[1]))]
        return Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _of_try(self, index: int, names: Sequence[str]) -> Transitions:
        assert self.tried is not None
        tried = self.tried.map(lambda _, array: array[:, index])

        def after(wanted: Sequence[str]) -> NDArray[np.float32]:
            return _side_by_side(wanted, self.context, tried.mean_return, tried.features)

        everything = ("context", "return", *self.features)
        finite = np.isfinite(self.observe(everything)[:-1]).all(axis=2) & np.isfinite(after(everything)).all(axis=2)
        with np.errstate(invalid="ignore", over="ignore"):
            rewards = tried.mean_return - self.mean_return[:-1]
        usable = finite & np.isfinite(tried.hyperparameters).all(axis=2) & np.isfinite(rewards)
        return _rows(usable, self.observe(names)[:-1], tried.hyperparameters, rewards, after(names))


def _side_by_side(
    names: Sequence[str],
    context: NDArray[np.float32],
    mean_return: NDArray[np.float32],
    features: Mapping[str, NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Features by name, each (moments, learners, size), as (moments, learners, columns)."""
    known = {
        "context": np.broadcast_to(context, (*mean_return.shape, context.shape[1])),
        "return": mean_return[:, :, np.newaxis],
        **features,
    }
    if missing := [name for name in names if name not in known]:
        raise InputError(
            f"observation: the data does not hold {missing[0]!r}, it holds {', '.join(known)}; collect it anew with "
            "meta.observation naming it."
        )
    return np.concatenate([known[name] for name in names], axis=2)


def _rows(
    usable: NDArray[np.bool_],
    before: NDArray[np.float32],
    chosen: NDArray[np.float32],
    rewards: NDArray[np.float32],
    after: NDArray[np.float32],
) -> Transitions:
    """Arrays that are time first as tuples, learner after learner."""
    keep = usable.T
    hyperparameters = chosen.swapaxes(0, 1)[keep]
    return Transitions(
        observation=before.swapaxes(0, 1)[keep],
        stepsize=hyperparameters[:, 0] if hyperparameters.shape[1] == 1 else hyperparameters,
        reward=rewards.T[keep],
        next_observation=after.swapaxes(0, 1)[keep],
    )


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> History:
    """The history whose `to_arrays` gave these."""
    of_tries = {name.removeprefix(_TRIED): array for name, array in arrays.items() if name.startswith(_TRIED)}
    features, rest = _parted({name: array for name, array in arrays.items() if not name.startswith(_TRIED)})
    tried = None
    if of_tries:
        tried_features, others = _parted(of_tries)
        tried = Tried(**others, features=tried_features)
    return History(**rest, features=features, tried=tried)


def _parted(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Features by their own names, and everything else."""
    features = {name.removeprefix(_FEATURE): array for name, array in arrays.items() if name.startswith(_FEATURE)}
    return features, {name: array for name, array in arrays.items() if not name.startswith(_FEATURE)}


def joined(pieces: Sequence[History]) -> History:
    """Pieces that follow one another as one."""
    first, *_ = pieces
    in_time = [dict(piece.to_arrays()) for piece in pieces]
    arrays = {name: np.concatenate([piece[name] for piece in in_time]) for name in in_time[0] if name != "context"}
    return from_arrays({"context": first.context, **arrays})

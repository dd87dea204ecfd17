"""A fitted model in somebody's training loop: once for each update it is told what the loop knows, and proposes the step."""

import base64
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep._core.errors import InputError, shown
from metastep._core.logs import Log, as_log
from metastep._core.storage import require_stamp, stamp
from metastep.features.diagnostics import (
    DIAGNOSTICS,
    Memory,
    MinibatchStats,
    Movement,
    StepGeometry,
    asked_for,
    needed,
    observed,
)

if TYPE_CHECKING:
    from metastep.fqi.model import Model

Outside = Literal["warn", "refuse"]
"""What to do with numbers that the training data did not reach."""


class Proposal(NamedTuple):
    """What a model proposes for the next update of one learner."""

    values: dict[str, float]  # of every hyperparameter by its name in the space, such as `stepsize` and `clip_range`
    direction: str = ""  # name of the branch that was chosen; empty where the model chooses the step only

    @property
    def stepsize(self) -> float:
        """The step; with PPO and A2C it is the learning rate."""
        return self.values["stepsize"]


class Stepper:
    """Proposes the step of every update of one learner, from what its training loop tells; see `Model.stepper`.

    Args:
        model: a fitted model.
        num_updates: updates that the learner has; None takes those of the record, or as many as the learners that the model
            was fitted on.
        outside: warn once of numbers that the training data did not reach, or refuse each.
        record: what `record` gave, to go on from there.
        log: is told of every update (`metastep._core.logs`); a path is a CSV file.
        minibatches: of an epoch, for loops that tell of every minibatch; None where a call is an update.
    """

    def __init__(
        self,
        model: "Model",
        num_updates: int | None = None,
        outside: Outside = "warn",
        record: Mapping[str, Any] | None = None,
        log: Log | str | os.PathLike[str] | None = None,
        minibatches: int | None = None,
    ) -> None:
        if minibatches is not None and minibatches < 1:
            raise InputError(f"minibatches is {minibatches}, allowed is 1 or more.")
        if num_updates is not None and num_updates < 1:
            raise InputError(f"num_updates is {num_updates}, allowed is 1 or more.")
        if outside not in get_args(Outside):
            raise InputError(f"outside is {outside!r}, allowed are {', '.join(get_args(Outside))}.")
        self.model, self.outside, self._log = model, outside, as_log(log)
        self.memory, self.movement = Memory(), None
        self.last: dict[str, NDArray[np.float32]] = {}
        self._warnings: list[str] = []
        self.minibatches, self.gathered = minibatches, MinibatchStats()
        self._proposal: Proposal | None = None
        if record is None:
            self.num_updates = num_updates or self._usual_updates()
        else:
            self.memory, self.movement = self._read_memory(record), _read_movement(record)
            self.num_updates = _read_updates(record, num_updates)
            self.gathered, direction = _read_gathered(record)
            self._proposal = self._proposal_of(direction) if self.memory.updates else None

    def _proposal_of(self, direction: str) -> Proposal:
        """Return the last proposal of a record, which holds the name of its branch and the step."""
        branches = {branch.name: branch for branch in self.model.record.branches}
        if direction not in branches:
            raise InputError(f"record: direction is {shown(direction)}, allowed are {', '.join(branches)}.")
        return Proposal({**branches[direction].values, "stepsize": float(self.memory.rate)}, direction)

    def _usual_updates(self) -> int:
        """As many as the learners that the model was fitted on; 1 where neither anybody knows nor it matters."""
        found = updates_of(self.model)
        if found is None and "budget" in self.features:
            raise InputError(
                "num_updates is missing, allowed is 1 or more: the model looks at the share of them that was made, and its "
                "record does not say how many it was fitted on."
            )
        return found or 1

    @property
    def features(self) -> tuple[str, ...]:
        """What the model looks at, by the names under which it may be given."""
        return tuple(self.model.record.keywords)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names to tell, those of the last update from the second one on; `DIAGNOSTICS` has what may be in their place."""
        return asked_for(needed(self.features))

    @property
    def needs_parameters(self) -> bool:
        """Whether it matters how the parameters move."""
        return "parameters" in self.needs

    def __call__(
        self, diagnostics: Mapping[str, Any] | None = None, /, *, begins: bool = True, **more: Any
    ) -> Proposal:
        """The proposal for the update that comes now; call it once for each, after its batch and before it.

        Numbers may be those of NumPy, JAX or PyTorch; `metastep.features.diagnostics.DIAGNOSTICS` explains each.
        What is told of
        the last update is ignored before the first. A number that is not finite gives the smallest step, also one that the
        model does not look at.

        Where no update begins, the last proposal stays. With `minibatches`, call it for each of them before its step, with
        `begins` true for the first of an update, and tell `approx_kl` and `clip_fraction` of the minibatch.
        """
        given = {**(diagnostics or {}), **more}
        ratios: dict[str, Any] = {}
        if self.minibatches is not None:
            ratios |= {name: _one(name, given[name]) for name in ("approx_kl", "clip_fraction") if name in given}
            last = self.gathered.of_the_update(self.minibatches, np)
            given |= {name: last[name] for name in ratios}
        if begins:
            proposal = self._proposed(given)
        elif self._proposal is not None:
            proposal = self._proposal
        else:
            raise InputError("begins is False, allowed is True: nothing was proposed yet.")
        if self.minibatches is not None:
            self.gathered = self.gathered.after(ratios, begins, self.minibatches, np)
        return proposal

    def _proposed(self, given: Mapping[str, Any]) -> Proposal:
        told: dict[str, Any] = {
            name: _one(name, value) if name in DIAGNOSTICS and name not in _LISTS else as_numbers(name, value)
            for name, value in given.items()
        }
        movement = self.movement
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is seen below
            if "parameters" in told:
                movement, turn = self._moved(told["parameters"])
                told = {"step_norm": turn.length, "step_cosine": turn.cosine} | told
            found, sound, memory = observed(self.features, told, self.memory, float(self.num_updates), np)
        self.last = {name: np.atleast_1d(np.asarray(value, np.float32)) for name, value in found.items()}
        seen = self.last if sound else {name: np.full_like(value, np.nan) for name, value in self.last.items()}
        proposal = self.model.proposed(seen, self.outside, self._warnings, stacklevel=4)
        # Only now: a call that was refused has not happened.
        before, self.memory, self.movement = self.memory, memory._replace(rate=proposal.stepsize), movement
        self._proposal = proposal
        if self._log is not None:
            self._log(int(before.updates), self._told(proposal, told, int(before.updates)))
        return proposal

    def _moved(self, parameters: NDArray[np.float32]) -> tuple[Movement | None, StepGeometry]:
        """Where parameters have moved to, and how; None where there is no finite place to have come from."""
        before = self.movement or Movement(parameters, np.zeros_like(parameters))
        if before.parameters.shape != parameters.shape:
            raise InputError(
                f"diagnostics: parameters has {parameters.size} numbers, before it had {before.parameters.size}."
            )
        after, turn = before.after(parameters, np)
        return after if np.isfinite(turn.length) else self.movement, turn

    def _told(self, proposal: Proposal, told: Mapping[str, Any], updates: int) -> dict[str, Any]:
        """What a log is told: the proposal, the return and the cost of the last update as they were told, what the model saw.

        Empty is what was not told; before the first update the last one cost nothing, whatever is told.
        """
        told = dict(told)
        if "returns" in told:
            with np.errstate(invalid="ignore"):
                told.setdefault("mean_return", np.mean(told["returns"]))
        if not updates:
            told["approx_kl"] = 0.0
        numbers = {
            column: float(told[name]) if name in told else ""
            for name, column in {"mean_return": "return", "approx_kl": "approx_kl"}.items()
            if name in needed(self.features)
        }
        columns = self.model.record.feature_names
        seen = np.concatenate(list(self.last.values()))
        features = {f"saw {name}": float(value) for name, value in zip(columns, seen, strict=True)}
        return {"rate": proposal.stepsize, "direction": proposal.direction, **numbers, **features}

    def record(self) -> dict[str, Any]:
        """All that is remembered, as JSON holds it: a few numbers, and two vectors where parameters are told."""
        memory = {name: float(value) for name, value in self.memory._asdict().items()}
        vectors = {} if self.movement is None else {
            name: base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
            for name, vector in self.movement._asdict().items()
        }  # fmt: skip
        return {
            **stamp("stepper"),
            "model": self.model.fingerprint,
            "num_updates": self.num_updates,
            "memory": memory | {"updates": int(self.memory.updates)},
            "movement": vectors,
            "gathered": self._gathered_as_json(),
        }

    def _gathered_as_json(self) -> dict[str, Any]:
        # JSON has no numbers that are not finite.
        sums = {name: float(value) if np.isfinite(value) else None for name, value in self.gathered._asdict().items()}
        return sums | {
            "minibatches": int(self.gathered.minibatches),
            "direction": self._proposal.direction if self._proposal else "",
        }

    def _read_memory(self, record: Mapping[str, Any]) -> Memory:
        """What a record remembers, if it is one of this model's."""
        require_stamp(dict(record), "stepper", "of the stepper's record", "begin anew")
        if record.get("model") != self.model.fingerprint:
            raise InputError("record: it belongs to a stepper of another model.")
        memory = record.get("memory")
        if (
            not isinstance(memory, Mapping)
            or set(memory) != set(Memory._fields)
            or not all(isinstance(value, int | float) and np.isfinite(value) for value in memory.values())
        ):
            raise InputError(f"record: memory is {shown(memory)}, allowed are finite {', '.join(Memory._fields)}.")
        numbers = {name: np.float32(value) for name, value in memory.items()}
        return Memory(**numbers)._replace(updates=int(memory["updates"]))


_LISTS = ("returns", "values", "targets", "parameters")


def updates_of(model: "Model") -> int | None:
    """Updates that the learners had which a model was fitted on, at most; None where nobody knows."""
    configuration = model.record.configuration
    experiments = configuration.get("families", {"": configuration.get("experiment", {})}).values()
    known = [experiment.get("meta", {}).get("num_updates") for experiment in experiments]
    return max((int(num) for num in known if num is not None), default=None)


def _read_updates(record: Mapping[str, Any], wanted: int | None) -> int:
    """Those of a record, which are not to be changed on the way."""
    found = record.get("num_updates")
    if not isinstance(found, int) or found < 1:
        raise InputError(f"record: num_updates is {shown(found)}, allowed is 1 or more.")
    if wanted not in (None, found):
        raise InputError(f"num_updates is {wanted}, allowed is the {found} of the record, or none.")
    return found


def _read_movement(record: Mapping[str, Any]) -> Movement | None:
    vectors = record.get("movement")
    if not vectors:
        return None
    try:
        parameters, step = (
            np.frombuffer(base64.b64decode(vectors[name], validate=True), "<f4") for name in Movement._fields
        )
    except (KeyError, TypeError, ValueError):
        raise InputError("record: movement is damaged, allowed are two vectors of numbers.") from None
    if parameters.shape != step.shape:
        raise InputError("record: movement has vectors of different lengths.")
    return Movement(parameters, step)


def _read_gathered(record: Mapping[str, Any]) -> tuple[MinibatchStats, str]:
    """What a record has of the update that was on its way: of its minibatches, and its direction."""
    found = record.get("gathered")
    table = found if isinstance(found, Mapping) else {}
    num, direction = table.get("minibatches"), table.get("direction")
    sums = [table.get(name, "") for name in MinibatchStats._fields[1:]]
    if (
        not isinstance(num, int)
        or not isinstance(direction, str)
        or not all(each is None or isinstance(each, int | float) for each in sums)
    ):
        raise InputError(f"record: gathered is {shown(found)}, allowed is what a stepper's record has.")
    return MinibatchStats(num, *(np.float32(np.nan if each is None else each) for each in sums)), direction


def as_numbers(name: str, value: Any) -> NDArray[np.float32]:
    """Numbers of any framework, or a list of arrays, as one flat vector."""
    if isinstance(value, Sequence) and not isinstance(value, str) and any(np.ndim(_plain(part)) for part in value):
        return np.concatenate([as_numbers(name, part) for part in value])
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            return np.asarray(_plain(value), dtype=np.float32).ravel()
    except (TypeError, ValueError):
        raise InputError(f"diagnostics: {name} is {value!r:.60}, allowed are numbers.") from None


def _plain(value: Any) -> Any:
    # Of PyTorch: perhaps with a gradient, on another device or of a type NumPy lacks.
    return value.detach().float().cpu() if hasattr(value, "detach") else value


def _one(name: str, given: Any) -> np.float32:
    value = as_numbers(name, given)
    if value.size != 1:
        raise InputError(f"diagnostics: {name} has {value.size} numbers, allowed is one.")
    return np.float32(value[0])

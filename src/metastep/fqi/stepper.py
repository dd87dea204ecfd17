"""A fitted model in somebody's training loop: once for each update it is told what the loop knows, and proposes the step."""

import base64
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metastep.diagnostics import DIAGNOSTICS, Memory, Movement, needed, observed
from metastep.errors import InputError, shown
from metastep.logs import Log, as_log
from metastep.storage import require_stamp, sha256_of_json, stamp

if TYPE_CHECKING:
    from metastep.fqi.model import Model

Outside = Literal["warn", "refuse"]
"""What to do with numbers that the training data did not reach."""


class Proposal(NamedTuple):
    """What a model proposes for the next update of one learner."""

    direction: str  # its name; empty where the model chooses the step only
    stepsize: float  # the step along it, in what its range is measured in


class Stepper:
    """Proposes the step of every update of one learner, from what its training loop tells; see `Model.stepper`.

    Args:
        model: a fitted model.
        num_updates: updates that the learner has; None takes as many as the learners that the model was fitted on.
        outside: warn once of numbers that the training data did not reach, or refuse each.
        record: what `record` gave, to go on from there.
        log: is told of every update (`metastep.logs`); a path is a CSV file.
    """

    def __init__(
        self,
        model: "Model",
        num_updates: int | None = None,
        outside: Outside = "warn",
        record: Mapping[str, Any] | None = None,
        log: Log | str | os.PathLike[str] | None = None,
    ) -> None:
        if num_updates is not None and num_updates < 1:
            raise InputError(f"num_updates is {num_updates}, allowed is 1 or more.")
        if outside not in get_args(Outside):
            raise InputError(f"outside is {outside!r}, allowed are {', '.join(get_args(Outside))}.")
        self.model, self.outside, self._log = model, outside, as_log(log)
        self.num_updates = num_updates or updates_of(model)
        self.memory, self.movement = Memory(), None if record is None else _movement(record)
        self.last: dict[str, NDArray[np.float32]] = {}
        if record is not None:
            self.memory = self._memory(record)

    @property
    def features(self) -> tuple[str, ...]:
        """What the model looks at, by the names under which it may be given."""
        return tuple(self.model.record.keywords)

    @property
    def needs(self) -> tuple[str, ...]:
        """The diagnostics that must be told, from the second update on."""
        return needed(self.features)

    @property
    def needs_parameters(self) -> bool:
        """Whether it matters how the parameters move."""
        return any(name in ("step_norm", "step_cosine") for name in self.needs)

    def __call__(self, diagnostics: Mapping[str, Any] | None = None, /, **more: Any) -> Proposal:
        """The proposal for the update that comes now; call it once for each, after its batch and before it.

        Numbers may be those of NumPy, JAX or PyTorch; what each means is in `metastep.diagnostics.DIAGNOSTICS`. What is told of
        the last update is ignored before the first. A number that is not finite gives the smallest step.
        """
        told: dict[str, Any] = {
            name: _one(name, value) if name in DIAGNOSTICS and name not in _LISTS else as_numbers(name, value)
            for name, value in {**(diagnostics or {}), **more}.items()
        }
        movement = self.movement
        if "parameters" in told:
            parameters = told.pop("parameters")
            if movement is not None and movement.parameters.shape != parameters.shape:
                raise InputError(
                    f"diagnostics: parameters has {parameters.size} numbers, before it had {movement.parameters.size}."
                )
            movement = movement or Movement(parameters, np.zeros_like(parameters))
            movement, turn = movement.after(parameters, np)
            told = {"step_norm": turn.length, "step_cosine": turn.cosine} | told
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is seen below
            found, memory = observed(self.features, told, self.memory, float(self.num_updates), np)
        self.last = {name: np.atleast_1d(np.asarray(value, np.float32)) for name, value in found.items()}
        proposal = self.model.proposed(self.last, self.outside, stacklevel=3)
        # Only now: a call that was refused has not happened.
        before, self.memory, self.movement = self.memory, memory._replace(rate=proposal.stepsize), movement
        if self._log is not None:
            self._log(int(before.updates), self._told(proposal, told))
        return proposal

    def _told(self, proposal: Proposal, told: Mapping[str, Any]) -> dict[str, Any]:
        """What a log is told: the proposal, the return and the cost of the last update, then what the model saw."""
        returns = {} if "mean_return" not in needed(self.features) else {"return": float(self.memory.mean_return)}
        cost = {"approx_kl": float(told.get("approx_kl", 0.0))} if "approx_kl" in self.needs else {}
        columns = self.model.record.feature_names
        seen = np.concatenate(list(self.last.values()))
        features = {f"saw {name}": float(value) for name, value in zip(columns, seen, strict=True)}
        return {"rate": proposal.stepsize, "direction": proposal.direction, **returns, **cost, **features}

    def record(self) -> dict[str, Any]:
        """All that is remembered, as JSON holds it: a few numbers, and two vectors where parameters are told."""
        memory = {name: float(value) for name, value in self.memory._asdict().items()}
        vectors = {} if self.movement is None else {
            name: base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
            for name, vector in self.movement._asdict().items()
        }  # fmt: skip
        return {
            **stamp("stepper"),
            "model": fingerprint(self.model),
            "num_updates": self.num_updates,
            "memory": memory | {"updates": int(self.memory.updates)},
            "movement": vectors,
        }

    def _memory(self, record: Mapping[str, Any]) -> Memory:
        """What a record remembers, if it is one of this model's."""
        require_stamp(dict(record), "stepper", "of the stepper's record", "begin anew")
        if record.get("model") != fingerprint(self.model):
            raise InputError("record: it belongs to a stepper of another model.")
        memory, num_updates = record.get("memory"), record.get("num_updates")
        if not isinstance(num_updates, int) or num_updates < 1:
            raise InputError(f"record: num_updates is {shown(num_updates)}, allowed is 1 or more.")
        if (
            not isinstance(memory, Mapping)
            or set(memory) != set(Memory._fields)
            or not all(isinstance(value, int | float) and np.isfinite(value) for value in memory.values())
        ):
            raise InputError(f"record: memory is {shown(memory)}, allowed are finite {', '.join(Memory._fields)}.")
        self.num_updates = num_updates
        numbers = {name: np.float32(value) for name, value in memory.items()}
        return Memory(**numbers)._replace(updates=int(memory["updates"]))


_LISTS = ("returns", "values", "targets", "parameters")


def updates_of(model: "Model") -> int:
    """Updates that the learners had which a model was fitted on, at most; 1 where nobody knows."""
    configuration = model.record.configuration
    experiments = configuration.get("families", {"": configuration.get("experiment", {})}).values()
    return max(int(experiment.get("meta", {}).get("num_updates", 1)) for experiment in experiments)


def fingerprint(model: "Model") -> str:
    """What tells models apart: where a record of one may go on."""
    record = model.record
    parts = [record.training_data.fingerprint, record.selected_iteration, list(record.feature_names), record.lam]
    return sha256_of_json(parts)


def _movement(record: Mapping[str, Any]) -> Movement | None:
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
    return value.detach().cpu().double() if hasattr(value, "detach") else value


def _one(name: str, given: Any) -> np.float32:
    value = as_numbers(name, given)
    if value.size != 1:
        raise InputError(f"diagnostics: {name} has {value.size} numbers, allowed is one.")
    return np.float32(value[0])

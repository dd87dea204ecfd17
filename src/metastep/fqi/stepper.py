"""A fitted model in any training loop: called once per update with the loop's diagnostics, it proposes the hyperparameters."""

import base64
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import TypeAdapter, create_model

from metastep._core.errors import InputError, shown
from metastep._core.logs import AnyLog, as_log
from metastep._core.settings import Count, from_json
from metastep._core.storage import require_stamp, stamp
from metastep.features import ANY
from metastep.features.diagnostics import DIAGNOSTICS, Memory, MinibatchStats, Movement, Observed, asked_for, observed

if TYPE_CHECKING:
    from metastep.fqi.base import AnyModel

WHOLE = ("gradient_steps",)  # hyperparameters that are whole numbers, from 1
Outside = Literal["warn", "refuse"]  # what to do with numbers outside the range of the training data
_LISTS = ("returns", "values", "targets", "parameters")
_Number = Annotated[float, Ge(-ANY), Le(ANY)]  # that float32 holds; not NaN
_Index = Annotated[int, Ge(0), Le(10**9)]


class Proposal(NamedTuple):
    """What a model proposes for the next update of one learner."""

    values: dict[str, float]  # of every hyperparameter by its name in the space, such as `stepsize` and `clip_range`
    direction: str = ""  # name of the branch that was chosen; empty where the model chooses the step only

    @property
    def stepsize(self) -> float:
        """The step; with PPO and A2C it is the learning rate."""
        return self.values["stepsize"]

    @property
    def rate(self) -> float:
        """The same, by its usual name."""
        return self.stepsize


# What `Stepper.record` returns, with bounds: a checkpoint may come from anywhere. Those of earlier versions lack what was added
# to the state since; no model of theirs observes it.
_FIELDS: Any = dict.fromkeys(Memory._fields, (_Number, 0.0)) | {"updates": _Index}
_SUMS: Any = dict.fromkeys(MinibatchStats._fields, (_Number | None, 0.0)) | {"minibatches": _Index}
_MEMORY: Any = create_model("", **_FIELDS)
_GATHERED: Any = create_model("", **_SUMS, direction=(str, ""), values=(dict[str, _Number], {}))
_PLAIN = TypeAdapter(dict[str, Any])
_RECORD: Any = TypeAdapter(
    create_model("", model=str, num_updates=Count, memory=_MEMORY, gathered=_GATHERED, movement=(dict[str, str], {}))
)
_OPTIONS: Any = TypeAdapter(create_model("", num_updates=Count | None, minibatches=Count | None, outside=Outside))


class Stepper:
    """Propose the hyperparameters of every update of one learner, from diagnostics of its training loop.

    Args:
        model: a fitted model.
        num_updates: updates that the learner has; None takes that of the record, or of the learners that the model was
            fitted on.
        outside: warn once of numbers outside the range of the training data, or refuse each.
        record: the result of `record`, to continue from it.
        log: called for every update (`metastep._core.logs`); a path is a CSV file.
        minibatches: of an epoch, for loops that report every minibatch; None if a call is an update.
    """

    def __init__(
        self,
        model: "AnyModel",
        num_updates: int | None = None,
        outside: Outside = "warn",
        record: Mapping[str, Any] | None = None,
        log: AnyLog = None,
        minibatches: int | None = None,
    ) -> None:
        options = {"num_updates": num_updates, "minibatches": minibatches, "outside": outside}
        plain = {name: int(each) if isinstance(each, np.integer) else each for name, each in options.items()}
        from_json(_OPTIONS, plain, "stepper")
        self.model, self.outside, self.minibatches, self._log = model, outside, minibatches, as_log(log)
        self.memory, self.gathered = Memory(), MinibatchStats()
        self.movement: Movement | None = None
        self.last: dict[str, NDArray[np.float32]] = {}  # features of the last call
        self._warnings: list[str] = []
        self._has_warned = False  # of numbers that are not finite
        self._proposal: Proposal | None = None
        if record is not None:
            self.num_updates = self._restore(record)
            if num_updates not in (None, self.num_updates):
                allowed = f"allowed is the {self.num_updates} of the record, or none"
                raise InputError(f"num_updates is {num_updates}, {allowed}.")
            return
        configuration = model.record.configuration
        experiments = configuration.get("families", {"": configuration.get("experiment", {})}).values()
        known = [experiment.get("meta", {}).get("num_updates") for experiment in experiments]
        usual = max((int(number) for number in known if number is not None), default=None)
        if num_updates is None and usual is None and "budget" in self.features:
            why = "the model observes the share of updates made, and its record does not say how many it was fitted on"
            raise InputError(f"num_updates is missing, allowed is 1 or more: {why}.")
        self.num_updates = int(num_updates or usual or 1)

    def _restore(self, record: Any) -> int:
        """Take the state of a record, and return its number of updates."""
        if not isinstance(record, Mapping):
            raise InputError(f"record is {shown(record)}, allowed is the result of a stepper's `record`.")
        found = from_json(_PLAIN, dict(record), "record")
        require_stamp(found, "stepper", "of the stepper's record", "start again")
        state = from_json(_RECORD, found, "record")
        if state.model != self.model.fingerprint:
            raise InputError("record: it belongs to a stepper of another model.")
        numbers = {name: np.float32(value) for name, value in vars(state.memory).items()}
        self.memory = Memory(**numbers | {"updates": state.memory.updates})
        if state.movement:
            with suppress(KeyError, ValueError):
                parts = (base64.b64decode(state.movement[name], validate=True) for name in Movement._fields)
                self.movement = Movement(*np.stack([np.frombuffer(part, "<f4") for part in parts]))
            if self.movement is None or not np.isfinite(self.movement).all():
                allowed = "two vectors of as many finite numbers, in base64"
                raise InputError(f"record: movement is damaged, allowed are {allowed}.")
        sums: dict[str, Any] = {name: np.nan if value is None else value for name, value in state.gathered}
        self.gathered = MinibatchStats(*(sums[name] for name in MinibatchStats._fields))
        if self.memory.updates:
            try:
                bounds = self.model.record.bounds(sums["direction"])
            except InputError as error:
                raise InputError(f"record: gathered.{error}") from None
            # Records of version 0.2 have only the step: what else there was follows from the direction.
            values = sums["values"] or {name: low for name, (low, high) in bounds.items() if low == high}
            values = {**values, "stepsize": float(self.memory.rate)}
            if values.keys() != bounds.keys():
                raise InputError(f"record: gathered.values are {shown([*values])}, allowed are {', '.join(bounds)}.")
            for name, (low, high) in bounds.items():
                if not np.float32(low) <= np.float32(values[name]) <= np.float32(high):
                    raise InputError(f"record: {name} is {values[name]:g}, allowed is {low:g} to {high:g}.")
                if name in WHOLE and values[name] != round(values[name]):
                    raise InputError(f"record: {name} is {values[name]:g}, allowed are whole numbers.")
            self._proposal = Proposal(values, sums["direction"])
        return int(state.num_updates)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that the model observes."""
        return tuple(self.model.record.keywords)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the diagnostics to give, those of the last update from the second call on; `DIAGNOSTICS` explains them."""
        return asked_for(self.features)

    @property
    def needs_parameters(self) -> bool:
        """Whether the model observes the steps of the parameters."""
        return "parameters" in self.needs

    def __call__(
        self, diagnostics: Mapping[str, Any] | None = None, /, *, begins: bool = True, **more: Any
    ) -> Proposal:
        """Return the proposal for the next update; call it once per update, after its batch and before its first step.

        Numbers may be those of NumPy, JAX or PyTorch; `metastep.features.diagnostics.DIAGNOSTICS` explains each. Diagnostics of
        the last update are ignored before the first. Any number that is not finite gives the smallest step of a fitted model,
        and the mean of its features to a searched one.

        If no update begins, the last proposal stays. With `minibatches`, call it for each of them before its step, with
        `begins` true for the first of an update, and with those of `features.diagnostics.PER_MINIBATCH` of the minibatch.
        """
        require_bool(begins)
        given = as_diagnostics({} if diagnostics is None else diagnostics, more)
        if begins:
            self._propose(given)
        if self._proposal is None:
            raise InputError("begins is False, allowed is True: nothing was proposed yet.")
        if self.minibatches is not None:
            self.gathered = self.gathered.after(given, begins, self.minibatches, np)
        return self._proposal

    def next_update(
        self, reported: Mapping[str, Any], state: Any, choose: Callable[[Any], Proposal], xp: Any
    ) -> tuple[Proposal, Observed]:
        """Return the proposal for the next update and what to remember: all loops come here, with NumPy or in programs of JAX.

        `state` has `memory`, `movement` and `gathered` of the learner. `choose` returns the model's own proposal for one row of
        features; where anything is not finite, a fitted model gets NaN, for which it proposes the smallest step.
        """
        if self.minibatches is not None:
            reported = {**reported, **state.gathered.of_the_update(reported, self.minibatches, xp)}
        found, parts = observed(self.features, reported, state, self.num_updates, xp), [xp.zeros(0, xp.float32)]
        for name, size in self.model.record.keywords.items():
            parts.append(xp.ravel(xp.asarray(found.features[name], xp.float32)))
            if parts[-1].size != size:
                raise InputError(f"diagnostics: {name} has {parts[-1].size} numbers, allowed is {size}.")
        row = xp.concatenate(parts)
        proposal = choose(row if self.model.fills_gaps else xp.where(found.sound, row, np.float32(np.nan)))
        return proposal, found._replace(memory=found.memory._replace(rate=proposal.stepsize))

    def _propose(self, numbers: dict[str, Any]) -> None:
        update = int(self.memory.updates)
        with np.errstate(all="ignore"):  # numbers that are not finite are seen below
            proposal, found = self.next_update(numbers, self, self._choose, np)
        if not found.sound and not self._has_warned:
            self._has_warned = True
            bad = next(name for name, each in found.diagnostics.items() if not np.isfinite(each).all())
            then = "features are at their mean" if self.model.fills_gaps else "the smallest step is proposed"
            text = f"diagnostics: {bad} is not finite, allowed are finite numbers of float32: {then}."
            warnings.warn(f"{text} Further ones are not reported.", stacklevel=3)
        # The state changes only now: a refused call changes nothing. Memory is of float32, as a record restores it.
        kept = Memory(*(np.float32(np.clip(value, -ANY, ANY)) for value in found.memory))
        self.memory, self.movement, self._proposal = kept._replace(updates=update + 1), found.movement, proposal
        self.last = {name: np.atleast_1d(np.asarray(value, np.float32)) for name, value in found.features.items()}
        if self._log is not None:
            entry: dict[str, Any] = {"rate": proposal.stepsize, "direction": proposal.direction}
            entry |= {name: value for name, value in proposal.values.items() if name not in ("stepsize", "direction")}
            for need, name, column in (("returns", "mean_return", "return"), ("approx_kl", "approx_kl", "approx_kl")):
                if need in self.needs:
                    entry[column] = float(found.diagnostics[name]) if name in found.diagnostics else ""
            saw = zip(self.model.record.feature_names, np.concatenate(list(self.last.values())), strict=True)
            self._log(update, entry | {f"saw {name}": float(value) for name, value in saw})

    def _choose(self, row: NDArray[np.float32]) -> Proposal:
        self.model.check_reach(row, self.outside, self._warnings, stacklevel=6)
        return self.model.chosen(row)

    def record(self) -> dict[str, Any]:
        """Return the state as JSON holds it: a few numbers, and two vectors if parameters are given."""
        vectors = self.movement._asdict() if self.movement else {}
        movement = {name: base64.b64encode(np.asarray(v, "<f4").tobytes()).decode() for name, v in vectors.items()}
        memory = {name: float(value) for name, value in self.memory._asdict().items()}
        # JSON has no numbers that are not finite.
        sums = {name: float(value) if abs(value) <= ANY else None for name, value in self.gathered._asdict().items()}
        proposal = (self._proposal or Proposal({}))._asdict()
        return {
            **stamp("stepper"),
            "model": self.model.fingerprint,
            "num_updates": self.num_updates,
            "memory": memory | {"updates": int(self.memory.updates)},
            "movement": movement,
            "gathered": sums | {"minibatches": int(self.gathered.minibatches)} | proposal,
        }


def as_numbers(name: str, value: Any) -> NDArray[np.float32]:
    """Return numbers of any framework, or a list of arrays, as one flat vector."""
    try:
        if isinstance(value, Sequence) and not isinstance(value, str) and any(np.ndim(_plain(part)) for part in value):
            return np.concatenate([as_numbers(name, part) for part in value])
        array = np.asarray(_plain(value))
        if array.dtype.kind in "bcOSUMm":
            raise TypeError
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            return array.astype(np.float32).ravel()
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError):
        sentence = "allowed are real numbers: integers of 64 bits and floats, with their data in memory"
        raise InputError(f"{name} is {shown(value)}, {sentence}.") from None


def _plain(value: Any) -> Any:
    # A PyTorch tensor may have a gradient, be on another device or of a type that NumPy lacks.
    if not hasattr(value, "detach"):
        return value
    if value.dtype.is_complex or str(value.dtype) == "torch.bool":
        raise TypeError
    return value.detach().float().cpu()


def require_bool(begins: Any) -> None:
    """Refuse anything but one boolean of any framework."""
    if "bool" not in str(getattr(begins, "dtype", type(begins))) or getattr(begins, "shape", ()) != ():
        raise InputError(f"begins is {shown(begins)}, allowed are True and False.")


def as_diagnostics(*given: Any, convert: Callable[[str, Any], Any] = as_numbers) -> dict[str, Any]:
    """Return what a loop reports, by name: a number, or a flat vector where there may be several."""
    found: dict[str, Any] = {}
    for each in given:
        if not isinstance(each, Mapping):
            raise InputError(f"diagnostics is {shown(each)}, allowed are numbers by name.")
        for name, value in each.items():
            numbers, has_one = convert(str(name), value), name in DIAGNOSTICS and name not in _LISTS
            if numbers.size != 1 if has_one else not numbers.size:
                allowed = "one" if has_one else "at least one"
                raise InputError(f"diagnostics: {name} has {numbers.size} numbers, allowed is {allowed}.")
            found[str(name)] = numbers[0] if has_one else numbers
    return found

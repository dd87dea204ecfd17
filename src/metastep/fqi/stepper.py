"""A fitted model in any training loop: called once per update with the loop's diagnostics, it proposes the hyperparameters."""

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le, Len
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, create_model

from metastep._core.errors import InputError, shown
from metastep._core.logs import AnyLog, as_log
from metastep._core.settings import Count, from_json
from metastep._core.storage import require_stamp, stamp
from metastep.features import diagnostics as reports
from metastep.features.diagnostics import ANY, Memory, MinibatchStats, Movement, Observed, asked_for, observed
from metastep.fqi import guard as guards
from metastep.fqi.guard import Fallback, Guard, Outside, Values, own_values, warn

if TYPE_CHECKING:
    from metastep.fqi.base import AnyModel

WHOLE = ("gradient_steps",)  # hyperparameters that are whole numbers, from 1
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


# What `Stepper.record` returns, with bounds: a checkpoint may come from anywhere. Those of earlier versions lack what was added
# to the state since; no model of theirs observes it.
_table: Any = partial(create_model, "")
_MEMORY = _table(**dict.fromkeys(Memory._fields, (_Number, 0.0)) | {"updates": _Index})
_SUMS = dict.fromkeys(MinibatchStats._fields, (_Number | None, 0.0)) | {"minibatches": _Index}
_GATHERED = _table(**_SUMS, direction=(str, ""), values=(dict[str, _Number], {}))
_RETURNS = Annotated[list[_Number], Len(guards.WINDOW, guards.WINDOW)], [0.0] * guards.WINDOW
_GUARD = _table(**dict.fromkeys(Guard._fields, (_Number, 0.0)) | {"returns": _RETURNS})
_OWN = _table(__config__=ConfigDict(extra="forbid"), **guards.LOOP)
_KEPT = {"movement": (dict[str, str], {}), "guard": (_GUARD, _GUARD(ceiling=ANY)), "loop": (_OWN, _OWN())}
_OWN_STEPS = "loop: gradient_steps is missing, which the model scales; give those of your loop there or in fallback."
_PLAIN, _LOOP = TypeAdapter(dict[str, Any]), TypeAdapter(_OWN)
_RECORD: Any = TypeAdapter(_table(model=str, num_updates=Count, memory=_MEMORY, gathered=_GATHERED, **_KEPT))
_OPTIONS: Any = TypeAdapter(_table(num_updates=Count | None, minibatches=Count | None, outside=Outside))


class Stepper:
    """Propose the hyperparameters of every update of one learner, from diagnostics of its training loop.

    Args:
        model: a fitted model.
        num_updates: updates that the loop makes; None takes that of the record. It may be left out where neither the model nor
            the fallback depends on the share of updates made.
        outside: where the loop or a feature is unlike the training data, use the fallback and warn once, refuse, or trust the
            model; trust also turns off all other guards (`metastep.fqi.guard`).
        record: the result of `record`, to continue from it.
        log: called for every update (`metastep._core.logs`); a path is a CSV file.
        minibatches: of an epoch, for loops that report every minibatch; None if a call is an update.
        fallback: the loop's own rate, or hyperparameters by name, or functions of the share of updates made that return them.
        loop: what is known of the loop, by the names of `metastep.fqi.guard.LOOP`.
    """

    def __init__(
        self,
        model: "AnyModel",
        num_updates: int | None = None,
        outside: Outside = "fallback",
        record: Mapping[str, Any] | None = None,
        log: AnyLog = None,
        minibatches: int | None = None,
        fallback: Fallback = None,
        loop: Values | None = None,
    ) -> None:
        options = {"num_updates": num_updates, "minibatches": minibatches, "outside": outside}
        plain = {name: int(each) if isinstance(each, np.integer) else each for name, each in options.items()}
        from_json(_OPTIONS, plain, "stepper")
        self.model, self.outside, self.minibatches, self._log = model, outside, minibatches, as_log(log)
        self.memory, self.gathered, self.guard = Memory(), MinibatchStats(), Guard()
        self.fallback, self.limits = fallback, guards.limits_of(model.record)
        self.is_guarded = outside != "trust" and model.record.rule_name in guards.RULES
        self._trained_on = model.record.trained_on
        # Where a loop begins that has neither a model to follow nor values of its own: in the middle of the ranges.
        ends = model.record.bounds(first := next(iter(model.record.directions), ""))
        middle = {name: float(np.sqrt(np.prod(each)) or np.mean(each)) for name, each in ends.items()}
        self.usual = Proposal(middle, first)
        own = own_values(fallback, 0.0, model.record.hyperparameters, np)  # raises now if something is wrong
        self.loop: dict[str, float | str] = {}
        self.warned: set[str] = set()  # causes
        self.movement: Movement | None = None
        self.last: dict[str, NDArray[np.float32]] = {}  # features of the last call
        self._proposal: Proposal | None = None
        if record is not None:
            self.num_updates = self._restore(record)
            if num_updates not in (None, self.num_updates):
                allowed = f"allowed is the {self.num_updates} of the record, or none"
                raise InputError(f"num_updates is {num_updates}, {allowed}.")
        else:
            each = fallback.values() if isinstance(fallback, Mapping) else [fallback]
            if num_updates is None and ("budget" in self.features or any(map(callable, each))):
                why = "how many updates your loop makes, since the proposals depend on the share of them"
                raise InputError(f"num_updates is missing, allowed is 1 or more: {why}.")
            self.num_updates = int(num_updates or 1)
            self.loop = {"num_updates": float(num_updates)} if num_updates else {}
        self.compare({name: own[name] for name in WHOLE if own.get(name)})
        self.compare(loop)
        is_known = "gradient_steps" in own or guards.own_steps(self.loop) or {"values", "targets"} & {*self.needs}
        if model.record.is_relative and not is_known:
            raise InputError(_OWN_STEPS)

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
        self.guard = Guard(*(np.float32(getattr(state.guard, name)) for name in Guard._fields))
        self.loop = state.loop.model_dump(exclude_unset=True)
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
            if np.float32(values.get("stepsize", -1.0)) != self.memory.rate:
                values = {**values, "stepsize": float(self.memory.rate)}
            if values.keys() != bounds.keys():
                raise InputError(f"record: gathered.values are {shown([*values])}, allowed are {', '.join(bounds)}.")
            for name, (low, high) in bounds.items():
                if "fallback" in self.guard.names:  # the loop's own, which know no range
                    low, high = 0.0, ANY
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

    def __call__(self, diagnostics: Values | None = None, /, *, begins: bool = True, **more: Any) -> Proposal:
        """Return the proposal for the next update; call it once per update, after its batch and before its first step.

        Numbers may be those of NumPy, JAX or PyTorch; `metastep.features.diagnostics.DIAGNOSTICS` explains each. Diagnostics of
        the last update are ignored before the first. Where any number is impossible, guards use the loop's own values; without
        them a fitted model proposes the smallest step, and a searched one takes the mean of features that are not finite.

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

    def compare(self, loop: Values | None) -> None:
        """Compare what is known of the loop, now and from before, with those of the training data."""
        self.loop = self.loop | from_json(_LOOP, {} if loop is None else loop, "loop").model_dump(exclude_unset=True)
        # What the model chooses is not compared; a number that it scales is.
        record = self.model.record
        chosen = {"epochs", *(() if record.is_relative else WHOLE)} if {*WHOLE} <= {*record.hyperparameters} else set()
        known = {name: value for name, value in self.loop.items() if name not in chosen and self.outside != "trust"}
        self.unlike = guards.unlike(self._trained_on, known)  # a clause by name
        if self.outside == "refuse" and self.unlike:
            raise InputError(f"loop: {next(iter(self.unlike.values()))}.")

    def watch(self, given: Values, begun: bool = True) -> None:
        """Warn once of what is unlike the training data in the loop, and of diagnostics that guards lack."""
        if self.unlike.keys() - self.warned:
            self.report()
        lacks = [name for name in ("returns", "approx_kl") if name not in given]
        lacks = [name for name in lacks if name == "approx_kl" or "mean_return" not in given]
        if lacks and begun and self.is_guarded and not self.unlike and "lacks" not in self.warned:
            self.warned.add("lacks")
            warn(f"diagnostics: missing {', '.join(lacks)}, so guards that need them are off.")

    def report(self, row: Any = None, names: Sequence[str] = (), faults: Any = (), numbers: Any = ()) -> None:
        """Warn of all that is unusual, each once, or refuse it: features, and diagnostics by name."""
        far = {} if row is None or self.outside == "trust" else self.limits.far(row)
        causes, seen = self.unlike | far, dict(zip(names, np.ravel(numbers), strict=True))
        if self.outside == "refuse" and causes:
            raise InputError(f"diagnostics: {next(iter(causes.values()))}.")
        own = "the values of the last update stay, pass your own as `fallback`"
        own = own if self.fallback is None else "your own values are used"
        if new := [text for name, text in causes.items() if name not in self.warned]:
            then = f"{own}; outside='trust' follows the model" if self.is_guarded else "the proposal is a guess"
            warn(f"{'; '.join(new)}: {then}.")
        # Others may follow from the first, as the mean return does from the returns.
        bad = next((name for name, is_bad in zip(names, np.ravel(faults), strict=True) if is_bad), "")
        if bad and (cause := f"fault {bad}") not in self.warned:
            causes[cause] = found = f"diagnostics: {bad} is {seen[bad]:g}, allowed is {reports.POSSIBLE[bad][-1]}"
            then = "features are at their mean" if self.model.fills_gaps else "the smallest step is proposed"
            warn(f"{found}: {own if self.is_guarded else then} in such an update.")
        most = self.limits.divergence
        if self.is_guarded and most < seen.get("approx_kl", 0.0) < np.inf and "approx_kl" not in self.warned:
            causes["approx_kl"] = above = f"approx_kl is {seen['approx_kl']:g}, more than {most:g}"
            warn(f"{above}: the rate is halved where this happens, and rises again slowly.")
        self.warned |= causes.keys()

    def next_update(
        self, reported: Values, state: Any, last: Values, choose: Callable[[Any], Proposal], xp: Any
    ) -> tuple[Proposal, Observed, Guard, tuple[Any, Any, Any, Any]]:
        """Return the proposal for the next update and what to remember: all loops come here, with NumPy or in programs of JAX.

        `state` has `memory`, `movement`, `gathered` and `guard` of the learner, `last` the values of its last update by name.
        `choose` returns the model's own proposal for one row of features; where a diagnostic is impossible, a fitted model gets
        NaN, for which it proposes the smallest step. The last result is whether to call `report`, and with what: features, and
        which diagnostics are impossible, and their numbers, in the order of `Observed.diagnostics`.
        """
        if self.minibatches is not None:
            reported = {**reported, **state.gathered.of_the_update(reported, self.minibatches, xp)}
        own: dict[str, Any] = {}
        if self.is_guarded or self.model.record.is_relative:
            progress = xp.minimum(state.memory.updates / self.num_updates, 1.0)
            own = own_values(self.fallback, progress, self.model.record.hyperparameters, xp)
        steps = own.get("gradient_steps", guards.own_steps(self.loop))
        of_loop = {"budget": self.num_updates, "own_steps": steps}
        known = {name: xp.asarray(value, np.float32) for name, value in of_loop.items()}
        found, parts = observed(self.features, reported, state, known, xp), [xp.zeros(0, xp.float32)]
        for name, size in self.model.record.keywords.items():
            parts.append(xp.ravel(xp.asarray(found.features[name], xp.float32)))
            if parts[-1].size != size:
                raise InputError(f"diagnostics: {name} has {parts[-1].size} numbers, allowed is {size}.")
        row = xp.concatenate(parts)
        proposal = choose(row if self.model.fills_gaps else xp.where(found.sound, row, np.float32(np.nan)))
        if self.model.record.is_relative:
            if "gradient_steps" not in own and not steps:
                raise InputError(_OWN_STEPS)
            own["gradient_steps"] = steps
            steps = xp.maximum(xp.round(steps / 100.0 * proposal.values["gradient_steps"]), 1.0)
            proposal = proposal._replace(values={**proposal.values, "gradient_steps": steps})
        guard, is_far = state.guard, xp.any(self.limits.beyond(row, xp)) & (self.outside != "trust")
        if "approx_kl" in found.faults and self.is_guarded:
            # The same again is that of an earlier update, unless it is 0, as where the policy is certain of its actions.
            again = (state.memory.updates > 1) & (found.diagnostics["approx_kl"] == guard.approx_kl)
            again &= (found.diagnostics["rate"] > 0.0) & (found.diagnostics["approx_kl"] > 0.0)
            faults = found.faults | {"approx_kl": found.faults["approx_kl"] | again}
            memory = found.memory._replace(sound=xp.where(again, state.memory.sound, found.memory.sound))
            found = found._replace(faults=faults, sound=found.sound & ~faults["approx_kl"], memory=memory)
        is_unusual = is_far | ~found.sound
        if self.is_guarded:
            fallen = is_unusual | bool(self.unlike)
            values, guard = self.limits.guarded(proposal.values, last, own, fallen, found, state, xp)
            is_unusual |= xp.asarray(found.diagnostics.get("approx_kl", 0.0)) > self.limits.divergence
            whole = {name: xp.maximum(xp.floor(values[name]), 1.0) for name in WHOLE if name in values}
            proposal = Proposal(values | whole, proposal.direction)
        memory = found.memory._replace(rate=xp.asarray(proposal.stepsize, xp.float32))
        # Of several numbers, the sum is not finite where one is not.
        numbers = [xp.sum(xp.asarray(each, xp.float32)) for each in found.diagnostics.values()]
        seen = row, xp.stack([*found.faults.values()]), xp.stack(numbers)
        return proposal, found._replace(memory=memory), guard, (is_unusual, *seen)

    def _propose(self, numbers: dict[str, Any]) -> None:
        update, last = int(self.memory.updates), self._proposal or self.usual
        self.compare(batch_size(numbers))
        with np.errstate(all="ignore"):  # numbers that are not finite are seen below
            made = self.next_update(numbers, self, last.values, self.model.chosen, np)
        proposal, found, guard, (is_unusual, row, *seen) = made
        self.watch(numbers, update > 0)
        if is_unusual:
            self.report(row, [*found.diagnostics], *seen)
        values = {name: int(value) if name in WHOLE else float(value) for name, value in proposal.values.items()}
        proposal = Proposal(values, last.direction if "fallback" in guard.names else proposal.direction)
        # The state changes only now: a refused call changes nothing. Memory is of float32, as a record restores it.
        kept = Memory(*(np.float32(np.clip(value, -ANY, ANY)) for value in found.memory))
        self.memory, self.movement, self._proposal = kept._replace(updates=update + 1), found.movement, proposal
        self.guard = Guard(*map(np.float32, guard))
        self.last = {name: np.atleast_1d(np.asarray(value, np.float32)) for name, value in found.features.items()}
        if self._log is not None:
            entry: dict[str, Any] = {"rate": proposal.stepsize, "direction": proposal.direction, "guard": guard.names}
            entry |= {name: value for name, value in proposal.values.items() if name not in ("stepsize", "direction")}
            for need, name, column in (("returns", "mean_return", "return"), ("approx_kl", "approx_kl", "approx_kl")):
                if need in self.needs:
                    entry[column] = float(found.diagnostics[name]) if name in found.diagnostics else ""
            saw = zip(self.model.record.feature_names, np.concatenate(list(self.last.values())), strict=True)
            self._log(update, entry | {f"saw {name}": float(value) for name, value in saw})

    def record(self) -> dict[str, Any]:
        """Return the state as JSON holds it: a few numbers, and two vectors if parameters are given."""
        vectors = self.movement._asdict() if self.movement else {}
        movement = {name: base64.b64encode(np.asarray(v, "<f4").tobytes()).decode() for name, v in vectors.items()}
        memory = {name: float(value) for name, value in self.memory._asdict().items()}
        # JSON has no numbers that are not finite.
        sums = {name: float(value) if abs(value) <= ANY else None for name, value in self.gathered._asdict().items()}
        proposal = (self._proposal or Proposal({}))._asdict()
        loop = {name: value for name, value in self.loop.items() if name != "batch_steps"}  # calls show it
        if self.model.record.is_relative and (steps := guards.own_steps(self.loop)):
            loop["gradient_steps"] = steps
        return {
            **stamp("stepper"),
            "model": self.model.fingerprint,
            "num_updates": self.num_updates,
            "memory": memory | {"updates": int(self.memory.updates)},
            "movement": movement,
            "guard": {name: np.asarray(value).tolist() for name, value in self.guard._asdict().items()},
            "loop": loop,
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
            numbers, has_one = convert(str(name), value), name in reports.DIAGNOSTICS and name not in _LISTS
            if numbers.size != 1 if has_one else not numbers.size:
                allowed = "one" if has_one else "at least one"
                raise InputError(f"diagnostics: {name} has {numbers.size} numbers, allowed is {allowed}.")
            found[str(name)] = numbers[0] if has_one else numbers
    return found


def batch_size(diagnostics: Mapping[str, Any]) -> dict[str, int]:
    """Return the steps of a batch, if the diagnostics (`as_diagnostics`) show them."""
    sizes = [int(diagnostics[name].size) for name in ("values", "targets") if name in diagnostics]
    return {"batch_steps": sizes[0]} if sizes else {}

"""A fitted model: the Q function of every iteration, and the record of where it comes from and what it expects."""

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metastep._core.errors import InputError, not_registered
from metastep._core.logs import Log
from metastep._core.provenance import environment_record
from metastep._core.storage import sha256_of_json
from metastep.fqi.forest import Forest
from metastep.fqi.iteration import MetaFQI
from metastep.fqi.menu import MenuQ, pick_iteration, q_function
from metastep.fqi.qfunction import QFunction
from metastep.fqi.record import (
    Branch,
    ModelRecord,
    ObservationPart,
    RegressorRecord,
    TrainingData,
    ValidationCurve,
    record_to_json,
)
from metastep.fqi.regressors import Head, options_of
from metastep.fqi.stepper import Outside, Proposal, Stepper, as_numbers


@dataclass(frozen=True)
class Model:
    """A fitted model that proposes updates; see `load_model` and `save_model`."""

    record: ModelRecord
    q_functions: tuple[QFunction | MenuQ, ...]
    _warnings: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        record, last = self.record, len(self.q_functions)
        if not 1 <= record.selected_iteration <= last:
            raise InputError(f"selected_iteration is {record.selected_iteration}, allowed is 1 to {last}.")
        require_names(record)
        for function in self.q_functions:
            held = len(function.functions) if isinstance(function, MenuQ) else 0
            if held != len(record.directions):
                raise InputError(f"model: a Q function has {held} directions, allowed is {len(record.directions)}.")
        size = sum(part.size for part in record.observation)
        if len(record.keywords) != len(record.observation):
            raise InputError("observation: a part is named twice, allowed is once each.")
        for name in ("feature_names", "feature_low", "feature_high"):
            if (length := len(getattr(record, name))) != size:
                raise InputError(f"{name} has {length} entries, allowed is {size}.")
        for head in (head for function in self.q_functions for head in function.heads):
            if head.num_features != size + 1:
                raise InputError(f"model: a head has {head.num_features} features, allowed is {size + 1}.")
        curves = [curve.iteration for curve in record.validation]
        if any(iteration > last for iteration in curves) or len(set(curves)) != len(curves):
            raise InputError(f"validation has curves of iterations {curves}, allowed is each of 1 to {last} once.")

    def act(
        self, observation: ArrayLike, iteration: int | None = None, threads: int | None = None
    ) -> NDArray[np.float32]:
        """Greedy step sizes of observations `(rows, features)`; the selected iteration acts unless one is named.

        `(rows,)`, or with a menu `(rows, 2)`: the position of the direction and the step along it. An observation that is not
        finite gets the smallest step size, of the first direction.
        """
        return self._function(iteration).act(observation, threads)

    def values(
        self, observation: ArrayLike, iteration: int | None = None, threads: int | None = None
    ) -> NDArray[np.float64]:
        """Values of observations `(rows, features)` at every step size of the grid, `(rows, num)`.

        With a menu they are `(rows, directions, num)`.
        """
        return self._function(iteration).values(observation, threads)

    def stepsize(
        self,
        *,
        theta: ArrayLike | None = None,
        natural_gradient: ArrayLike | None = None,
        context: ArrayLike | None = None,
        **features: ArrayLike,
    ) -> float:
        """The step size for the next update of one learner; a model with a menu has `propose` instead.

        Numbers may be those of NumPy, JAX or PyTorch. Of the three parts that have a name here, those that the model does not
        look at are ignored. Numbers that are not finite give the smallest step size; the first that lies outside of what the
        training data held gives a warning.

        Args:
            theta: the parameters.
            natural_gradient: the natural gradient there.
            context: the task.
            features: every other part of the observation, by the name of its feature; `module:name` is passed as `name`.
        """
        if self.record.directions:
            raise InputError(
                f"stepsize: the model chooses among {', '.join(self.record.directions)} as well; use propose."
            )
        given = {"theta": theta, "natural_gradient": natural_gradient, "context": context}
        return self._proposal("stepsize", given, features).stepsize

    def propose(
        self,
        *,
        theta: ArrayLike | None = None,
        natural_gradient: ArrayLike | None = None,
        context: ArrayLike | None = None,
        **features: ArrayLike,
    ) -> Proposal:
        """The direction and the step along it for the next update of one learner.

        What is given is treated as by `stepsize`; numbers that are not finite give the first direction's smallest step.

        Args:
            theta: the parameters.
            natural_gradient: the natural gradient there.
            context: the task.
            features: every other part of the observation, by the name of its feature; `module:name` is passed as `name`.
        """
        given = {"theta": theta, "natural_gradient": natural_gradient, "context": context}
        return self._proposal("propose", given, features)

    def stepper(
        self,
        num_updates: int | None = None,
        outside: Outside = "warn",
        record: Mapping[str, Any] | None = None,
        log: Log | str | os.PathLike[str] | None = None,
        minibatches: int | None = None,
    ) -> Stepper:
        """Whatever proposes the steps of one learner in a training loop, and remembers what it needs between updates.

        Args:
            num_updates: updates that the learner has; None takes those of the record, or as many as the learners that the
                model was fitted on.
            outside: warn once of numbers that the training data did not reach, or refuse each.
            record: what a stepper's `record` gave, to go on from there.
            log: is told of every update; a path is a CSV file.
            minibatches: of an epoch, for loops that tell of every minibatch; None where a call is an update.
        """
        return Stepper(self, num_updates, outside, record, log, minibatches)

    def _proposal(
        self, asked: str, given: Mapping[str, ArrayLike | None], features: Mapping[str, ArrayLike]
    ) -> Proposal:
        wanted = self.record.keywords
        for name in features:
            if name not in wanted:
                raise not_registered(asked, name, list(wanted), "is not what the model looks at")
        return self.proposed({**given, **features}, "warn", self._warnings, stacklevel=4)

    def proposed(
        self, numbers: Mapping[str, ArrayLike | None], outside: Outside, told: list[str], stacklevel: int = 2
    ) -> Proposal:
        """The proposal for one learner whose features are given by name; `told` as in `tell_of_the_unseen`."""
        row = np.concatenate([_numbers(name, numbers.get(name), size) for name, size in self.record.keywords.items()])
        self.tell_of_the_unseen(row, outside, told, stacklevel + 1)
        *direction, stepsize = np.atleast_1d(self.act(row[None, :], threads=1)[0])
        return Proposal(self.record.directions[int(direction[0])] if direction else "", float(stepsize))

    def tell_of_the_unseen(
        self, row: NDArray[np.float32], outside: Outside, told: list[str], stacklevel: int = 2
    ) -> None:
        """Warn of a number that the training data did not reach, or refuse it: what is proposed is then a guess.

        Nothing is said where `told`, the warnings so far, holds one; a new one is added to it.
        """
        low, high = self._reach
        beyond = (row < low) | (row > high)
        if not beyond.any() or not np.isfinite(row).all() or (told and outside == "warn"):
            return
        index = int(beyond.argmax())
        record = self.record
        sentence = (
            f"{record.feature_names[index]} is {row[index]:g}, outside of the {record.feature_low[index]:g} to "
            f"{record.feature_high[index]:g} of the training data"
        )
        if outside == "refuse":
            raise InputError(f"{sentence}.")
        told.append(f"{sentence}: the step size is a guess. Further ones are not reported.")
        warnings.warn(told[0], stacklevel=stacklevel)

    @cached_property
    def fingerprint(self) -> str:
        """What tells models apart that propose something else: where a stepper's record, or a learner, may go on."""
        record, digest = self.record, hashlib.sha256()
        for head in self._function(None).heads:
            for name, array in sorted(_known_arrays(head).items()):
                digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        known = record_to_json(record)
        names = ("training_data", "selected_iteration", "feature_names", "branches", "lam", "regressor")
        return sha256_of_json([digest.hexdigest(), {name: known[name] for name in names}])

    @cached_property
    def _reach(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of the training data, a little wider: logarithms differ in the last bits between frameworks."""
        low, high = (np.array(bound, np.float32) for bound in (self.record.feature_low, self.record.feature_high))
        rounding = np.float32(1e-5) * np.maximum(np.abs(low), np.abs(high))
        return low - rounding, high + rounding

    def only_selected(self, iteration: int | None = None) -> "Model":
        """The same model with only the iteration that acts, or another one."""
        record = replace(self.record, selected_iteration=1, validation=())
        return Model(record, (self._function(iteration),))

    def with_trees(self, number: int) -> "Model":
        """The same model with the first so many trees of its forests, and as many of those that learn the state first."""
        regressor = self.record.regressor
        grown = regressor.options.get("trees", 0) if all(function.is_forest for function in self.q_functions) else 0
        if not 1 <= number <= grown:
            raise InputError(f"trees: {number} must be 1 to {grown}, the number of trees of each forest of the model.")
        kinds = 2 if regressor.options.get("state_first") else 1
        kept = [kind * grown + index for kind in range(kinds) for index in range(number)]
        heads = [[cast(Forest, head).some_trees(kept) for head in function.heads] for function in self.q_functions]
        record = replace(self.record, regressor=replace(regressor, options=regressor.options | {"trees": number}))
        return model_of_heads(record, heads)

    def with_validation(self, curves: Iterable[ValidationCurve]) -> "Model":
        """The same model with these validation curves, and the iteration of the best score selected."""
        kept = tuple(sorted(curves, key=lambda curve: curve.iteration))
        if not kept:
            raise InputError("validation has no curves, allowed is at least one.")
        # `max` keeps the first of equals: the smallest iteration, which plans least on estimates of estimates.
        best = max(kept, key=lambda curve: curve.score)
        return replace(self, record=replace(self.record, validation=kept, selected_iteration=best.iteration))

    def _function(self, iteration: int | None) -> QFunction | MenuQ:
        return pick_iteration(self.q_functions, self.record.selected_iteration if iteration is None else iteration)


def _known_arrays(head: Head) -> dict[str, NDArray[Any]]:
    try:
        return head.arrays()
    except InputError:  # of one that lives in memory only its settings must do
        return {}


def model_of_heads(record: ModelRecord, heads: Iterable[Sequence[Head]]) -> Model:
    """The model of a record, with the heads of each iteration; it looks for steps where the record says."""
    return Model(record, tuple(q_function(each, record.stepsizes, record.lam) for each in heads))


def require_names(record: ModelRecord) -> None:
    """Refuse directions that cannot be told apart; one without a name must be the only one."""
    names = [branch.name for branch in record.branches]
    if len(set(names)) < len(names) or ("" in names and len(names) > 1):
        raise InputError(f"branches: {names!r:.200} must have a name each, given once.")


def _numbers(name: str, value: Any, size: int) -> NDArray[np.float32]:
    if value is None:
        raise InputError(f"{name} is missing, allowed is {size} numbers: the model looks at them.")
    try:
        numbers = as_numbers(name, value)
    except InputError:
        raise InputError(f"{name} is {value!r:.60}, allowed is {size} numbers.") from None
    if len(numbers) != size:
        raise InputError(f"{name} has {len(numbers)} numbers, allowed is {size}.")
    return numbers


def model_from(
    fitted: MetaFQI,
    *,
    setting: dict[str, Any],
    observation: Iterable[ObservationPart],
    training_data: TrainingData,
    feature_names: Iterable[str] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Model:
    """The model of a fitted `MetaFQI`; its last iteration is selected until it is validated."""
    parts, names = tuple(observation), feature_names
    if names is None:
        names = [f"{part.name}[{i}]" if part.size > 1 else part.name for part in parts for i in range(part.size)]
    settings = dict(fitted.get_params(deep=False))
    given, regressor = settings.pop("regressor"), fitted.regressor_
    for name in ("menu", "stepsize_low", "stepsize_high", "stepsize_scale"):  # are the branches
        del settings[name]
    record = ModelRecord(
        setting=setting,
        observation=parts,
        feature_names=tuple(names),
        feature_low=tuple(fitted.feature_low_.tolist()),
        feature_high=tuple(fitted.feature_high_.tolist()),
        branches=tuple(
            Branch(name, float(steps.low), float(steps.high), steps.scale) for name, steps in fitted.stepsizes_.items()
        ),
        num_stepsizes=int(fitted.num_stepsizes),
        maximum=fitted.maximum,
        lam=float(fitted.lam),
        regressor=RegressorRecord(given if isinstance(given, str) else regressor.name, options_of(regressor)),
        configuration={**(configuration or {}), "fqi": settings},
        training_data=training_data,
        selected_iteration=len(fitted.q_functions_),
        versions=environment_record("cpu"),
    )
    return Model(record, fitted.q_functions_)

"""The record of a model: where it comes from, what it observes and what it chooses; checked when made and when read."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, MinLen
from pydantic import ConfigDict, FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep._core.errors import InputError
from metastep._core.settings import Count, from_json
from metastep._core.storage import canonical_json
from metastep.fqi.iteration import NumStepsizes, Stepsizes, Weight
from metastep.fqi.maximise import Ties
from metastep.rules.spaces import Scale

STEP = "stepsize"
"""Name of the hyperparameter that is maximised over a range; with PPO and A2C it is the learning rate."""
_CLOSED = ConfigDict(extra="forbid", ser_json_inf_nan="constants")  # JSON refuses them, null would hide them


@checked_dataclass(frozen=True, config=_CLOSED)
class ObservationPart:
    """A contiguous part of the observation: the name of its feature and its size."""

    name: Annotated[str, MinLen(1)]
    size: Count


@checked_dataclass(frozen=True, config=_CLOSED)
class Branch:
    """A direction, or another choice beside the step, and the range of the step with it."""

    name: str  # for tables and figures; empty where a model chooses the step only
    low: FiniteFloat
    high: FiniteFloat
    scale: Scale
    values: dict[str, FiniteFloat] = field(default_factory=dict)  # of all hyperparameters except the step, by name

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of every hyperparameter, by name."""
        return {name: (value, value) for name, value in self.values.items()} | {STEP: (self.low, self.high)}

    def require_within(self, values: Mapping[str, float], where: str) -> None:
        """Refuse values that the branch cannot propose, as float32 holds them."""
        for name, (low, high) in self.bounds.items():
            if not np.float32(low) <= np.float32(values[name]) <= np.float32(high):
                raise InputError(f"{where}: {name} is {values[name]:g}, allowed is {low:g} to {high:g}.")


@checked_dataclass(frozen=True, config=_CLOSED)
class TrainingData:
    """Which dataset a model was fitted on."""

    tuples: Count  # that were fitted, without those that hold a number that is not finite
    seed: Annotated[int, Ge(0)]  # of the collection
    fingerprint: str  # the dataset's checksum


@checked_dataclass(frozen=True, config=_CLOSED)
class ValidationCurve:
    """Results of one iteration on validation tasks."""

    iteration: Count  # from 1
    score: FiniteFloat  # for selection: larger is better
    returns: tuple[FiniteFloat, ...]  # mean return over tasks before each update and after the last


@checked_dataclass(frozen=True, config=_CLOSED)
class RegressorRecord:
    """The regressor that fitted the heads of a model."""

    name: str  # in the registry, unless the model lives in memory only
    options: dict[str, Any]


@checked_dataclass(frozen=True, config=_CLOSED)
class ModelRecord:
    """Everything about a model except its heads."""

    setting: dict[str, Any]  # the meta-MDP that the model was fitted for, as JSON; `env` is the environment
    observation: tuple[ObservationPart, ...]  # in the order of its numbers
    feature_names: tuple[str, ...]  # of each number of the observation; heads see the step size after them
    feature_low: tuple[FiniteFloat, ...]  # smallest value of each number in the training data
    feature_high: tuple[FiniteFloat, ...]  # largest
    branches: Annotated[tuple[Branch, ...], MinLen(1)]  # by position; only one, without a name, to choose the step only
    num_stepsizes: NumStepsizes  # along each
    maximum: Literal["grid", "continuous"]
    lam: Weight
    regressor: RegressorRecord
    configuration: dict[str, Any]  # settings the model was fitted with, as JSON
    training_data: TrainingData
    selected_iteration: Count  # the default one
    validation: tuple[ValidationCurve, ...] = ()  # of each iteration that was validated
    versions: dict[str, str] = field(default_factory=dict)  # of the software that fitted the model, and the device
    ties: Ties = "smallest"  # which of several best steps is taken; earlier versions knew only this one

    @property
    def environment(self) -> str:
        """Name of the environment the model was fitted for."""
        return str(self.setting.get("env", "unknown"))

    @property
    def keywords(self) -> dict[str, int]:
        """The size of each part of the observation, by the name it is passed under."""
        return {part.name.rpartition(":")[2]: part.size for part in self.observation}

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the branches that the model chooses from, by position; none where it chooses the step only."""
        return tuple(branch.name for branch in self.branches if branch.name)

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the values that the model proposes; the step comes last."""
        return *self.branches[0].values, STEP

    @property
    def stepsizes(self) -> dict[str, Stepsizes]:
        """The steps to maximise over, by branch."""
        how = self.num_stepsizes, self.maximum == "continuous"
        return {branch.name: Stepsizes(branch.low, branch.high, *how, branch.scale) for branch in self.branches}


def branches_of(space: Any) -> tuple[Branch, ...]:
    """Return the branches of a hyperparameter space (`metastep.rules.spaces`), with the values that each stands for."""
    found = []
    for index, (name, step) in enumerate(space.branches.items()):
        row = np.array([index, step.low] if name else [step.low], np.float32)
        # Spaces hold float32: 0.2 shall not become 0.20000000298.
        values = {key: float(f"{value:.7g}") for key, value in space.named(row).items() if key != STEP}
        found.append(Branch(name, float(step.low), float(step.high), step.scale, values))
    return tuple(found)


_RECORD: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)


def record_to_json(record: ModelRecord) -> dict[str, Any]:
    """Return the record as JSON can hold it."""
    try:
        found = _RECORD.dump_python(record, mode="json")
        canonical_json(found)
    except ValueError as error:
        raise InputError(f"model record: cannot be written as JSON: {error}.") from None
    return found


def record_from_json(found: Any) -> ModelRecord:
    """Return the checked record of a JSON value, or raise one sentence on the first problem."""
    record = from_json(_RECORD, found, "model record")
    if not record.directions or any(branch.values for branch in record.branches):
        return record
    # Version 0.2 has only the names of branches: add the values that they stand for.
    rule = record.setting.get("rule")
    clips = rule.get("clip_range") if isinstance(rule, dict) else None
    values: list[dict[str, Any]] = [{"direction": float(index)} for index in range(len(record.branches))]
    if isinstance(clips, list) and len(clips) == len(record.branches):
        values = [{"clip_range": clip} for clip in clips]
    known = record_to_json(record)
    known["branches"] = [branch | {"values": own} for branch, own in zip(known["branches"], values, strict=True)]
    return from_json(_RECORD, known, "model record")

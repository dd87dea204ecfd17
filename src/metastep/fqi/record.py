"""The record of a model: where it comes from, what it observes and what it chooses; checked when made and when read."""

from abc import ABC, abstractmethod
from dataclasses import field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, MinLen
from pydantic import ConfigDict, FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep._core.errors import InputError, shown
from metastep._core.settings import Count, from_json
from metastep._core.storage import canonical_json
from metastep.fqi.iteration import NumStepsizes, Stepsizes, Weight
from metastep.fqi.maximise import Ties
from metastep.rules.spaces import Scale

STEP = "stepsize"
"""Name of the hyperparameter that is maximised over a range; with PPO and A2C it is the learning rate."""
CLOSED = ConfigDict(extra="forbid", ser_json_inf_nan="constants")  # JSON refuses them, null would hide them


@checked_dataclass(frozen=True, config=CLOSED)
class ObservationPart:
    """A contiguous part of the observation: the name of its feature and its size."""

    name: Annotated[str, MinLen(1)]
    size: Count


@checked_dataclass(frozen=True, config=CLOSED)
class Branch:
    """A direction, or another choice beside the step, and the range of the step with it."""

    name: str  # for tables and figures; empty where a model chooses the step only
    low: FiniteFloat
    high: FiniteFloat
    scale: Scale
    values: dict[str, FiniteFloat] = field(default_factory=dict)  # of all hyperparameters except the step, by name


@checked_dataclass(frozen=True, config=CLOSED)
class TrainingData:
    """Which dataset a model was fitted on."""

    tuples: Count  # that were fitted, without those that hold a number that is not finite
    seed: Annotated[int, Ge(0)]  # of the collection
    fingerprint: str  # the dataset's checksum


@checked_dataclass(frozen=True, config=CLOSED)
class ValidationCurve:
    """Results of one iteration on validation tasks."""

    iteration: Count  # from 1
    score: FiniteFloat  # for selection: larger is better
    returns: tuple[FiniteFloat, ...]  # mean return over tasks before each update and after the last


@checked_dataclass(frozen=True, config=CLOSED)
class RegressorRecord:
    """The regressor that fitted the heads of a model."""

    name: str  # in the registry, unless the model lives in memory only
    options: dict[str, Any]


@checked_dataclass(frozen=True, config=CLOSED, kw_only=True)
class BaseRecord(ABC):
    """What is recorded of every model."""

    setting: dict[str, Any]  # the meta-MDP that the model was fitted for, as JSON; `env` is the environment
    observation: tuple[ObservationPart, ...]  # in the order of its numbers
    feature_names: tuple[str, ...]  # of each number of the observation
    feature_low: tuple[FiniteFloat, ...]  # smallest value of each number in the training data
    feature_high: tuple[FiniteFloat, ...]  # largest
    configuration: dict[str, Any]  # settings the model was fitted with, as JSON
    versions: dict[str, str] = field(default_factory=dict)  # of the software that fitted the model, and the device

    @property
    def environment(self) -> str:
        """Name of the environment the model was fitted for."""
        return str(self.setting.get("env", "unknown"))

    @property
    def rule_name(self) -> str:
        """Name of the update rule the model was fitted for."""
        rule = self.setting.get("rule")
        return str(rule.get("name", "unknown")) if isinstance(rule, dict) else "unknown"

    @property
    def keywords(self) -> dict[str, int]:
        """The size of each part of the observation, by the name it is passed under."""
        return {part.name.rpartition(":")[2]: part.size for part in self.observation}

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the branches that the model chooses from, by position; none where it chooses the step only."""
        return ()

    @property
    @abstractmethod
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the values that the model proposes."""

    @abstractmethod
    def bounds(self, direction: str = "") -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest value of every hyperparameter by name, where this direction was chosen."""


@checked_dataclass(frozen=True, config=CLOSED, kw_only=True)
class ModelRecord(BaseRecord):
    """Everything about a fitted model except its heads, which see the step size after the observation."""

    branches: Annotated[tuple[Branch, ...], MinLen(1)]  # by position; only one, without a name, to choose the step only
    num_stepsizes: NumStepsizes  # along each
    maximum: Literal["grid", "continuous"]
    lam: Weight
    regressor: RegressorRecord
    training_data: TrainingData
    selected_iteration: Count  # the default one
    validation: tuple[ValidationCurve, ...] = ()  # of each iteration that was validated
    ties: Ties = "smallest"  # which of several best steps is taken; earlier versions knew only this one

    @property
    def directions(self) -> tuple[str, ...]:
        return tuple(branch.name for branch in self.branches if branch.name)

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the values that the model proposes; the step comes last."""
        return *self.branches[0].values, STEP

    def bounds(self, direction: str = "") -> dict[str, tuple[float, float]]:
        branches = {branch.name: branch for branch in self.branches}
        if (branch := branches.get(direction)) is None:
            raise InputError(f"direction is {shown(direction)}, allowed is one of {', '.join(map(repr, branches))}.")
        return {name: (value, value) for name, value in branch.values.items()} | {STEP: (branch.low, branch.high)}

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


_BASE: TypeAdapter[BaseRecord] = TypeAdapter(BaseRecord)
_RECORD: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)


def record_to_json(record: BaseRecord) -> dict[str, Any]:
    """Return the record as JSON can hold it."""
    try:
        found: dict[str, Any] = _BASE.dump_python(record, mode="json", serialize_as_any=True)
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

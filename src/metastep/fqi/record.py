"""The record of a model: where it comes from and what it expects, checked whether it was made here or read from a file."""

from dataclasses import field
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen
from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep._core.errors import InputError
from metastep._core.settings import Count
from metastep._core.storage import canonical_json
from metastep.fqi.qfunction import NumStepsizes, Stepsizes, Weight
from metastep.rules.spaces import Scale

_CLOSED = ConfigDict(extra="forbid", ser_json_inf_nan="constants")  # JSON refuses them, null would hide them


@checked_dataclass(frozen=True, config=_CLOSED)
class ObservationPart:
    """A contiguous part of the observation: the name of its feature and how many numbers it has."""

    name: Annotated[str, MinLen(1)]
    size: Count


@checked_dataclass(frozen=True, config=_CLOSED)
class Branch:
    """A direction that a model chooses from, and the range of the steps along it."""

    name: str  # empty where there is no choice of a direction
    low: FiniteFloat
    high: FiniteFloat
    scale: Scale


@checked_dataclass(frozen=True, config=_CLOSED)
class TrainingData:
    """Which dataset a model was fitted on."""

    tuples: Count  # that were fitted; those with a number that is not finite are left out
    seed: Annotated[int, Ge(0)]  # of the collection
    fingerprint: str  # the dataset's checksum


@checked_dataclass(frozen=True, config=_CLOSED)
class ValidationCurve:
    """How one iteration did on validation tasks."""

    iteration: Count  # from 1
    score: FiniteFloat  # what models are selected by: larger is better
    returns: tuple[FiniteFloat, ...]  # mean return over tasks before each update and after the last


@checked_dataclass(frozen=True, config=_CLOSED)
class RegressorRecord:
    """What fitted the heads of a model."""

    name: str  # in the registry, unless the model lives in memory only
    options: dict[str, Any]


@checked_dataclass(frozen=True, config=_CLOSED)
class ModelRecord:
    """Everything about a model but its heads."""

    setting: dict[str, Any]  # what the model was fitted for, as JSON; `env` is the environment
    observation: tuple[ObservationPart, ...]  # in the order of its numbers
    feature_names: tuple[str, ...]  # of each number of the observation; heads see the step size after them
    feature_low: tuple[FiniteFloat, ...]  # smallest value of each number in the training data
    feature_high: tuple[FiniteFloat, ...]  # largest
    branches: Annotated[tuple[Branch, ...], MinLen(1)]  # by position; one without a name where only the step is chosen
    num_stepsizes: NumStepsizes  # along each
    maximum: Literal["grid", "continuous"]
    lam: Weight
    regressor: RegressorRecord
    configuration: dict[str, Any]  # settings the model was fitted with, as JSON
    training_data: TrainingData
    selected_iteration: Count  # the one that acts unless another is asked for
    validation: tuple[ValidationCurve, ...] = ()  # of each iteration that was validated
    versions: dict[str, str] = field(default_factory=dict)  # of the software that fitted the model, and the device

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
        """Names of the directions that the model chooses from, by position; none where it chooses the step only."""
        return tuple(branch.name for branch in self.branches if branch.name)

    @property
    def stepsizes(self) -> dict[str, Stepsizes]:
        """Where the model looks for steps, by direction."""
        num, continuous = self.num_stepsizes, self.maximum == "continuous"
        return {
            branch.name: Stepsizes(branch.low, branch.high, num, continuous, branch.scale) for branch in self.branches
        }


_RECORD: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)


def record_to_json(record: ModelRecord) -> dict[str, Any]:
    """The record as JSON can hold it."""
    try:
        found = _RECORD.dump_python(record, mode="json")
        canonical_json(found)
    except ValueError as error:
        raise InputError(f"model record: cannot be written as JSON: {error}.") from None
    return found


def record_from_json(found: Any) -> ModelRecord:
    """The checked record of a JSON value, or one sentence on the first thing wrong with it."""
    try:
        return _RECORD.validate_json(canonical_json(found), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "record"
        raise InputError(f"model record: {place}: {first['msg']}.") from None

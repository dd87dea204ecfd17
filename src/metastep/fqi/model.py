"""A fitted model: the Q function of every iteration, and the record of where it comes from and what it expects."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep.errors import InputError
from metastep.fqi.forest import as_inputs
from metastep.fqi.iteration import MetaFQI, pick_iteration
from metastep.fqi.qfunction import MOST_STEPSIZES, QFunction, Stepsizes
from metastep.storage import environment_record

PartName = Literal["theta", "gradient", "context", "return"]
Count = Annotated[int, Field(ge=1)]

_CLOSED = ConfigDict(extra="forbid")


@checked_dataclass(frozen=True, config=_CLOSED)
class ObservationPart:
    """A contiguous part of the observation: what it is and how many numbers it has."""

    name: PartName
    size: Count


@checked_dataclass(frozen=True, config=_CLOSED)
class TrainingData:
    """Which dataset a model was fitted on."""

    tuples: Count
    """Number of tuples fitted; those with a number that is not finite are left out."""
    seed: Annotated[int, Field(ge=0)]
    """Seed the dataset was collected with."""
    fingerprint: str
    """The dataset's checksum."""


@checked_dataclass(frozen=True, config=_CLOSED)
class ValidationCurve:
    """How one iteration did on validation tasks."""

    iteration: Count
    """Iteration, from 1."""
    score: FiniteFloat
    """What models are selected by: larger is better."""
    returns: tuple[FiniteFloat, ...]
    """Mean return over tasks before each update and after the last."""


@checked_dataclass(frozen=True, config=_CLOSED)
class ModelRecord:
    """Everything about a model but its forests."""

    environment: str
    """Name of the environment the model was trained for."""
    observation: tuple[ObservationPart, ...]
    """Layout of the observation, in order."""
    feature_names: tuple[str, ...]
    """One name per number of the observation; the step size follows as the last input of the forests."""
    stepsize_low: FiniteFloat
    stepsize_high: FiniteFloat
    num_stepsizes: Annotated[int, Field(ge=2, le=MOST_STEPSIZES)]
    maximum: Literal["grid", "continuous"]
    lam: Annotated[float, Field(gt=0.5, le=1)]
    configuration: dict[str, Any]
    """Settings the model was fitted with, as JSON."""
    training_data: TrainingData
    selected_iteration: Count
    """The iteration that acts unless another is asked for."""
    validation: tuple[ValidationCurve, ...] = ()
    """One curve per validated iteration; empty when the model was not validated."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the software that fitted the model, and the device."""


_RECORD: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)


def record_to_json(record: ModelRecord) -> str:
    """The record as one line of ASCII JSON."""
    return str(_RECORD.dump_json(record, ensure_ascii=True).decode("ascii"))


def record_from_json(text: str) -> ModelRecord:
    """The checked record of a JSON text, or one sentence on the first thing wrong with it."""
    try:
        return _RECORD.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "record"
        raise InputError(f"model record: {place}: {first['msg']}.") from None


@dataclass(frozen=True)
class Model:
    """A fitted model that proposes step sizes; see `load_model` and `save_model`."""

    record: ModelRecord
    q_functions: tuple[QFunction, ...]

    def __post_init__(self) -> None:
        record, last = self.record, len(self.q_functions)
        if not 1 <= record.selected_iteration <= last:
            raise InputError(f"selected_iteration is {record.selected_iteration}, allowed is 1 to {last}.")
        size = sum(part.size for part in record.observation)
        if len({part.name for part in record.observation}) != len(record.observation):
            raise InputError("observation: a part is named twice, allowed is once each.")
        if len(record.feature_names) != size:
            raise InputError(f"feature_names has {len(record.feature_names)} names, allowed is {size}.")
        for function in self.q_functions:
            for head in function.heads:
                if head.num_features != size + 1:
                    raise InputError(f"forest: has {head.num_features} features, allowed is {size + 1}.")
        curves = [curve.iteration for curve in record.validation]
        if any(iteration > last for iteration in curves) or len(set(curves)) != len(curves):
            raise InputError(f"validation has curves of iterations {curves}, allowed is each of 1 to {last} once.")

    def act(
        self, observation: ArrayLike, iteration: int | None = None, threads: int | None = None
    ) -> NDArray[np.float32]:
        """Greedy step sizes of observations `(rows, features)`; the selected iteration acts unless one is named."""
        return self._function(iteration).maximum(self._checked(observation), threads).stepsize

    def values(
        self, observation: ArrayLike, iteration: int | None = None, threads: int | None = None
    ) -> NDArray[np.float64]:
        """Values of observations `(rows, features)` at every step size of the grid."""
        return self._function(iteration).values(self._checked(observation), threads)

    def stepsize(
        self,
        theta: ArrayLike | None = None,
        gradient: ArrayLike | None = None,
        context: ArrayLike | None = None,
        estimated_return: float | None = None,
    ) -> float:
        """The step size for one learner's next update; parts the model does not look at are ignored."""
        given = {"theta": theta, "gradient": gradient, "context": context, "return": estimated_return}
        parts = []
        for part in self.record.observation:
            if given[part.name] is None:
                raise InputError(f"{part.name} is missing, allowed is {part.size} numbers: the model looks at them.")
            numbers = np.asarray(given[part.name], dtype=np.float32).ravel()
            if len(numbers) != part.size:
                raise InputError(f"{part.name} has {len(numbers)} numbers, allowed is {part.size}.")
            parts.append(numbers)
        return float(self.act(np.concatenate(parts)[None, :], threads=1)[0])

    def with_validation(self, curves: Iterable[ValidationCurve]) -> "Model":
        """The same model with these validation curves, and the iteration of the best score selected."""
        kept = tuple(sorted(curves, key=lambda curve: curve.iteration))
        if not kept:
            raise InputError("validation has no curves, allowed is at least one.")
        # `max` keeps the first of equals: the smallest iteration, which plans least on estimates of estimates.
        best = max(kept, key=lambda curve: curve.score)
        return replace(self, record=replace(self.record, validation=kept, selected_iteration=best.iteration))

    def _function(self, iteration: int | None) -> QFunction:
        return pick_iteration(self.q_functions, self.record.selected_iteration if iteration is None else iteration)

    def _checked(self, observation: ArrayLike) -> NDArray[np.float32]:
        return as_inputs(observation, len(self.record.feature_names), "observation")


def model_from(
    fitted: MetaFQI,
    *,
    environment: str,
    observation: Iterable[ObservationPart],
    training_data: TrainingData,
    feature_names: Iterable[str] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Model:
    """The model of a fitted `MetaFQI`; its last iteration is selected until it is validated."""
    parts = tuple(observation)
    if not all(function.is_forest for function in fitted.q_functions_):
        raise InputError("regressor is no forest, allowed in a model are forests only.")
    settings = _settings(fitted)
    names = feature_names
    if names is None:
        names = [f"{part.name}[{i}]" if part.size > 1 else part.name for part in parts for i in range(part.size)]
    record = ModelRecord(
        environment=environment,
        observation=parts,
        feature_names=tuple(names),
        stepsize_low=float(fitted.stepsize_low),
        stepsize_high=float(fitted.stepsize_high),
        num_stepsizes=int(fitted.num_stepsizes),
        maximum=fitted.maximum,
        lam=float(fitted.lam),
        configuration={**(configuration or {}), "fqi": settings},
        training_data=training_data,
        selected_iteration=len(fitted.q_functions_),
        versions=environment_record("cpu"),
    )
    return Model(record, fitted.q_functions_)


def _settings(fitted: MetaFQI) -> dict[str, Any]:
    """The settings that shaped the forests, as JSON holds them: a regressor of the user's own replaces those of ours."""
    settings = dict(fitted.get_params(deep=False))
    regressor = settings.pop("regressor")
    if regressor is None:
        return settings
    ours = ("trees", "min_samples_split", "forest")
    return {name: value for name, value in settings.items() if name not in ours} | {"regressor": repr(regressor)}


def stepsizes_of(record: ModelRecord) -> Stepsizes:
    """Where the model of this record looks for step sizes."""
    return Stepsizes(
        record.stepsize_low, record.stepsize_high, record.num_stepsizes, continuous=record.maximum == "continuous"
    )

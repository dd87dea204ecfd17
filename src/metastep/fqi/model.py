"""Fitted models, which have a Q-function for every iteration and a record, and their files.

A model file has the arrays of all heads as tensors `iteration/head/array`, and the record as metadata. Heads of an iteration are
counted from 0, in the order of branches if there is a menu. Files are not trusted: checksum, record and arrays are checked.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import ArrayLike, NDArray
from pydantic import FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep._core import storage
from metastep._core.errors import InputError, shown
from metastep._core.provenance import environment_record
from metastep._core.settings import Count, from_json
from metastep.fqi.base import CLOSED, STEP, AnyModel, BaseRecord, ObservationPart, record_to_json
from metastep.fqi.forest import Forest, pack
from metastep.fqi.iteration import MetaFQI, NumStepsizes, QFunction, Stepsizes, Weight, pick_iteration
from metastep.fqi.maximise import Ties
from metastep.fqi.regressors import REGISTRY, Head, Regressor, options_of
from metastep.fqi.stepper import Proposal
from metastep.rules.spaces import Scale

_FILE = "model.safetensors"
_TENSOR = re.compile(r"([1-9][0-9]{0,3})/(0|[1-9][0-9]{0,3})/(.+)", re.ASCII)
_IN_CARD = re.compile(rb"^SHA-256: `([0-9a-f]{64})`\s*$", re.MULTILINE)


@checked_dataclass(frozen=True, config=CLOSED)
class Branch:
    """A direction, or another choice beside the step, and the range of the step with it."""

    name: str  # for tables and figures; empty if the model chooses only the step
    low: FiniteFloat
    high: FiniteFloat
    scale: Scale
    values: dict[str, FiniteFloat] = field(default_factory=dict)  # of all hyperparameters except the step, by name


@checked_dataclass(frozen=True, config=CLOSED)
class TrainingData:
    """The dataset that a model was fitted on."""

    tuples: Count  # number of transitions used, all of them finite
    seed: Annotated[int, Ge(0)]  # of the collection
    fingerprint: str  # the dataset's checksum


@checked_dataclass(frozen=True, config=CLOSED)
class ValidationCurve:
    """Results of one iteration on validation tasks."""

    iteration: Count  # from 1
    score: FiniteFloat  # for selection; larger is better
    returns: tuple[FiniteFloat, ...]  # mean return over tasks before each update and after the last


@checked_dataclass(frozen=True, config=CLOSED)
class RegressorRecord:
    """The regressor that fitted the heads of a model."""

    name: str  # in the registry, unless the model cannot be saved
    options: dict[str, Any]


@checked_dataclass(frozen=True, config=CLOSED, kw_only=True)
class ModelRecord(BaseRecord):
    """Everything about a fitted model except its heads, whose inputs are the observation and then the step size."""

    # In order; a single one without a name if only the step is chosen.
    branches: Annotated[tuple[Branch, ...], MinLen(1)]
    num_stepsizes: NumStepsizes  # of each branch
    maximum: Literal["grid", "continuous"]
    lam: Weight
    regressor: RegressorRecord
    training_data: TrainingData
    selected_iteration: Count  # the default one
    validation: tuple[ValidationCurve, ...] = ()  # of the iterations that were validated
    ties: Ties = "smallest"  # which of several best steps is chosen; the only rule of earlier versions

    @property
    def directions(self) -> tuple[str, ...]:
        return tuple(branch.name for branch in self.branches if branch.name)

    def bounds(self, direction: str = "") -> dict[str, tuple[float, float]]:
        branches = {branch.name: branch for branch in self.branches}
        if (branch := branches.get(direction)) is None:
            raise InputError(f"direction is {shown(direction)}, allowed is one of {', '.join(map(repr, branches))}.")
        return {name: (value, value) for name, value in branch.values.items()} | {STEP: (branch.low, branch.high)}

    @property
    def stepsizes(self) -> dict[str, Stepsizes]:
        """The steps to maximise over, by branch."""
        options: Any = {"num": self.num_stepsizes, "continuous": self.maximum == "continuous"}
        return {branch.name: Stepsizes(branch.low, branch.high, branch.scale, **options) for branch in self.branches}


def branches_of(space: Any) -> tuple[Branch, ...]:
    """Return the branches of a hyperparameter space (`metastep.rules.spaces`), each with its values of the hyperparameters."""
    branches = []
    for index, (name, step) in enumerate(space.branches.items()):
        row = np.array([index, step.low] if name else [step.low], np.float32)
        # Spaces use float32: seven digits keep 0.2 from becoming 0.20000000298.
        values = {key: float(f"{value:.7g}") for key, value in space.named(row).items() if key != STEP}
        branches.append(Branch(name, float(step.low), float(step.high), step.scale, values))
    return tuple(branches)


_RECORD: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)


def record_from_json(content: Any) -> ModelRecord:
    """Return the record of a JSON value; raise the first problem as an `InputError` of one sentence."""
    record = from_json(_RECORD, content, "model record")
    if not record.directions or any(branch.values for branch in record.branches):
        return record
    # Version 0.2 recorded only the names of branches: add their values.
    data, rule = record_to_json(record), record.setting.get("rule")
    clips: Any = rule.get("clip_range") if isinstance(rule, dict) else None
    has_clips = isinstance(clips, list) and len(clips) == len(record.branches)
    for index, branch in enumerate(data["branches"]):
        branch["values"] = {"clip_range": clips[index]} if has_clips else {"direction": float(index)}
    return from_json(_RECORD, data, "model record")


@dataclass(frozen=True)
class Model(AnyModel):
    """A fitted model that proposes updates; see `load_model` and `save_model`."""

    record: ModelRecord
    q_functions: tuple[QFunction, ...]

    def __post_init__(self) -> None:
        record, last, names = self.record, len(self.q_functions), [branch.name for branch in self.record.branches]
        if not 1 <= record.selected_iteration <= last:
            raise InputError(f"selected_iteration is {record.selected_iteration}, allowed is 1 to {last}.")
        if len(set(names)) < len(names) or ("" in names and len(names) > 1):
            raise InputError(f"branches: {names!r:.200} must have a name each, given once.")
        size = self.observation_size()
        for head in (head for function in self.q_functions for head in function.heads):
            if head.num_features != size + 1:
                raise InputError(f"model: a head has {head.num_features} features, allowed is {size + 1}.")
        curves = [curve.iteration for curve in record.validation]
        if any(iteration > last for iteration in curves) or len(set(curves)) != len(curves):
            raise InputError(f"validation has curves of iterations {curves}, allowed is each of 1 to {last} once.")

    def act(
        self, observation: ArrayLike, iteration: int | None = None, threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return greedy step sizes for observations, like `QFunction.act`, of the selected iteration or another one."""
        return self._function(iteration).act(observation, threads)

    def values(self, observation: ArrayLike, iteration: int | None = None) -> NDArray[np.float64]:
        """Return values of observations at every step size of the grid, `(rows, num)` or `(rows, branches, num)`."""
        return self._function(iteration).values(observation)

    def stepsize(self, **features: ArrayLike) -> float:
        """Return the step size for the next update of one learner; for a model with a menu, use `propose`."""
        if others := ", ".join(self.record.directions):
            raise InputError(f"stepsize: the model chooses among {others} as well; use propose.")
        return self.propose(**features).stepsize

    def chosen(self, row: NDArray[np.float32]) -> Proposal:
        *position, stepsize = np.atleast_1d(self.act(row[None, :], threads=1)[0])
        branch = self.record.branches[int(position[0]) if position else 0]
        return Proposal({**branch.values, STEP: float(stepsize)}, branch.name)

    @property
    def learned_from(self) -> str:
        return f"{self.record.training_data.tuples} updates"

    @cached_property
    def fingerprint(self) -> str:
        record, digest = self.record, hashlib.sha256()
        for head in self._function(None).heads:
            arrays: dict[str, NDArray[Any]] = {}
            with suppress(InputError):  # a head that cannot be saved is identified by its settings only
                arrays = head.arrays()
            for name, array in sorted(arrays.items()):
                digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        data = record_to_json(record)
        for branch in data["branches"]:
            del branch["values"]  # not in version 0.2; the training data determine them
        names = ["training_data", "selected_iteration", "feature_names", "branches", "lam", "regressor"]
        names += ["ties"] if record.ties != "smallest" else []  # not in version 0.2
        return storage.sha256_of_json([digest.hexdigest(), {name: data[name] for name in names}])

    def only_selected(self, iteration: int | None = None) -> "Model":
        """Return the same model with only the selected iteration, or another one."""
        return Model(replace(self.record, selected_iteration=1, validation=()), (self._function(iteration),))

    def with_trees(self, number: int) -> "Model":
        """Return the same model with the first `number` trees of each forest; with `state_first`, of each half."""
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
        """Return the same model with these validation curves, and the iteration of the best score selected."""
        kept = tuple(sorted(curves, key=lambda curve: curve.iteration))
        if not kept:
            raise InputError("validation has no curves, allowed is at least one.")
        # In case of ties, `max` returns the smallest iteration, whose targets depend least on other estimates.
        best = max(kept, key=lambda curve: curve.score)
        return replace(self, record=replace(self.record, validation=kept, selected_iteration=best.iteration))

    def _function(self, iteration: int | None) -> QFunction:
        return pick_iteration(self.q_functions, self.record.selected_iteration if iteration is None else iteration)


def model_of_heads(record: ModelRecord, heads: Iterable[Sequence[Head]]) -> Model:
    """Return the model with this record and the heads of each iteration."""
    return Model(record, tuple(QFunction(tuple(each), record.stepsizes, record.lam, record.ties) for each in heads))


def model_from(
    fitted: MetaFQI,
    *,
    setting: dict[str, Any],
    observation: Iterable[ObservationPart],
    training_data: TrainingData,
    feature_names: Iterable[str] | None = None,
    configuration: dict[str, Any] | None = None,
    branches: Sequence[Branch] | None = None,
) -> Model:
    """Return the model of a fitted `MetaFQI`; the last iteration is selected until it is validated.

    `setting` describes the meta-MDP that it was fitted for, as JSON, and `configuration` has further settings to record. By
    default, names of features derive from the parts of the observation, and branches (see `branches_of`) from their indices.
    """
    parts = tuple(observation)
    names = [f"{part.name}[{i}]" if part.size > 1 else part.name for part in parts for i in range(part.size)]
    settings = dict(fitted.get_params(deep=False))
    chosen, regressor = settings.pop("regressor"), fitted.regressor_
    for name in ("menu", "stepsize_low", "stepsize_high", "stepsize_scale"):  # the branches have these
        del settings[name]
    default_branches = [
        Branch(name, float(step.low), float(step.high), step.scale, {"direction": float(index)} if name else {})
        for index, (name, step) in enumerate(fitted.stepsizes_.items())
    ]
    known: dict[str, Any] = {"maximum": fitted.maximum, "lam": float(fitted.lam), "ties": fitted.ties}
    known |= {"setting": setting, "observation": parts, "training_data": training_data}
    record = ModelRecord(
        feature_names=tuple(feature_names or names),
        feature_low=tuple(fitted.feature_low_.tolist()),
        feature_high=tuple(fitted.feature_high_.tolist()),
        branches=tuple(branches or default_branches),
        num_stepsizes=int(fitted.num_stepsizes),
        regressor=RegressorRecord(chosen if isinstance(chosen, str) else regressor.name, options_of(regressor)),
        configuration={**(configuration or {}), "fqi": settings},
        selected_iteration=len(fitted.q_functions_),
        versions=environment_record("cpu"),
        **known,
    )
    return Model(record, fitted.q_functions_)


def save_model(model: Model, path: str | os.PathLike[str], *, packed: bool = False) -> None:
    """Write a model file atomically; `packed` forests take an eighth of the space, and their numbers are rounded."""
    _regressor(model.record.regressor.name, model.record.regressor.options)
    arrays = {
        f"{iteration}/{head}/{name}": array
        for iteration, function in enumerate(model.q_functions, 1)
        for head, fitted in enumerate(function.heads)
        for name, array in (pack(fitted) if packed and isinstance(fitted, Forest) else fitted.arrays()).items()
    }
    storage.write_tensors(Path(path), arrays, storage.stamp("model") | {"record": record_to_json(model.record)})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read and check the file of a fitted model, or the one in the folder of a run; a problem is an `InputError`."""
    return fitted_model(*read_model_file(path))


def read_model_file(path: str | os.PathLike[str]) -> tuple[Path, storage.Tensors]:
    """Return path and content of the file of any model, given by itself or by the folder of a run.

    If a published model has a card beside it, the SHA-256 in the card must match; cards of version 0.2 have none.
    """
    path = Path(path)
    if path.is_dir():
        # If a run has no main model and one further model, as after a search, that model is loaded.
        further = [] if (path / _FILE).exists() else list(path.glob(f"models/*/{_FILE}"))
        path = further[0] if len(further) == 1 else path / _FILE
    card = path.with_suffix(".md")
    if path.is_file() and (expected := recorded_model(card)) and storage.sha256_of(path) != expected:
        what = f"does not belong to the card {card.name} beside it, which names the SHA-256 {expected[:16]}..."
        raise InputError(f"File {path} {what}; publish the model again, or remove the card.")
    return path, storage.read_tensors(path)


def fitted_model(path: Path, content: storage.Tensors) -> Model:
    """Check the content of a file and return its model."""
    storage.require_stamp(content.metadata, "model", path, "fit it again")
    try:
        record = record_from_json(content.metadata.get("record"))
        regressor = _regressor(record.regressor.name, record.regressor.options)
        arrays: dict[tuple[int, int], dict[str, NDArray[Any]]] = {}  # by iteration and head
        for tensor, array in content.arrays.items():
            if not (parts := _TENSOR.fullmatch(tensor)):
                raise InputError(f"tensor {tensor!r:.60} is not named iteration/head/array.")
            arrays.setdefault((int(parts[1]), int(parts[2])), {})[parts[3]] = array
        # One or two heads for each branch.
        keys, num = sorted(arrays), len(record.branches) * (2 if (1, len(record.branches)) in arrays else 1)
        if keys != [(1 + index // num, index % num) for index in range(len(keys))] or len(keys) % num:
            raise InputError(f"tensors: {len(keys)} heads, allowed are {num} of every iteration from 1 on.")
        heads = [regressor.load(arrays[key]) for key in keys]
        return model_of_heads(record, [heads[first : first + num] for first in range(0, len(heads), num)])
    except InputError as error:
        raise InputError(f"File {path}: {error}") from None


def recorded_model(card: Path) -> str:
    """Return the SHA-256 of the model file that a card names; empty if there is no card, or it names none."""
    match = _IN_CARD.search(storage.read_bytes(card)) if os.path.isfile(card) else None
    return match[1].decode() if match else ""


def _regressor(name: str, options: dict[str, Any]) -> Regressor:
    """Return the regressor of a record; files must not import modules, so `module:name` has to be registered before."""
    short = name.rpartition(":")[2]
    if short not in REGISTRY.names():
        allowed = f"allowed are {', '.join(REGISTRY.names())}; import the module that registers it first"
        raise InputError(f"fqi.regressor: {name!r:.200} is not registered, {allowed}.")
    return REGISTRY.build(short, options)

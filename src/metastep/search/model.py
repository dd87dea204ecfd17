"""A searched model: a network with its weights and a record, and the file of a few kilobytes that holds them.

The file has the fields of `Weights` as tensors and the record as metadata. It is checked as if it came from anywhere.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import ArrayLike, NDArray
from pydantic import FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep import features
from metastep._core.errors import InputError, shown
from metastep._core.provenance import environment_record
from metastep._core.settings import Count, Float, from_json
from metastep._core.storage import require_stamp, sha256_of_json, stamp, write_tensors
from metastep.fqi.base import CLOSED, STEP, AnyModel, BaseRecord, ObservationPart, record_to_json
from metastep.fqi.model import Model, fitted_model, read_model_file
from metastep.fqi.stepper import WHOLE, Proposal
from metastep.mdp import MetaMDP
from metastep.rules.spaces import HyperparameterSpace, Scale
from metastep.search.network import BUDGET, Level, Network, Weights

_KIND = "searched model"
_LARGEST = 1e6  # of weights
_ANY_STEPS = 1.0, 1e5  # gradient steps, where they are in percent
_Numbers = tuple[Float, ...]
_Natural = Annotated[int, Ge(0)]


@checked_dataclass(frozen=True, config=CLOSED)
class LevelScore:
    """The best controller of one level on the validation tasks."""

    level: Level
    score: FiniteFloat  # for selection: larger is better
    error: Annotated[FiniteFloat, Ge(0.0)]  # standard error of the score


@checked_dataclass(frozen=True, config=CLOSED, kw_only=True)
class SearchedRecord(BaseRecord):
    """Everything about a searched model except its weights."""

    names: Annotated[tuple[str, ...], MinLen(1)]  # of the hyperparameters, the coordinates of the space
    low: _Numbers
    high: _Numbers
    scales: tuple[Scale, ...]
    mean: _Numbers  # this and the next four are the network's
    spread: tuple[Annotated[Float, Ge(0.0)], ...]
    base: _Numbers
    knots: Count
    units: _Natural
    level: Level
    validation: tuple[LevelScore, ...]  # of every level that was searched
    search_steps: Annotated[FiniteFloat, Ge(0.0)]  # environment steps that the search took
    seed: _Natural  # of the search

    def bounds(self, direction: str = "") -> dict[str, tuple[float, float]]:
        if direction:
            raise InputError(f"direction is {shown(direction)}, allowed is none.")
        found = {name: (low, high) for name, low, high in zip(self.names, self.low, self.high, strict=True)}
        whole = {name: _ANY_STEPS if self.is_relative else found[name] for name in WHOLE if name in found}
        return found | {name: (max(1, round(low)), max(1, round(high))) for name, (low, high) in whole.items()}

    @property
    def space(self) -> HyperparameterSpace:
        """The hyperparameters to choose from."""
        return self.space_in(100.0)

    def space_in(self, own_steps: float) -> HyperparameterSpace:
        """Return the hyperparameters to choose from in a loop that makes so many gradient steps by itself."""
        low, high = [*self.low], [*self.high]
        for ends, name in product((low, high), WHOLE if self.is_relative else ()):
            place = self.names.index(name)
            ends[place] = max(1.0, ends[place] * (own_steps / 100.0))
        return HyperparameterSpace(tuple(low), tuple(high), self.scales, self.names)


_RECORD: TypeAdapter[SearchedRecord] = TypeAdapter(SearchedRecord)


@dataclass(frozen=True)
class SearchedModel(AnyModel):
    """A searched model that proposes updates; see `load_model` and `save_model`."""

    record: SearchedRecord
    weights: Weights  # float32

    fills_gaps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.observation_size()
        record, network = self.record, self.network
        if len(set(record.names)) < len(record.names) or STEP not in record.names:
            raise InputError(f"names: {list(record.names)!r:.200} must have {STEP} and each name once.")
        if record.is_relative and not {*WHOLE} <= {*record.names}:
            raise InputError(f"names: {list(record.names)!r:.200} must have gradient_steps, which are in percent.")
        if len(record.base) != record.space.num_coordinates:
            raise InputError(f"base has {len(record.base)} entries, allowed is {len(record.names)}.")
        if record.level != network.level:
            raise InputError(f"level is {record.level!r}, but the network's is {network.level!r}.")
        scored = [each.level for each in record.validation]
        if len(set(scored)) < len(scored):
            raise InputError(f"validation has scores of {', '.join(scored)}, allowed is one of each level.")
        for name, array, shape in zip(Weights._fields, self.weights, network.shapes, strict=True):
            if array.dtype != np.float32 or array.shape != shape:
                raise InputError(f"{name} is {array.dtype} of shape {array.shape}, allowed is float32 of {shape}.")
            if not np.all(np.abs(array) <= _LARGEST):  # sums of larger ones may not be finite
                raise InputError(f"{name} has numbers that are not finite or beyond {_LARGEST:g}, allowed are others.")
        if any(low > high for low, high in zip(record.feature_low, record.feature_high, strict=True)):
            raise InputError("feature_low exceeds feature_high, allowed are ranges.")

    @cached_property
    def network(self) -> Network:
        """Form and constants of the controller."""
        known = self.record
        return Network(known.feature_names, known.mean, known.spread, known.base, known.knots, known.units)

    def act(self, observation: ArrayLike) -> NDArray[np.float32]:
        """Return hyperparameters (rows, coordinates) of observations (rows, features), as simulated learners follow them."""
        seen: NDArray[Any] = np.asarray(observation, np.float32)
        if seen.ndim != 2 or seen.shape[1] != len(self.network.features):
            size = len(self.network.features)
            raise InputError(f"observation has shape {seen.shape}, allowed are rows of {size} numbers.")
        return self._points(seen, np)

    def _points(self, seen: Any, xp: Any) -> Any:
        unit = xp.broadcast_to(self.network(self.weights, seen, xp), (*seen.shape[:-1], len(self.record.names)))
        return self.record.space.from_unit(unit, xp).astype(np.float32)

    def values(self, observation: Any, xp: Any = jnp) -> dict[str, Any]:
        """Return the hyperparameters by name, each (...), of observations (..., features), as `propose` does; also compiled."""
        values = dict(zip(self.record.names, xp.moveaxis(self._points(observation, xp), -1, 0), strict=True))
        return values | {name: xp.maximum(xp.round(values[name]), 1.0) for name in WHOLE if name in values}

    def chosen(self, row: NDArray[np.float32]) -> Proposal:
        values = {name: float(value) for name, value in self.values(row, np).items()}
        return Proposal(values | {name: int(values[name]) for name in WHOLE if name in values})

    def curves(self, shares: Sequence[float] | None = None) -> dict[str, NDArray[np.float32]]:
        """Return every hyperparameter, by name, at shares of the budget, by default the knots, with all else at its mean."""
        places = np.asarray(np.linspace(0.0, 1.0, self.record.knots) if shares is None else shares, np.float32)
        return {BUDGET: places} | dict(zip(self.record.names, self.responses(BUDGET, places).T, strict=True))

    def responses(self, feature: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return hyperparameters (values, coordinates) where one feature has these values, and all others their mean."""
        rows = np.tile(np.asarray(self.record.mean, np.float32), (len(values), 1))
        if feature in self.network.features:
            rows[:, self.network.features.index(feature)] = values
        return self.act(rows)

    @property
    def learned_from(self) -> str:
        record = self.record
        return f"{record.level} of {', '.join(record.names)}, searched in {record.search_steps:.2g} steps"

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"".join(np.asarray(array, "<f4").tobytes() for array in self.weights))
        known = record_to_json(self.record)
        names = ["feature_names", "names", "low", "high", "scales", "mean", "spread", "base", "knots", "units"]
        return sha256_of_json([digest.hexdigest(), {name: known[name] for name in names}])


def places(mdp: MetaMDP, network: Network) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the features to compute, and where among their numbers the network finds its own."""
    known = [name for name in features.names() if set(features.make(name).needs) <= set(mdp.diagnosed)]
    owners = {column: name for name in (*known, *mdp.observation) for column in features.columns(mdp, (name,))}
    for column in network.features:
        if column not in owners:
            raise InputError(f"network: the feature {column!r} is not known where the rule is {mdp.rule.name!r}.")
    wanted = tuple(dict.fromkeys(owners[column] for column in network.features))
    columns = features.columns(mdp, wanted)
    return wanted, np.array([columns.index(column) for column in network.features], np.intp)


def searched_model(mdp: MetaMDP, network: Network, weights: NDArray[np.float32], **recorded: Any) -> SearchedModel:
    """Return the model of a controller of weights (num_weights,) that was searched for a meta-MDP.

    Further fields of its record are given: `feature_low` and `feature_high` on the validation tasks, `configuration` with the
    experiment under `experiment`, `validation`, `search_steps` and `seed`.
    """
    space, (wanted, _) = mdp.space, places(mdp, network)
    if not isinstance(space, HyperparameterSpace):
        raise InputError(f"model: search chooses from ranges, but the rule {mdp.rule.name!r} chooses from a menu.")
    if network.features != features.columns(mdp, wanted):
        raise InputError(f"network: features are {list(network.features)}, allowed are all numbers of {list(wanted)}.")
    form = asdict(network)
    parts = tuple(ObservationPart(name, size) for name, size in features.sizes(mdp, wanted).items())
    recorded |= {"observation": parts, "feature_names": form.pop("features"), "level": network.level}
    record = SearchedRecord(setting=mdp.setting, versions=environment_record(), **asdict(space), **form, **recorded)
    return SearchedModel(record, network.split(np.asarray(weights, np.float32)))


def save_model(model: SearchedModel, path: str | os.PathLike[str]) -> None:
    """Write the file of a searched model; the path holds either the whole new file or its previous content."""
    write_tensors(Path(path), model.weights._asdict(), stamp(_KIND) | {"record": record_to_json(model.record)})


def load_model(path: str | os.PathLike[str]) -> Model | SearchedModel:
    """Read and check a model file, or that in the folder of a run; anything wrong with it is an `InputError`."""
    path, content = read_model_file(path)
    if content.metadata.get("format") != stamp(_KIND)["format"]:
        return fitted_model(path, content)
    require_stamp(content.metadata, _KIND, path, "search again")
    try:
        record = from_json(_RECORD, content.metadata.get("record"), "model record")
        # Files of earlier versions do not know the loop.
        arrays = {"loop": np.zeros((0, len(record.names)), np.float32)} | content.arrays
        if set(arrays) != set(Weights._fields):
            raise InputError(f"tensors: {sorted(content.arrays)!r:.200}, allowed are {', '.join(Weights._fields)}.")
        return SearchedModel(record, Weights(**{name: np.array(array) for name, array in arrays.items()}))
    except InputError as error:
        raise InputError(f"File {path}: {error}") from None

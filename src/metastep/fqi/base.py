"""What fitted and searched models have in common: a record, checked when made and when read, and proposals from features."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from metastep._core.errors import InputError, not_registered
from metastep._core.settings import Count
from metastep._core.storage import canonical_json
from metastep.fqi.guard import Values, limits_of, loop_of, table, warn
from metastep.fqi.stepper import Proposal, Stepper, as_numbers

# Any loop may give them, whether or not a model looks at them.
_WELCOME = ("theta", "natural_gradient", "context", "budget")
STEP = "stepsize"
"""Name of the hyperparameter that is maximised over a range; with PPO and A2C it is the learning rate."""
CLOSED = ConfigDict(extra="forbid", ser_json_inf_nan="constants")  # JSON refuses them, null would hide them


@checked_dataclass(frozen=True, config=CLOSED)
class ObservationPart:
    """A contiguous part of the observation: the name of its feature and its size."""

    name: Annotated[str, MinLen(1)]
    size: Count


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
    def trained_on(self) -> list[Values]:
        """What is known of the training loops that the model was fitted on, by the names of `guard.LOOP`."""
        setting, experiment, loops = self.setting, table(self.configuration, "experiment"), self.setting.get("loops")
        several = [*(loops if isinstance(loops, list) else ()), *table(setting, "families").values()]
        own = {**table(experiment, "rollout"), **table(experiment, "meta")}
        return [loop_of(each) for each in (setting, *several, own)]

    @property
    def keywords(self) -> dict[str, int]:
        """The size of each part of the observation, by the name it is passed under."""
        return {part.name.rpartition(":")[2]: part.size for part in self.observation}

    @property
    def directions(self) -> tuple[str, ...]:
        """Names of the branches that the model chooses from, by position; none where it chooses the step only."""
        return ()

    @property
    def is_relative(self) -> bool:
        """Whether the model proposes gradient steps in percent of those that a loop makes by itself."""
        return self.setting.get("gradient_steps") == "percent"

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of the values that the model proposes."""
        return tuple(self.bounds(next(iter(self.directions), "")))

    @abstractmethod
    def bounds(self, direction: str = "") -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest value of every hyperparameter by name, where this direction was chosen."""


_BASE: TypeAdapter[BaseRecord] = TypeAdapter(BaseRecord)


def record_to_json(record: BaseRecord) -> dict[str, Any]:
    """Return the record as JSON can hold it."""
    try:
        found: dict[str, Any] = _BASE.dump_python(record, mode="json", serialize_as_any=True)
        canonical_json(found)
    except ValueError as error:
        raise InputError(f"model record: cannot be written as JSON: {error}.") from None
    return found


@dataclass(frozen=True)
class AnyModel(ABC):
    """A model that proposes updates: a `metastep.Model`, which was fitted, or a `metastep.search.SearchedModel`."""

    record: Any  # a `BaseRecord`
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    fills_gaps: ClassVar[bool] = False  # a number that is not finite counts as the mean of its feature

    @abstractmethod
    def chosen(self, row: NDArray[np.float32]) -> Proposal:
        """Return the proposal for one learner with this observation (features,)."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies what the model proposes: a stepper's record, or a learner, may continue only with the same model."""

    @property
    @abstractmethod
    def learned_from(self) -> str:
        """What the model was learned from, in a few words."""

    def observation_size(self) -> int:
        """Return how many numbers the model observes; refuse a record whose parts do not agree on that."""
        record = self.record
        size = sum(part.size for part in record.observation)
        if len(record.keywords) != len(record.observation):
            raise InputError("observation: a part is named twice, allowed is once each.")
        for name in ("feature_names", "feature_low", "feature_high"):
            if (length := len(getattr(record, name))) != size:
                raise InputError(f"{name} has {length} entries, allowed is {size}.")
        return size

    def propose(self, **features: ArrayLike) -> Proposal:
        """Return the hyperparameters for the next update of one learner, by name.

        Give every part of the observation by the name of its feature, `module:name` as `name`; `theta`, `natural_gradient`,
        `context` and `budget` are ignored where the model does not look at them. Numbers may be those of NumPy, JAX or PyTorch.
        With numbers that are not finite, a fitted model gives the smallest step of the first branch, and a searched one takes
        the mean of their feature. A feature that lies outside the range of the training data gives a warning once.
        """
        wanted, parts = self.record.keywords, []
        for name in features:
            if name not in wanted and name not in _WELCOME:
                raise not_registered("features", name, list(wanted), "is not what the model looks at")
        for name, size in wanted.items():
            if features.get(name) is None:
                raise InputError(f"{name} is missing, allowed is {size} numbers: the model looks at them.")
            parts.append(as_numbers(name, features[name]))
            if len(parts[-1]) != size:
                raise InputError(f"{name} has {len(parts[-1])} numbers, allowed is {size}.")
        row = np.concatenate([np.empty(0, np.float32), *parts])
        far = limits_of(self.record).far(row)
        if new := [text for name, text in far.items() if name not in self._warned]:
            warn(f"{'; '.join(new)}: the proposal is a guess.")
            self._warned.update(far)
        return self.chosen(row)

    @property
    def stepper(self) -> partial[Stepper]:
        """A `Stepper` of the model, which proposes the updates of one learner in a training loop; the other arguments are its."""
        return partial(Stepper, self)

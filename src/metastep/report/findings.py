"""The inputs of a report, and which methods it is about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metastep.envs.contexts import ContextSpace
from metastep.evaluation import Comparison, MethodRecord, metric_values
from metastep.fqi import Model
from metastep.mdp.dataset import Counts

_LEARNED = "metafqi"  # the controller that follows a model


class Fitted(NamedTuple):
    """A fitted model and the data to show it with."""

    model: Model  # the selected one
    validation: Comparison  # every FQI iteration on the validation tasks; the method N=i is iteration i
    counts: Counts  # of the training data
    starts: NDArray[np.float32]  # meta-observations of learners before their first update, (learners, columns)
    later: NDArray[np.float32]  # meta-observations of learners after some updates, (learners, columns)
    updates: int  # how many
    config: Mapping[str, Any]  # the resolved experiment of the model
    file: str = "model.safetensors"  # in the folder of the run


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything a report shows.

    Args:
        name: of the experiment.
        command: that repeats it; empty where it is unknown.
        config: the resolved configuration.
        comparison: every method on the test tasks.
        context_space: the family of tasks.
        fitted: the models that methods of the comparison follow, by the name of the method.
    """

    name: str
    command: str
    config: dict[str, Any]
    comparison: Comparison
    context_space: ContextSpace
    fitted: Mapping[str, Fitted] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The method that the others are compared with."""
        return target_of(self.comparison)

    @property
    def model(self) -> Fitted | None:
        """The model that the report is about: the target's, or the first there is."""
        return self.fitted.get(self.target) or next(iter(self.fitted.values()), None)

    @property
    def resampling(self) -> dict[str, Any]:
        """The seed and the number of resamples of intervals."""
        return {"seed": int(self.config["seed"]), "num_resamples": int(self.config["compare"]["num_resamples"])}

    def labels_of_context(self) -> list[str]:
        """The coordinates of a task with their units."""
        space = self.context_space
        return [f"{name} ({unit})" if unit else name for name, unit in zip(space.names, space.units, strict=True)]


def target_of(comparison: Comparison) -> str:
    """Return the method to compare the others with.

    The learned one that chooses a direction and a step, else the learned one, else the first that is not a yardstick.
    """
    contenders = [record for record in comparison.methods if not record.is_yardstick] or list(comparison.methods)

    def rank(record: MethodRecord) -> int:
        return (record.name == "metastep") * 4 + (record.controller == _LEARNED) * (2 + bool(record.directions))

    return max(contenders, key=rank).name  # of equals the first


def best_baseline(comparison: Comparison, target: str) -> str | None:
    """Return the contender with the highest mean AUC, learned methods aside; None where the target is alone."""
    others = [
        record.name
        for record in comparison.methods
        if record.name != target and not record.is_yardstick and record.controller != _LEARNED
    ]
    if not others:
        return None
    means = dict(zip(comparison.names, metric_values(comparison, "auc").mean(axis=1), strict=True))
    return max(others, key=means.__getitem__)


def yardstick_of(comparison: Comparison, target: str) -> str | None:
    """Return the yardstick with the target's choice of directions, else the first."""
    same = comparison.record(target).directions
    found = [record for record in comparison.methods if record.is_yardstick]
    return min(found, key=lambda record: record.directions != same).name if found else None


def listed(words: Sequence[str]) -> str:
    """Join words as in "a, b and c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]

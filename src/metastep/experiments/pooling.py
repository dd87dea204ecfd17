"""One model for several families of tasks: fitted on the data of their runs together, each in units of its own returns."""

from collections.abc import Mapping, Sequence

import numpy as np

from metastep import features, storage
from metastep.errors import InputError
from metastep.experiments.build import build_fqi, build_mdp
from metastep.experiments.folder import RunFolder
from metastep.experiments.learning import validate
from metastep.experiments.origin import dataset_of
from metastep.fqi import Model, ObservationPart, TrainingData, ValidationCurve, model_from
from metastep.mdp import Process
from metastep.meta.dataset import Dataset
from metastep.meta.history import Transitions
from metastep.meta.setting import setting_of
from metastep.progress import Silent, Tracker

_REACH = 5.0, 95.0  # percentiles of a family's returns: what lies between is the unit of its rewards


def pooled(folders: Sequence[RunFolder], *, tracker: Tracker | None = None) -> Model:
    """Fit one model on the training data of several runs, and select its iteration on the validation tasks of all of them.

    Every run must have the same observation, space and rule; how Q is fitted is what the first one says.
    """
    runs = {folder.config.env.name: folder for folder in folders}
    if len(runs) < len(folders) or len(runs) < 2:
        names = ", ".join(folder.config.env.name for folder in folders)
        raise InputError(f"publish: the runs are of {names}, allowed are two families or more, each once.")
    processes = {name: build_mdp(folder.config) for name, folder in runs.items()}
    first, *others = processes.values()
    for other in others:
        _require_alike(first, other)
    observation = first.observation
    datasets = {name: dataset_of(folder) for name, folder in runs.items()}
    units = {name: _unit(dataset) for name, dataset in datasets.items()}
    parts = [_in_units(dataset.transitions(observation), units[name]) for name, dataset in datasets.items()]
    everything = Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    config = next(iter(runs.values())).config
    estimator = build_fqi(config)
    with (tracker or Silent()).stage("fit", config.fqi.iterations, "iterations") as stage:
        estimator.fit(everything, progress=lambda *_: stage.advance(1))
    setting = setting_of(first)
    model = model_from(
        estimator,
        setting={name: setting[name] for name in ("rule", "observation", "space")}
        | {"env": "several", "families": [*runs]},
        observation=[ObservationPart(name, size) for name, size in features.sizes(first, observation).items()],
        training_data=TrainingData(
            len(everything.reward),
            config.seed,
            storage.sha256_of_json({name: dataset.checksum for name, dataset in datasets.items()}),
        ),
        feature_names=features.columns(first, observation),
        configuration={
            "families": {name: folder.config.to_dict() for name, folder in runs.items()},
            "reward_units": units,
        },
    )
    return model.with_validation(_curves(model, runs, units, tracker))


def _require_alike(first: Process, other: Process) -> None:
    for what in ("observation", "space"):
        if getattr(first, what) != getattr(other, what):
            raise InputError(
                f"publish: {other.env.name} has another {what} than {first.env.name}, allowed is the same."
            )
    if first.rule.name != other.rule.name:
        raise InputError(
            f"publish: {other.env.name} has the rule {other.rule.name}, {first.env.name} has {first.rule.name}."
        )


def _unit(dataset: Dataset) -> float:
    """How far the returns of a family reach: rewards are shares of it, so that no family counts more for its units."""
    returns = np.concatenate([history.mean_return.ravel() for history in dataset.blocks()])
    low, high = np.percentile(returns[np.isfinite(returns)], _REACH)
    if high <= low:
        raise InputError(f"Dataset {dataset.folder}: its returns do not vary, there is nothing to learn from them.")
    return float(high - low)


def _in_units(transitions: Transitions, unit: float) -> Transitions:
    return transitions._replace(reward=(transitions.reward / np.float32(unit)).astype(np.float32))


def _curves(
    model: Model, runs: Mapping[str, RunFolder], units: Mapping[str, float], tracker: Tracker | None
) -> list[ValidationCurve]:
    """The score of every iteration: the mean over families of its mean return, in the family's units; `returns` has them."""
    scores: list[list[float]] = []
    for name, folder in runs.items():
        comparison = validate(folder.config, model, contexts=folder.tasks, tracker=tracker)
        scores.append([float(curve[:, 1:].mean(dtype=np.float64)) / units[name] for curve in comparison.returns])
    table = np.array(scores)  # (families, iterations)
    finite = np.isfinite(table).all(axis=0)
    if not finite.any():
        raise InputError("selection: every iteration diverged on validation tasks.")
    return [
        ValidationCurve(int(index) + 1, float(table[:, index].mean()), tuple(table[:, index].tolist()))
        for index in np.flatnonzero(finite)
    ]

"""One model for several families of tasks: fitted on the data of their runs together, each in units of its own returns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Silent, Tracker
from metastep.controllers import MetaFQIController
from metastep.evaluation import Comparison, Method
from metastep.experiments.config import build_fqi, build_mdp, parse
from metastep.experiments.provenance import read_dataset
from metastep.experiments.run import Run
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import validate
from metastep.fqi import Model, ObservationPart, TrainingData, ValidationCurve, branches_of, model_from, model_of_heads
from metastep.fqi.forest import Forest
from metastep.mdp.dataset import Dataset
from metastep.mdp.history import Transitions

_REACH = 5.0, 95.0  # percentiles of a family's returns: what lies between is the unit of its rewards


def pooled(folders: Sequence[Run], *, known: bool = False, tracker: Tracker | None = None) -> Model:
    """Fit one model on the training data of several runs, and select its iteration on the validation tasks of all of them.

    It observes the features of the runs that have no unit; these, space and rule must be the same in all runs. The first run
    says how Q is fitted.

    Args:
        folders: of the runs.
        known: whether the family is known where the model is used (`for_family`). Then it also sees the return, as a share of
            the range of the family's returns; proposals stay within the family's own range of steps (but values of later
            updates are maxima over the longest), and nodes are as small as in forests of one family.
        tracker: receives progress.
    """
    runs = {folder.config.env.name: folder for folder in folders}
    if len(runs) < len(folders) or len(runs) < 2:
        names = ", ".join(folder.config.env.name for folder in folders)
        raise InputError(f"publish: the runs are of {names}, allowed are two families or more, each once.")
    configs = {name: _without_units(folder.config, known) for name, folder in runs.items()}
    fitting = _for_all(configs) if known else configs
    processes = {name: build_mdp(config) for name, config in fitting.items()}
    first, *others = processes.values()
    for other in others:
        for what in ("observation", "space"):
            if getattr(first, what) != getattr(other, what):
                raise InputError(
                    f"publish: {other.env.name} has another {what} than {first.env.name}; it must be the same."
                )
        if first.rule.name != other.rule.name:
            raise InputError(
                f"publish: {other.env.name} has the rule {other.rule.name}, {first.env.name} has {first.rule.name}."
            )
    observation, config = first.observation, next(iter(fitting.values()))
    datasets = {name: folder.dataset for name, folder in runs.items()}
    reaches = {name: _reach(dataset) for name, dataset in datasets.items()}
    units = {name: unit for name, (_, unit) in reaches.items()}
    columns = features.columns(first, observation)
    parts = [_in_units(dataset.transitions(observation), columns, *reaches[name]) for name, dataset in datasets.items()]
    everything = Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    estimator = build_fqi(config, first.space)
    with (tracker or Silent()).stage("fit", config.fqi.iterations, "iterations") as stage:
        estimator.fit(everything, progress=lambda *_: stage.advance(1))
    model = model_from(
        estimator,
        setting=_shared([mdp.setting for mdp in processes.values()], [*runs]),
        observation=[ObservationPart(name, size) for name, size in features.sizes(first, observation).items()],
        training_data=TrainingData(len(everything.reward), config.seed, data_of(folders)),
        feature_names=columns,
        configuration={"families": {name: each.to_dict() for name, each in configs.items()}}
        | ({"reaches": reaches} if known else {"reward_units": units}),
        branches=branches_of(first.space),
    )
    own = {name: for_family(model, config) if known else model for name, config in configs.items()}
    return model.with_validation(_curves(own, runs, configs, units, tracker))


def for_family(model: Model, config: Experiment) -> Model:
    """Return a model of known families for the tasks of an experiment, with its unit of returns and its range of steps."""
    record, mdp = model.record, build_mdp(_without_units(config, known=True))
    zero, unit = record.configuration["reaches"][config.env.name]
    column = record.feature_names.index("return")

    def moved(ends: tuple[float, ...]) -> tuple[float, ...]:
        return *ends[:column], zero + unit * ends[column], *ends[column + 1 :]

    own = replace(
        record,
        setting=mdp.setting,
        branches=branches_of(mdp.space),
        feature_low=moved(record.feature_low),
        feature_high=moved(record.feature_high),
    )
    heads = [[cast(Forest, head).in_unit(column, zero, unit) for head in q.heads] for q in model.q_functions]
    return model_of_heads(own, heads)


def data_of(folders: Sequence[Run]) -> str:
    """Return the fingerprint of the training data of several runs."""
    return storage.sha256_of_json(
        {folder.config.env.name: read_dataset(folder, verify=False).checksum for folder in folders}
    )


def _for_all(configs: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Return the experiments with the longest steps of any, and with nodes as small as in forests of one family."""
    longest, wider = max(config.meta.stepsize_high for config in configs.values()), {}
    for name, config in configs.items():
        data = config.to_dict()
        data["meta"]["stepsize_high"] = longest
        if isinstance(share := data["fqi"]["regressor"].get("min_samples_split"), float):
            data["fqi"]["regressor"]["min_samples_split"] = share / len(configs)
        wider[name] = parse(data)
    return wider


def _without_units(config: Experiment, known: bool) -> Experiment:
    """Return the experiment with features that have no unit, hence the same meaning in every family, and `return` if known."""
    free = {*features.SETS["training"], *features.SETS["unit-free"], *(["return"] if known else [])}
    kept = [name for name in config.meta.observation if name in free]
    if not kept:
        raise InputError(
            f"publish: all that {config.env.name} observes carries a unit, so that families cannot be pooled."
        )
    data = config.to_dict()
    return parse(data | {"meta": data["meta"] | {"observation": kept}})


def measured(model: Model, run: Run, name: str, label: str, *, like: str, tracker: Tracker | None = None) -> Comparison:
    """Run a model on the test tasks of a run; `like` names the model of the run whose rule and space it has."""
    seen, mdp = tuple(part.name for part in model.record.observation), run.of_model(like).mdp
    method = Method(name, mdp.rule, MetaFQIController(model), label=label, space=mdp.space, observation=seen)
    return run.test([method], tracker=tracker)


def _shared(settings: Sequence[dict[str, Any]], families: list[str]) -> dict[str, Any]:
    """Return what all settings share, also within the rule, with the names of the families."""

    def same(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in tables[0].items() if all(t.get(name) == value for t in tables)}

    rule = same([setting["rule"] for setting in settings])
    return same(settings) | {"rule": rule, "env": "several", "families": families}


def _reach(dataset: Dataset) -> tuple[float, float]:
    """Return the low end and the range of a family's returns: rewards are shares of it, so that no family counts more."""
    returns = np.concatenate([history.mean_return.ravel() for history in dataset.blocks()])
    low, high = np.percentile(returns[np.isfinite(returns)], _REACH)
    if high <= low:
        raise InputError(f"Dataset {dataset.folder}: its returns do not vary, there is nothing to learn from them.")
    return float(low), float(high - low)


def _in_units(transitions: Transitions, columns: Sequence[str], zero: float, unit: float) -> Transitions:
    rewards = (transitions.reward / np.float32(unit)).astype(np.float32)
    if "return" not in columns:
        return transitions._replace(reward=rewards)
    column = [*columns].index("return")

    def share(seen: NDArray[np.float32]) -> NDArray[np.float32]:
        seen = seen.copy()
        seen[:, column] = (seen[:, column] - zero) / unit
        return seen

    observation, following = share(transitions.observation), share(transitions.next_observation)
    return transitions._replace(observation=observation, reward=rewards, next_observation=following)


def _curves(
    models: Mapping[str, Model],
    runs: Mapping[str, Run],
    configs: Mapping[str, Experiment],
    units: Mapping[str, float],
    tracker: Tracker | None,
) -> list[ValidationCurve]:
    """Score every iteration by the mean over families of its mean return, in the family's units, which `returns` holds."""
    scores: list[list[float]] = []
    for name, folder in runs.items():
        comparison = validate(folder.with_config(configs[name]), models[name], tracker=tracker)
        scores.append([float(curve[:, 1:].mean(dtype=np.float64)) / units[name] for curve in comparison.returns])
    table = np.array(scores)  # (families, iterations)
    finite = np.isfinite(table).all(axis=0)
    if not finite.any():
        raise InputError("selection: every iteration diverged on validation tasks.")
    return [
        ValidationCurve(int(index) + 1, float(table[:, index].mean()), tuple(table[:, index].tolist()))
        for index in np.flatnonzero(finite)
    ]

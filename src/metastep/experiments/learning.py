"""The first stages of an experiment: collect, fit, select. Each takes up what it finds done."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metastep import features
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Named, Silent, Tracker
from metastep.controllers import Controller, Exploration, Exploring, MetaFQIController
from metastep.evaluation import Comparison, Method, compare
from metastep.experiments.build import build_fqi, build_mdp, learners_collected, models_needed, updates_collected
from metastep.experiments.data import recorded_with
from metastep.experiments.folder import RunFolder
from metastep.experiments.origin import dataset_of, keep, kept, model_of, round_model_of
from metastep.experiments.schema import Experiment
from metastep.experiments.times import Timed
from metastep.fqi import Model, ObservationPart, TrainingData, ValidationCurve, branches_of, model_from, save_model
from metastep.mdp import Process
from metastep.mdp.blocks import Stream
from metastep.mdp.collection import collect, recorded_features
from metastep.mdp.dataset import Dataset, DatasetWriter, all_transitions
from metastep.mdp.history import Transitions
from metastep.mdp.setting import setting_of


def collect_data(folder: RunFolder, *, tracker: Tracker | None = None) -> Dataset:
    """Collect the training data, or what is missing of it."""
    config = folder.config
    mdp = build_mdp(config)
    if (there := _complete(folder, mdp)) is not None:
        return there
    rounds, timed = config.collect.rounds, Timed(folder.path, tracker)
    with folder.writing("collect"):
        return collect(
            dataclasses.replace(mdp, block_size=config.collect.block_size or mdp.block_size),
            folder.data,
            num_episodes=learners_collected(config),
            labels=config.collect.labels,
            rounds=rounds,
            follow=None if rounds == 1 else partial(_follow, folder, timed),
            num_updates=updates_collected(config),
            seed=config.seed,
            config=recorded_with(folder),
            task_list=folder.tasks,
            tracker=timed,
        )


def _complete(folder: RunFolder, mdp: Process) -> Dataset | None:
    """The data of a folder, if it is whole, this run's, and holds what the model sees; it may hold more."""
    try:
        dataset = dataset_of(folder)
    except InputError:  # `collect` mends it, or says what is wrong
        return None
    return dataset if set(recorded_features(mdp)) <= set(dataset.layout.features) else None


def _follow(folder: RunFolder, tracker: Tracker, writer: DatasetWriter, index: int) -> Controller:
    """Who proposes in a round: in the first one nobody in particular, later the model of the rounds before."""
    config = folder.config
    if index == 0:
        return Exploration()
    blocks = len(writer.layout.blocks) // config.collect.rounds  # of a round
    model = _round_model(folder, writer, index, range(index * blocks), tracker)
    return Exploring(MetaFQIController(model), config.collect.exploration, config.collect.near)


def _round_model(folder: RunFolder, writer: DatasetWriter, index: int, blocks: range, tracker: Tracker) -> Model:
    """The model that a round follows, fitted on all rounds before it and selected, or the one that is there already."""
    config, path, fingerprint = folder.config, folder.round_model(index), writer.digest_of(blocks)
    if path.exists():
        return round_model_of(folder, index, fingerprint)
    transitions = all_transitions(map(writer.block, blocks), config.meta.observation)
    model = fit_tuples(config, transitions, fingerprint, folder.data, tracker=tracker)
    model = select(model, validate(config, model, contexts=folder.tasks, tracker=tracker)).only_selected()
    storage.create_folder(path.parent)
    save_model(model, path)
    return model


def fit_model(
    config: Experiment, dataset: Dataset, *, tracker: Tracker | None = None, random_state: int | None = None
) -> Model:
    """Fit metaFQI on a dataset; every iteration is kept, the last one selected until `select` is through."""
    transitions = dataset.transitions(config.meta.observation)
    return fit_tuples(config, transitions, dataset.checksum, dataset.folder, tracker=tracker, random_state=random_state)


def fit_tuples(
    config: Experiment,
    transitions: Transitions,
    fingerprint: str,
    source: Path,
    *,
    tracker: Tracker | None = None,
    random_state: int | None = None,
) -> Model:
    """Fit metaFQI on tuples that are known by a fingerprint and come from a folder."""
    estimator, observation = build_fqi(config, random_state), config.meta.observation
    with (tracker or Silent()).stage("fit", config.fqi.iterations, "iterations") as stage:
        if not len(transitions.reward):
            raise InputError(
                f"Dataset {source}: each of its tuples holds a number that is not finite, so there is nothing to fit; look at "
                "the policy's sigma, the first policies and the step sizes."
            )
        estimator.fit(transitions, progress=lambda *_: stage.advance(1))
    mdp = build_mdp(config)
    model = model_from(
        estimator,
        setting=setting_of(mdp),
        observation=[ObservationPart(name, size) for name, size in features.sizes(mdp, observation).items()],
        training_data=TrainingData(len(transitions.reward), config.seed, fingerprint),
        feature_names=features.columns(mdp, observation),
        configuration={"experiment": config.to_dict()},
        branches=branches_of(mdp.space),
    )
    # As it was asked for: `module:name` says where a user's own regressor comes from.
    fitted_with = dataclasses.replace(model.record.regressor, name=config.fqi.regressor.name)
    return dataclasses.replace(model, record=dataclasses.replace(model.record, regressor=fitted_with))


def iteration_methods(config: Experiment, model: Model, contexts: NDArray[np.float32] | None = None) -> list[Method]:
    """Every iteration of a model as a method; N=i is iteration i."""
    rule = build_mdp(config).rule
    return [
        Method(f"N={i}", rule, MetaFQIController(model, i, contexts), values={"iteration": i})
        for i in range(1, len(model.q_functions) + 1)
    ]


def validate(
    config: Experiment, model: Model, *, contexts: NDArray[np.float32] | None = None, tracker: Tracker | None = None
) -> Comparison:
    """Every iteration of a model on the same validation tasks.

    `contexts` is the task list the model was trained on, if any. Each iteration has blocks of its own, with all tasks in
    lockstep. In the lanes of one block, as grid points are tuned, they would not share their simulation noise, which belongs
    to a block's lane; iterations differ by little, so that noise would decide between them.
    """
    return compare(
        iteration_methods(config, model, contexts),
        build_mdp(config),
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_tasks=config.selection.num_tasks,
        stream=Stream.VALIDATION,
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )


def select(model: Model, validation: Comparison) -> Model:
    """The model with its validation curves; the iteration of the best mean return over the updates is selected.

    A diverged task makes an iteration's mean return minus infinity, so it cannot be selected; its curve is not kept.
    """
    curves = []
    for index, record in enumerate(validation.methods):
        returns = validation.returns[index].astype(np.float64).mean(axis=0)
        if np.isfinite(returns).all():
            curves.append(
                ValidationCurve(int(record.values["iteration"]), float(returns[1:].mean()), tuple(returns.tolist()))
            )
    if not curves:
        raise InputError("selection: every iteration diverged on the validation tasks.")
    return model.with_validation(curves)


def fit_and_select(folder: RunFolder, *, tracker: Tracker | None = None) -> Model:
    """Fit on the folder's data, select on validation tasks, write model and validation."""
    if folder.model.exists() and folder.validation.exists():
        return fitted(folder)[0]
    timed = Timed(folder.path, tracker)
    with folder.writing("fit"):
        dataset = dataset_of(folder)
        model = fit_model(folder.config, dataset, tracker=timed)
        validation = validate(folder.config, model, contexts=folder.tasks, tracker=timed)
        model = select(model, validation)
        keep(folder, folder.validation, validation, uses=["data"])
        save_model(model, folder.model)
    return model


def learn(folder: RunFolder, model: str = "", *, tracker: Tracker | None = None) -> Model:
    """Collect, fit and select one of an experiment's models, or take up what is there of it."""
    own = folder.of_model(model)
    if model:
        own = RunFolder.create(own.path, own.config, own.tasks)
        tracker = Named(tracker or Silent(), model)
    if not (own.model.exists() and own.validation.exists()):
        collect_data(own, tracker=tracker)
    return fit_and_select(own, tracker=tracker)


def fit_all(folder: RunFolder, *, tracker: Tracker | None = None) -> dict[str, Model]:
    """Fit and select the experiment's own model and the others that methods follow, whose data are collected here.

    Rounds collect with models: their data and their fits belong together.
    """
    found = {"": fit_and_select(folder, tracker=tracker)}
    return found | {name: learn(folder, name, tracker=tracker) for name in models_needed(folder.config) if name}


def fitted(folder: RunFolder) -> tuple[Model, Comparison]:
    """The model of a folder and how its iterations did on the validation tasks; the two must belong together."""
    model, validation = model_of(folder), kept(folder, folder.validation)
    if select(model, validation).record != model.record:
        raise InputError(
            f"File {folder.model} was not selected on what {folder.validation.name} beside it holds; remove both and run "
            f"`metastep fit {folder.path}` again."
        )
    return model, validation

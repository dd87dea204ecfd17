"""The stages of an experiment: collect, fit, select, tune, compare. Each takes up what it finds done."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep import storage
from metastep.blocks import Stream
from metastep.controllers import MetaFQIController
from metastep.controllers.single_action import fit_single_action
from metastep.errors import InputError
from metastep.evaluation import (
    FAMILIES,
    Comparison,
    Method,
    TaskSource,
    Tuning,
    TuningTable,
    compare,
    load,
    metafqi_method,
    oracle_method,
    save,
    single_action_method,
    tune,
)
from metastep.experiments.build import build_env, build_mdp, updates_collected
from metastep.experiments.data import recorded_with
from metastep.experiments.folder import RunFolder
from metastep.experiments.schema import GRIDS_OF, Experiment
from metastep.fqi import MetaFQI, Model, ObservationPart, TrainingData, ValidationCurve, load_model, save_model
from metastep.fqi.model import model_from
from metastep.meta.collection import collect
from metastep.meta.dataset import Dataset, first_difference
from metastep.meta.mdp import MetaMDP
from metastep.progress import Silent, Tracker
from metastep.rules import NGA

# Which parameter of a method's family each grid of the configuration holds.
_PARAMETERS = {
    "metagrad_stepsize": "stepsize",
    "metagrad_beta": "beta",
    "decay": "alpha",
    "geometric_decay_stepsize": "stepsize",
    "geometric_decay_alpha": "alpha",
    "hoof": "max_divergence",
}
# Settings of a meta-MDP that shape what a model sees or was fitted with, and leave the learners of a comparison alone.
_OF_THE_MODEL = ("observation", "meta_discount")


def require_fittable(config: Experiment) -> None:
    """Refuse what metaFQI cannot be fitted on, before hours go into collecting it."""
    if config.meta.stepsize_scale != "linear":
        raise InputError("meta.stepsize_scale: 'log' cannot be fitted, metaFQI's grid of step sizes is linear.")


def collect_data(
    folder: RunFolder, *, tracker: Tracker | None = None, share: tuple[int, int] = (0, 1)
) -> Dataset | None:
    """Collect the training data, or this process' share of it; None while other shares are missing."""
    config = folder.config
    if "metafqi" in config.compare.methods:
        require_fittable(config)
    mdp = build_mdp(config)
    return collect(
        dataclasses.replace(mdp, block_size=config.collect.block_size or mdp.block_size),
        folder.data,
        num_episodes=config.collect.num_meta_episodes,
        num_updates=updates_collected(config),
        seed=config.seed,
        config=recorded_with(folder),
        task_list=folder.tasks,
        share=share,
        tracker=tracker,
    )


def fit_model(
    config: Experiment, dataset: Dataset, *, tracker: Tracker | None = None, random_state: int | None = None
) -> Model:
    """Fit metaFQI on a dataset; every iteration is kept, the last one selected until `select` is through."""
    meta, fqi = config.meta, config.fqi
    require_fittable(config)
    estimator = MetaFQI(
        iterations=fqi.iterations,
        trees=fqi.trees,
        min_samples_split=fqi.min_samples_split,
        meta_discount=meta.meta_discount,
        double=fqi.double,
        lam=fqi.lam,
        random_state=config.seed if random_state is None else random_state,
        forest=fqi.forest,
        stepsize_low=meta.stepsize_low,
        stepsize_high=meta.stepsize_high,
        num_stepsizes=fqi.num_stepsizes,
        maximum=fqi.maximum,
    )
    with (tracker or Silent()).stage("fit", fqi.iterations, "iterations") as stage:
        transitions = dataset.transitions(meta.observation)
        estimator.fit(transitions, progress=lambda *_: stage.advance(1))
    layout = dataset.layout
    sizes = {"theta": layout.num_parameters, "gradient": layout.num_parameters, "context": len(layout.context_names)}
    return model_from(
        estimator,
        environment=build_env(config).name,
        observation=[ObservationPart(part, sizes.get(part, 1)) for part in meta.observation],
        training_data=TrainingData(len(transitions.reward), dataset.seed, dataset.checksum),
        feature_names=dataset.feature_names(meta.observation),
        configuration={"experiment": config.to_dict()},
    )


def validate(
    config: Experiment,
    model: Model,
    *,
    contexts: NDArray[np.float32] | None = None,
    tracker: Tracker | None = None,
) -> Comparison:
    """Every iteration of a model on the same validation tasks; the method N=i is iteration i.

    `contexts` is the task list the model was trained on, if any. The iterations run one after the other, each with all
    tasks in lockstep. Side by side in the lanes of a block, as grid points are tuned, they would not share their simulation
    noise, which belongs to a block's lane; iterations differ by little, so that noise would decide between them.
    """
    trained = TaskSource("trained", Stream.TRAIN, contexts)
    methods = [
        Method(f"N={i}", NGA, MetaFQIController(model, i), values={"iteration": i}, shaped_by=(trained,))
        for i in range(1, len(model.q_functions) + 1)
    ]
    return compare(
        methods,
        build_mdp(config),
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_tasks=config.selection.num_tasks,
        stream=Stream.VALIDATION,
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
        return load_model(folder.model)
    dataset = Dataset.open(folder.data)
    model = fit_model(folder.config, dataset, tracker=tracker)
    validation = validate(folder.config, model, contexts=folder.tasks, tracker=tracker)
    model = select(model, validation)
    save(folder.validation, validation)
    save_model(model, folder.model)
    return model


def compare_methods(folder: RunFolder, *, tracker: Tracker | None = None) -> Comparison:
    """Run every method on the test tasks, the baselines tuned; each method's result is kept as soon as it is there."""
    joined = compare_share(folder, (0, 1), tracker=tracker)
    assert joined is not None  # nobody else has a share
    return joined


def compare_share(folder: RunFolder, share: tuple[int, int], *, tracker: Tracker | None = None) -> Comparison | None:
    """Run every n-th method from the i-th on; None while results of other shares are missing."""
    if folder.comparison.exists():
        return load(folder.comparison)
    names, (index, parts) = folder.config.compare.methods, share
    if parts > len(names):
        raise InputError(f"share: {index}/{parts} must have at most as many shares as there are methods, {len(names)}.")
    own = {name: method_result(folder, name, tracker=tracker) for name in names[index::parts]}
    if not all(folder.result(name).exists() for name in names):
        return None
    joined = join([own[name] if name in own else load(folder.result(name)) for name in names])
    save(folder.comparison, joined)
    return joined


def method_result(folder: RunFolder, name: str, *, tracker: Tracker | None = None) -> Comparison:
    """One method on the test tasks, tuned where it has something to tune; run only if the folder does not hold it."""
    if not folder.result(name).exists():
        storage.create_folder(folder.result(name).parent)
        save(folder.result(name), _one_method(folder, name, tracker))
    return load(folder.result(name))


def _one_method(folder: RunFolder, name: str, tracker: Tracker | None) -> Comparison:
    config = folder.config
    if name in GRIDS_OF:
        tuning = tuned(config, name, build_mdp(config), tracker=tracker)
        return on_test_tasks(config, [tuning.method()], tuning=[tuning.table], tracker=tracker)
    return on_test_tasks(config, [_learned_method(folder, name, build_mdp(config), tracker)], tracker=tracker)


def on_test_tasks(
    config: Experiment,
    methods: Sequence[Method],
    *,
    num_updates: int | None = None,
    tuning: Sequence[TuningTable] = (),
    tracker: Tracker | None = None,
) -> Comparison:
    """Methods on an experiment's test tasks, for as many updates as it says unless told otherwise."""
    return compare(
        methods,
        build_mdp(config),
        seed=config.seed,
        num_updates=num_updates or config.compare.num_updates,
        num_tasks=config.compare.num_tasks,
        tuning=tuning,
        tracker=tracker,
    )


def tuned(config: Experiment, name: str, mdp: MetaMDP, *, tracker: Tracker | None = None) -> Tuning:
    """A baseline tuned on the tuning tasks."""
    return tune(
        FAMILIES[name],
        {_PARAMETERS.get(key, "stepsize"): getattr(config.compare.grids, key) for key in GRIDS_OF[name]},
        mdp,
        seed=config.seed,
        num_tasks=config.compare.num_tuning_tasks,
        num_updates=config.compare.num_updates,
        tracker=tracker,
    )


def _learned_method(folder: RunFolder, name: str, mdp: MetaMDP, tracker: Tracker | None) -> Method:
    config = folder.config
    if name == "metafqi":
        if not folder.model.exists():
            raise InputError(f"Folder {folder.path} holds no model; run `metastep fit {folder.path}` first.")
        return metafqi_method(load_model(folder.model), contexts=folder.tasks)
    if name == "oracle":
        return oracle_method(config.fqi.num_stepsizes)
    return single_action_method(
        fit_single_action(
            mdp,
            seed=config.seed,
            num_runs=config.collect.num_meta_episodes,
            num_updates=config.compare.num_updates,
            num_trees=config.fqi.trees,
            min_samples_split=config.fqi.min_samples_split,
            num_stepsizes=config.fqi.num_stepsizes,
            task_list=folder.tasks,
            tracker=tracker,
        ),
        contexts=folder.tasks,
    )


def join(parts: Sequence[Comparison]) -> Comparison:
    """Comparisons of different methods on the same tasks as one; they must have been run alike."""
    first = parts[0]
    for part in parts[1:]:
        require_alike(first, part)
    return dataclasses.replace(
        first,
        methods=tuple(record for part in parts for record in part.methods),
        returns=np.concatenate([part.returns for part in parts]),
        hyperparameters=np.concatenate([part.hyperparameters for part in parts]),
        flagged=np.concatenate([part.flagged for part in parts]),
        num_steps=np.concatenate([part.num_steps for part in parts]),
        diagnostics={name: array for part in parts for name, array in part.diagnostics.items()},
        tuning=tuple(table for part in parts for table in part.tuning),
    )


def require_alike(first: Comparison, second: Comparison, *, but: Sequence[str] = ()) -> None:
    """Refuse results that cannot stand side by side: of other tasks, learners, software or device; `but` may differ."""

    def setting(comparison: Comparison) -> dict[str, Any]:
        mdp = {name: value for name, value in comparison.settings.get("mdp", {}).items() if name not in _OF_THE_MODEL}
        return {name: value for name, value in comparison.settings.items() if name not in but} | {"mdp": mdp}

    if difference := first_difference(setting(first), setting(second)):
        key, before, now = difference
        raise InputError(
            f"results: {first.names[0]} was compared with {key} = {before}, {second.names[0]} with {now}; only results of "
            "the same settings can be joined."
        )
    if not np.array_equal(second.context, first.context):
        raise InputError(f"results: {second.names[0]} was compared on other tasks than {first.names[0]}.")

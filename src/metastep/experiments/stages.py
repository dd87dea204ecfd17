"""The stages of a run: collect, fit, validate and select, tune and compare. Each continues what it finds begun."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metastep import controllers, features
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Named, Silent, Tracker
from metastep.controllers import Controller, Exploration, Exploring, MetaFQIController
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, compare, join
from metastep.evaluation.comparison import Asked, comparing
from metastep.evaluation.tuning import num_blocks, tuning
from metastep.experiments import provenance
from metastep.experiments.build import build_fqi, build_regressor, learners_collected, updates_collected
from metastep.experiments.times import Timed
from metastep.fqi import Model, ObservationPart, TrainingData, ValidationCurve, branches_of, model_from, save_model
from metastep.mdp import collection
from metastep.mdp.blocks import Stream
from metastep.mdp.dataset import Dataset, DatasetWriter, all_transitions
from metastep.mdp.history import Transitions
from metastep.mdp.runs import Plan, carry_out

if TYPE_CHECKING:
    from metastep.experiments.run import Run


def collect(run: Run, *, tracker: Tracker | None = None) -> Dataset:
    """Collect the training data, or what is missing of it."""
    config, mdp = run.config, run.mdp
    try:  # the data may hold more features than the model observes
        if set(collection.recorded_features(mdp)) <= set(run.dataset.layout.features):
            return run.dataset
    except InputError:  # collecting completes it, or says what is wrong
        pass
    rounds, timed = config.collect.rounds, Timed(run.path, tracker)
    with run.writing():
        run.dataset = collection.collect(
            dataclasses.replace(mdp, block_size=config.collect.block_size or mdp.block_size),
            run.data_folder,
            num_episodes=learners_collected(config),
            labels=config.collect.labels,
            rounds=rounds,
            follow=None if rounds == 1 else partial(_controller_of_round, run, timed),
            num_updates=updates_collected(config),
            seed=config.seed,
            config=provenance.recorded_with_data(run),
            task_list=run.tasks,
            tracker=timed,
        )
    return run.dataset


def _controller_of_round(run: Run, tracker: Tracker, writer: DatasetWriter, index: int) -> Controller:
    """Return what proposes updates in a round: random exploration first, later the model fitted on all rounds before."""
    if index == 0:
        return Exploration()
    config, path = run.config, run.round_file(index)
    blocks = range(index * len(writer.layout.blocks) // config.collect.rounds)
    fingerprint = writer.digest_of(blocks)
    if path.exists():
        model = provenance.read_round_model(run, index, fingerprint)
    else:
        transitions = all_transitions(map(writer.block, blocks), config.meta.observation)
        model = _fit(run, transitions, fingerprint, run.data_folder, tracker=tracker)
        model = select(model, validate(run, model, tracker=tracker)).only_selected()
        storage.create_folder(path.parent)
        save_model(model, path)
    return Exploring(MetaFQIController(model), config.collect.exploration, config.collect.near)


def fit_model(run: Run, dataset: Dataset, *, tracker: Tracker | None = None, random_state: int | None = None) -> Model:
    """Fit metaFQI on a dataset; every iteration is kept, the last one counts as selected until `select`."""
    transitions = dataset.transitions(run.config.meta.observation)
    return _fit(run, transitions, dataset.checksum, dataset.folder, tracker=tracker, random_state=random_state)


def _fit(
    run: Run,
    transitions: Transitions,
    fingerprint: str,
    source: Path,
    *,
    tracker: Tracker | None,
    random_state: int | None = None,
) -> Model:
    config, mdp, observation = run.config, run.mdp, run.config.meta.observation
    estimator = build_fqi(config, mdp.space, random_state)
    with (tracker or Silent()).stage("fit", config.fqi.iterations, "iterations") as stage:
        if not len(transitions.reward):
            raise InputError(
                f"Dataset {source}: each of its tuples holds a number that is not finite, so there is nothing to fit; look at "
                "the policy's sigma, the first policies and the step sizes."
            )
        estimator.fit(transitions, progress=lambda *_: stage.advance(1))
    model = model_from(
        estimator,
        setting=mdp.setting,
        observation=[ObservationPart(name, size) for name, size in features.sizes(mdp, observation).items()],
        training_data=TrainingData(len(transitions.reward), config.seed, fingerprint),
        feature_names=features.columns(mdp, observation),
        configuration={"experiment": config.to_dict()},
        branches=branches_of(mdp.space),
    )
    # As in the configuration: `module:name` says where a user's own regressor comes from.
    fitted_with = dataclasses.replace(model.record.regressor, name=config.fqi.regressor.name)
    return dataclasses.replace(model, record=dataclasses.replace(model.record, regressor=fitted_with))


def iteration_methods(run: Run, model: Model) -> list[Method]:
    """Return every iteration of a model as a method; N=i is iteration i."""
    return [
        Method(f"N={i}", run.mdp.rule, MetaFQIController(model, i, run.tasks), values={"iteration": i})
        for i in range(1, len(model.q_functions) + 1)
    ]


def validate(run: Run, model: Model, *, tracker: Tracker | None = None) -> Comparison:
    """Run every iteration of a model on the same validation tasks.

    Each iteration has blocks of its own, with all tasks in lockstep. In the lanes of one block, as grid points are tuned, they
    would not share their simulation noise, which belongs to a block's lane; iterations differ by little, so that noise would
    decide between them.
    """
    config = run.config
    return compare(
        iteration_methods(run, model),
        run.mdp,
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_tasks=config.selection.num_tasks,
        stream=Stream.VALIDATION,
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )


def select(model: Model, validation: Comparison) -> Model:
    """Return the model with its validation curves, the iteration of the best mean return over the updates selected.

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


def fit_and_select(run: Run, *, tracker: Tracker | None = None) -> Model:
    """Fit on the run's data, select on validation tasks, write model and validation."""
    if not is_fitted(run):
        timed = Timed(run.path, tracker)
        with run.writing():
            model = fit_model(run, run.dataset, tracker=timed)
            validation = validate(run, model, tracker=timed)
            model = select(model, validation)
            provenance.write_comparison(run, run.validation_file, validation, uses=["data"])
            save_model(model, run.model_file)
    return read_fitted(run)[0]


def is_fitted(run: Run) -> bool:
    """Return whether model and validation are there."""
    return run.model_file.exists() and run.validation_file.exists()


def read_fitted(run: Run) -> tuple[Model, Comparison]:
    """Return the model of a run and its validation, which must belong together."""
    if select(run.model, run.validation).record != run.model.record:
        raise InputError(
            f"File {run.model_file} was not selected on what {run.validation_file.name} beside it holds; remove both and run "
            f"`metastep fit {run.path}` again."
        )
    return run.model, run.validation


def learn(run: Run, model: str = "", *, tracker: Tracker | None = None) -> Model:
    """Collect, fit and select one of an experiment's models, or continue where it was stopped."""
    own = run.of_model(model)
    if model:
        own.prepare_folder()
        tracker = Named(tracker or Silent(), model)
    if not is_fitted(own):
        collect(own, tracker=tracker)
    return fit_and_select(own, tracker=tracker)


def fit_all(run: Run, *, tracker: Tracker | None = None) -> dict[str, Model]:
    """Fit and select the experiment's own model and the others that methods follow, whose data are collected here.

    Rounds collect with models: their data and their fits belong together.
    """
    found = {"": fit_and_select(run, tracker=tracker)}
    return found | {name: learn(run, name, tracker=tracker) for name in run.models_needed if name}


def compare_methods(run: Run, *, tracker: Tracker | None = None) -> Comparison:
    """Run every method on the test tasks, the baselines tuned; each result is written as soon as it is complete."""
    if not run.comparison_file.exists():
        names = run.config.compare.names
        with run.writing():
            joined = join(method_results(run, names, tracker=tracker))
            uses = [f"results/{name}" for name in names]
            run.comparison = provenance.write_comparison(run, run.comparison_file, joined, uses)
    return run.comparison


def read_compared(run: Run) -> Comparison:
    """Read the comparison of a run, if it is the join of the results there."""
    comparison = provenance.read_comparison(run, run.comparison_file)
    if comparison.names != run.config.compare.names:
        raise InputError(
            f"File {run.comparison_file} compares other methods than this run; remove it to compare again."
        )
    return comparison


class _Work(NamedTuple):
    """The work of one method's result."""

    blocks: int  # of learners
    plan: Plan[None]
    is_tuned: bool


def method_results(run: Run, names: Sequence[str], *, tracker: Tracker | None = None) -> list[Comparison]:
    """Run methods on the test tasks, tuned or trained first where they need it; results in the folder are read."""
    if missing := [name for name in names if not run.result_file(name).exists()]:
        what = missing[0] if len(missing) == 1 else f"{len(missing)} methods"
        timed = Timed(run.path, tracker)
        with run.writing():
            works = [_work_on(run, run.methods[name], tracker=timed) for name in missing]
            # On many cores the end waits for the work that began last: the longest begin first. A method that is not tuned
            # has few blocks, each of which may simulate more than many others, as an oracle's do.
            works.sort(key=lambda work: (work.is_tuned, -work.blocks))
            total = sum(work.blocks for work in works)
            with timed.stage(f"compare {what}", total, "blocks") as stage:
                together = run.config.compare.blocks_together
                carry_out([work.plan for work in works], stage.advance, together=together)
    return [provenance.read_result(run, name) for name in names]


def _work_on(run: Run, spec: MethodSpec, *, tracker: Tracker | None) -> _Work:
    """Plan a method's tuning and test; one that has to be loaded or trained is so before the others begin."""
    settings = run.config.compare
    asked = Asked(run.mdp, run.config.seed, settings.num_updates, settings.num_tasks)
    if not spec.grid:
        uses: list[str] = []
        method = prepare_method(run, spec, on_use=uses.append, tracker=tracker)
        return _Work(len(asked.blocks), _tested(run, method, asked, uses), is_tuned=False)
    own = run.of_model(spec.model)
    tasks = own.config.compare.num_tuning_tasks
    search = tuning(spec, own.mdp, seed=own.config.seed, num_tasks=tasks, num_updates=settings.num_updates)
    blocks = num_blocks(spec, own.mdp, tasks) + len(asked.blocks)
    return _Work(blocks, _tuned_and_tested(run, search, asked), is_tuned=True)


def _tuned_and_tested(run: Run, search: Plan[tuple[Method, TuningTable]], asked: Asked) -> Plan[None]:
    method, table = yield from search
    yield from _tested(run, method, asked, [], [table])


def _tested(
    run: Run, method: Method, asked: Asked, uses: Sequence[str], tables: Sequence[TuningTable] = ()
) -> Plan[None]:
    result = yield from comparing([method], asked, tables)
    provenance.write_comparison(run, run.result_file(method.name), result, uses)


def prepare_method(
    run: Run, spec: MethodSpec, *, on_use: Callable[[str], object] = str, tracker: Tracker | None = None
) -> Method:
    """Return a method with nothing to tune, its controller loaded or trained where it needs to be.

    `on_use` receives "model", or "models/NAME/model", if the controller asks for a model of the run.
    """
    own = run.of_model(spec.model)
    config = own.config
    mdp = own.mdp.with_budget(config.compare.num_updates)

    def model() -> Model:
        on_use(f"models/{spec.model}/model" if spec.model else "model")
        return own.model

    needs = controllers.Run(
        mdp=spec.on(mdp),
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_training_episodes=config.collect.num_meta_episodes,
        num_stepsizes=config.fqi.num_stepsizes,
        regressor=partial(build_regressor, config),
        model=model,
        task_list=run.tasks,
        tracker=tracker or Silent(),
    )
    return spec.method(mdp, controller=spec.build_controller({}).prepared(needs))

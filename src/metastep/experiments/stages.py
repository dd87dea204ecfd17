"""The stages of a run after collection: fit, validate and select, tune and compare.

`fit_and_select` and `method_results` skip work whose result files exist. Times of stages are kept in the run's folder; since they
differ from run to run, only the report of a search shows them, and no checksum covers them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from metastep import controllers, features
from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.progress import Silent, Stage, Tracker
from metastep._core.settings import from_json
from metastep.controllers import Controller, MetaFQIController
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, baselines
from metastep.evaluation.comparison import comparison_plan
from metastep.evaluation.methods import num_blocks, tuning_plan
from metastep.experiments import provenance, searching
from metastep.experiments.config import build_fqi, build_regressor, build_rule
from metastep.experiments.schema import Experiment, MethodSection
from metastep.fqi import Model, ObservationPart, TrainingData, ValidationCurve, model_from, save_model
from metastep.fqi.model import branches_of
from metastep.mdp.blocks import Blocks
from metastep.mdp.dataset import Dataset
from metastep.mdp.history import Transitions
from metastep.mdp.runs import Plan, run_plans
from metastep.rules.spaces import Range
from metastep.search import SearchedModel

if TYPE_CHECKING:
    from metastep.experiments.run import Run


def fit_model(run: Run, dataset: Dataset, *, tracker: Tracker | None = None, random_state: int | None = None) -> Model:
    """Fit metaFQI on a dataset; the model keeps every iteration, and the last is the selected one until `select`."""
    transitions = dataset.transitions(run.config.meta.observation)
    return fit_on(run, transitions, dataset.checksum, tracker=tracker, random_state=random_state)


def fit_on(
    run: Run, transitions: Transitions, fingerprint: str, *, tracker: Tracker | None, random_state: int | None = None
) -> Model:
    """Fit metaFQI on transitions, identified by `fingerprint`."""
    config, mdp = run.config, run.mdp
    estimator = build_fqi(config, mdp.space, random_state)
    with (tracker or Silent()).stage("fit", config.fqi.iterations, "iterations") as stage:
        if not len(transitions.reward):
            remedy = "look at the policy's sigma, the first policies and the step sizes"
            raise InputError(f"fit: each of the tuples holds a number that is not finite; {remedy}.")
        estimator.fit(transitions, progress=lambda *_: stage.advance(1))
    model = model_from(
        estimator,
        observation=[ObservationPart(name, size) for name, size in features.sizes(mdp, mdp.observation).items()],
        training_data=TrainingData(len(transitions.reward), config.seed, fingerprint),
        feature_names=features.columns(mdp, mdp.observation),
        branches=branches_of(mdp.space),
        setting=mdp.setting,
        configuration={"experiment": config.to_dict()},
    )
    # The name in the configuration, `module:name`, says where a user's own regressor comes from.
    fitted_with = dataclasses.replace(model.record.regressor, name=config.fqi.regressor.name)
    return dataclasses.replace(model, record=dataclasses.replace(model.record, regressor=fitted_with))


def iteration_methods(run: Run, model: Model) -> list[Method]:
    """Return every iteration of a model as a method; N=i is iteration i."""
    controllers = {i: MetaFQIController(model, i, run.tasks) for i in range(1, len(model.q_functions) + 1)}
    return [Method(f"N={i}", run.mdp.rule, each, values={"iteration": i}) for i, each in controllers.items()]


def validate(run: Run, model: Model, *, tracker: Tracker | None = None) -> Comparison:
    """Run every iteration of a model on the same validation tasks and random numbers: they differ little beside the noise."""
    return run.validate(iteration_methods(run, model), tracker=tracker)


def select(model: Model, validation: Comparison) -> Model:
    """Select the iteration of the best mean return over the updates, among those that diverged on no task; keep their curves."""
    curves = []
    for record, tasks in zip(validation.methods, validation.returns, strict=True):
        returns, iteration = tasks.astype(np.float64).mean(axis=0), int(record.values["iteration"])
        if np.isfinite(returns).all():
            curves.append(ValidationCurve(iteration, float(returns[1:].mean()), tuple(returns.tolist())))
    if not curves:
        raise InputError("selection: every iteration diverged on the validation tasks.")
    return model.with_validation(curves)


def fit_and_select(run: Run, *, tracker: Tracker | None = None) -> Model:
    """Fit on the run's data, select on validation tasks, and write model and validation, unless they exist."""
    if not (run.model_file.exists() and run.validation_file.exists()):
        timed = Timed(run.path, tracker)
        with run.write_lock():
            model = fit_model(run, run.dataset, tracker=timed)
            validation = validate(run, model, tracker=timed)
            model = select(model, validation)
            provenance.write_comparison(run, run.validation_file, validation, uses=["data"])
            save_model(model, run.model_file)
    return read_fitted(run)[0]


def read_fitted(run: Run) -> tuple[Any, Comparison]:
    """Return the model of a run and the validation that it was selected on."""
    model, validation, verb = run.model, run.validation, "fit"
    if run.config.learner == "search":
        verb, record, chosen = "search", model.record, searching.judge_levels(validation, run.config.search.objective)
        belongs = isinstance(model, SearchedModel) and (record.level, record.validation) == chosen
    else:
        belongs = select(model, validation).record == model.record
    if not belongs:
        mismatch = f"was not selected on what {run.validation_file.name} beside it holds"
        raise InputError(f"File {run.model_file} {mismatch}; remove both and run `metastep {verb} {run.path}` again.")
    return model, validation


def method_results(run: Run, names: Sequence[str], *, tracker: Tracker | None = None) -> list[Comparison]:
    """Return the results of methods on the test tasks; those not in the folder yet are tuned or trained, run and written."""
    if missing := [name for name in names if not run.result_file(name).exists()]:
        what = missing[0] if len(missing) == 1 else f"{len(missing)} methods"
        timed = Timed(run.path, tracker)
        with run.write_lock():
            plans = [_method_plan(run, run.methods[name], tracker=timed) for name in missing]
            # Long methods start first, because on many cores the end waits for the last one. A method that is not tuned has
            # few blocks, but each may simulate more than many others, as an oracle's do.
            plans.sort(key=lambda each: (each[0], -each[1]))
            with timed.stage(f"compare {what}", sum(blocks for _, blocks, _ in plans), "blocks") as stage:
                run_plans([plan for *_, plan in plans], stage.advance, together=run.config.compare.blocks_together)
    return [provenance.read_result(run, name) for name in names]


def _method_plan(run: Run, spec: MethodSpec, *, tracker: Tracker | None) -> tuple[bool, int, Plan[None]]:
    """Return whether a method is tuned, its number of blocks, and the plan of its tuning and test, which writes the result.

    A controller that has to be loaded or trained is so here, before any plan runs.
    """
    settings, model_run = run.config.compare, run.of_model(spec.model)
    tuning_options: Any = {"num_tasks": settings.num_tuning_tasks, "shared_noise": settings.shared_noise}
    blocks = len(Blocks(settings.num_tasks, run.mdp.block_size))
    blocks += num_blocks(spec, model_run.mdp, **tuning_options) if spec.grid else 0
    prepared = None if spec.grid else prepare_method(run, spec, tracker=tracker)
    uses, controller = list[str](), example_controller(spec)
    if controller.needs_model:
        level = getattr(controller, "level", "")
        uses = [(f"models/{spec.model}/" if spec.model else "") + (f"levels/{level}" if level else "model")]

    def plan() -> Plan[None]:
        method, tables, updates = prepared, list[TuningTable](), settings.num_updates
        if method is None:
            seed = model_run.config.seed
            method, table = yield from tuning_plan(spec, model_run.mdp, seed, num_updates=updates, **tuning_options)
            tables = [table]
        seed, num_tasks = run.config.seed, settings.num_tasks
        result = yield from comparison_plan([method], run.mdp, seed, updates, num_tasks, tuning=tables)
        provenance.write_comparison(run, run.result_file(method.name), result, uses)

    return bool(spec.grid), blocks, plan()


def prepare_method(run: Run, spec: MethodSpec, *, tracker: Tracker | None = None) -> Method:
    """Return a method that has nothing to tune, with its controller loaded or trained if necessary."""
    model_run = run.of_model(spec.model)
    config, updates = model_run.config, model_run.config.compare.num_updates
    mdp = model_run.mdp.with_budget(updates)
    resources = controllers.Resources(
        spec.on(mdp),
        seed=config.seed,
        num_updates=updates,
        num_training_episodes=config.collect.num_meta_episodes,
        num_stepsizes=config.fqi.num_stepsizes,
        regressor=partial(build_regressor, config),
        model=partial(searching.read_level, model_run),
        task_list=run.tasks,
        tracker=tracker or Silent(),
    )
    return spec.method(mdp, controller=spec.build_controller({}).prepared(resources))


def method_specs(config: Experiment) -> dict[str, MethodSpec]:
    """Return the methods of the comparison by name, as data; `Run.methods` also checks that they can be built."""
    return {method.own_name: method_spec(config, method) for method in config.compare.methods}


def method_spec(config: Experiment, method: MethodSection) -> MethodSpec:
    """Return a method as data, its grid and steps filled in from the configuration."""
    if (controller := method.controller) is None:
        spec = baselines.make(method.name)
    else:
        spec = MethodSpec(method.own_name, controller.name, controller.options, label=method.own_name)
    if method.rule is not None:
        spec = dataclasses.replace(spec, rule=method.rule.name, rule_options=method.rule.options)
    path, meta = f"compare.methods.{spec.name}", config.meta
    model, steps = method.model or spec.model, spec.steps
    default_range = steps or Range(meta.stepsize_low, meta.stepsize_high, meta.stepsize_scale)
    scale, bounds = method.stepsize_scale, method.stepsize_range
    # The method sets its own range, or replaces a menu of directions by a rule of its own.
    if scale is not None or bounds is not None or (spec.rule is not None and build_rule(config).directions):
        try:
            low_high = bounds or (default_range.low, default_range.high)
            steps = default_range = Range(*low_high, scale or default_range.scale)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    options = dict(spec.controller_options)
    if "num_updates" in controllers.REGISTRY.parameters(spec.controller):
        options.setdefault("num_updates", config.compare.num_updates)
    values, grid = {**spec.grid, **method.grid}, {}
    for option in dict.fromkeys((*spec.needs_grid, *values)):  # the order of options is that of the grid points
        if option in values:
            grid[option] = tuple(values[option])
        elif option == "stepsize" and spec.rule is None and not model:
            grid[option] = tuple(float(step) for step in default_range.grid(11)[1:])
        else:  # only step sizes of the experiment's own rule have a default grid
            raise InputError(f"{path}.grid.{option}: is missing, it must be a list of numbers.")
    shown: Any = {"label": method.label or spec.label, "colour": method.colour or spec.colour}
    return dataclasses.replace(spec, model=model, steps=steps, controller_options=options, grid=grid, **shown)


def example_controller(spec: MethodSpec) -> Controller:
    """Return the controller of a method with the first values of its grid; its class attributes do not depend on them."""
    return spec.build_controller(spec.first_values)


class Timed:
    """Add the seconds of each stage, without those of stages nested in it, to times.json of a folder; `tracker` shows stages."""

    def __init__(self, folder: Path, tracker: Tracker | None) -> None:
        self._folder, self._tracker, self._inner = folder, tracker or Silent(), 0.0

    @contextmanager
    def stage(self, name: str, total: float, unit: str) -> Iterator[Stage]:
        since, inner = time.monotonic(), self._inner
        try:
            with self._tracker.stage(name, total, unit) as stage:
                yield stage
        finally:
            seconds = time.monotonic() - since - (self._inner - inner)
            self._inner += seconds
            add_time(self._folder, name, seconds)


def add_time(folder: Path, name: str, seconds: float) -> None:
    """Add to the recorded time of a stage; a file that cannot be read is replaced."""
    times = dict[str, float]()
    with suppress(InputError):
        times = read_times(folder)
    times[name] = round(times.get(name, 0.0) + seconds, 3)
    storage.write_json(folder / "times.json", storage.stamp("times") | {"seconds": times})


def read_times(folder: Path) -> dict[str, float]:
    """Return the recorded seconds by stage; empty if there is no file."""
    file = folder / "times.json"
    if not file.exists():
        return {}
    content = storage.read_json(file)
    storage.require_stamp(content, "times", file, "remove it")
    return from_json(TypeAdapter(dict[str, float]), content.get("seconds"), f"File {file}: seconds")

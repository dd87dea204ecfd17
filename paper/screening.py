"""One reading of the paper, measured at a small scale on tuning tasks, so that many readings can be tried.

Baselines are tuned on the tuning tasks of one seed, and everything is judged on the tuning tasks of another. Test tasks are not
touched: a reading that was chosen here is judged on them for the first time.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metastep._core.progress import Silent, Tracker
from metastep.controllers import MetaFQIController, Run
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, compare, join, tune
from metastep.experiments.build import build_mdp, build_regressor, method_spec, updates_collected
from metastep.experiments.run import Run as RunFolder
from metastep.experiments.schema import Experiment
from metastep.experiments.stages import fit_model, iteration_methods, select, validate
from metastep.fqi import Model
from metastep.mdp import Process
from metastep.mdp.blocks import Stream
from metastep.mdp.collection import collect
from metastep.mdp.dataset import Dataset
from paper.columns import handful, step_name
from paper.judging import Measured
from paper.points import Reading

_OTHER_SEED = 1_000_003
_SEEDS = 2**32
_NUM_STEPS = 7  # fixed steps that are judged, the tuned one among them
LONGER = 4
"""Times the updates of the comparison, where more are looked at: on CartPole 60, while metaFQI is trained on 15."""


class Screen(NamedTuple):
    """What is measured of an environment, and at which size."""

    methods: tuple[str, ...]  # tuned and judged besides metaFQI and its iterations
    sizes: tuple[str, ...]  # overrides of the preset
    steps: tuple[float, ...] = ()  # fixed steps that must be among those judged
    has_variants: bool = True  # without the context, a single step size, RMSprop and Adam on the natural gradient
    is_longer: bool = False  # metaFQI and the fixed step for more updates, too


_SMALL = (
    "rollout.block_size=320",
    "collect.num_meta_episodes=960",
    "fqi.iterations=6",
    "selection.num_tasks=32",
    "compare.num_tasks=64",
    "compare.num_tuning_tasks=32",
)
_TUNED = ("fixed", "rmsprop", "adam", "hoof", "metagrad")
SCREENS = {
    "nav2d": Screen((*_TUNED, "decay"), _SMALL),
    "minigolf": Screen((*_TUNED, "decay"), (*_SMALL, "collect.num_meta_episodes=4160")),
    "cartpole": Screen((*_TUNED, "decay"), _SMALL, is_longer=True),
    "swingup": Screen(("fixed",), (*_SMALL, "collect.num_meta_episodes=300"), steps=(0.1,), has_variants=False),
    # Half of the comparison's updates and a quarter of its episodes.
    "halfcheetah": Screen(
        _TUNED,
        (
            "rollout.num_episodes=25",
            "rollout.block_size=16",
            "meta.num_updates=40",
            "compare.num_updates=40",
            "collect.num_meta_episodes=96",
            "collect.block_size=96",
            "fqi.iterations=4",
            "selection.num_tasks=16",
            "compare.num_tasks=32",
            "compare.num_tuning_tasks=16",
        ),
        steps=(0.2, 0.3),
        has_variants=False,
    ),
}


def measure(config: Experiment, reading: Reading, tracker: Tracker | None = None) -> Measured:
    """Collect, fit, tune and judge one reading; nothing is kept on disk."""
    screen, mdp, tracker = SCREENS[reading.environment], build_mdp(config), tracker or Silent()
    with tempfile.TemporaryDirectory(prefix="metastep-") as folder:
        dataset = _collected(config, mdp, Path(folder), tracker)
        model = _selected(config, dataset, tracker)
        blind = _selected(blind_config(config), dataset, tracker) if screen.has_variants else None
    tuned = [tune_spec(config, mdp, spec, tracker) for spec in _specs(config, screen)]
    tables = [table for _, table in tuned]
    methods = [
        Method("metafqi", mdp.rule, MetaFQIController(model)),
        *validated_iterations(config, model),
        *(method for method, _ in tuned),
        *_fixed_steps(config, mdp, tables[0].chosen["stepsize"], screen.steps),
    ]
    if screen.has_variants:
        methods.append(_single(config, mdp, tracker))
    comparison = _judged(config, mdp, methods, tables, tracker)
    if blind is not None:
        # Another observation is another meta-MDP for the model, and the same one for the learners.
        without = Method("without context", mdp.rule, MetaFQIController(blind))
        seen = build_mdp(blind_config(config))
        comparison = join([comparison, _judged(config, seen, [without], [], tracker)])
    return Measured(comparison, _longer(config, mdp, model, tracker) if screen.is_longer else None)


def _collected(config: Experiment, mdp: Process, folder: Path, tracker: Tracker) -> Dataset:
    return collect(
        dataclasses.replace(mdp, block_size=config.collect.block_size or mdp.block_size),
        folder,
        num_episodes=config.collect.num_meta_episodes,
        num_updates=updates_collected(config),
        seed=config.seed,
        config={},
        tracker=tracker,
    )


def _selected(config: Experiment, dataset: Dataset, tracker: Tracker) -> Model:
    run = RunFolder(dataset.folder, config)
    model = fit_model(run, dataset, tracker=tracker)
    return select(model, validate(run, model, tracker=tracker))


def blind_config(config: Experiment) -> Experiment:
    """The experiment of a model that does not see the task's context."""
    seen = tuple(name for name in config.meta.observation if name != "context")
    return config.model_copy(update={"meta": config.meta.model_copy(update={"observation": seen})})


def _specs(config: Experiment, screen: Screen) -> list[MethodSpec]:
    """What is tuned, the fixed step first."""
    specs = [method_spec(config, name) for name in screen.methods]
    # How many episodes a choice of HOOF rests on is of no interest here, and takes a program of its own.
    specs = [
        dataclasses.replace(spec, controller_options={**spec.controller_options, "records_sample_size": False})
        if spec.controller == "hoof"
        else spec
        for spec in specs
    ]
    return [*specs, *(natural_variants(config) if screen.has_variants else ())]


def natural_variants(config: Experiment) -> list[MethodSpec]:
    """RMSprop and Adam on the natural gradient, with the grids of the plain ones."""
    return [
        dataclasses.replace(
            spec,
            name=f"{spec.name}-natural",
            label=f"{spec.label} on the natural gradient",
            rule_options={**spec.rule_options, "follows": "natural_gradient"},
            colour="",
        )
        for spec in (method_spec(config, name) for name in ("rmsprop", "adam"))
    ]


def tune_spec(
    config: Experiment, mdp: Process, spec: MethodSpec, tracker: Tracker, num_updates: int | None = None
) -> tuple[Method, TuningTable]:
    """A method with its tuned values, and the search; it is judged on other tuning tasks, so it carries no mark of these."""
    _, table = tune(
        spec,
        mdp,
        seed=config.seed,
        num_tasks=config.compare.num_tuning_tasks,
        num_updates=num_updates or config.compare.num_updates,
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )
    return spec.method(mdp, table.chosen), table


def validated_iterations(config: Experiment, model: Model) -> list[Method]:
    """Every iteration of a model, with its score on the validation tasks on the record."""
    scores = {curve.iteration: curve.score for curve in model.record.validation}
    return [
        dataclasses.replace(method, values={**method.values, "validated": scores[int(method.values["iteration"])]})
        for method in iteration_methods(RunFolder(Path(), config), model)
        if int(method.values["iteration"]) in scores
    ]


def _fixed_steps(config: Experiment, mdp: Process, best: float, must: Sequence[float]) -> list[Method]:
    spec = method_spec(config, "fixed")
    steps = handful(spec.grid["stepsize"], [best, *must], _NUM_STEPS)
    return [
        dataclasses.replace(spec, name=step_name(step), label="", colour="").method(mdp, {"stepsize": step})
        for step in steps
    ]


def _single(config: Experiment, mdp: Process, tracker: Tracker) -> Method:
    """One step size for each task, learned from as many learners as the training data has, at most two blocks of them.

    Each of them makes all updates, so more would take as long again as collecting the data.
    """
    run = Run(
        mdp=mdp,
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_training_episodes=min(config.collect.num_meta_episodes, 2 * mdp.block_size),
        num_stepsizes=config.fqi.num_stepsizes,
        regressor=partial(build_regressor, config),
        model=lambda: None,
        tracker=tracker,
    )
    spec = method_spec(config, "single")
    return spec.method(mdp, controller=spec.build_controller({}).prepared(run))


def _judged(
    config: Experiment,
    mdp: Process,
    methods: Sequence[Method],
    tables: Sequence[TuningTable],
    tracker: Tracker,
    num_updates: int | None = None,
) -> Comparison:
    return compare(
        methods,
        mdp,
        seed=(config.seed + _OTHER_SEED) % _SEEDS,
        num_updates=num_updates or config.compare.num_updates,
        num_tasks=config.compare.num_tasks,
        stream=Stream.TUNING,
        tuning=tables,
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )


def _longer(config: Experiment, mdp: Process, model: Model, tracker: Tracker) -> Comparison:
    num_updates = LONGER * config.compare.num_updates
    best, table = tune_spec(config, mdp, method_spec(config, "fixed"), tracker, num_updates)
    methods = [Method("metafqi", mdp.rule, MetaFQIController(model)), best]
    return _judged(config, mdp, methods, [table], tracker, num_updates)

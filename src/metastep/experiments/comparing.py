"""The last stages of an experiment: tune and compare. Each takes up what it finds done."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from metastep._core.errors import InputError
from metastep._core.progress import Silent, Tracker
from metastep.controllers import Run
from metastep.evaluation import Comparison, Method, MethodSpec, TuningTable, compare, join, tune
from metastep.evaluation.comparison import Asked, comparing
from metastep.evaluation.tuning import num_blocks, tuning
from metastep.experiments.build import build_mdp, build_regressor, config_of, method_spec
from metastep.experiments.folder import RunFolder
from metastep.experiments.origin import keep, kept, model_of, result_of
from metastep.experiments.schema import Experiment
from metastep.experiments.times import Timed
from metastep.fqi import Model
from metastep.mdp import with_budget
from metastep.mdp.runs import Plan, carry_out


def compare_methods(folder: RunFolder, *, tracker: Tracker | None = None) -> Comparison:
    """Run every method on the test tasks, the baselines tuned; each method's result is kept as soon as it is there."""
    if folder.comparison.exists():
        return compared(folder)
    names = method_names(folder)
    with folder.writing("compare"):
        joined = join(method_results(folder, names, tracker=tracker))
        return keep(folder, folder.comparison, joined, uses=[f"results/{name}" for name in names])


def method_names(folder: RunFolder) -> list[str]:
    """The methods that a run compares, in the order of its tables."""
    return [method.own_name for method in folder.config.compare.methods]


def compared(folder: RunFolder) -> Comparison:
    """The comparison of a folder, if it is the join of the results there."""
    comparison = kept(folder, folder.comparison)
    if list(comparison.names) != method_names(folder):
        raise InputError(
            f"File {folder.comparison} compares other methods than this run; remove it to have it made again."
        )
    return comparison


def method_results(folder: RunFolder, names: Sequence[str], *, tracker: Tracker | None = None) -> list[Comparison]:
    """Methods on the test tasks, tuned or trained first where they need to be; only what the folder does not hold is run."""
    if missing := [name for name in names if not folder.result(name).exists()]:
        what = missing[0] if len(missing) == 1 else f"{len(missing)} methods"
        timed = Timed(folder.path, tracker)
        with folder.writing(f"compare {what}"):
            works = [_work_on(folder, name, tracker=timed) for name in missing]
            # On many cores the end waits for whoever began last: the longest begin first. What is not tuned has few blocks,
            # each of which may simulate more than many others, as an oracle's do.
            works.sort(key=lambda work: (work.is_tuned, -work.blocks))
            total = sum(work.blocks for work in works)
            with timed.stage(f"compare {what}", total, "blocks") as stage:
                together = folder.config.compare.blocks_together
                carry_out([work.plan for work in works], stage.advance, together=together)
    return [result_of(folder, name) for name in names]


class _Work(NamedTuple):
    """What a method's result takes."""

    blocks: int  # of learners
    plan: Plan[None]
    is_tuned: bool


def _work_on(folder: RunFolder, name: str, *, tracker: Tracker | None) -> _Work:
    """A method to be tuned and tested; one that has to be loaded or trained is so before the others begin."""
    config, spec = folder.config, method_spec(folder.config, name)
    asked = _test_tasks(config)
    if not spec.grid:
        uses: list[str] = []
        method = prepared(folder, spec, on_use=uses.append, tracker=tracker)
        return _Work(len(asked.blocks), _tested(folder, method, asked, uses), is_tuned=False)
    own = config_of(config, spec)
    tasks = own.compare.num_tuning_tasks
    search = tuning(spec, build_mdp(own), seed=own.seed, num_tasks=tasks, num_updates=own.compare.num_updates)
    blocks = num_blocks(spec, build_mdp(own), tasks) + len(asked.blocks)
    return _Work(blocks, _tuned_and_tested(folder, search, asked), is_tuned=True)


def _tuned_and_tested(folder: RunFolder, search: Plan[tuple[Method, TuningTable]], asked: Asked) -> Plan[None]:
    method, table = yield from search
    yield from _tested(folder, method, asked, [], [table])


def _tested(
    folder: RunFolder, method: Method, asked: Asked, uses: Sequence[str], tables: Sequence[TuningTable] = ()
) -> Plan[None]:
    result = yield from comparing([method], asked, tables)
    keep(folder, folder.result(method.name), result, uses=uses)


def _test_tasks(config: Experiment) -> Asked:
    compare = config.compare
    return Asked(build_mdp(config), config.seed, compare.num_updates, compare.num_tasks)


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
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )


def tuned(
    config: Experiment, spec: MethodSpec, *, num_updates: int | None = None, tracker: Tracker | None = None
) -> tuple[Method, TuningTable]:
    """A method tuned on the tuning tasks."""
    return tune(
        spec,
        build_mdp(config),
        seed=config.seed,
        num_tasks=config.compare.num_tuning_tasks,
        num_updates=num_updates or config.compare.num_updates,
        blocks_together=config.compare.blocks_together,
        tracker=tracker,
    )


def prepared(
    folder: RunFolder, spec: MethodSpec, *, on_use: Callable[[str], object] = str, tracker: Tracker | None = None
) -> Method:
    """A method with nothing to tune, its controller loaded or trained where it needs to be.

    `on_use` is told "model", or "models/NAME/model", if the controller asks for a model of the run.
    """
    own = folder.of_model(spec.model)
    config = own.config
    mdp = with_budget(build_mdp(config), config.compare.num_updates)

    def model() -> Model:
        on_use("/".join((*own.path.relative_to(folder.path).parts, "model")))
        return model_of(own)

    run = Run(
        mdp=spec.on(mdp),
        seed=config.seed,
        num_updates=config.compare.num_updates,
        num_training_episodes=config.collect.num_meta_episodes,
        num_stepsizes=config.fqi.num_stepsizes,
        regressor=partial(build_regressor, config),
        model=model,
        task_list=folder.tasks,
        tracker=tracker or Silent(),
    )
    return spec.method(mdp, controller=spec.build_controller({}).prepared(run))
